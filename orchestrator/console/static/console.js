"use strict";
// Renews the parts of an open page by server-sent events, asks before what cannot be undone, and sends a prompt by Ctrl+Enter.
// Without it every page works, and is renewed by reloading.

function openKeys(element) {
  return new Set([...element.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
}

function closedKeys(element) {
  return new Set([...element.querySelectorAll("details:not([open])[data-key]")].map((each) => each.dataset.key));
}

// Names what has the focus, so that it is found again: another call's button must never take the place of the one in focus.
function nameOf(element) {
  if (element.tagName === "SUMMARY") return element.parentElement.dataset.key;
  if (element.form) return `${element.form.action} ${new URLSearchParams(new FormData(element.form))}`;
  return element.getAttribute("href") ?? element.getAttribute("aria-label");
}

function replace(id, html) {
  const element = document.getElementById(id);
  if (!element) return;
  const active = element.contains(document.activeElement) ? document.activeElement : null;
  const name = active && nameOf(active);
  const opened = openKeys(element);
  const closed = closedKeys(element);
  const follows = window.innerHeight + window.scrollY >= document.body.scrollHeight - 40;
  element.innerHTML = html; // made and escaped by the server
  for (const each of element.querySelectorAll("details[data-key]")) {
    if (opened.has(each.dataset.key)) each.open = true;
    if (closed.has(each.dataset.key)) each.open = false;
  }
  if (name) {
    const again = [...element.querySelectorAll(active.tagName)].find((each) => nameOf(each) === name);
    if (again) again.focus({ preventScroll: true });
  }
  if (follows && element.dataset.follows !== undefined) window.scrollTo(0, document.body.scrollHeight);
}

function follow(address) {
  const source = new EventSource(address);
  source.addEventListener("fragments", (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
  });
  window.addEventListener("pagehide", () => source.close());
}

// Checks a form's text while it is written: the server answers with the page, of which one element is taken over.
function preview(form) {
  const target = form.dataset.preview;
  let timer = 0;
  let newest = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const number = ++newest;
      const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
      if (!answer || number !== newest) return; // a later text is being checked
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(target);
      if (found) document.getElementById(target).innerHTML = found.innerHTML; // made and escaped by the server
    }, 400);
  });
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
  else if (event.target.method === "post") event.target.setAttribute("aria-busy", "true");
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form) event.target.form.requestSubmit();
});

window.addEventListener("pageshow", () => {
  document.querySelectorAll("form[aria-busy]").forEach((form) => form.removeAttribute("aria-busy")); // after going back
});

document.addEventListener("DOMContentLoaded", () => {
  const live = document.querySelector("[data-live]");
  if (live) follow(live.dataset.live);
  document.querySelectorAll("form[data-preview]").forEach(preview);
});
