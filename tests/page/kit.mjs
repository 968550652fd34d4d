// What the tests of pages in a real browser have in common: checks with a name, tabs that remember
// what went wrong in them, and what every page has to be.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const tools = process.argv[2];
const require = createRequire(`${tools}/`);
export const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
export const LIMIT = 60000; // ms for anything that has to happen
export const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
  "--host-resolver-rules=MAP rebound.example 127.0.0.1"];

let failed = 0;
export async function check(name, body) {
  const began = Date.now();
  try {
    await body();
    console.log(`ok      ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${String(error.stack || error).replace(/^/gm, "        ")}`);
  }
}

// A tab that remembers whatever went wrong in it.
export async function open(browser, options = {}, prepare = async () => {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const trouble = [];
  const hosts = new Set();
  page.on("console", (it) => { if (it.type() === "error") trouble.push(it.text()); });
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("dialog", (dialog) => { trouble.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => hosts.add(new URL(request.url()).host));
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => {
      console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  await prepare(page);
  const close = async (url) => {
    await context.close();
    assert.deepEqual(trouble, []);
    // The icon is in the page, and its address has no host.
    const others = [...hosts].filter((host) => ![new URL(url).host, ""].includes(host));
    assert.deepEqual(others, [], "another host was asked");
  };
  return { page, trouble, close };
}
export const texts = (page, selector) => page.locator(selector).allInnerTexts();

export async function fits(page, width) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= width, `the page is ${wide} px wide in a window of ${width}`);
}
export async function accessible(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  const serious = violations.filter((it) => ["serious", "critical"].includes(it.impact));
  const said = (it) => `${it.id}: ${it.nodes[0].html} ${it.nodes[0].failureSummary}`;
  assert.deepEqual(serious.map(said), []);
}

// Ends the program, with what is to be said if all is well.
export function end(fine) {
  console.log(failed === 0 ? fine : `${failed} checks failed`);
  process.exit(failed === 0 ? 0 : 1);
}
