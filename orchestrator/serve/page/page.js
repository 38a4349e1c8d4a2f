// Attaches this tab to the hub, runs its steps one after another, and shows what it does.
import { Engine, Failure } from "/engine.js";

const shown = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const show = (id, text) => { shown[id].textContent = text; };
const instance = crypto.randomUUID();
const steps = new Map(); // AbortControllers by the numbers of the steps
let engine, socket, battery, wanted = true, isDraining = false, failures = 0, heard = 0, silence = 0, count = 0, retry, queue = Promise.resolve();

function token() { // it comes behind the #, which no browser sends, and leaves the address at once
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) localStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
  return localStorage.getItem("token");
}

async function start() {
  navigator.serviceWorker?.register("/sw.js").catch(() => {}); // refused where the certificate was accepted by hand
  navigator.storage.persist?.();
  battery = await navigator.getBattery?.();
  showBattery();
  for (const change of ["levelchange", "chargingchange"]) battery?.addEventListener(change, showBattery);
  if (!token()) throw new Error("Scan the QR code that `nearfar serve hub --web` shows.");
  const response = await fetch("/model", { headers: { Authorization: `Bearer ${token()}` } });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const model = await response.json();
  show("model", `${model.name}, ${(model.parts.reduce((sum, part) => sum + part.bytes, 0) / 1e6).toFixed(1)} MB`);
  const files = [];
  for (const part of model.parts) files.push(await stored(part));
  show("status", "Loading the model");
  engine = await Engine.load(model, files);
  showStop();
  connect();
}

function showBattery() {
  if (battery) show("battery", `${Math.round(battery.level * 100)} %${battery.charging ? ", charging" : ""}`);
}

function showStop() { shown.stop.disabled = false; show("stop", wanted ? "Stop" : "Start"); }

async function stored(part) {
  const folder = await navigator.storage.getDirectory(), name = `${part.sha256}.gguf`;
  if (!(await has(folder, name))) await download(part);
  return (await folder.getFileHandle(name)).getFile();
}

const has = (folder, name) => folder.getFileHandle(name).then(() => true, () => false);

function download(part) {
  show("status", "Fetching the model");
  shown.progress.hidden = false;
  const worker = new Worker("/download.js");
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.progress !== undefined) shown.progress.value = data.progress;
      else if (data.done) resolve();
      else reject(new Error(data.error));
    };
    worker.onerror = () => reject(new Error("the browser cannot store the model"));
    worker.postMessage({ part, token: token() });
  }).finally(() => { worker.terminate(); shown.progress.hidden = true; });
}

function connect() {
  clearTimeout(retry);
  if (!wanted || document.hidden || socket) return;
  show("status", "Connecting");
  isDraining = false;
  heard = performance.now();
  silence = 10000;
  const own = new WebSocket(`${location.origin.replace("http", "ws")}/attach`, ["nearfar.v1"]);
  socket = own;
  own.onopen = () => { own.send(token()); say({ register: { instance, agents: [engine.card()], state: state() } }); };
  own.onmessage = ({ data }) => { if (own === socket) take(JSON.parse(data)); };
  own.onclose = ({ code, reason }) => { if (own === socket) lost(code, reason); };
}

function say(message, to = socket) { if (to?.readyState === WebSocket.OPEN) to.send(JSON.stringify(message)); }

function state() {
  return battery ? { battery: battery.level, powerSource: battery.charging ? "POWER_SOURCE_MAINS" : "POWER_SOURCE_BATTERY" } : {};
}

function take({ registered, start, cancel }) {
  heard = performance.now();
  if (registered) {
    failures = 0;
    silence = registered.silenceLimit * 1000;
    show("hub", `${location.host}, as ${registered.worker}`);
    show("status", "Attached: waiting for steps");
    navigator.wakeLock?.request("screen").catch(() => {});
  } else if (start) {
    const stop = new AbortController(), to = socket;
    steps.set(start.step, stop);
    if (start.timeout !== undefined) {
      const late = () => stop.abort(new Failure("DeadlineExceeded", "the step took longer than its timeout"));
      setTimeout(late, Math.min(start.timeout * 1000, 2 ** 31 - 1)); // a longer one would end at once
    }
    queue = queue.then(() => run(start, stop.signal, to)); // one context: one step at a time
  } else if (cancel) {
    steps.get(cancel.step)?.abort(new Failure("Cancelled", "the hub cancelled the step"));
  } else {
    say({ heartbeat: { state: state() } }); // timers of a tab in the background are late; answers are not
  }
}

async function run({ step, request }, signal, to) {
  show("prompt", request.messages.at(-1)?.text || request.messages.at(-1)?.toolResult?.content || "");
  show("output", "");
  show("status", "Computing");
  try {
    for await (const event of engine.step(request, signal)) {
      if (event.text) shown.output.append(event.text);
      if (event.toolCall) shown.output.append(`${event.toolCall.name}(${event.toolCall.argumentsJson})\n`);
      if (event.finished) show("speed", `${Math.round(event.finished.performance.decodeTokensPerSecond ?? 0)} tokens/s`);
      say({ output: { step, event } }, to);
    }
  } catch (error) {
    say({ output: { step, failure: { reason: error.reason ?? "InternalError", message: error.message } } }, to);
    if (error.reason === "WorkerCrashed") location.reload();
  }
  steps.delete(step);
  show("steps", ++count);
  show("prompt", "Nothing");
  if (isDraining) depart();
  else if (socket === to) show("status", "Attached: waiting for steps");
}

function abandon(message) { for (const stop of steps.values()) stop.abort(new Failure("Unavailable", message)); }

function leave() { const own = socket; socket = null; own?.close(1000); }

// A hub refuses a worker for good by its token, and for a while where another tab has it.
function lost(code, reason) {
  leave();
  abandon("the connection was lost");
  const refusal = reason.split(":")[0];
  const isFinal = ["Unauthenticated", "PermissionDenied", "InvalidRequest"].includes(refusal) || (refusal === "ConfigError" && failures >= 4);
  if (isFinal) { wanted = false; showStop(); }
  const delay = Math.random() * Math.min(500 * 2 ** failures++, 30000);
  show("status", reason || (isFinal ? "Refused" : "Not connected: trying again"));
  if (!isFinal) retry = setTimeout(connect, delay);
}

function drain(why) { // the steps under way are finished first
  isDraining = true;
  say({ draining: {} });
  show("status", why);
  depart();
}

function depart() {
  if (steps.size) return;
  leave();
  connect(); // where the page has come back meanwhile
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { if (engine) connect(); }
  else if (socket) drain("Asleep: the page is in the background");
});
document.addEventListener("freeze", leave);
addEventListener("pagehide", leave);
addEventListener("online", () => { if (engine) connect(); });
addEventListener("offline", () => { if (socket) lost(1006, ""); });
setInterval(() => { if (socket && performance.now() - heard > silence) lost(1006, ""); }, 1000);
shown.stop.onclick = () => {
  wanted = !wanted;
  showStop();
  if (wanted) return connect();
  abandon("the owner of the device stopped the step");
  drain("Stopped");
};
shown.forget.onclick = async () => {
  wanted = false;
  leave();
  localStorage.clear();
  const folder = await navigator.storage.getDirectory();
  for await (const name of folder.keys()) await folder.removeEntry(name).catch(() => {});
  location.reload();
};
start().catch((error) => show("status", error.message));
