// Connects to the driver, and passes each snapshot to the panes.

import { className, element, show, text } from "./dom.js";
import { clockTime, span } from "./format.js";
import { Events, Fleet, History, Operations } from "./panes.js";
import { Run } from "./run.js";
import { Tiles } from "./tiles.js";
import { Training } from "./training.js";
import { Vectors } from "./vectors.js";

const SILENT_MS = 4000;
const AGAIN_MS = 2000;
const RECENT_S = 60; // the time for which losses and recoveries are shown at the top
const STATES = { silent: "is silent", recovering: "is lost, and being brought back", lost: "is lost" };

const byId = (id) => document.getElementById(id);
const body = (id) => byId(id).querySelector(".body");
const tiles = new Tiles(byId("tiles"));
const panes = [
  new Run(body("run")), new Training(body("training")), new Fleet(body("fleet")), new Vectors(body("vectors")),
  new Operations(body("operations")), new History(body("history")), new Events(body("events")),
];

let snapshot = null;
let arrivedMs = performance.now();
let ended = false; // true after the driver's message that it stops
let source = null;

function say(kind, words, banner = "") {
  className(byId("status"), `pill ${kind}`);
  text(byId("status"), words);
  text(byId("banner"), banner);
  show(byId("banner"), banner !== "");
  className(byId("banner"), kind === "bad" ? "banner" : "banner warn");
  document.body.classList.toggle("stale", kind === "bad");
}

function draw() {
  if (!snapshot || document.hidden) return;
  tiles.fill(snapshot);
  for (const pane of panes) pane.fill(snapshot);
  text(byId("where"), `${snapshot.where} · fleet ${snapshot.fleet_id} · PS2 ${snapshot.version}${snapshot.note ? ` · ${snapshot.note}` : ""}`);
}

function state() {
  const silentMs = performance.now() - arrivedMs;
  if (ended) return say("bad", "stopped", "The driver has stopped its context. This is the last that was known; the page goes on when a driver listens here again.");
  if (silentMs > SILENT_MS) return say("bad", "no answer", `No answer from the driver for ${span(Math.round(silentMs / 1000))}. This is the last that was known; the page connects again by itself.`);
  if (!snapshot) return say("", "connecting");
  const away = snapshot.fleet.shown.filter((one) => one.state !== "running");
  if (!away.length) {
    const recent = snapshot.events.filter((one) => !["warning", "worker"].includes(one.kind) && snapshot.at_s - one.at_s < RECENT_S);
    const words = recent.slice(0, 2).map((one) => `${clockTime(one.at_s)}: ${one.text}`).join("; ");
    return say("good", snapshot.run && !snapshot.run.is_over ? "live, a run is under way" : "live", words);
  }
  const words = away.map((one) => `server ${one.index} (${one.address}) ${STATES[one.state]}${one.reason ? `: ${one.reason.split("\n")[0]}` : ` for ${span(one.silent_s)}`}`);
  return say("warn", `live, ${away.length} of ${snapshot.fleet.servers} servers away`, words.slice(0, 3).join("; ") + (words.length > 3 ? `; and ${words.length - 3} more` : ""));
}

function connect() {
  source = new EventSource("/events");
  source.onmessage = (message) => {
    const next = JSON.parse(message.data);
    if (snapshot && snapshot.fleet_id !== next.fleet_id) tiles.clear();
    snapshot = next;
    arrivedMs = performance.now();
    ended = false;
    draw();
    state();
  };
  source.addEventListener("end", () => { ended = true; state(); again(); });
  // A refused stream is closed and does not reconnect by itself: check for the reason, and connect again.
  source.onerror = () => { if (source.readyState === EventSource.CLOSED) again(); };
}

let waiting = false;
function again() {
  if (waiting) return;
  waiting = true;
  source.close();
  setTimeout(async () => {
    waiting = false;
    const refused = await fetch("/events", { method: "HEAD" }).then((answer) => answer.status === 403, () => false);
    if (refused) { ended = false; arrivedMs = -1e9; refusal(); }
    connect();
  }, AGAIN_MS);
}

function refusal() {
  clearInterval(ticking);
  ticking = setInterval(() => { if (performance.now() - arrivedMs < SILENT_MS) { clearInterval(ticking); ticking = setInterval(state, 1000); } }, 1000);
  say("bad", "another driver", "Another driver listens here now, and does not know this browser. Open the link that it has printed: print(ps.dashboardUrl).");
}

let ticking = setInterval(state, 1000);
document.addEventListener("visibilitychange", draw);

byId("link").addEventListener("click", async () => {
  const answer = await fetch("/link", { method: "POST" });
  if (!answer.ok) return;
  const link = await answer.text(), box = element("input", { readonly: true, "aria-label": "Link that lets one other browser in" });
  box.value = link;
  const old = document.querySelector("header input");
  if (old) old.remove();
  byId("link").after(box);
  box.select();
  if (navigator.clipboard) await navigator.clipboard.writeText(link).catch(() => undefined);
});

connect();
