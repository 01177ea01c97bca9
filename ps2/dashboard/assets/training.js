// The current training of an estimator, or the last one.

import { LineChart } from "./charts.js";
import { element, facts, show, text } from "./dom.js";
import { bytes, number, rate, span, value } from "./format.js";
import { drawSeries } from "./run.js";

export class Training {
  constructor(body) {
    this.empty = element("p", { class: "empty" }, "No fit yet. Estimators of ps2.algorithms show their training here.");
    this.facts = element("div", { class: "facts" });
    this.progress = element("progress", { max: "1", "aria-label": "Steps taken" });
    this.charts = element("div", { class: "charts" });
    this.lines = new Map();
    this.main = null;
    this.params = element("p", { class: "note" });
    this.all = element("div", {}, this.facts, this.progress, this.charts, element("details", {}, element("summary", {}, "Params that were set"), this.params));
    body.append(this.empty, this.all);
  }

  fill(snapshot) {
    const { training } = snapshot;
    show(this.empty, !training);
    show(this.all, Boolean(training));
    if (!training) return;
    const reports = training.state === "reading" || training.state === "training";
    facts(this.facts, [
      ["", training.name],
      ["", training.state === "reading" ? "workers read their rows" : training.state],
      [`of ${number(training.steps)}`, `${training.unit} ${number(training.step)}`],
      ["", span(training.seconds)],
      ...(reports && training.left_s !== null ? [["left, if it takes all of them", span(training.left_s)]] : []),
      ...(training.rows_per_s ? [["rows/s", rate(training.rows_per_s)]] : []),
      ...(training.bytes ? [["exchanged", bytes(training.bytes)]] : []),
      ...training.numbers.map(([name, n]) => [name.replace("_per_", "/").replaceAll("_", " "), value(n)]),
    ]);
    show(this.progress, reports);
    this.progress.value = training.steps ? training.step / training.steps : 0;
    const [objective, ...rest] = training.series;
    const validation = rest.filter((one) => one.name === "validation");
    if (!this.main) {
      this.main = new LineChart("objective", "step", 170);
      this.charts.before(this.main.node);
    }
    this.main.label = training.objective;
    this.main.x = training.unit;
    this.main.fill([{ ...objective, name: training.objective }, ...validation]);
    drawSeries(this.charts, this.lines, rest.filter((one) => one.name !== "validation").map((one) => (one.name === "seconds of a step" ? { ...one, name: `seconds of one ${training.unit}` } : one)), training.unit);
    text(this.params, training.params.map(([name, set]) => `${name}=${set}`).join(", ") || "none");
  }
}
