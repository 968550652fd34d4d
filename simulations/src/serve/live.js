// The world around the page: its time, the selected view, and the user's events.

const SPEEDS = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];
const WORLD_EVERY = 500; // ms
shown.every = 500;
shown.runner = "simulated node";
let world = null;
let worldAt = 0; // when it came, by performance.now()
let worldTimer = 0;
let viewer = "";

// The site for actions: the selected one, else that of the viewer.
function siteInHand() {
  if (shown.selected && shown.selected.site) return shown.selected.site;
  const node = shown.selected && shown.view
    && shown.view.nodes.find((it) => it.node === shown.selected.node);
  if (node) return node.site;
  const own = world.nodes.find((it) => it.name === viewer);
  return own ? own.site : world.sites[0].name;
}

const worldNow = () => world.now_s + (world.paused ? 0
  : (world.actual_speed * (performance.now() - worldAt)) / 1000);

function problem(text) {
  byId("world-problem").hidden = !text;
  byId("world-problem").textContent = text;
}

// Handles an answer of the server; each contains the whole world.
async function takeWorld(answer) {
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  world = told;
  worldAt = performance.now();
  drawWorld();
}
async function change(path, body) {
  try {
    await takeWorld(await fetch(path, { method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" }, signal: AbortSignal.timeout(GIVE_UP) }));
    problem("");
  } catch (error) {
    problem(`Failed: ${error.message}`);
  }
  await Promise.all([askWorld(), poll()]);
}
const happen = (...events) => change("/happen", events);

async function askWorld() {
  clearTimeout(worldTimer);
  try {
    const site = world ? `?site=${encodeURIComponent(siteInHand())}` : "";
    await takeWorld(await fetch(`/world${site}`, { cache: "no-store",
      signal: AbortSignal.timeout(GIVE_UP) }));
    if (byId("world-problem").textContent.startsWith("No answer")) problem("");
  } catch {
    problem("No answer from the simulator; it has exited or is overloaded.");
  }
  worldTimer = setTimeout(askWorld, document.hidden ? POLL_HIDDEN : WORLD_EVERY);
}

function watch(name) {
  viewer = name;
  shown.source = `/view?node=${encodeURIComponent(name)}`;
  etag = "";
  shown.selected = null;
  poll();
}

const cutPairs = () => world.links.filter((it) => it.is_cut);
const toggle = (link) => (link.is_cut
  ? happen({ heal: [link.from, link.to] }) : happen({ cut: [link.from, link.to] }));
const isolate = (site) => (site.is_isolated
  ? happen(...world.sites.filter((it) => it.name !== site.name)
    .map((it) => ({ heal: [site.name, it.name] })))
  : happen({ isolate: site.name }));

function drawWorld() {
  if (!viewer) {
    const first = world.nodes.find((it) => it.runs && !it.instance) || world.nodes[0];
    watch(first.name);
  }
  shown.pace = world.paused ? 0 : world.actual_speed || world.speed;
  shown.beside = { cuts: cutPairs().map((it) => [it.from, it.to]),
    links: world.links.map(({ from, to, rtt_ms, loss_percent }) => ({ from, to, rtt_ms,
      loss_percent, pairs: 0 })) };
  shown.pickLink = (row) => {
    const pair = pairKey(row.from, row.to);
    const link = world.links.find((it) => pairKey(it.from, it.to) === pair);
    if (link) toggle(link);
  };
  say("world-name", world.scenario);
  byId("world-name").title = world.description;
  say("world-of", worldNow() > world.end_s ? `, ${Math.round(world.end_s)} s planned`
    : `of ${Math.round(world.end_s)} s`);
  say("world-pause", world.paused ? "Resume" : "Pause");
  draw("world-speed", world.speed, () => [...new Set([...SPEEDS, world.speed])]
    .sort((a, b) => a - b).map((it) => h("option", { value: it, selected: it === world.speed },
      `${it}×`)));
  const slow = !world.paused && world.actual_speed > 0 && world.actual_speed < world.speed * 0.85;
  say("world-actual", slow ? `this machine reaches ${world.actual_speed.toFixed(1)}×` : "");
  draw("world-node", [world.nodes.map((it) => [it.name, it.runs]), viewer], () => {
    const sites = [...new Set(world.nodes.map((it) => it.site))];
    return sites.map((site) => h("optgroup", { label: site }, world.nodes
      .filter((it) => it.site === site).map((it) => h("option", { value: it.name,
        selected: it.name === viewer }, it.name + (it.runs ? "" : " (off)")))));
  });
  const running = world.nodes.filter((it) => it.runs);
  const vain = running.filter((it) => !it.works).length;
  const late = world.violations.length;
  say("world-vain", (vain ? `${vain} of ${count(running.length, "running node")} reach no origin`
    : `all ${running.length} running nodes reach an origin`)
    + (late ? ` · ${count(late, "rule")} violated` : "")
    + (world.is_over ? " · the simulation has stopped for that" : ""));
  byId("world-vain").classList.toggle("t-bad", vain > 0 || late > 0);
  if (shown.view) drawAll(); else shown.drawRest();
}
// What is selected decides whose site it is about.
shown.drawRest = () => {
  if (!world) return;
  draw("whatif", [siteInHand(), world.nodes, world.links, world.sites, world.done,
    world.happened, world.next], drawWhatIf);
};

const tool = (text, key, act, undo) => h("button", { type: "button", "data-key": key,
  class: undo ? "tool undo" : "tool", click: act }, text);

function rowOfLink(link, name) {
  const other = link.from === name ? link.to : link.from;
  const text = link.is_cut ? "cut" : ms(link.rtt_ms)
    + (link.loss_percent ? ` · ${link.loss_percent} % lost` : "");
  return h("li", {}, dot(link.is_cut ? "bad" : link.loss_percent > LOSSY ? "warn" : "ok"),
    h("span", { class: "name" }, `to ${other}`), h("span", { class: "end" }, text),
    tool(link.is_cut ? "Heal" : "Cut", `link ${other}`, () => toggle(link), link.is_cut));
}

const INSTANCE = { ready: "ok", unready: "warn", stalled: "bad", hung: "bad", down: "bad" };
function rowOfNode(node) {
  const health = !node.runs ? "idle" : node.instance ? INSTANCE[node.instance]
    : node.works ? "ok" : "bad";
  const goes = !node.runs ? "off" : node.instance && node.instance !== "ready" ? node.instance
    : node.goes_to ? `goes to ${node.goes_to}` : "has nowhere to go";
  const stopped = node.instance && node.instance !== "ready";
  return h("li", {}, dot(health), h("span", { class: "name" }, node.name,
    node.instance && h("span", { class: "badge" }, "origin")),
  h("span", { class: "end" }, goes),
  node.runs && node.instance && tool(stopped ? "Start it" : "Stop it", `instance ${node.name}`,
    () => happen(stopped ? { recover: node.name } : { kill: node.name }), stopped),
  tool(node.runs ? "Crash" : "Restart", `node ${node.name}`,
    () => happen(node.runs ? { crash: node.name } : { restart: node.name }), !node.runs));
}

const MOST_ROWS = 12;
function drawWhatIf() {
  const name = siteInHand();
  const site = world.sites.find((it) => it.name === name);
  if (!site) return [];
  const nodes = world.nodes.filter((it) => it.site === name);
  const links = world.links.filter((it) => it.from === name || it.to === name);
  const dead = nodes.length > 0 && nodes.every((it) => !it.runs);
  const order = (it) => (it.instance ? 0 : 1);
  const rows = [...nodes].sort((a, b) => order(a) - order(b));
  const all = world.sites.length > 1;
  const next = world.next && h("li", {}, h("time", {}, `${Math.round(world.next.at_s)} s`),
    h("span", { class: "soft" }, `planned: ${world.next.what}`));
  return [
    h("div", { class: "head" }, h("h2", { id: "whatif-title" }, `What if, in ${name}`),
      h("span", { class: "whose" },
        "true state · click a line on the map to cut it, a site to select it")),
    h("div", { class: "tools" },
      all && tool(site.is_isolated ? "Reconnect the site" : "Isolate the site", "isolate",
        () => isolate(site), site.is_isolated),
      tool(dead ? "Restore the power" : "Cut the power", "power",
        () => happen(dead ? { restart: name } : { crash: name }), dead),
      cutPairs().length > 1 && tool("Heal all links", "heal all",
        () => happen(...cutPairs().map((it) => ({ heal: [it.from, it.to] }))), true)),
    h("div", { class: "columns" },
      h("div", {}, h("h3", {}, "Links"), links.length
        ? h("ul", {}, links.map((it) => rowOfLink(it, name)))
        : h("p", { class: "soft" }, "This is the only site")),
      h("div", {}, h("h3", {}, "Nodes and their instances"),
        h("ul", {}, rows.slice(0, MOST_ROWS).map(rowOfNode)),
        rows.length > MOST_ROWS && h("p", { class: "soft" },
          `and ${rows.length - MOST_ROWS} more; the buttons above apply to all`)),
      h("div", {}, h("h3", {}, "Events"),
        h("ul", { class: "log", tabindex: 0, "aria-label": "Events, newest first" }, next,
          world.happened.map((it) => h("li", {}, h("time", {}, `${it.at_s.toFixed(1)} s`),
            h("span", { class: "name" }, it.what)))),
        !next && world.happened.length === 0
          && h("p", { class: "soft" }, "No events yet, and none planned"))),
    world.done.length > 0 && h("details", { open: detailsOpen,
      toggle: (event) => { detailsOpen = event.target.open; } },
    h("summary", { "data-key": "scenario" }, `${count(world.done.length, "event")} of yours, in `
      + "scenario form"),
    h("pre", { tabindex: 0 }, world.done.map((it) => `[[event]]\n${it}`).join("\n"))),
  ];
}
let detailsOpen = false;

byId("detail").after(h("section", { class: "card whatif", id: "whatif",
  "aria-labelledby": "whatif-title" }));
byId("world-pause").addEventListener("click", () => change("/pace", { paused: !world.paused }));
byId("world-speed").addEventListener("change", (event) => change("/pace",
  { speed: Number(event.target.value) }));
byId("world-node").addEventListener("change", (event) => watch(event.target.value));
document.addEventListener("visibilitychange", () => { if (!document.hidden) askWorld(); });
setInterval(() => { if (world) say("world-clock", `${worldNow().toFixed(1)} s`); }, 100);
askWorld();
