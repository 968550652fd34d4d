// The film of a run: a map, and a slider for its moments.

const film = JSON.parse(byId("film").textContent);
const PLAY_S = 24; // a whole film takes about so long
const SLOWEST = 4; // virtual seconds pass at least so fast in one
let moment = 0;
let chosen = null;
let playing = 0;

const nameOf = (index) => film.sites[index].name;
const vain = (frame) => frame.flows.reduce((sum, it) => sum + (it.x || 0), 0)
  + frame.sites.reduce((sum, it) => sum + it.x, 0);
const plural = (value, word) => count(value, word);

// The frame of a moment: the last one not after it.
function frameAt(second) {
  let [low, high] = [0, film.frames.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (film.frames[middle][0] <= second) low = middle; else high = middle - 1;
  }
  return low;
}

// A frame in the form that the map draws: as much of the daemon's document as it needs.
function asDocument(frame) {
  const changed = new Map(frame.paths.map((path) => [`${path.a} ${path.b}`, path]));
  const paths = film.paths.map((path) => changed.get(`${path.a} ${path.b}`) || path);
  const most = new Map();
  for (const flow of frame.flows) most.set(flow.f, Math.max(most.get(flow.f) || 0, flow.n));
  const sites = film.sites.map((site, at) => {
    const now = frame.sites[at];
    const failing = frame.flows.reduce((sum, it) => sum + (it.f === at ? it.x || 0 : 0), now.x);
    const home = frame.flows.find((it) => it.f === at && it.t === at);
    const words = [site.origins ? `${now.o}/${site.origins} ready` : "",
      home ? `${home.n} at home` : "", now.x ? `${now.x} lost` : ""];
    return { name: site.name, nodes: site.nodes, alive: now.r, origins: site.origins, ready: now.o,
      relays: 0, own: false,
      words: now.r ? words.filter(Boolean).join(" · ") || "no origin" : "off",
      health: now.r === 0 || (failing > 0 && failing >= now.r) ? "bad"
        : failing > 0 || now.r < site.nodes || now.o < site.origins ? "warn" : "ok" };
  });
  return {
    node: { site: null },
    sites,
    distances: paths.map((path) => ({ from: nameOf(path.a), to: nameOf(path.b), rtt_ms: path.r,
      loss_percent: path.l, pairs: 1 })),
    cuts: paths.filter((path) => path.r === null).map((path) => [nameOf(path.a), nameOf(path.b)]),
    flows: frame.flows.map((it) => ({ from: nameOf(it.f), to: nameOf(it.t), nodes: it.n,
      failing: it.x || 0, via: it.v === undefined ? "" : nameOf(it.v),
      most: it.n === most.get(it.f) })),
  };
}

// The frame in words.
function tell(frame) {
  const parts = [];
  const lost = vain(frame);
  const running = frame.sites.reduce((sum, it) => sum + it.r, 0);
  parts.push(lost ? `${lost} of ${plural(running, "running node")} reach no working origin`
    : running === 0 ? "No node runs" : `All ${running} running nodes reach a working origin`);
  if (chosen !== null) {
    const site = frame.sites[chosen];
    const goes = frame.flows.filter((it) => it.f === chosen).map((it) => `${it.n} to ${
      it.t === chosen ? "their own site" : nameOf(it.t)}${
      it.v === undefined ? "" : ` through ${nameOf(it.v)}`}${
      it.x ? `, ${it.x} cannot connect` : ""}`);
    parts.push(`${nameOf(chosen)}: ${site.r} of ${plural(film.sites[chosen].nodes, "node")} run${
      goes.length ? `; ${goes.join("; ")}` : ""}`);
  }
  return parts.join(". ");
}

function drawStrip() {
  const [width, height] = [1000, 46];
  const x = (second) => (width * second) / Math.max(film.end_s, 1);
  const most = Math.max(1, ...film.frames.map(([, frame]) => vain(frame)));
  const y = (value) => height - 1 - (value / most) * (height - 8);
  let path = `M0 ${height - 1}`;
  film.frames.forEach(([at, frame], index) => {
    const next = index + 1 < film.frames.length ? film.frames[index + 1][0] : film.end_s;
    path += `L${x(at).toFixed(1)} ${y(vain(frame)).toFixed(1)}L${x(next).toFixed(1)} ${
      y(vain(frame)).toFixed(1)}`;
  });
  const line = (name, at) => s("line", { class: name, x1: at, x2: at, y1: 0, y2: height,
    "vector-effect": "non-scaling-stroke" });
  byId("strip").replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    preserveAspectRatio: "none", "aria-label": "Nodes that reach no working origin, over time: "
      + `at most ${most === 1 && !film.frames.some(([, it]) => vain(it)) ? 0 : most}` },
  s("line", { class: "base", x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
  s("path", { class: "vain", d: `${path}L${width} ${height - 1}Z` }),
  film.marks.map(([at]) => line("mark", x(at).toFixed(1))),
  line("here", x(moment).toFixed(1))));
}

function show() {
  const [, frame] = film.frames[frameAt(moment)];
  const document_ = asDocument(frame);
  const selected = chosen === null ? null : { site: nameOf(chosen) };
  byId("map").replaceChildren(...drawMap(document_, { service: 0, selected, pick: (what) => {
    const index = film.sites.findIndex((it) => it.name === what.site);
    chosen = chosen === index ? null : index;
    show();
    const again = [...byId("map").querySelectorAll("[data-key]")]
      .find((node) => node.getAttribute("data-key") === `site ${what.site}`);
    if (again) again.focus({ preventScroll: true });
  } }).filter(Boolean));
  byId("moment").value = moment;
  byId("when").textContent = `${Math.round(moment)} s`;
  byId("moment").setAttribute("aria-valuetext", `${Math.round(moment)} s: ${tell(frame)}`);
  const last = film.marks.filter(([at]) => at <= moment).pop();
  const words = [h("b", {}, last ? `${last[1]}, ${Math.round(moment - last[0])} s ago. `
    : "Nothing has happened yet. "), `${tell(frame)}.`];
  if (film.sites_left_out) words.push(` ${plural(film.sites_left_out, "smaller site")} not drawn.`);
  byId("now").replaceChildren(...words);
  for (const button of byId("marks").querySelectorAll("button")) {
    const is = last && button.dataset.at === String(last[0]) && button.dataset.what === last[1];
    if (is) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  drawStrip();
}

function go(second) {
  moment = Math.min(Math.max(second, 0), film.end_s);
  show();
}
function stop() {
  cancelAnimationFrame(playing);
  playing = 0;
  byId("play").textContent = "Play";
}
function play() {
  if (playing) return stop();
  if (moment >= film.end_s) moment = 0;
  const pace = Math.max(SLOWEST, film.end_s / PLAY_S);
  let [last, shownAt] = [performance.now(), -1];
  const step = (now) => {
    moment += ((now - last) / 1000) * pace;
    last = now;
    if (moment >= film.end_s) { go(film.end_s); return stop(); }
    if (Math.floor(moment) !== shownAt) { shownAt = Math.floor(moment); show(); }
    playing = requestAnimationFrame(step);
  };
  playing = requestAnimationFrame(step);
  byId("play").textContent = "Pause";
}

byId("play").addEventListener("click", play);
byId("before").addEventListener("click", () => {
  stop();
  const at = frameAt(moment);
  go(film.frames[Math.max(0, moment > film.frames[at][0] ? at : at - 1)][0]);
});
byId("after").addEventListener("click", () => {
  stop();
  go(film.frames[Math.min(film.frames.length - 1, frameAt(moment) + 1)][0]);
});
byId("moment").addEventListener("input", (event) => { stop(); go(Number(event.target.value)); });
byId("marks").append(...film.marks.map(([at, what]) => h("li", {}, h("button", { type: "button",
  "data-at": at, "data-what": what, click: () => { stop(); go(Math.ceil(at)); } },
h("b", {}, `${Math.round(at)} s`), what))));
if (film.marks_left_out) byId("marks").append(h("li", {}, `and ${film.marks_left_out} more`));
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
dark.addEventListener("change", paint);
addEventListener("resize", show);
paint();
// Before the first fault, or where all have found each other.
go(film.marks.length ? Math.max(0, Math.floor(film.marks[0][0]) - 1) : film.end_s);
