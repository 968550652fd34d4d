// The map: sites are placed so that their distances on the screen follow their round trips.

const MAP = { width: 900, height: 440, margin: 78, most: 24 };
const CROWDED = 8; // sites; beyond it only the paths of one site are drawn
const isNarrow = () => innerWidth <= 640;
let positions = { key: "", pairs: new Set(), at: new Map() };

const pairKey = (a, b) => (a < b ? `${a}\u0000${b}` : `${b}\u0000${a}`);

// The distances between pairs of different sites, both directions as one: the better measured.
function pairs(view) {
  const found = new Map();
  for (const row of view.distances) {
    if (row.from === row.to) continue;
    const key = pairKey(row.from, row.to);
    const before = found.get(key);
    if (!before || row.pairs > before.pairs) found.set(key, row);
  }
  return found;
}

// The drawn sites: this node's, those with origins, then the largest.
function sitesOnMap(view) {
  const rank = (site) => (site.own ? 0 : site.origins ? 1 : 2);
  const sorted = [...view.sites].sort((a, b) => rank(a) - rank(b) || b.nodes - a.nodes
    || (a.name < b.name ? -1 : 1));
  return sorted.slice(0, MAP.most).sort((a, b) => (a.name < b.name ? -1 : 1));
}

// Stress majorisation from a circle: sites keep their positions as long as they and their
// distances are known already.
function layOut(view, sites) {
  const height = sites.length > CROWDED ? 560 : 440;
  [MAP.width, MAP.height] = isNarrow() ? [560, height + 60] : [900, height];
  const known = pairs(view);
  const key = [MAP.width, ...sites.map((site) => site.name)].join("\u0000");
  const measured = [...known].filter(([, row]) => row.rtt_ms !== null).map(([pair]) => pair);
  // A lost path moves nothing; a newly measured one does.
  if (positions.key === key && measured.every((pair) => positions.pairs.has(pair))) {
    return positions.at;
  }
  const all = sites.length;
  const rtt = (a, b) => {
    const row = known.get(pairKey(a.name, b.name));
    return row && row.rtt_ms !== null ? row.rtt_ms : null;
  };
  const times = [...known.values()].map((row) => row.rtt_ms).filter((it) => it !== null);
  const usual = times.length ? times.reduce((sum, it) => sum + it, 0) / times.length : 1;
  // Square roots, so that a far site does not squeeze the near ones together.
  const want = sites.map((a) => sites.map((b) => (a === b ? 0
    : 0.35 + Math.sqrt((rtt(a, b) ?? usual) / Math.max(usual, 0.01)))));
  let at = sites.map((_, i) => {
    const angle = (2 * Math.PI * i) / Math.max(all, 1) + Math.PI;
    return [Math.cos(angle), Math.sin(angle)];
  });
  for (let round = 0; round < 150 && all > 1; round += 1) {
    at = at.map(([x, y], i) => {
      let [sumX, sumY, weights] = [0, 0, 0];
      at.forEach(([otherX, otherY], j) => {
        if (i === j) return;
        const weight = 1 / (want[i][j] * want[i][j]);
        const apart = Math.max(Math.hypot(x - otherX, y - otherY), 1e-6);
        sumX += weight * (otherX + (want[i][j] * (x - otherX)) / apart);
        sumY += weight * (otherY + (want[i][j] * (y - otherY)) / apart);
        weights += weight;
      });
      return [sumX / weights, sumY / weights];
    });
  }
  at = upright(at);
  const along = (axis) => at.map((p) => p[axis]);
  const [left, right] = [Math.min(...along(0)), Math.max(...along(0))];
  const [top, bottom] = [Math.min(...along(1)), Math.max(...along(1))];
  const inside = (value, low, high, size) => (high - low < 1e-6 ? size / 2
    : MAP.margin + ((value - low) / (high - low)) * (size - 2 * MAP.margin));
  // Flat worlds stay flat: two or three sites in a row need no height.
  const flat = Math.min(1, (bottom - top) / Math.max((right - left) * 0.45, 1e-6));
  positions = { key, pairs: new Set(measured), at: new Map(sites.map((site, i) => [site.name, {
    x: inside(at[i][0], left, right, MAP.width),
    y: MAP.height / 2 + (inside(at[i][1], top, bottom, MAP.height) - MAP.height / 2)
      * Math.max(flat, all > 2 ? 0.6 : 0),
  }])) };
  spread(positions.at);
  return positions.at;
}

// Rotated so that the longest distance lies along the screen.
function upright(at) {
  const all = Math.max(at.length, 1);
  const mean = [0, 1].map((axis) => at.reduce((sum, p) => sum + p[axis], 0) / all);
  const moved = at.map(([x, y]) => [x - mean[0], y - mean[1]]);
  const sum = (f) => moved.reduce((total, p) => total + f(p), 0);
  const angle = Math.atan2(2 * sum(([x, y]) => x * y), sum(([x, y]) => x * x - y * y)) / 2;
  const [cos, sin] = [Math.cos(-angle), Math.sin(-angle)];
  return moved.map(([x, y]) => [x * cos - y * sin, x * sin + y * cos]);
}

// Pushes sites apart whose names would overlap.
function spread(at) {
  const all = [...at.values()];
  for (let round = 0; round < 60; round += 1) {
    for (const a of all) {
      for (const b of all) {
        if (a === b) continue;
        const [dx, dy] = [a.x - b.x, a.y - b.y];
        const near = Math.max(0, 1 - Math.hypot(dx / 150, dy / 118));
        a.x += Math.sign(dx || 1) * near * 9;
        a.y += Math.sign(dy || 0.5) * near * 7;
      }
      a.x = Math.min(Math.max(a.x, MAP.margin), MAP.width - MAP.margin);
      a.y = Math.min(Math.max(a.y, 46), MAP.height - 66);
    }
  }
}

// The paths of this node to the sites with origins of the service that is shown.
function ownPaths(view, which) {
  const service = view.services && view.services[which];
  const paths = new Map();
  if (!service) return paths;
  for (const origin of service.origins) {
    if (!origin.site) continue;
    const before = paths.get(origin.site);
    const line = { path: origin.path, relay: origin.path.relay, used: origin.chosen,
      health: worst(pathHealth(origin.path), origin.usable ? "ok" : "bad",
        CONFIDENT[origin.standing] === "warn" ? "warn" : "ok"), sessions: origin.sessions };
    // Of several origins the one that is tried first.
    if (!before) paths.set(origin.site, line);
    else before.sessions += line.sessions;
  }
  return paths;
}

function siteHealth(site, view) {
  if (site.health) return site.health;
  const down = view.nodes.some((node) => node.site === site.name && node.liveness === "down");
  if (site.alive === 0) return "bad";
  if (site.origins > 0 && site.ready === 0) return "bad";
  return down || site.ready < site.origins ? "warn" : "ok";
}

function curve(a, b, bend) {
  const [mx, my] = [(a.x + b.x) / 2, (a.y + b.y) / 2];
  const length = Math.max(Math.hypot(b.x - a.x, b.y - a.y), 1);
  const [nx, ny] = [-(b.y - a.y) / length, (b.x - a.x) / length];
  const [cx, cy] = [mx + nx * bend, my + ny * bend];
  const along = (t) => {
    const [p, q, r] = [(1 - t) ** 2, 2 * t * (1 - t), t * t];
    return { x: p * a.x + q * cx + r * b.x, y: p * a.y + q * cy + r * b.y };
  };
  return { d: `M${a.x.toFixed(1)} ${a.y.toFixed(1)}Q${cx.toFixed(1)} ${cy.toFixed(1)} `
    + `${b.x.toFixed(1)} ${b.y.toFixed(1)}`, along };
}

// The point of a line where a label is farthest from all sites, their names, and placed labels.
function clearest(line, at, labels) {
  const room = (point) => Math.min(...[...at.values()].map((site) => Math.hypot(
    (point.x - site.x) / 1.5, point.y - site.y - 22)),
  ...labels.map((label) => Math.hypot((point.x - label.x) / 2.5, (point.y - label.y) * 1.5)));
  const points = [0.5, 0.42, 0.58, 0.34, 0.66, 0.74].map(line.along);
  const best = points.reduce((one, point) => (room(point) > room(one) + 6 ? point : one));
  labels.push(best);
  return best;
}

function tag(x, y, text) {
  const width = text.length * (isNarrow() ? 9.4 : 6.9) + 14;
  const [left, height] = [x - width / 2, isNarrow() ? 26 : 20];
  return s("g", { class: "tag" },
    s("rect", { x: left.toFixed(1), y: (y - height / 2).toFixed(1), width: width.toFixed(1), height,
      rx: 6 }),
    s("text", { x: x.toFixed(1), y: (y + 4.5).toFixed(1) }, text));
}

// The paths drawn thin: those reported by sites, then the others.
function thinPaths(view) {
  const drawn = new Set((view.flows || []).map((it) => pairKey(it.from, it.to)));
  const paths = [...pairs(view).values()].filter((row) => !drawn.has(pairKey(row.from, row.to)));
  for (const row of paths) drawn.add(pairKey(row.from, row.to));
  return [...paths, ...(view.links || []).filter((row) => !drawn.has(pairKey(row.from, row.to)))];
}

// A wide invisible line to click on.
function target(row, a, b, look) {
  return s("path", { class: "hit", d: curve(a, b, 0).d, "data-link": `${row.from} ${row.to}`,
    click: () => look.pickLink(row) }, s("title", {}, `${row.from} and ${row.to}`));
}

// An arrowhead on a line.
function tip(line, health) {
  const [from, to] = [line.along(0.6), line.along(0.66)];
  const turn = (Math.atan2(to.y - from.y, to.x - from.x) * 180) / Math.PI;
  return s("path", { class: `tip ${health}`, d: "M-7-6L6 0L-7 6z",
    transform: `translate(${to.x.toFixed(1)} ${to.y.toFixed(1)}) rotate(${turn.toFixed(1)})` });
}

// The origins that nodes of all sites use, as lines with arrowheads and labels.
function drawFlows(view, at, labels) {
  const lines = [];
  const tags = [];
  for (const flow of view.flows || []) {
    const [a, b] = [at.get(flow.from), at.get(flow.to)];
    if (!a || !b || a === b) continue;
    const line = curve(a, b, 22);
    const health = flow.failing === 0 ? "ok" : flow.failing < flow.nodes ? "warn" : "bad";
    lines.push(s("path", { d: line.d, class: `path mine ${health} ${flow.most ? "used" : ""} `
      + `${flow.via ? "relayed" : ""}` }), tip(line, health));
    const text = flow.failing === 0 ? count(flow.nodes, "node")
      : `${flow.failing} of ${count(flow.nodes, "node")} cannot connect`;
    const { x, y } = clearest(line, at, labels);
    tags.push(tag(x, y, text + (flow.via ? ` via ${flow.via}` : "")));
  }
  return { lines, tags };
}

// Draws a document: that of `/view`, or a part of it with `sites`, `distances` and the `site` of
// its node. In addition it may have `flows` (where nodes of all sites go), `links` (paths between
// sites that no node reports) and `cuts` (pairs between which nothing passes); a site may have its
// own `health` and `words`. `look` defines what to show: the index of the `service`, what is
// `selected`, and the callbacks for clicks: `pick`, and for a path `pickLink`.
function drawMap(view, look) {
  const sites = sitesOnMap(view);
  const at = layOut(view, sites);
  const own = view.node.site;
  const paths = ownPaths(view, look.service);
  const picked = look.selected ? look.selected.site : own;
  const labels = [];
  const { lines, tags } = drawFlows(view, at, labels);
  const targets = [];
  for (const row of thinPaths(view)) {
    const [a, b] = [at.get(row.from), at.get(row.to)];
    const apart = sites.length > CROWDED && row.from !== picked && row.to !== picked;
    if (!a || !b || apart) continue;
    if (look.pickLink) targets.push(target(row, a, b, look));
    if ((row.from === own || row.to === own) && paths.has(row.from === own ? row.to : row.from)) {
      continue;
    }
    const health = row.rtt_ms === null ? "bad" : row.loss_percent > LOSSY ? "warn" : "";
    lines.unshift(s("path", { class: `path far ${health}`, d: curve(a, b, 0).d },
      s("title", {}, `${row.from} to ${row.to}: ${
        row.rtt_ms === null ? "no answer" : ms(row.rtt_ms)}, ${row.loss_percent} % lost`)));
  }
  for (const [name, mine] of paths) {
    const [a, b] = [at.get(own), at.get(name)];
    if (!a || !b || a === b) continue;
    const line = curve(a, b, 22);
    lines.push(s("path", { d: line.d, class: `path mine ${mine.health} ${mine.used ? "used" : ""} `
      + `${mine.relay ? "relayed" : ""}`, "data-site": name }));
    if (mine.used) {
      lines.push(s("circle", { r: 4.5, class: "pulse" },
        s("animateMotion", { dur: "2.4s", repeatCount: "indefinite", path: line.d })));
    }
    const loss = mine.path.loss_percent;
    const text = mine.path.kind === "dead" ? "no answer"
      : mine.path.rtt_ms === null ? "not measured"
        : ms(mine.path.rtt_ms) + (loss > 0 ? ` · ${loss} % lost` : "");
    const { x, y } = clearest(line, at, labels);
    tags.push(tag(x, y, text));
  }
  for (const [from, to] of view.cuts || []) {
    const [a, b] = [at.get(from), at.get(to)];
    if (!a || !b) continue;
    // On the drawn line, next to its label.
    const line = from === own ? curve(a, b, 22) : to === own ? curve(b, a, 22) : curve(a, b, 0);
    const { x, y } = line.along(paths.has(from === own ? to : from) ? 0.27 : 0.5);
    tags.push(s("g", { class: "cut", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
      s("circle", { r: 10 }), s("path", { d: "M-4.5-4.5L4.5 4.5M4.5-4.5L-4.5 4.5" }),
      s("title", {}, `nothing passes between ${from} and ${to}`)));
  }
  const most = Math.max(...sites.map((site) => site.nodes), 1);
  const discs = sites.map((site) => {
    const { x, y } = at.get(site.name);
    const r = 15 + 13 * Math.sqrt(site.nodes / most);
    const health = siteHealth(site, view);
    const isChosen = look.selected && look.selected.site === site.name;
    const away = site.nodes - site.alive;
    const parts = [count(site.nodes, "node"), away ? `${away} silent` : "",
      site.origins ? `${site.ready} of ${count(site.origins, "origin")} ready` : ""];
    const pick = () => look.pick({ site: site.name });
    const written = [String(site.nodes), site.name + (site.own ? " (here)" : ""),
      site.words || (site.origins ? `${site.ready}/${site.origins} ready` : "no origin")];
    const classes = `site ${health} ${isChosen ? "chosen" : ""} ${site.own ? "own" : ""}`;
    return s("g", { class: classes, tabindex: 0, role: "button",
      "aria-pressed": isChosen ? "true" : "false", "data-key": `site ${site.name}`,
      "aria-label": `${written.join(" ")}: site with ${parts.filter(Boolean).join(", ")}`,
      click: pick,
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        pick();
      } },
    s("circle", { class: "halo", cx: x, cy: y, r: r + 6 }),
    s("circle", { class: "disc", cx: x, cy: y, r }),
    s("text", { class: "count", x, y: y + 5 }, written[0]), " ",
    s("text", { class: "name", x, y: y + r + 21 }, written[1]), " ",
    s("text", { class: "sub", x, y: y + r + (isNarrow() ? 41 : 37) }, written[2]));
  });
  const left = view.sites.length - sites.length;
  const heights = [...at.values()].map((it) => it.y);
  const top = Math.min(...heights) - 56;
  const height = Math.max(...heights) + 84 - top;
  return [
    s("svg", { viewBox: `0 ${top.toFixed(0)} ${MAP.width} ${height.toFixed(0)}`, role: "group",
      "aria-label": "Map of sites" }, lines, targets, tags, discs),
    left > 0 && h("p", { class: "whose" },
      `${count(left, "smaller site")} without origins not drawn; see the table of nodes`),
  ];
}
