// Fleet, operations, history and events: tables of a snapshot.

import { Table, element, show, text } from "./dom.js";
import { ago, busy, bytes, clockTime, compact, number, percent, rate, span } from "./format.js";

const sum = (words, left) => (left > 0 ? `${number(left)} more ${words}` : "");

export class Fleet {
  constructor(body) {
    this.table = new Table("Servers", [
      { name: "#", of: (s) => s.index, number: true },
      { name: "state", of: (s) => (s.state === "silent" ? `silent ${span(s.silent_s)}` : s.state) },
      { name: "address", of: (s) => s.address },
      { name: "memory", of: (s) => bytes(s.memory_bytes), number: true },
      { name: "of limit", of: (s) => (s.memory_bytes === null ? "–" : percent(s.memory_bytes / s.memory_limit_bytes)), number: true },
      { name: "requests/s", of: (s) => rate(s.requests_per_s), number: true },
      { name: "in/s", of: (s) => bytes(s.bytes_in_per_s), number: true },
      { name: "out/s", of: (s) => bytes(s.bytes_out_per_s), number: true },
      { name: "lock wait/s", of: (s) => busy(s.lock_wait), number: true },
      { name: "failed", of: (s) => number(s.failed), number: true },
      { name: "copies", of: (s) => (s.copies_bytes === null ? "–" : s.behind ? `${bytes(s.copies_bytes)}, ${s.behind} behind` : bytes(s.copies_bytes)), number: true },
      { name: "process", of: (s) => bytes(s.rss_bytes), number: true },
      { name: "up", of: (s) => span(s.uptime_s), number: true },
      { name: "", of: (s) => s.reason || s.node, wide: true },
    ], (s) => ({ running: "", silent: "warn" }[s.state] ?? "bad"));
    this.note = element("p", { class: "note" });
    this.saved = new Table("Checkpoints", [
      { name: "checkpoint", of: (c) => c.number, number: true },
      { name: "next step", of: (c) => (c.step === null ? "–" : number(c.step)), number: true },
      { name: "when", of: (c) => ago(c.at_s, this.now) },
      { name: "size", of: (c) => bytes(c.bytes), number: true },
      { name: "took", of: (c) => span(c.seconds), number: true },
      { name: "held requests", of: (c) => span(c.pause_s), number: true },
      { name: "folder", of: (c) => c.path, wide: true },
    ]);
    this.back = new Table("Recoveries", [
      { name: "servers", of: (r) => r.servers.join(", ") || "all" },
      { name: "from", of: (r) => r.source },
      { name: "took", of: (r) => span(r.seconds), number: true },
      { name: "size", of: (r) => bytes(r.bytes), number: true },
      { name: "what happened", of: (r) => r.text, wide: true },
    ]);
    this.heads = ["Checkpoints", "Recoveries"].map((name) => element("h3", {}, name));
    body.append(this.table.node, this.note, this.heads[0], this.saved.node, this.heads[1], this.back.node);
  }

  fill(snapshot) {
    const { fleet, checkpoints, recoveries } = snapshot;
    this.now = snapshot.at_s;
    this.table.fill(fleet.shown);
    text(this.note, sum("servers run", fleet.servers - fleet.shown.length));
    show(this.note, fleet.servers > fleet.shown.length);
    [[this.saved, checkpoints], [this.back, recoveries]].forEach(([table, rows], i) => {
      table.fill(rows);
      show(table.node, rows.length > 0);
      show(this.heads[i], rows.length > 0);
    });
  }
}

export class Operations {
  constructor(body) {
    this.table = new Table("Operations", [
      { name: "operation", of: (o) => o.name },
      { name: "time", of: (o) => span(o.seconds), number: true },
      { name: "share", of: (o) => percent(o.seconds / this.all), number: true },
      { name: "runs", of: (o) => compact(o.count), number: true },
      { name: "mean", of: (o) => span(o.mean_s), number: true },
      { name: "now/s", of: (o) => rate(o.per_s), number: true },
      { name: "busy now", of: (o) => percent(o.busy), number: true },
      { name: "keys", of: (o) => (o.keys ? compact(o.keys) : "–"), number: true },
      { name: "failed", of: (o) => (o.failures ? number(o.failures) : "–"), number: true },
    ], (o) => (o.failures ? "warn" : ""));
    this.note = element("p", { class: "note" });
    body.append(this.table.node, this.note);
  }

  fill(snapshot) {
    const { operations, operations_left_out: left } = snapshot;
    this.all = operations.reduce((total, one) => total + one.seconds, 0) || 1;
    this.table.fill(operations);
    const slowest = operations.reduce((worst, one) => (one.mean_s > (worst ? worst.mean_s : 0) ? one : worst), null);
    const said = slowest ? `Time on all servers since they started. Slowest per run: ${slowest.name}, ${span(slowest.mean_s)}. ${sum("operations took less", left)}` : "No operation has run yet, or no server has reported.";
    text(this.note, said);
  }
}

export class History {
  constructor(body) {
    this.table = new Table("Runs and fits", [
      { name: "began", of: (p) => clockTime(p.at_s) },
      { name: "", of: (p) => p.kind },
      { name: "name", of: (p) => p.name },
      { name: "took", of: (p) => (p.seconds === null ? "under way" : span(p.seconds)), number: true },
      { name: "outcome", of: (p) => [p.outcome, p.detail].filter(Boolean).join(": ") || "–", wide: true },
    ], (p) => (p.seconds === null || p.outcome === "done" ? "" : "bad"));
    this.empty = element("p", { class: "empty" }, "No run and no fit of this driver yet.");
    body.append(this.empty, this.table.node);
  }

  fill(snapshot) {
    this.table.fill(snapshot.history);
    show(this.table.node, snapshot.history.length > 0);
    show(this.empty, snapshot.history.length === 0);
  }
}

export class Events {
  constructor(body) {
    this.table = new Table("Events", [
      { name: "time", of: (e) => clockTime(e.at_s) },
      { name: "", of: (e) => e.kind, kind: (e) => `kind ${e.kind}` },
      { name: "what", of: (e) => e.text, wide: true },
    ]);
    this.empty = element("p", { class: "empty" }, "Nothing has gone wrong.");
    this.note = element("p", { class: "note" });
    body.append(this.empty, this.table.node, this.note);
  }

  fill(snapshot) {
    this.table.fill(snapshot.events);
    show(this.table.node, snapshot.events.length > 0);
    show(this.empty, snapshot.events.length === 0);
    text(this.note, sum("events came before these", snapshot.dropped_events));
  }
}
