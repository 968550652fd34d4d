// The page of `meshport dashboard` in a real browser: every node of a mesh of real daemons is chosen
// there, each with its own view, and what is said of one that is gone.
//
//   node dashboard.mjs TOOLS CHROMIUM MESHPORT [FOLDER]
//
// Arguments as of run.mjs.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import dgram from "node:dgram";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
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
    writeFileSync(at(`${name}.toml`), `site = "${site}"\nstate-dir = "${at(name)}"\n`
      + `[mesh]\nlisten = "${address}"\nadvertise = ["${address}"]\n`
      + `[admin]\nsocket = "${at(`${name}.sock`)}"\nhttp = "off"\n`
      + '[service.kube-apiserver]\nlisten = ["127.0.0.1:0"]\n');
    children[name] = spawn(program, ["run", "--config", at(`${name}.toml`)],
      { stdio: ["ignore", "ignore", "ignore"] });
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
