// What open pages cost a daemon of the demo: processor time and bytes, with 0, 1 and 20 of them, on
// an idle mesh. A page is stood for by its requests: /view every two seconds, with the last ETag,
// and in full every fifteenth time.
//
//   node measure.mjs MESHPORT [SECONDS]

import { execFileSync, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const [program, seconds = "120"] = process.argv.slice(2);
const POLL = 2000; // ms
const WHOLE = 15;
const TICK = 1000 / Number(execFileSync("getconf", ["CLK_TCK"])); // ms
const wait = (ms) => new Promise((done) => { setTimeout(done, ms); });

// Processor time of a process so far, in ms.
function processorTime(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * TICK;
}

// One page for so long; what was asked and received.
async function poll(url, until, sum) {
  await wait(Math.random() * POLL);
  let tag = "";
  for (let asked = 1; Date.now() < until; asked += 1) {
    const answer = await fetch(`${url}view`, { headers: tag ? { "If-None-Match": tag } : {} });
    const body = await answer.text();
    sum.asked += 1;
    sum.same += answer.status === 304 ? 1 : 0;
    sum.bytes += body.length;
    tag = asked % WHOLE === 0 ? "" : answer.headers.get("etag") || "";
    await wait(POLL);
  }
}

const demo = spawn(program, ["demo", "--for", "20", "--keep-running"],
  { stdio: ["ignore", "pipe", "inherit"] });
let [url, pid] = ["", 0];
for await (const line of createInterface({ input: demo.stdout })) {
  url ||= line.match(/mad-worker\s+(http:\S+)/)?.[1] || "";
  pid ||= Number(line.match(/mad-worker\s+(\d+)\s+\//)?.[1] || 0);
  if (url && pid) break;
}
demo.stdout.resume();
await wait(5000);
const whole = (await (await fetch(`${url}view`)).text()).length;
console.log(`a view is ${whole} bytes; ${seconds} s each`);
console.log("| pages | CPU | requests | answered 304 | bytes a second |");
console.log("| ---: | ---: | ---: | ---: | ---: |");
for (const pages of [0, 1, 20]) {
  const sum = { asked: 0, same: 0, bytes: 0 };
  const [before, began] = [processorTime(pid), Date.now()];
  const until = began + Number(seconds) * 1000;
  await Promise.all([wait(Number(seconds) * 1000),
    ...Array.from({ length: pages }, () => poll(url, until, sum))]);
  const lasted = Date.now() - began;
  const share = ((processorTime(pid) - before) * 100) / lasted;
  const rate = Math.round((sum.bytes * 1000) / lasted);
  const cells = [pages, `${share.toFixed(2)} % of a core`, sum.asked, sum.same, rate];
  console.log(`| ${cells.join(" | ")} |`);
}
demo.kill("SIGINT");
