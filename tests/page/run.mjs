// The page in a real browser: what it shows against what the daemon says, by mouse and keyboard, in
// both themes, from a phone to a wall, with 5 and 500 nodes, and with what others would do to it.
//
//   node run.mjs TOOLS CHROMIUM MESHPORT MESHPORT-VIEW [FOLDER]
//
// TOOLS is the folder in which playwright-core and axe-core are installed. MESHPORT runs the demo;
// MESHPORT-VIEW prints views of made-up meshes; screenshots go to FOLDER. Exit status 1 if a check
// failed.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import http from "node:http";
import { createInterface } from "node:readline";

import { FLAGS, LIMIT, accessible, check, chromium, end, fits, open, texts } from "./kit.mjs";

const [, browserPath, program, viewer, pictures] = process.argv.slice(2);
const HOSTILE = "<img src=x onerror=alert(1)>";
const STORY_S = 60; // how long the demo sends requests: the nearest apiserver stops and comes back

// The demo; its pages by node, once it has said where they are.
async function startDemo() {
  const child = spawn(program, ["demo", "--for", String(STORY_S), "--keep-running"],
    { stdio: ["ignore", "pipe", "inherit"] });
  const pages = {};
  for await (const line of createInterface({ input: child.stdout })) {
    const found = line.match(/^\s+(\S+)\s+(http:\/\/127\.0\.0\.1:\d+\/)/);
    if (found) pages[found[1]] = found[2];
    if (Object.keys(pages).length === 6) break;
  }
  child.stdout.resume();
  return { child, pages };
}

// Serves the document of a made-up mesh of so many nodes to a tab.
const made = (nodes, change = (view) => view) => async (page) => {
  const view = JSON.parse(execFileSync(viewer, [String(nodes)], { maxBuffer: 1 << 24 }));
  await page.route("**/view", (route) => route.fulfill({ json: change(view) }));
};
const ready = (page) => page.waitForSelector("#nodes table", { timeout: LIMIT });

async function main() {
  const browser = await chromium.launch({ executablePath: browserPath, args: FLAGS });
  const demo = await startDemo();
  const stage = demo.pages["mad-worker"];
  if (pictures) mkdirSync(pictures, { recursive: true });
  try {
    await story(browser, stage);
    await panels(browser, demo.pages);
    await madeUp(browser, stage);
    await hostile(browser, stage);
  } finally {
    await browser.close();
    demo.child.kill("SIGINT");
  }
}

// First, since the demo's apiserver stops soon after its start.
async function story(browser, stage) {
  await check("a failover and the return are seen as they happen", async () => {
    const { page, close } = await open(browser);
    await page.goto(stage);
    await ready(page);
    const goesTo = (name) => page.waitForFunction((it) => document.querySelector("#services h1")
      .innerText.startsWith(`Sessions go to ${it} `), name, { timeout: LIMIT });
    await goesTo("mad-cp");
    await goesTo("ams-cp");
    await page.waitForFunction(() => document.querySelector("#changes")
      .innerText.includes("mad-cp to ams-cp"), null, { timeout: LIMIT });
    await page.waitForSelector("#charts .flag");
    if (pictures) await page.screenshot({ path: `${pictures}/failover.png` });
    await goesTo("mad-cp");
    await page.waitForFunction(() => document.querySelector("#events")
      .innerText.includes("ams-cp to mad-cp"), null, { timeout: LIMIT });
    await close(stage);
  });
}

async function panels(browser, pages) {
  const stage = pages["mad-worker"];
  for (const [name, url] of Object.entries(pages)) {
    await check(`the page of ${name} shows its own view`, async () => {
      const { page, close } = await open(browser);
      await page.goto(url);
      await ready(page);
      assert.ok((await page.innerText("#who")).startsWith(`${name} in ${name.slice(0, 3)}`));
      const live = new RegExp(`Live, as seen by ${name} \\d+ s ago`);
      assert.match(await page.innerText("#live"), live);
      await close(url);
    });
  }
  await check("every panel says what the document says", async () => {
    // One answer of the daemon, so that page and check speak of the same moment.
    const view = await (await fetch(`${stage}view`)).json();
    const { page, close } = await open(browser, {}, async (tab) => {
      await tab.route("**/view", (route) => route.fulfill({ json: view }));
    });
    await page.goto(stage);
    await ready(page);
    const service = view.services[0];
    assert.equal(await page.innerText("#services h1"), service.summary);
    const origins = await texts(page, "#origins tbody tr");
    assert.equal(origins.length, service.origins.length);
    service.origins.forEach((origin, at) => {
      for (const word of [origin.name, origin.site, origin.state]) {
        assert.ok(origins[at].includes(word), `${word} in ${origins[at]}`);
      }
    });
    const nodes = await texts(page, "#nodes tbody th .link");
    assert.deepEqual(nodes, view.nodes.map((node) => node.name));
    assert.equal((await texts(page, "#map .site")).length, view.sites.length);
    const cells = await texts(page, "#matrix tbody td");
    assert.equal(cells.length, view.sites.length * new Set(view.distances.map((it) => it.to)).size);
    for (const row of view.distances.filter((it) => it.rtt_ms !== null && it.rtt_ms > 0)) {
      assert.ok(cells.some((cell) => cell.includes(`${row.rtt_ms} ms`)), `${row.rtt_ms} ms`);
    }
    assert.equal((await texts(page, "#events li")).length, view.events.length);
    const stats = await texts(page, "#stats tbody tr");
    assert.equal(stats.length, view.stats.length);
    view.stats.forEach((row, at) => {
      for (const word of [row.name, String(row.sessions_total), String(row.errors)]) {
        assert.ok(stats[at].includes(word), `${word} in ${stats[at]}`);
      }
    });
    assert.equal(await page.isHidden("#addresses-card"), view.addresses.length === 0);
    const charts = await page.getAttribute("#charts svg", "aria-label");
    assert.match(charts, /\d{2,} sessions connected, 0 failed/);
    await close(stage);
  });
}

// The labels of the map that another one covers, if only in part.
function coveredLabels() {
  const tags = [...document.querySelectorAll("#map .tag")].map((tag) => ({
    text: tag.textContent, box: tag.querySelector("rect").getBoundingClientRect() }));
  const cover = ({ box: a }, { box: b }) => a.left < b.right && b.left < a.right
    && a.top < b.bottom && b.top < a.bottom;
  return tags.filter((one) => tags.some((other) => other !== one && cover(one, other)))
    .map((tag) => tag.text);
}

async function madeUp(browser, url) {
  await check("findings, nodes, details and route changes say what the document says", async () => {
    let view = null;
    const { page, close } = await open(browser, {}, made(5, (it) => { view = it; return it; }));
    await page.goto(url);
    await ready(page);
    const says = async (selector, rows, words) => {
      // Not `innerText`, in which a style's capital letters are others than the document's.
      const shown = await page.locator(selector).allTextContents();
      assert.equal(shown.length, rows.length, selector);
      rows.forEach((row, at) => {
        for (const word of words(row)) {
          assert.ok(shown[at].includes(word), `${word} in ${shown[at]}`);
        }
      });
    };
    assert.ok(view.findings.length > 1 && view.findings[0].is_error);
    await says("#findings li", view.findings, (it) => [it.is_error ? "Error" : "Warning",
      it.detail, it.id, it.remedy]);
    const { node: me, now_s: now } = view;
    const days = (end) => `${Math.floor((end - me.started_at - now) / 86400)} d`;
    await says("#origins tbody tr", view.services[0].origins, (it) => [it.name,
      ...(it.chosen ? ["in use"] : it.shares ? ["shares"] : [])]);
    assert.ok(view.addresses.length > 0);
    await says("#addresses tbody tr", view.addresses, (it) => [it.address, it.name, it.group,
      it.holder, it.state, ...it.others]);
    await says("#nodes tbody tr", view.nodes, (it) => [it.name, it.site, it.version || "–",
      days(it.credential_expires_at), ...it.offers.slice(0, 1).map((offer) => offer.state),
      ...(it.path.kind === "relay" ? [`through ${it.path.relay}`] : []),
      ...(it.path.rtt_ms > 0 ? [`${it.path.rtt_ms} ms`] : [])]);
    const routes = view.events.filter((it) => it.kind === "route" && it.at_s >= now - 600);
    assert.ok(routes.length > 0);
    await says("#changes li", routes.reverse(), (it) => [it.detail]);
    for (const site of view.sites) {
      await page.click(`#map [data-key="site ${site.name}"]`);
      const detail = await page.innerText("#detail");
      for (const word of [site.name, `${site.alive} of ${site.nodes} present`,
        `${site.ready} of ${site.origins} ready`]) {
        assert.ok(detail.includes(word), `${word} in ${detail}`);
      }
    }
    await close(url);
  });
  for (const nodes of [5, 500]) {
    for (const [width, colorScheme] of [[360, "light"], [360, "dark"], [1280, "light"],
      [1280, "dark"], [1920, "light"], [1920, "dark"]]) {
      await check(`${nodes} nodes on ${width} px, ${colorScheme}: fits, and for everybody`,
        async () => {
          const viewport = { width, height: width < 500 ? 780 : 1000 };
          const { page, close } = await open(browser, { viewport, colorScheme }, made(nodes));
          await page.goto(url);
          await ready(page);
          assert.equal(await page.getAttribute("html", "data-theme"), colorScheme);
          await fits(page, width);
          assert.deepEqual(await page.evaluate(coveredLabels), []);
          await accessible(page);
          if (pictures) {
            await page.screenshot({ path: `${pictures}/${nodes}-${width}-${colorScheme}.png`,
              fullPage: nodes === 5 });
          }
          await close(url);
        });
    }
  }
  await check("search, filters, sorting and all rows of 500", async () => {
    const { page, close } = await open(browser, {}, made(500));
    await page.goto(url);
    await ready(page);
    const rows = () => page.locator("#nodes tbody tr").count();
    assert.equal(await rows(), 50);
    await page.click("#more");
    assert.equal(await rows(), 500);
    await page.keyboard.press("/");
    await page.keyboard.type("site-02 refusing");
    assert.equal(await rows(), 0);
    await page.fill("#search", "n12");
    assert.equal(await rows(), 10);
    await page.fill("#search", "");
    await page.click("#chips button:text('Origins')");
    assert.equal(await rows(), 5);
    await page.click("#nodes th button:text('Round trip')");
    await page.click("#nodes th button:text('Round trip')");
    assert.equal(await page.getAttribute("#nodes th:has(button:text('Round trip'))", "aria-sort"),
      "descending");
    await page.click("#chips button:text('Needs attention')");
    assert.ok((await texts(page, "#nodes tbody tr")).some((row) => row.includes("down")));
    await close(url);
  });
  await check("a site and a node open by mouse and by keyboard, and the focus stays", async () => {
    let now = 1200;
    const { page, close } = await open(browser, {}, made(5, (view) => ({ ...view, now_s: now += 2,
      sites: view.sites.map((site) => ({ ...site, relays: now })) })));
    await page.goto(url);
    await ready(page);
    await page.click('#map [data-key="site site-01"]');
    assert.match(await page.innerText("#detail"), /site-01/);
    await page.click("#detail .list button");
    assert.match(await page.innerText("#detail"), /Round trip/);
    await page.keyboard.press("Escape");
    // Tab goes on from what was clicked last, in a new document from its beginning.
    await page.reload();
    await ready(page);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
    const isSite = () => page.evaluate(() => document.activeElement.dataset.key === "site site-02");
    for (let presses = 0; presses < 30 && !(await isSite()); presses += 1) {
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
    assert.match(await page.innerText("#detail"), /site-02/);
    // The document changes with each answer, and what is drawn anew keeps the focus.
    const relays = await page.innerText("#detail dl");
    const differs = (before) => document.querySelector("#detail dl").innerText !== before;
    await page.waitForFunction(differs, relays, { timeout: LIMIT });
    assert.ok(await isSite());
    await close(url);
  });
  await check("the theme is switched and remembered", async () => {
    const { page, close } = await open(browser, { colorScheme: "light" }, made(5));
    await page.goto(url);
    await ready(page);
    await page.click("#theme");
    await page.reload();
    assert.equal(await page.getAttribute("html", "data-theme"), "dark");
    await close(url);
  });
  await check("a page without its daemon says so and goes on by itself", async () => {
    const { page } = await open(browser, {}, made(5));
    await page.goto(url);
    await ready(page);
    const lost = (route) => route.abort();
    await page.route("**/view", lost);
    await page.waitForSelector("#notice:not([hidden])", { timeout: LIMIT });
    assert.match(await page.innerText("#notice"), /No answer from the daemon for \d+ s/);
    assert.match(await page.innerText("#live"), /^Stale, as seen by n000/);
    await page.unroute("**/view", lost);
    await page.waitForSelector("#notice", { state: "hidden", timeout: LIMIT });
    assert.match(await page.innerText("#live"), /^Live/);
    await page.context().close();
  });
}

async function hostile(browser, url) {
  await check("names with markup in them are shown as they are", async () => {
    const { page, close } = await open(browser, {}, made(5, (view) => {
      view.nodes[1].name = HOSTILE;
      view.services[0].origins[0].name = HOSTILE;
      view.services[0].summary = `Sessions go to ${HOSTILE}: ${HOSTILE}`;
      view.sites[0].name = HOSTILE;
      view.node.name = HOSTILE;
      return view;
    }));
    await page.goto(url);
    await ready(page);
    await page.click('#map [data-key^="site <"]');
    for (const place of ["#services h1", "#findings", "#origins", "#map", "#nodes", "#events",
      "#who", "#detail"]) {
      const text = await page.textContent(place);
      assert.ok(text.includes(HOSTILE), `${place}: ${text}`);
    }
    assert.equal(await page.locator("img").count(), 0);
    await close(url);
  });
  await check("a page of another site reads nothing and frames nothing", async () => {
    const evil = http.createServer((request, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end("<!doctype html><title>evil</title>");
    });
    await new Promise((done) => { evil.listen(0, "127.0.0.1", done); });
    const { page } = await open(browser);
    await page.goto(`http://127.0.0.1:${evil.address().port}/`);
    const read = await page.evaluate(async (target) => {
      const tried = {};
      for (const path of ["view", "status", ""]) {
        try {
          tried[path] = (await (await fetch(target + path)).text()).length;
        } catch { tried[path] = "refused"; }
      }
      const frame = document.createElement("iframe");
      frame.src = target;
      document.body.append(frame);
      await new Promise((done) => { frame.onload = done; frame.onerror = done; });
      try {
        tried.frame = frame.contentDocument ? "read" : "closed";
      } catch { tried.frame = "closed"; }
      const script = document.createElement("script");
      script.src = `${target}view`;
      tried.script = await new Promise((done) => {
        script.onload = () => done("loaded");
        script.onerror = () => done("refused");
        document.body.append(script);
      });
      return tried;
    }, url);
    assert.deepEqual(read, { view: "refused", status: "refused", "": "refused", frame: "closed",
      script: "refused" });
    const frames = page.frames().slice(1);
    for (const frame of frames) {
      assert.ok(!(await frame.content()).includes("Sites and paths"), "it is framed");
    }
    const rebound = url.replace("127.0.0.1", "rebound.example");
    const answer = await page.goto(rebound);
    assert.equal(answer.status(), 421);
    assert.ok(!(await page.content()).includes("Sites and paths"));
    await page.context().close();
    evil.close();
  });
}

await main();
end("the page is well");
