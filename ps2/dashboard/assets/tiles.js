// The summary at the top of the page: six numbers, with their recent past.

import { className, element, text } from "./dom.js";
import { bytes, number, percent, plural, rate, span } from "./format.js";
import { Sparkline } from "./charts.js";

const TILES = [
  ["Servers", (s) => `${s.fleet.running} of ${s.fleet.servers}`, servers, null, (s) => (s.fleet.running < s.fleet.servers ? "bad" : "")],
  ["Memory of servers", (s) => bytes(s.fleet.memory_bytes), (s) => `${percent(s.fleet.memory_bytes / s.fleet.memory_limit_bytes)} of ${bytes(s.fleet.memory_limit_bytes)}`,
    (s) => s.fleet.memory_bytes, (s) => (s.fleet.memory_bytes > 0.9 * s.fleet.memory_limit_bytes && s.fleet.memory_limit_bytes ? "warn" : "")],
  ["Requests", (s) => `${rate(s.fleet.requests_per_s)}/s`, (s) => `${number(s.fleet.shown.reduce((sum, one) => sum + (one.connections ?? 0), 0))} connections`, (s) => s.fleet.requests_per_s],
  ["Arrays in and out", (s) => `${bytes(s.fleet.bytes_in_per_s + s.fleet.bytes_out_per_s)}/s`, (s) => `in ${bytes(s.fleet.bytes_in_per_s)}, out ${bytes(s.fleet.bytes_out_per_s)}`, (s) => s.fleet.bytes_in_per_s + s.fleet.bytes_out_per_s],
  ["Waiting for locks", (s) => (s.fleet.lock_wait ? `${span(s.fleet.lock_wait)}/s` : "0"), (s) => "of all requests together", (s) => s.fleet.lock_wait],
  ["Clocks", (s) => (s.run && !s.run.is_over ? `${rate(s.run.per_s)}/s` : "–"), clocks, (s) => (s.run && !s.run.is_over ? s.run.per_s : 0)],
];

function servers(s) {
  const away = s.fleet.servers - s.fleet.running;
  if (!away && s.recoveries.length) return `all running, ${plural(s.recoveries.length, "recovery", "recoveries")}`;
  if (!away) return s.replicas ? "copies on the next" : "all running";
  const recovering = s.fleet.shown.filter((one) => one.state === "recovering").length;
  return recovering ? `${recovering} being brought back` : `${away} lost`;
}

function clocks(s) {
  if (!s.run) return "no run yet";
  return s.run.is_over ? "no run under way" : `${number(s.run.finished - s.run.first)} done by all workers`;
}

export class Tiles {
  constructor(section) {
    this.tiles = TILES.map(([name, , , spark]) => {
      const tile = { value: element("div", { class: "value" }), more: element("div", { class: "more" }), spark: spark && new Sparkline() };
      tile.node = element("div", { class: "tile" }, element("div", { class: "name" }, name), tile.value, tile.more, ...(spark ? [tile.spark.node] : []));
      return tile;
    });
    section.append(...this.tiles.map((tile) => tile.node));
  }

  fill(snapshot) {
    this.tiles.forEach((tile, i) => {
      const [, value, more, spark, mark] = TILES[i];
      text(tile.value, value(snapshot));
      text(tile.more, more(snapshot));
      tile.more.title = tile.more.textContent;
      className(tile.node, `tile ${mark ? mark(snapshot) : ""}`.trim());
      if (spark) tile.spark.add(spark(snapshot));
    });
  }

  clear() {
    this.tiles.forEach((tile) => tile.spark && tile.spark.clear());
  }
}
