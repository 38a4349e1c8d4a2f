"use strict";
// Renews the parts of an open page by server-sent events, asks before what cannot be undone, and sends a prompt by Ctrl+Enter.
// Without it every page works, and is renewed by reloading.

// Names an element that must not be taken for another one: another call's button must never take the place of the one in focus.
function keyOf(node) {
  if (node.nodeName === "FORM") return [node.getAttribute("action"), ...[...node.querySelectorAll("[type=hidden]")].map((each) => each.value)].join(" ");
  return node.dataset?.key;
}

// Makes an element the same as a newer one, and leaves what has not changed untouched: with its focus, and its selected text.
function renew(old, newer) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    const said = newer.data.startsWith(old.data) ? newer.data.slice(old.data.length) : null;
    if (said) old.appendData(said); // what is selected stays so while an answer grows
    else if (said === null) old.data = newer.data;
    return;
  }
  for (const { name, value } of newer.attributes) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (name !== "open" && !newer.hasAttribute(name)) old.removeAttribute(name);
  renewChildren(old, newer);
}

function renewChildren(parent, newer) {
  const keys = new Set([...newer.childNodes].map(keyOf));
  for (const each of [...parent.children]) if (keyOf(each) && !keys.has(keyOf(each))) each.remove();
  const known = new Map([...parent.children].map((each) => [keyOf(each), each]));
  let place = parent.firstChild;
  for (const child of [...newer.childNodes]) {
    const key = keyOf(child);
    const same = key ? known.get(key) : place && !keyOf(place) ? place : null;
    if (!same || same.nodeName !== child.nodeName) {
      parent.insertBefore(child, place);
      continue;
    }
    while (place && place !== same && !keyOf(place)) place = remove(place);
    if (place === same) place = place.nextSibling;
    else move(parent, same, place);
    renew(same, child);
  }
  while (place) place = remove(place);
}

function move(parent, node, place) {
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  parent.insertBefore(node, place); // which takes the focus away
  focused?.focus({ preventScroll: true });
}

function remove(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function follow(address) {
  const shown = new Map(); // lines by the id of their element
  const take = (event) => {
    for (const [id, parts] of Object.entries(JSON.parse(event.data))) {
      const before = shown.get(id) ?? [];
      const lines = parts.flatMap((part) => (typeof part === "string" ? [part] : before.slice(...part)));
      shown.set(id, lines);
      const newer = document.createElement("template");
      newer.innerHTML = lines.join("\n"); // made and escaped by the server
      const element = document.getElementById(id);
      const follows = window.innerHeight + window.scrollY >= document.body.scrollHeight - 40;
      renewChildren(element, newer.content);
      if (follows && element.dataset.follows !== undefined) window.scrollTo(0, document.body.scrollHeight);
    }
  };
  let source = null;
  // Browsers open six connections to a server for all their tabs: hidden ones must leave some to the others.
  const listen = () => {
    source?.close();
    source = document.hidden ? null : new EventSource(address);
    source?.addEventListener("fragments", take);
  };
  document.addEventListener("visibilitychange", listen);
  window.addEventListener("pagehide", () => source?.close());
  listen();
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
