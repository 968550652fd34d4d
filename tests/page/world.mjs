// Simulated worlds in a real browser: the live page of `meshport-sim serve`, what is clicked on it
// and what others would do to it, and the film in a report.
//
//   node world.mjs TOOLS CHROMIUM MESHPORT-SIM [FOLDER]
//
// Arguments as of run.mjs.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

import { FLAGS, LIMIT, accessible, check, chromium, end, fits, open } from "./kit.mjs";

const [, browserPath, program, pictures] = process.argv.slice(2);
const SIZES = [[360, "light"], [360, "dark"], [1440, "light"], [1440, "dark"]];
const STORY = `
description = "Two origins, and a site between them"
duration-s = 120
load = { sessions-per-s = 2, hold-s = 5 }
site = [
  { name = "fra", nodes = 3, origins = 1 },
  { name = "ams", nodes = 2, origins = 1 },
  { name = "vie", nodes = 2 },
]
path = [
  { between = ["fra", "ams"], rtt-ms = 8 },
  { between = ["fra", "vie"], rtt-ms = 12 },
  { between = ["ams", "vie"], rtt-ms = 40 },
]
`;
const FAULT = 'event = [{ at-s = 60, crash = "fra", for-s = 30 }]\n';

async function serve(file) {
  const child = spawn(program, ["serve", file, "--listen", "127.0.0.1:0", "--speed", "10"],
    { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: child.stdout })) {
    const found = line.match(/http:\/\/127\.0\.0\.1:\d+\//);
    if (found) return { child, url: found[0] };
  }
  throw new Error("the simulator does not say where its page is");
}

const ready = async (page) => {
  await page.waitForSelector("#map .site", { timeout: LIMIT });
  await page.waitForSelector("#whatif .tool");
};
const goesTo = (page, name) => page.waitForFunction((it) => document
  .querySelector("#services h1")?.innerText.startsWith(`Sessions go to ${it} `), name,
{ timeout: LIMIT });
const click = (page, key) => page.click(`#whatif [data-key="${key}"]`);
const picture = async (page, name) => {
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
};

async function live(browser, url) {
  await check("a link is cut and healed by a click on the map, and the route follows", async () => {
    const { page, close } = await open(browser);
    await page.goto(url);
    await ready(page);
    await page.selectOption("#world-node", "vie-2");
    await page.waitForFunction(() => document.querySelector("#who").innerText.startsWith("vie-2"));
    await goesTo(page, "fra-1");
    const link = page.locator('#map .hit[data-link="vie fra"], #map .hit[data-link="fra vie"]');
    const hit = () => link.first().dispatchEvent("click");
    await hit();
    await page.waitForSelector("#map .cut");
    await goesTo(page, "ams-1");
    await page.waitForFunction(() => /fra-1 to ams-1: /.test(
      document.querySelector("#events").innerText));
    await hit();
    await page.waitForSelector("#map .cut", { state: "detached" });
    await goesTo(page, "fra-1");
    await close(url);
  });
  await check("a site is isolated, and an instance stopped, by keyboard", async () => {
    const { page, close } = await open(browser);
    await page.goto(url);
    await ready(page);
    await page.selectOption("#world-node", "vie-2");
    await goesTo(page, "fra-1");
    await page.focus('#map [data-key="site fra"]');
    await page.keyboard.press("Enter");
    await page.waitForSelector("#whatif h2:text('What if, in fra')");
    await page.focus('#whatif [data-key="instance fra-1"]');
    await page.keyboard.press("Enter");
    await page.waitForSelector('#whatif [data-key="instance fra-1"]:text("Start it")');
    await goesTo(page, "ams-1");
    // What is drawn anew keeps the focus.
    assert.equal(await page.evaluate(() => document.activeElement.dataset.key), "instance fra-1");
    await page.keyboard.press("Enter");
    await goesTo(page, "fra-1");
    await page.keyboard.press("Escape");
    await click(page, "isolate");
    await page.waitForFunction(() => document.querySelector("#services h1").innerText
      .includes("None of 2 known origins answers"), null, { timeout: LIMIT });
    await page.waitForSelector("#findings .error");
    assert.match(await page.innerText("#world-vain"), /^2 of 7 running nodes reach no origin/);
    await picture(page, "world-isolated");
    await click(page, "isolate");
    await goesTo(page, "fra-1");
    await page.click("#whatif summary");
    const events = await page.innerText("#whatif pre");
    assert.match(events, /\[\[event\]\]\nat-s = [\d.]+\nisolate = "vie"\n/);
    await close(url);
  });
  await check("it is paused, and goes on at another speed", async () => {
    const { page, close } = await open(browser);
    await page.goto(url);
    await ready(page);
    await page.click("#world-pause");
    await page.waitForSelector("#world-pause:text('Resume')");
    const time = () => page.innerText("#world-clock");
    await page.waitForTimeout(300);
    const before = await time();
    await page.waitForTimeout(700);
    assert.equal(await time(), before);
    await page.selectOption("#world-speed", "20");
    await page.click("#world-pause");
    await page.waitForSelector("#world-pause:text('Pause')");
    await page.waitForFunction((it) => document.querySelector("#world-clock").innerText !== it,
      before);
    await close(url);
  });
  for (const [width, colorScheme] of SIZES) {
    await check(`the live page on ${width} px, ${colorScheme}: fits, and for everybody`,
      async () => {
        const viewport = { width, height: width < 500 ? 780 : 1000 };
        const { page, close } = await open(browser, { viewport, colorScheme });
        await page.goto(url);
        await ready(page);
        assert.equal(await page.getAttribute("html", "data-theme"), colorScheme);
        await fits(page, width);
        await accessible(page);
        await picture(page, `world-${width}-${colorScheme}`);
        await close(url);
      });
  }
}

async function hostile(browser, url) {
  await check("a page of another site changes nothing in the world", async () => {
    const evil = http.createServer((request, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end("<!doctype html><title>evil</title>");
    });
    await new Promise((done) => { evil.listen(0, "127.0.0.1", done); });
    const done = async () => (await (await fetch(`${url}world`)).json()).done.length;
    const before = await done();
    const { page } = await open(browser);
    await page.goto(`http://127.0.0.1:${evil.address().port}/`);
    await page.evaluate(async (target) => {
      const body = '[{"crash":"fra-1"}]';
      for (const [mode, type] of [["cors", "application/json"], ["no-cors", "text/plain"],
        ["no-cors", "application/json"], ["cors", "text/plain"]]) {
        await fetch(`${target}happen`, { method: "POST", mode, body,
          headers: { "Content-Type": type } }).catch(() => {});
      }
      const frame = document.createElement("iframe");
      frame.name = "sink";
      const form = document.createElement("form");
      Object.assign(form, { method: "post", action: `${target}happen`, target: "sink",
        enctype: "text/plain" });
      const input = document.createElement("input");
      Object.assign(input, { name: '[{"crash":"fra-1"}]//', value: "" });
      form.append(input);
      document.body.append(frame, form);
      const loaded = new Promise((is) => { frame.onload = is; });
      form.submit();
      await loaded;
    }, url);
    assert.equal(await done(), before);
    const answer = await page.goto(url.replace("127.0.0.1", "rebound.example"));
    assert.equal(answer.status(), 421);
    await page.context().close();
    evil.close();
  });
}

async function film(browser, url) {
  const moment = (page) => page.inputValue("#moment").then(Number);
  await check("the film of a report shows how a fault spreads, and where it is over", async () => {
    const { page, close } = await open(browser);
    await page.goto(url);
    await page.waitForSelector("#map .site");
    assert.equal(await moment(page), 59);
    const now = () => page.innerText("#now");
    assert.match(await now(), /^Nothing has happened yet\. All 7 running nodes reach a working origin/);
    await page.click("#marks button >> nth=0");
    assert.match(await now(), /^crash: fra-1 and 2 more, 0 s ago\./);
    assert.match(await page.getAttribute('#map [data-key="site fra"]', "class"), /bad/);
    await page.fill("#moment", "60");
    const tags = await page.locator("#map .tag").allTextContents();
    assert.equal(tags.join(), "2 of 2 nodes cannot connect");
    for (let steps = 0; steps < 40 && !/All 4 running/.test(await now()); steps += 1) {
      await page.click("#after");
    }
    assert.ok((await moment(page)) < 75, "it takes long");
    assert.equal((await page.locator("#map .tag").allTextContents()).join(), "2 nodes");
    await page.focus("#moment");
    await page.keyboard.press("ArrowRight");
    assert.match(await page.getAttribute("#moment", "aria-valuetext"), /All 4 running nodes/);
    await page.click('#map [data-key="site vie"]');
    assert.match(await now(), /vie: 2 of 2 nodes run; 2 to ams/);
    await page.click("#play");
    const at = await moment(page);
    await page.waitForFunction((it) => Number(document.querySelector("#moment").value) > it + 5,
      at, { timeout: LIMIT });
    await page.click("#play");
    await close("file:///");
  });
  for (const [width, colorScheme] of SIZES) {
    await check(`the report on ${width} px, ${colorScheme}: fits, and for everybody`, async () => {
      const viewport = { width, height: width < 500 ? 780 : 1000 };
      const { page, close } = await open(browser, { viewport, colorScheme });
      await page.goto(url);
      await page.waitForSelector("#map .site");
      await fits(page, width);
      await accessible(page);
      await picture(page, `film-${width}-${colorScheme}`);
      await close("file:///");
    });
  }
}

const folder = mkdtempSync(join(tmpdir(), "meshport-world-"));
if (pictures) mkdirSync(pictures, { recursive: true });
const [story, fault] = [join(folder, "story.toml"), join(folder, "fault.toml")];
writeFileSync(story, STORY);
writeFileSync(fault, STORY + FAULT);
execFileSync(program, ["run", fault, "--report", folder]);
const browser = await chromium.launch({ executablePath: browserPath, args: FLAGS });
const world = await serve(story);
try {
  await live(browser, world.url);
  await hostile(browser, world.url);
  await film(browser, pathToFileURL(join(folder, "index.html")).href);
} finally {
  await browser.close();
  world.child.kill();
  rmSync(folder, { recursive: true });
}
end("simulated worlds are well");
