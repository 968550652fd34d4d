// The page of `meshport dashboard` in a real browser: every node of a mesh of real daemons is
// chosen there, each with its own view, and what is said of one that is gone. Also the page of a
// daemon that is killed and started again while the page is open.
//
//   node dashboard.mjs TOOLS CHROMIUM MESHPORT [FOLDER]
//
// Arguments as of run.mjs.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import dgram from "node:dgram";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { FLAGS, LIMIT, accessible, check, chromium, end, fits, open } from "./kit.mjs";

const [, browserPath, program, pictures] = process.argv.slice(2);
const SITES = { "cp-fra": "fra", "worker-fra": "fra", "worker-nyc": "nyc" };
const SIZES = [[360, "light"], [360, "dark"], [1280, "light"], [1280, "dark"]];

const folder = mkdtempSync(join(tmpdir(), "meshport-dashboard-"));
const at = (name) => join(folder, name);
const children = {};

const run = (...words) => execFileSync(program, words, { encoding: "utf8",
  stdio: ["ignore", "pipe", "pipe"] });

// A UDP port that was free a moment ago.
const freePort = () => new Promise((resolve, reject) => {
  const socket = dgram.createSocket("udp4");
  socket.once("error", reject);
  socket.bind(0, "127.0.0.1", () => {
    const { port } = socket.address();
    socket.close(() => resolve(port));
  });
});

// A TCP port of that kind.
const freeTcpPort = () => new Promise((resolve, reject) => {
  const server = net.createServer();
  server.once("error", reject);
  server.listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});
let restarted = ""; // the page of worker-nyc's own daemon

function startDaemon(name) {
  children[name] = spawn(program, ["run", "--config", at(`${name}.toml`)],
    { stdio: ["ignore", "ignore", "ignore"] });
}

// Three daemons: the first has the authority, the others join with its invites.
async function startMesh() {
  let seed = "";
  for (const [name, site] of Object.entries(SITES)) {
    const address = `127.0.0.1:${await freePort()}`;
    if (!seed) {
      seed = address;
      run("init", "--state-dir", at(name), "--site", site, "--name", name);
    } else {
      writeFileSync(at(`${name}.invite`), invite(site, seed, "node"));
      run("join", at(`${name}.invite`), "--state-dir", at(name), "--name", name);
    }
    const http = name === "worker-nyc" ? `127.0.0.1:${await freeTcpPort()}` : "off";
    if (http !== "off") restarted = `http://${http}/`;
    writeFileSync(at(`${name}.toml`), `site = "${site}"\nstate-dir = "${at(name)}"\n`
      + `[mesh]\nlisten = "${address}"\nadvertise = ["${address}"]\n`
      + `[admin]\nsocket = "${at(`${name}.sock`)}"\nhttp = "${http}"\n`
      + '[service.kube-apiserver]\nlisten = ["127.0.0.1:0"]\n');
    startDaemon(name);
  }
  return seed;
}
const invite = (site, seed, role) => run("invite", "--state-dir", at("cp-fra"), "--site", site,
  "--role", role, "--endpoint", seed, "--ttl", "1h");

// The dashboard, once it says where its page is.
async function startDashboard(seed) {
  writeFileSync(at("laptop.invite"), invite("fra", seed, "operator"));
  const child = spawn(program, ["dashboard", "--invite", at("laptop.invite"), "--no-save",
    "--name", "laptop"], { stdio: ["ignore", "pipe", "inherit"] });
  children.dashboard = child;
  for await (const line of createInterface({ input: child.stdout })) {
    const found = line.match(/http:\/\/127\.0\.0\.1:\d+\//);
    if (found) return found[0];
  }
  throw new Error("the dashboard does not say where its page is");
}

const showsView = (page, name) => page.waitForFunction((it) => document
  .querySelector("#who b")?.innerText === it, name, { timeout: LIMIT });
const offers = (page, name) => page.waitForFunction((it) => [...document
  .querySelectorAll("#viewer option")].some((option) => option.value === it), name,
{ timeout: LIMIT });

async function main() {
  if (pictures) mkdirSync(pictures, { recursive: true });
  const browser = await chromium.launch({ executablePath: browserPath, args: FLAGS });
  try {
    const url = await startDashboard(await startMesh());
    await check("each node is chosen and shows its own view", async () => {
      const { page, close } = await open(browser);
      await page.goto(url);
      for (const name of Object.keys(SITES)) {
        await offers(page, name);
        await page.selectOption("#viewer", name);
        await showsView(page, name);
        assert.match(page.url(), new RegExp(`\\?node=${name}$`));
      }
      await page.reload();
      await showsView(page, "worker-nyc");
      assert.equal(await page.inputValue("#viewer"), "worker-nyc");
      await close(url);
    });
    for (const [width, colorScheme] of SIZES) {
      await check(`on ${width} px, ${colorScheme}: fits, and for everybody`, async () => {
        const viewport = { width, height: width < 500 ? 780 : 1000 };
        const { page, close } = await open(browser, { viewport, colorScheme });
        await page.goto(`${url}?node=worker-nyc`);
        await showsView(page, "worker-nyc");
        await offers(page, "cp-fra");
        await fits(page, width);
        await accessible(page);
        if (pictures) {
          await page.screenshot({ path: `${pictures}/dashboard-${width}-${colorScheme}.png` });
        }
        await close(url);
      });
    }
    await check("a page goes on by itself when its daemon is started again", async () => {
      const { page, trouble } = await open(browser);
      await page.goto(restarted);
      const says = (selector, start) => page.waitForFunction(([where, text]) => document
        .querySelector(where).innerText.startsWith(text), [selector, start], { timeout: LIMIT });
      await says("#live", "Live, as seen by worker-nyc");
      const startOf = () => page.evaluate(() => shown.view.node.started_at);
      const before = await startOf();
      const ended = new Promise((done) => { children["worker-nyc"].once("exit", done); });
      children["worker-nyc"].kill("SIGKILL");
      await ended;
      await says("#live", "Stale, as seen by worker-nyc");
      await page.waitForSelector("#notice:not([hidden])", { timeout: LIMIT });
      startDaemon("worker-nyc");
      await says("#live", "Live, as seen by worker-nyc");
      await page.waitForSelector("#notice", { state: "hidden", timeout: LIMIT });
      assert.ok(await startOf() > before, "it shows the view of the daemon that was killed");
      // What the browser itself says while nothing listens.
      assert.deepEqual(trouble.filter((it) => !it.includes("net::ERR_CONNECTION_")), []);
      await page.context().close();
    });
    await check("a node that is gone is said to be, and another one is still shown", async () => {
      const { page, trouble } = await open(browser);
      await page.goto(`${url}?node=worker-nyc`);
      await showsView(page, "worker-nyc");
      children["worker-nyc"].kill("SIGKILL");
      await page.waitForSelector("#notice:not([hidden])", { timeout: LIMIT });
      await page.waitForFunction(() => /reach|answer/.test(document
        .querySelector("#notice").innerText), undefined, { timeout: LIMIT });
      await page.selectOption("#viewer", "cp-fra");
      await showsView(page, "cp-fra");
      await page.waitForSelector("#notice", { state: "hidden", timeout: LIMIT });
      // What the browser itself says of answers that are no success.
      assert.deepEqual(trouble.filter((it) => !it.includes("status of 50")), []);
      await page.context().close();
    });
  } finally {
    await browser.close();
    Object.values(children).forEach((child) => child.kill("SIGKILL"));
    rmSync(folder, { recursive: true, force: true });
  }
}

await main();
end("the dashboard is well");
