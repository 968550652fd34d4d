// The panels around map and charts.

const TROUBLE = (node) => ["bad", "warn"].includes(nodeHealth(node));
const FILTERS = [
  ["all", "All", () => true],
  ["trouble", "Needs attention", TROUBLE],
  ["origins", "Origins", (node) => node.offers.length > 0],
  ["relays", "Relays", (node) => node.roles.includes("relay")],
  ["here", "This site", (node) => node.site === shown.view.node.site],
];
const rolesOf = (node) => node.roles.filter((role) => role !== "node").join(", ");

const link = (text, what, key) => h("button", { class: "link", type: "button", "data-key": key,
  click: () => select(what) }, text);

function drawServices(view) {
  return view.services.map((service, index) => {
    const chosen = service.origins.find((origin) => origin.chosen);
    const health = chosen ? worst(CONFIDENT[chosen.standing] || "ok", pathHealth(chosen.path))
      : "bad";
    const [where, ...why] = service.summary.split(": ");
    const several = view.services.length > 1;
    const name = several ? h("button", { class: "label link", type: "button",
      "aria-pressed": index === shown.service ? "true" : "false", "data-key": `service ${index}`,
      click: () => { shown.service = index; drawAll(); } }, service.name)
      : h("p", { class: "label" }, service.name);
    return h("div", { class: "service" }, name, dot(health),
      h("h1", { title: service.summary }, where, why.length > 0
        && h("span", { class: "why" }, `: ${why.join(": ")}`)),
      h("p", { class: "facts" },
        chosen && h("span", {}, "in use ", since(service.chosen.since_at_s, "for ", "")),
        h("span", {}, h("b", {}, String(service.sessions.open)), " sessions open"),
        h("span", {}, h("b", {}, String(service.sessions.total)), " since start"),
        h("span", { class: service.sessions.failed ? "t-bad" : "" },
          h("b", {}, String(service.sessions.failed)), " failed"),
        h("span", {}, "clients connect to ", h("span", { class: "mono" },
          service.listen.join(", ") || "no local address")),
        h("span", {}, "policy ", h("b", {}, service.policy))));
  });
}

function drawFindings(view) {
  byId("attention").classList.toggle("calm", view.findings.length === 0);
  if (view.findings.length === 0) {
    return h("p", { class: "fine" }, dot("ok"), "Nothing needs attention");
  }
  return h("ul", {}, view.findings.map((it) => h("li", {
    class: `finding ${it.is_error ? "error" : ""}`, title: it.meaning },
  h("span", { class: "mark" }, it.is_error ? "Error" : "Warning"),
  h("span", { class: "what" }, it.detail),
  h("span", { class: "id", title: it.anchor }, it.id),
  h("span", { class: "do" }, `${it.remedy}.`))));
}

function drawOrigins(view) {
  const service = view.services[shown.service];
  if (!service || service.origins.length === 0) {
    return h("p", { class: "fine" }, dot("none"), "No origin is known");
  }
  const row = (origin) => {
    const health = stateHealth(origin.state);
    const id = origin.node || origin.name;
    return h("tr", { class: origin.chosen ? "first" : "" },
      h("th", { scope: "row" }, origin.node
        ? link(origin.name, { node: origin.node }, `origin ${id}`) : origin.name,
      origin.chosen && h("span", { class: "badge" }, "in use"),
      origin.shares && !origin.chosen && h("span", { class: "badge",
        title: "shares new sessions with the one in use" }, "shares")),
      h("td", {}, origin.site || "–"),
      h("td", {}, h("span", { class: "state" }, dot(health),
        h("span", {}, origin.state, h("span", { class: "under" },
          since(origin.state_at_s, "for ", ""))))),
      h("td", {}, h("span", { class: "state" }, dot(pathHealth(origin.path)),
        h("span", {}, pathWords(origin.path), origin.lacks
          && h("span", { class: "under" }, origin.lacks)))),
      h("td", { class: "num" }, rttAndLoss(origin.path)),
      h("td", { class: "wide" }, origin.seen ? origin.seen.words : "not in the mesh"),
      h("td", { class: "num" }, String(origin.sessions)));
  };
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Origin"),
      h("th", { scope: "col" }, "Site"), h("th", { scope: "col" }, "State"),
      h("th", { scope: "col" }, "Path from here"),
      h("th", { scope: "col", class: "num" }, "Round trip"),
      h("th", { scope: "col", class: "wide" }, "As others see it"),
      h("th", { scope: "col", class: "num" }, "Sessions"))),
    h("tbody", {}, service.origins.map(row)));
}

function drawAddresses(view) {
  const row = (it) => {
    const health = !it.holder ? "bad" : it.obstacle || it.others.length === 0 ? "warn" : "ok";
    return h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "mono" }, it.address),
        h("span", { class: "under" }, it.name)),
      h("td", {}, it.group), h("td", {}, it.service),
      h("td", {}, h("span", { class: "state" }, dot(health), h("span", {}, it.holder || "no holder",
        h("span", { class: "under" }, since(it.since_at_s, "for ", ""))))),
      h("td", {}, it.state, it.obstacle && h("span", { class: "under" }, it.obstacle)),
      h("td", { class: "wide" }, it.others.join(", ") || "none"));
  };
  return h("table", {},
    h("thead", {}, h("tr", {}, ["Address", "Group", "Service", "Held by", "This node"]
      .map((text) => h("th", { scope: "col" }, text)),
    h("th", { scope: "col", class: "wide" }, "Other nodes heard"))),
    h("tbody", {}, view.addresses.map(row)));
}

// Listeners, then services with their origins; as `meshport stats`.
function drawStats(view) {
  const number = (value, extra = "num") => h("td", { class: extra }, value);
  const time = (value) => (value === null || value === undefined ? "–" : `${value} ms`);
  const row = (it) => h("tr", { class: it.kind === "origin" ? "inner" : "" },
    h("th", { scope: "row" }, it.name, it.kind !== "origin"
      && h("span", { class: "badge" }, it.kind === "listener" ? "exposed" : "service")),
    h("td", {}, it.site || "–"),
    number(String(it.sessions_open)), number(String(it.sessions_total)),
    number(String(it.errors), it.errors ? "num t-bad" : "num"),
    number(bytes(it.bytes_up)), number(bytes(it.bytes_down)),
    number(time(it.connect_mean_ms)), number(time(it.connect_p95_ms)));
  const head = (text, extra) => h("th", { scope: "col", class: extra }, text);
  return h("table", {},
    h("thead", {}, h("tr", {}, head("Listener, service, origin"), head("Site"),
      ...["Open", "Sessions", "Errors", "From clients", "To clients", "Connect, mean",
        "Connect, 95 %"].map((text) => head(text, "num")))),
    h("tbody", {}, view.stats.map(row)));
}

function drawMatrix(view) {
  const rows = [...new Set(view.distances.map((it) => it.from))].sort();
  const columns = [...new Set(view.distances.map((it) => it.to))].sort();
  if (rows.length === 0) {
    return h("p", { class: "fine" }, dot("none"), "No node has reported distances yet");
  }
  const cells = new Map(view.distances.map((it) => [`${it.from}\u0000${it.to}`, it]));
  const cell = (from, to) => {
    const it = cells.get(`${from}\u0000${to}`);
    if (!it) return h("td", { class: "faint" }, "–");
    const health = it.rtt_ms === null ? "bad"
      : it.unreachable > 0 || it.loss_percent > LOSSY ? "warn" : "";
    const loss = it.loss_percent > 0 && it.rtt_ms !== null ? `${it.loss_percent} %` : "";
    const apart = it.unreachable > 0 ? `${it.unreachable}/${it.pairs} cut` : "";
    return h("td", { class: `${health} ${from === view.node.site ? "own" : ""} `
      + `${from === to ? "q1" : ""}`, title: `${from} to ${to}: ${count(it.pairs, "pair")} of a `
      + "node and an origin" }, it.rtt_ms === null ? "no answer" : ms(it.rtt_ms),
    (loss || apart) && h("span", { class: "under" }, [loss, apart].filter(Boolean).join(", ")));
  };
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "sr" }, "From")),
      columns.map((to) => h("th", { scope: "col" }, `to ${to}`)))),
    h("tbody", {}, rows.map((from) => h("tr", {}, h("th", { scope: "row" }, link(
      `from ${from}`, { site: from }, `matrix ${from}`)), columns.map((to) => cell(from, to))))));
}

const EVENT = { came: "ok", went: "bad", left: "idle", refused: "warn", revoked: "bad",
  route: "warn", instance: "idle", reset: "warn" };
function drawEvents(view) {
  if (view.events.length === 0) return h("li", { class: "soft" }, "No events yet");
  return view.events.map((event) => {
    const names = event.names.join(", ") + (event.others ? ` and ${event.others} more` : "");
    const text = event.kind === "came" || event.kind === "left" ? names
      : [names, event.detail].filter(Boolean).join(": ");
    return h("li", {}, since(event.at_s),
      h("span", { class: "kind state" }, dot(EVENT[event.kind] || "idle"), event.kind),
      h("span", { class: "text" }, text));
  });
}

function fact(list, name, ...value) {
  if (value.flat().filter(Boolean).length === 0) return;
  list.push(h("dt", {}, name), h("dd", {}, ...value));
}

function drawDetail(view) {
  const what = shown.selected || { site: view.node.site };
  const node = what.node && view.nodes.find((it) => it.node === what.node);
  const site = view.sites.find((it) => it.name === (node ? null : what.site));
  if (node) return detailOfNode(view, node);
  if (site) return detailOfSite(view, site);
  return h("p", { class: "fine" }, dot("none"), "This node or site is no longer known");
}

function detailOfSite(view, site) {
  const nodes = view.nodes.filter((node) => node.site === site.name);
  const order = (node) => ["bad", "warn", "ok", "idle"].indexOf(nodeHealth(node));
  const rows = [...nodes].sort((a, b) => order(a) - order(b));
  const facts = [];
  fact(facts, "Nodes", `${site.alive} of ${site.nodes} present`);
  fact(facts, "Origins", site.origins ? `${site.ready} of ${site.origins} ready` : "none");
  fact(facts, "Relays", site.relays ? String(site.relays) : "none");
  const row = (node) => h("li", {}, h("button", { type: "button", "data-key": `in ${node.node}`,
    click: () => select({ node: node.node }) }, dot(nodeHealth(node)),
  h("span", { class: "name" }, node.name, node.offers.length > 0
    && h("span", { class: "badge" }, "origin")),
  h("span", { class: "end" }, node.offers.length ? node.offers[0].state : livenessWord(node))));
  return [h("p", { class: "whose" }, site.own ? "Site of this node" : "Site"),
    h("p", { class: "title" }, site.name), h("dl", {}, facts),
    h("h3", {}, "Nodes"), h("ul", { class: "list" }, rows.slice(0, 9).map(row)),
    rows.length > 9 && h("button", { class: "more", type: "button", "data-key": "site in table",
      click: () => showInTable(site.name) }, `All ${rows.length} in the table`)];
}

function showInTable(text) {
  shown.search = text;
  shown.filter = "all";
  byId("search").value = text;
  drawAll();
  byId("search").focus();
}

function detailOfNode(view, node) {
  const facts = [];
  const { path } = node;
  fact(facts, "Site", link(node.site, { site: node.site }, "site of node"));
  fact(facts, "State", h("span", { class: "state" }, dot(nodeHealth(node)),
    h("span", {}, `${livenessWord(node)} `, since(node.since_at_s, "for ", ""))));
  fact(facts, "Roles", rolesOf(node) || "node");
  for (const offer of node.offers) {
    fact(facts, offer.service, h("span", { class: "state" }, dot(stateHealth(offer.state)),
      `${offer.state}, as it reports`));
  }
  fact(facts, "Path from here", pathWords(path), path.since_at_s !== null
    && [", ", since(path.since_at_s, "for ", "")]);
  fact(facts, "Round trip", path.rtt_ms !== null && rttAndLoss(path));
  fact(facts, "Last heard", path.heard_at_s !== null ? since(path.heard_at_s)
    : path.kind === "direct" || path.kind === "own" ? "now" : "");
  fact(facts, "Last record", node.told_at_s !== null && since(node.told_at_s));
  fact(facts, "Behind NAT", node.behind_nat && "yes");
  fact(facts, "Version", node.version || "unknown");
  fact(facts, "Credential", `${until(node.credential_expires_at)}, made ${
    age(wallS() - node.credential_issued_at)} ago`);
  fact(facts, "Key", h("span", { class: "mono" }, node.node));
  const sees = view.services.flatMap((it) => it.origins.filter((o) => o.node === node.node));
  const seen = sees.find((it) => it.seen);
  const relays = sees.flatMap((it) => it.relays);
  return [h("p", { class: "whose" }, node.node === view.node.node ? "This node" : "Node"),
    h("p", { class: "title" }, node.name), h("dl", {}, facts),
    seen && [h("h3", {}, "As others see it"), h("p", { class: "soft cap" }, seen.seen.words)],
    relays.length > 0 && [h("h3", {}, "Relays that could carry sessions there"),
      h("ul", { class: "list" }, relays.slice(0, 5).map((it) => h("li", {},
        h("span", { class: "row" }, h("span", { class: "name" }, it.name, it.used
          && h("span", { class: "badge" }, "in use")),
        h("span", { class: "end" }, ms(Math.round(it.rtt_ms * 10) / 10))))))]];
}

const COLUMNS = [
  ["rank", "Node", (node) => node.name, ""],
  ["site", "Site", (node) => node.site, ""],
  ["state", "State", (node) => ["bad", "warn", "ok", "idle"].indexOf(nodeHealth(node)), ""],
  ["path", "Path", (node) => pathWords(node.path), ""],
  ["rtt", "Round trip", (node) => node.path.rtt_ms ?? Infinity, "num"],
  ["roles", "Roles", (node) => rolesOf(node), "wide"],
  ["version", "Version", (node) => node.version || "", "wide"],
  ["ends", "Credential", (node) => node.credential_expires_at, "wide"],
];

function nodesShown(view) {
  const words = shown.search.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = FILTERS.find(([name]) => name === shown.filter)[2];
  const found = view.nodes.filter((node) => {
    const text = [node.name, node.site, node.node, rolesOf(node), node.version || "",
      livenessWord(node), pathWords(node.path), ...node.offers.map((it) => it.state)]
      .join(" ").toLowerCase();
    return fits(node) && words.every((word) => text.includes(word));
  });
  const { by, down } = shown.sort;
  const value = COLUMNS.find(([name]) => name === by)[2];
  if (by !== "rank" || down) {
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    found.sort((a, b) => (down ? -1 : 1) * order(value(a), value(b)));
  }
  return found;
}

function drawNodes(view) {
  const found = nodesShown(view);
  const { by, down } = shown.sort;
  const head = ([name, title, , extra]) => h("th", { scope: "col", class: extra,
    "aria-sort": by === name ? (down ? "descending" : "ascending") : "none" },
  h("button", { type: "button", "data-key": `sort ${name}`, click: () => {
    shown.sort = { by: name, down: by === name && !down };
    drawAll();
  } }, title));
  const row = (node) => h("tr", {},
    h("th", { scope: "row" }, link(node.name, { node: node.node }, `node ${node.node}`),
      node.node === view.node.node && h("span", { class: "badge" }, "this node")),
    h("td", {}, node.site),
    h("td", {}, h("span", { class: "state" }, dot(nodeHealth(node)),
      h("span", {}, node.offers.length ? node.offers[0].state : livenessWord(node),
        h("span", { class: "under" }, since(node.since_at_s, "for ", ""))))),
    h("td", {}, pathWords(node.path)),
    h("td", { class: "num" }, rttAndLoss(node.path)),
    h("td", { class: "wide" }, rolesOf(node) || "–"),
    h("td", { class: "wide" }, node.version || "–"),
    h("td", { class: "wide" }, until(node.credential_expires_at)));
  const more = byId("more");
  more.hidden = found.length <= shown.rows;
  more.textContent = `Show all ${found.length}`;
  const left = view.nodes_left_out;
  say("nodes-whose", `${found.length} of ${count(view.nodes.length, "node")}`
    + `${left ? `, ${left} more not listed` : ""} · membership as agreed by the mesh, paths as `
    + `${view.node.name} measures them`);
  if (found.length === 0) return h("p", { class: "fine" }, dot("none"), "No node matches");
  return h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map(head))),
    h("tbody", {}, found.slice(0, shown.rows).map(row)));
}
