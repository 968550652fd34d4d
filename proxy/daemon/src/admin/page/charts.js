// Ten minutes on one time axis: clients' activity and route changes.

const CHART = { row: 96, top: 24, left: 64, right: 10, axis: 24 };
const NARROW = 560; // px; below it a chart's name and values have a line each
let pointerAt = null;

// The shown seconds, and those between two marks of the axis: a daemon that has just started
// fills the width.
function spanOf(view) {
  const spans = [[60, 15], [120, 30], [300, 60], [view.history.seconds, 120]];
  return spans.find(([seconds]) => nowS() <= seconds) || spans[spans.length - 1];
}
const lasting = (seconds) => (seconds < 120 ? `${seconds} s` : `${seconds / 60} min`);

// The sparse columns as one value a second; null where the daemon did not run.
function expand(view) {
  const { at_s: at } = view.history;
  const [seconds] = spanOf(view);
  const end = Math.floor(nowS());
  const first = end - seconds;
  const names = ["open", "connected", "failed", "up_bytes", "down_bytes", "connect_us",
    "slowest_us"];
  const rows = Object.fromEntries(names.map((name) => [name, []]));
  let next = 0;
  let last = -1;
  for (let second = first + 1; second <= end; second += 1) {
    while (next < at.length && at[next] <= second) { last = next; next += 1; }
    for (const name of names) {
      rows[name].push(second <= 0 ? null : last < 0 ? 0 : view.history[name][last]);
    }
  }
  return { first, end, seconds, rows };
}

// A round number not below the highest value.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].map((it) => it * step).find((it) => it >= value);
}

const CHARTS = [
  { name: "Sessions open", lines: ["open"], tell: (it) => String(it.open), unit: String,
    least: 4, sum: "open" },
  { name: "Wait for an origin", lines: ["connect_us"], dots: "slowest_us", unit: duration,
    least: 1000, gaps: "connected",
    tell: (it) => (it.connected ? `${duration(it.connect_us)}, longest ${duration(it.slowest_us)}`
      : "no new session") },
  { name: "Traffic per second", lines: ["down_bytes", "up_bytes"], unit: bytes, least: 1000,
    tell: (it) => `${bytes(it.down_bytes)} to clients, ${bytes(it.up_bytes)} from them` },
  { name: "Connections per second", lines: ["connected"], bars: "failed", unit: String, least: 4,
    tell: (it) => `${it.connected} connected, ${it.failed} failed` },
];

function changesOf(view) {
  const service = view.services[shown.service];
  const first = Math.floor(nowS()) - spanOf(view)[0];
  return view.events.filter((it) => it.kind === "route" && it.at_s >= first
    && (!service || it.service === service.name)).reverse();
}

function drawChart(chart, index, data, x, width) {
  const { rows } = data;
  const isNarrow = width < NARROW;
  const top = index * CHART.row + CHART.top;
  const base = top + CHART.row - CHART.top - 14;
  const height = base - top - 8;
  const all = [...chart.lines, chart.dots, chart.bars].filter(Boolean);
  const highest = Math.max(...all.flatMap((name) => rows[name].map((it) => it || 0)));
  const most = Math.max(chart.least, ceiling(highest));
  const y = (value) => base - (value / most) * height;
  const parts = [
    s("line", { class: "grid", x1: CHART.left, x2: width - CHART.right, y1: base, y2: base }),
    s("line", { class: "grid", x1: CHART.left, x2: width - CHART.right, y1: y(most), y2: y(most) }),
    s("text", { x: CHART.left - 8, y: y(most) + 4, "text-anchor": "end" }, chart.unit(most)),
    s("text", { class: "cap", x: CHART.left, y: top - (isNarrow ? 21 : 6) }, chart.name),
    s("text", { class: "val", x: isNarrow ? CHART.left : width - CHART.right, y: top - 6,
      "text-anchor": isNarrow ? "start" : "end", "data-chart": index }),
  ];
  chart.lines.forEach((name, order) => {
    const segments = segmentsOf(rows[name], chart.gaps && rows[chart.gaps]);
    const point = (at) => `${x(at).toFixed(1)} ${y(rows[name][at]).toFixed(1)}`;
    const line = segments.map((all) => `M${all.map(point).join("L")}`).join("");
    if (order === 0 && !chart.gaps) {
      const area = segments.map((all) => `M${x(all[0])} ${base}L${all.map(point).join("L")}`
        + `L${x(all[all.length - 1])} ${base}Z`).join("");
      parts.push(s("path", { class: "area", d: area }));
    }
    parts.push(s("path", { class: order === 0 ? "stroke" : "second", d: line }));
  });
  if (chart.dots) {
    rows[chart.dots].forEach((value, at) => {
      if (value > 0) parts.push(s("circle", { class: "dots", cx: x(at).toFixed(1),
        cy: y(value).toFixed(1), r: 1.6 }));
    });
  }
  if (chart.bars) {
    rows[chart.bars].forEach((value, at) => {
      if (value > 0) parts.push(s("rect", { class: "fail", x: (x(at) - 1.5).toFixed(1), width: 3,
        y: y(value).toFixed(1), height: (base - y(value)).toFixed(1) }));
    });
  }
  return parts;
}

// The seconds to join by a line: those with a value; where `counts` is given, those with a count,
// as long as they are near each other.
const NEAR = 15; // s
function segmentsOf(column, counts) {
  const segments = [];
  let before = -Infinity;
  column.forEach((value, at) => {
    if (value === null || (counts && !counts[at])) return;
    if (at - before > (counts ? NEAR : 1)) segments.push([]);
    segments[segments.length - 1].push(at);
    before = at;
  });
  return segments;
}

function drawCharts(view) {
  const width = Math.max(300, Math.round(byId("charts").clientWidth));
  [CHART.row, CHART.top] = width < NARROW ? [112, 40] : [96, 24];
  const data = expand(view);
  const inner = width - CHART.left - CHART.right;
  const x = (at) => CHART.left + (inner * (at + 1)) / data.seconds;
  const height = CHARTS.length * CHART.row + CHART.axis;
  const bottom = height - CHART.axis;
  const parts = [];
  if (data.first < 0) {
    const width = x(Math.min(-data.first, data.seconds) - 1) - CHART.left;
    parts.push(s("rect", { class: "off", x: CHART.left, y: CHART.top, width,
      height: bottom - CHART.top }));
  }
  CHARTS.forEach((chart, index) => parts.push(...drawChart(chart, index, data, x, width)));
  const step = spanOf(view)[1] * (width < NARROW ? 2 : 1);
  for (let back = data.seconds - (data.seconds % step); back >= 0; back -= step) {
    const at = x(data.seconds - back - 1);
    parts.push(s("text", { x: at, y: height - 6,
      "text-anchor": back === data.seconds ? "start" : back === 0 ? "end" : "middle" },
    back === 0 ? "now" : `−${lasting(back)}`));
  }
  changesOf(view).forEach((change, index) => {
    const at = x(change.at_s - data.first - 1);
    const lanes = CHARTS.map((_, lane) => lane * CHART.row + CHART.top);
    parts.push(lanes.map((top) => s("line", { class: "mark", x1: at, x2: at, y1: top,
      y2: top + CHART.row - CHART.top - 14 })), s("g", { class: "flag" },
      s("circle", { cx: at, cy: bottom, r: 8 }),
        s("text", { x: at, y: bottom + 4 }, String(index + 1)),
        s("title", {}, change.detail)));
  });
  const cross = s("line", { class: "cross", y1: CHART.top, y2: bottom, visibility: "hidden" });
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": describe(data) }, parts.flat(), cross);
  const tell = (at) => {
    const row = Object.fromEntries(Object.entries(data.rows).map(([name, it]) => [name, it[at]]));
    for (const text of svg.querySelectorAll("[data-chart]")) {
      text.textContent = row.open === null ? "not running" : CHARTS[text.dataset.chart].tell(row);
    }
    cross.setAttribute("visibility", at === data.seconds - 1 ? "hidden" : "visible");
    cross.setAttribute("x1", x(at));
    cross.setAttribute("x2", x(at));
  };
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) * (width / box.width) - CHART.left) / inner;
    pointerAt = share >= 0 && share <= 1 ? Math.min(data.seconds - 1,
      Math.max(0, Math.round(share * data.seconds) - 1)) : null;
    tell(pointerAt ?? data.seconds - 1);
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerleave", () => { pointerAt = null; tell(data.seconds - 1); });
  tell(pointerAt ?? data.seconds - 1);
  return svg;
}

// The same as text, for screen readers.
function describe(data) {
  const { rows } = data;
  const sum = (name) => rows[name].reduce((total, it) => total + (it || 0), 0);
  const most = (name) => Math.max(...rows[name].map((it) => it || 0));
  return `The last ${lasting(data.seconds)} of this node's clients: `
    + `${count(sum("connected"), "session")} connected, `
    + `${sum("failed")} failed, at most ${most("open")} open at once, longest wait for an origin `
    + `${duration(most("slowest_us"))}, ${bytes(sum("down_bytes"))} to clients, `
    + `${bytes(sum("up_bytes"))} from them.`;
}
