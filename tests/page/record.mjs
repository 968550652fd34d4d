// Makes the pictures of the README from a run of the demo: the page before and after a failover in
// both themes, and the terminal as an animated SVG.
//
//   node record.mjs TOOLS CHROMIUM MESHPORT FOLDER
//
// TOOLS is the folder in which playwright-core is installed.

import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const [tools, browserPath, program, folder] = process.argv.slice(2);
const { chromium } = createRequire(`${tools}/`)("playwright-core");
const SIZE = { columns: 88, rows: 31 };
const STORY_S = 20;
const STEP = 800; // ms from one frame to the next
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];

// As much of a terminal as the demo needs.
class Terminal {
  constructor() { this.lines = [""]; this.row = 0; this.column = 0; }

  write(text) {
    for (const part of text.split(/(\x1b\[\d*[AJK]|\r|\n)/)) {
      const code = part.match(/^\x1b\[(\d*)([AJK])$/);
      if (part === "\r") this.column = 0;
      else if (part === "\n") { this.row += 1; this.column = 0; this.lines[this.row] ??= ""; }
      else if (code && code[2] === "A") this.row = Math.max(0, this.row - Number(code[1] || 1));
      else if (code && code[2] === "K") this.lines[this.row] = "";
      else if (code) this.lines.splice(this.row, this.lines.length, "");
      else if (part) {
        const before = this.lines[this.row].padEnd(this.column).slice(0, this.column);
        this.lines[this.row] = before + part;
        this.column += part.length;
      }
    }
  }

  shown() {
    return this.lines.slice(-SIZE.rows).map((line) => line.trimEnd().slice(0, SIZE.columns));
  }
}

const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// Each frame for its share of the time, the last one for four seconds; without motion the last.
function animation(frames) {
  const [cell, line, margin] = [8.4, 18, 18];
  const width = Math.round(SIZE.columns * cell + 2 * margin);
  const height = SIZE.rows * line + 2 * margin + 22;
  const total = frames.length * STEP + 4000;
  const at = (index) => ((index * STEP * 100) / total).toFixed(3);
  const styles = frames.map((_, i) => {
    const end = i === frames.length - 1 ? 100 : at(i + 1);
    const before = i === 0 ? "" : `0%,${(at(i) - 0.001).toFixed(3)}%{visibility:hidden}`;
    const after = end === 100 ? "" : `${end}%,100%{visibility:hidden}`;
    const on = `${at(i)}%,${end === 100 ? 100 : (end - 0.001).toFixed(3)}%{visibility:visible}`;
    return `@keyframes f${i}{${before}${on}${after}}#f${i}{animation-name:f${i}}`;
  }).join("");
  const groups = frames.map((lines, i) => {
    const rows = lines.map((text, row) => (text
      ? `<text x="${margin}" y="${margin + 34 + row * line}">${escape(text)}</text>` : ""));
    return `<g id="f${i}" class="f">${rows.join("")}</g>`;
  }).join("\n");
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img"
 aria-label="meshport demo: the nearest apiserver stops, the next one answers, traffic returns">
<style>text{font:14px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#d7dde6;
white-space:pre}.f{visibility:hidden;animation-duration:${total}ms;
animation-iteration-count:infinite;animation-timing-function:step-end}${styles}
@media(prefers-reduced-motion:reduce){.f{animation:none}#f${frames.length - 1}{visibility:visible}}
</style><rect width="100%" height="100%" rx="10" fill="#10151c"/>
<g fill="#3a4452"><circle cx="22" cy="19" r="5"/><circle cx="39" cy="19" r="5"/><circle cx="56"
 cy="19" r="5"/></g>
${groups}
</svg>
`;
}

async function picture(browser, url, theme) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 },
    colorScheme: theme });
  await page.goto(url);
  await page.waitForFunction(() => document.querySelector("#changes").innerText.includes("mad-cp"),
    null, { timeout: 60000 });
  await page.waitForFunction(() => document.querySelector("#services h1").innerText
    .includes(" ams-cp "), null, { timeout: 60000 });
  await page.waitForTimeout(2500);
  await page.screenshot({ path: `${folder}/page-${theme}.png` });
  await page.close();
}

const terminal = new Terminal();
terminal.write("$ meshport demo\n");
const size = `stty cols ${SIZE.columns} rows ${SIZE.rows}`;
const command = `${size}; exec ${program} demo --for ${STORY_S}`;
const demo = spawn("script", ["--quiet", "--return", "--command", command, "/dev/null"],
  { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((done) => { demo.on("exit", done); });
let stage = () => {};
const known = new Promise((done) => { stage = done; });
demo.stdout.setEncoding("utf8");
demo.stdout.on("data", (text) => {
  terminal.write(text);
  const found = terminal.lines.join("\n").match(/mad-worker\s+(http:\/\/127\.0\.0\.1:\d+\/)/);
  if (found) stage(found[1]);
});
const frames = [terminal.shown()];
const timer = setInterval(() => frames.push(terminal.shown()), STEP);
const browser = await chromium.launch({ executablePath: browserPath, args: FLAGS });
const url = await known;
await Promise.all(["light", "dark"].map((theme) => picture(browser, url, theme)));
await ended;
clearInterval(timer);
await browser.close();
frames.push(terminal.shown());
// What stood still for long is shown once.
const news = frames.filter((frame, at) => at === 0
  || frame.join("\n") !== frames[at - 1].join("\n"));
writeFileSync(`${folder}/demo.svg`, animation(news));
