"use strict";
// Building blocks: elements, times, numbers, and the shown state. Text is inserted only as text:
// names come from other nodes.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

// An element: h("td", {class: "num"}, "text", child). A function becomes a listener.
function make(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== undefined && child !== null && child !== false) node.append(child);
  }
  return node;
}
const h = (tag, props, ...children) => make(document.createElement(tag), props, children);
const s = (tag, props, ...children) => make(document.createElementNS(SVG, tag), props, children);

// The shown state, and its time.
const shown = {
  view: null, // the last document
  builtAt: 0, // when it came, by performance.now()
  heardAt: 0, // when the daemon last said that it holds
  problem: "", // why the last answer did not come
  failedAt: 0, // since when nobody answers; 0 while somebody does
  selected: null, // {site} or {node}
  service: 0,
  search: "",
  filter: "all",
  sort: { by: "rank", down: false },
  rows: 50,
  // Changed by another program that serves this page: where it requests views, and how often; how
  // many seconds of the daemon's clock pass in one; what the map shows beside the document, and the
  // callback for a clicked path; and what draws the rest, each time that this is drawn.
  source: "/view",
  every: 2000, // ms
  runner: "daemon", // what runs the node that is shown
  pace: 1,
  beside: {},
  pickLink: null,
  drawRest: () => {},
};

// Seconds since the daemon started, now.
const nowS = () => shown.view.now_s + (shown.pace * (performance.now() - shown.builtAt)) / 1000;
// Unix seconds by the daemon's clock, now.
const wallS = () => shown.view.node.started_at + nowS();

function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}
const clockOf = (unixS) => new Date(unixS * 1000).toLocaleTimeString([], { hour12: false });

// A time of the daemon's clock, shown as an age that keeps counting.
function since(atS, prefix = "", suffix = " ago") {
  const wall = clockOf(shown.view.node.started_at + atS);
  const node = h("time", { "data-at": atS, "data-prefix": prefix, "data-suffix": suffix,
    title: wall });
  node.textContent = prefix + age(nowS() - atS) + suffix;
  return node;
}
function tellAges() {
  if (!shown.view) return;
  for (const node of document.querySelectorAll("time[data-at]")) {
    const { at, prefix, suffix } = node.dataset;
    const text = prefix + age(nowS() - Number(at)) + suffix;
    if (node.textContent !== text) node.textContent = text;
  }
}

const ms = (value) => (value === null || value === undefined ? "–"
  : value === 0 ? "< 0.1 ms" : `${value} ms`);
const count = (value, word, many = `${word}s`) => `${value} ${value === 1 ? word : many}`;
function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  let rest = value;
  while (rest >= 1000 && at < units.length - 1) { rest /= 1000; at += 1; }
  return `${rest >= 100 || at === 0 ? Math.round(rest) : rest.toFixed(1)} ${units[at]}`;
}
function duration(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(1)} s`;
  if (us >= 1e5) return `${Math.round(us / 1000)} ms`;
  if (us >= 1000) return `${(us / 1000).toFixed(1)} ms`;
  return `${(us / 1000).toFixed(2)} ms`;
}
function until(unixS) {
  const left = unixS - wallS();
  return left <= 0 ? `expired ${age(-left)} ago` : `expires in ${age(left)}`;
}

// Health: ok, warn, bad or idle.
const CONFIDENT = { healthy: "ok", unproven: "warn", suspect: "warn", draining: "warn",
  doubtful: "warn", fallback: "warn", down: "bad" };
const stateHealth = (state) => (state === "ready" ? "ok"
  : state === "unknown" || state === "draining" || state === "unready" ? "warn" : "bad");
const LOSSY = 7; // percent; up to here it is chance: one probe of the last sixteen
const pathHealth = (path) => (path.kind === "dead" ? "bad"
  : path.kind === "unmeasured" ? "warn"
    : (path.loss_percent || 0) >= 50 ? "bad" : (path.loss_percent || 0) > LOSSY ? "warn" : "ok");
const worst = (...all) => ["bad", "warn", "ok", "idle"].find((it) => all.includes(it)) || "idle";
const dot = (health) => h("span", { class: `dot ${health}`, "aria-hidden": "true" });

function pathWords(path) {
  if (path.kind === "own") return "this node";
  if (path.kind === "none") return "not needed";
  if (path.kind === "dead") return "no answer";
  if (path.kind === "relay") return `through ${path.relay}`;
  if (path.kind === "outside") return "outside the mesh";
  return path.kind;
}
// Round trip and loss in one cell.
function rttAndLoss(path) {
  const loss = path.loss_percent > 0 ? ` · ${path.loss_percent} % lost` : "";
  return path.rtt_ms === null ? "–" : ms(path.rtt_ms) + loss;
}
function nodeHealth(node) {
  if (node.liveness === "down") return "bad";
  if (node.liveness === "left" || node.liveness === "unknown") return "idle";
  if (node.path.kind === "dead") return "bad";
  const validity = { ended: "bad", "ends-soon": "warn" }[node.credential_validity] || "ok";
  return worst(pathHealth(node.path), ...node.offers.map((it) => stateHealth(it.state)),
    node.credential_expires_at <= wallS() ? "bad" : validity);
}
const livenessWord = (node) => (node.liveness === "alive" ? "present" : node.liveness);

// Draws a part of the page when its input has changed, and keeps the focus.
const drawn = new Map();
function draw(id, depends, build) {
  const key = JSON.stringify(depends);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  const element = byId(id);
  const focused = element.contains(document.activeElement)
    ? document.activeElement.getAttribute("data-key") : null;
  const top = element.scrollTop;
  element.replaceChildren(...[build()].flat().filter(Boolean));
  element.scrollTop = top;
  if (focused) {
    const again = [...element.querySelectorAll("[data-key]")]
      .find((node) => node.getAttribute("data-key") === focused);
    if (again) again.focus({ preventScroll: true });
  }
}
function say(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}
