// Makes the pictures of docs/page.md from a run of the demo: the page just after a failover, in both
// themes.
//
//   node record.mjs TOOLS CHROMIUM MESHPORT FOLDER
//
// TOOLS is the folder in which playwright-core is installed.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";

const [tools, browserPath, program, folder] = process.argv.slice(2);
const { chromium } = createRequire(`${tools}/`)("playwright-core");
const STORY_S = 20;
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];

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

const demo = spawn(program, ["demo", "--for", `${STORY_S}`],
  { stdio: ["ignore", "pipe", "inherit"] });
const ended = new Promise((done) => { demo.on("exit", done); });
let told = "";
let stage = () => {};
const known = new Promise((done) => { stage = done; });
demo.stdout.setEncoding("utf8");
demo.stdout.on("data", (text) => {
  told += text;
  const found = told.match(/mad-worker\s+(http:\/\/127\.0\.0\.1:\d+\/)/);
  if (found) stage(found[1]);
});
const browser = await chromium.launch({ executablePath: browserPath, args: FLAGS });
const url = await known;
await Promise.all(["light", "dark"].map((theme) => picture(browser, url, theme)));
await ended;
await browser.close();
