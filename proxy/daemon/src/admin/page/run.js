// Queries the daemon and draws its answers.

const POLL_HIDDEN = 30000; // ms, while nobody looks
const RETRY = 1000; // ms, after an answer that did not come
const PATIENCE = 1500; // ms; a connection that was closed meanwhile is no silence
const GIVE_UP = 8000; // ms for one answer
const WHOLE = 15; // from one answer that is asked for in full to the next
let etag = "";
let asked = 0;

function select(what) {
  shown.selected = what;
  drawAll();
  const detail = byId("detail");
  const { top, bottom } = detail.getBoundingClientRect();
  if (top > innerHeight - 80 || bottom < 0) detail.scrollIntoView({ block: "nearest" });
}

function drawAll() {
  const { view } = shown;
  if (!view) return;
  shown.service = Math.min(shown.service, Math.max(0, view.services.length - 1));
  const me = view.node.name;
  const narrow = innerWidth <= 640;
  document.title = `${me} · meshport`;
  const { site, version } = view.node;
  draw("who", [me, site, version], () => [h("b", {}, me), ` in ${site} `,
    h("span", { class: "faint" }, `· ${version}`)]);
  say("attention-whose", `as ${me} sees it`);
  say("map-whose", `paths of ${me} as it measures them, others as their nodes report them`);
  say("origins-whose", `state as each origin's node reports it; path as ${me} measures it`);
  say("charts-title", `Last ${lasting(spanOf(view)[0])}`);
  say("charts-whose", `clients of ${me}`);
  say("matrix-whose", "medians reported by the nodes of each site");
  say("events-whose", `as ${me} saw them`);
  draw("services", [view.services, shown.service], () => drawServices(view));
  draw("findings", view.findings, () => drawFindings(view));
  const silent = view.nodes.filter((node) => node.liveness === "down").map((node) => node.node);
  draw("map", [view.sites, view.distances, view.services, shown.service, shown.selected, narrow,
    silent, shown.beside], () => drawMap({ ...view, ...shown.beside }, { service: shown.service,
    selected: shown.selected, pick: select, pickLink: shown.pickLink }));
  draw("detail", [shown.selected, view.sites, view.nodes, view.services], () => drawDetail(view));
  draw("origins", [view.services, shown.service], () => drawOrigins(view));
  const addresses = view.addresses || []; // absent in views of earlier versions
  byId("addresses-card").hidden = addresses.length === 0;
  say("addresses-whose", `holder by its own report; others as heard by ${me}`);
  if (addresses.length > 0) draw("addresses", addresses, () => drawAddresses(view));
  draw("charts", [Math.floor(nowS()), byId("charts").clientWidth, shown.service],
    () => drawCharts(view));
  draw("changes", changesOf(view), () => changesOf(view).map((change, index) => h("li", {},
    h("span", { class: "n" }, String(index + 1)), h("span", {}, change.detail),
    h("span", { class: "faint" }, since(change.at_s)))));
  const stats = view.stats || []; // absent in views of earlier versions
  byId("stats-card").hidden = stats.length === 0;
  say("stats-whose", `counted by ${me} since its ${shown.runner} started`);
  if (stats.length > 0) draw("stats", stats, () => drawStats(view));
  draw("matrix", [view.distances, view.node.site], () => drawMatrix(view));
  draw("events", view.events, () => drawEvents(view));
  draw("chips", shown.filter, () => FILTERS.map(([name, title]) => h("button", { type: "button",
    class: "chip", "data-key": name, "aria-pressed": shown.filter === name ? "true" : "false",
    click: () => { shown.filter = name; shown.rows = 50; drawAll(); } }, title)));
  draw("nodes", [view.nodes, shown.search, shown.filter, shown.sort, shown.rows],
    () => drawNodes(view));
  const { alive, down, left } = view.node.members;
  say("footer", `${count(alive, "member")} present, ${down} silent, ${left} left · credential of `
    + `this node ${until(view.node.credential_expires_at)} · ${shown.runner} started ${
      new Date(view.node.started_at * 1000).toLocaleString()} · GET /view is this page's data`);
  shown.drawRest();
  tellAges();
}

function tellFreshness() {
  const { view } = shown;
  const silentFor = shown.failedAt ? performance.now() - shown.failedAt : 0;
  const isStale = silentFor > PATIENCE || (silentFor > 0 && !view);
  document.documentElement.classList.toggle("stale", isStale);
  byId("notice").hidden = !isStale;
  if (isStale) {
    const text = view ? `No answer from the ${shown.runner} for ${
      age(silentFor / 1000)} (${shown.problem}). This is its last `
      + "answer; updates resume when it answers again."
      : `No answer from the ${shown.runner} yet; retrying.`;
    const line = byId("notice").firstElementChild;
    if (line.textContent !== text) line.textContent = text;
  }
  if (view) {
    const old = (performance.now() - shown.heardAt) / 1000;
    say("live", `${isStale ? "Stale" : "Live"}, as seen by ${view.node.name} ${age(old)} ago`);
  }
}

async function ask() {
  const headers = etag ? { "If-None-Match": etag } : {};
  const answer = await fetch(shown.source, { headers, cache: "no-store",
    signal: AbortSignal.timeout(GIVE_UP) });
  if (answer.ok) {
    const view = await answer.json();
    // The page was open while the daemon was replaced by a later version.
    if (view.format !== 1) location.reload();
    etag = answer.headers.get("ETag") || "";
    shown.view = view;
    shown.builtAt = performance.now();
  } else if (answer.status !== 304) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error || `the ${shown.runner} answers ${answer.status}`);
  }
  // Else only the time has changed. This machine may have been suspended, so a full answer is
  // requested now and then.
  asked += 1;
  if (asked % WHOLE === 0) etag = "";
  shown.heardAt = performance.now();
  shown.failedAt = 0;
}

let timer = 0;
async function poll() {
  clearTimeout(timer);
  try {
    await ask();
    drawAll();
  } catch (error) {
    // A daemon that restarts, mostly.
    shown.failedAt ||= performance.now();
    shown.problem = error.message;
    etag = "";
  }
  tellFreshness();
  timer = setTimeout(poll, document.hidden ? POLL_HIDDEN : shown.failedAt ? RETRY : shown.every);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${theme === "dark" ? "light" : "dark"} theme`);
}
function chosenTheme() {
  try { return localStorage.getItem("meshport-theme"); } catch { return null; }
}
const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const usualTheme = () => chosenTheme() || (systemTheme.matches ? "dark" : "light");

setTheme(usualTheme());
systemTheme.addEventListener("change", () => setTheme(usualTheme()));
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(theme);
  try { localStorage.setItem("meshport-theme", theme); } catch { /* a private window */ }
});
byId("search").addEventListener("input", (event) => {
  shown.search = event.target.value;
  shown.rows = 50;
  drawAll();
});
byId("more").addEventListener("click", () => { shown.rows = Infinity; drawAll(); });
document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "Escape" && shown.selected) {
    select(null);
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
addEventListener("resize", drawAll);
setInterval(() => { tellAges(); tellFreshness(); }, 1000);
poll();
