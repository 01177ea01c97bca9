// The current run, or the last one: facts, the moving Gantt chart, the workers, and their logged numbers.

import { LineChart, Shares } from "./charts.js";
import { Table, element, facts, show, text } from "./dom.js";
import { number, percent, plural, rate, span } from "./format.js";
import { CATEGORIES, Gantt } from "./gantt.js";

export class Run {
  constructor(body) {
    this.empty = element("p", { class: "empty" }, "No run yet. Workers of ps.run(...) and of fits show up here.");
    this.facts = element("div", { class: "facts" });
    this.shares = new Shares();
    this.legend = element("div", { class: "legend" }, ...CATEGORIES.map((name) => element("span", {}, element("i", { class: name }), element("span"))),
      element("span", {}, element("i", { class: "working" }), "in a clock that has not ended"));
    this.gantt = new Gantt();
    this.note = element("p", { class: "note" });
    const whole = (w) => w.parts.reduce((a, b) => a + b, 0) || 1;
    this.table = new Table("Workers", [
      { name: "rank", of: (w) => w.rank, number: true, link: (w) => w.log, about: "log of its executor" },
      { name: "now", of: (w) => (w.state === "working" ? `in clock ${number(w.clock)}` : w.state === "wait" ? `waits ${w.why}` : w.state === "onClock" ? `waits for ${w.why}` : w.state), wide: true },
      { name: "clock", of: (w) => number(w.clock), number: true },
      { name: "behind", of: (w) => (w.behind ? number(w.behind) : "–"), number: true },
      { name: "a clock takes", of: (w) => span(w.busy_s), number: true },
      { name: "of median", of: (w) => (w.slowdown === null ? "–" : `${w.slowdown.toFixed(2)} ×`), number: true },
      ...CATEGORIES.slice(0, 9).map((name, k) => ({ name, of: (w) => percent(w.parts[k] / whole(w)), number: true })),
      { name: "lost attempts", of: (w) => (w.failures ? number(w.failures) : "–"), number: true },
    ], (w) => (w.slowdown >= 1.5 && this.many ? "warn" : w.state === "no task" ? "bad" : ""));
    this.details = element("details", { open: true }, element("summary", {}, "Workers"), this.table.node);
    this.charts = element("div", { class: "charts" });
    this.lines = new Map();
    this.all = element("div", {}, this.facts, element("div", { class: "shares" }, this.shares.node), this.legend, this.gantt.node, this.note, this.charts, this.details);
    body.append(this.empty, this.all);
  }

  fill(snapshot) {
    const { run } = snapshot;
    show(this.empty, !run);
    show(this.all, Boolean(run));
    if (!run) return;
    this.many = run.workers > 1;
    const states = Object.entries(run.states).map(([state, n]) => `${number(n)} ${state}`).join(", ");
    facts(this.facts, [
      [run.is_over ? "the last run" : "under way", ""],
      ["", plural(run.workers, "worker")],
      ["", run.discipline],
      ["clocks done by all", number(run.finished - run.first)],
      ["is the furthest clock", number(run.furthest)],
      ...(run.is_over ? [] : [["clocks/s", rate(run.per_s)]]),
      ["", span(run.seconds)],
      ...(run.left_s === null ? [] : [["left at this pace", span(run.left_s)]]),
      ...(run.rollbacks ? [["", plural(run.rollbacks, "rollback")]] : []),
    ]);
    const total = run.parts.reduce((a, b) => a + b, 0) || 1;
    this.shares.fill(CATEGORIES.map((name, k) => [name, run.parts[k] / total]));
    CATEGORIES.forEach((name, k) => {
      show(this.legend.children[k], run.parts[k] > 0);
      text(this.legend.children[k].lastChild, `${name} ${percent(run.parts[k] / total)}`);
    });
    this.gantt.fill(run);
    const left = run.workers - run.shown.length;
    text(this.note, [
      run.is_over ? "" : `Now: ${states}.`,
      run.stragglers.length ? `Slow, at least 1.5 times the median: rank ${run.stragglers.join(", ")}.` : "",
      left ? `${plural(left, "worker")} not shown: these are the slowest, and others at even distances.` : "",
    ].filter(Boolean).join(" "));
    this.table.fill(run.shown);
    drawSeries(this.charts, this.lines, run.series, "clock");
  }
}

// Draws a chart for each series, and keeps the charts that exist.
export function drawSeries(node, lines, series, x) {
  const names = new Set(series.map((one) => one.name));
  for (const [name, chart] of lines) {
    if (!names.has(name)) { chart.node.remove(); lines.delete(name); }
  }
  for (const one of series) {
    if (!lines.has(one.name)) {
      const chart = new LineChart(one.name, x);
      lines.set(one.name, chart);
      node.append(chart.node);
    }
    lines.get(one.name).fill([one]);
  }
}
