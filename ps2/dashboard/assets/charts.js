// Charts in SVG: a line chart whose values can be read by mouse, touch and arrow keys, and a sparkline.

import { element, shape, text, show } from "./dom.js";
import { value, number } from "./format.js";

const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 20;
const COLOURS = 6;
let charts = 0;

// Returns about ``count`` round numbers from low to high.
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const values = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) values.push(Number(tick.toPrecision(12)));
  return values;
}

export class LineChart {
  constructor(label, x, height = 150) {
    this.label = label;
    this.x = x;
    this.height = height;
    this.series = [];
    this.at = null;
    this.legend = element("div", { class: "legend" });
    this.svg = shape("svg", { height, tabindex: "0", role: "img", "aria-label": label });
    this.tip = element("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.clip = `plot-${(charts += 1)}`;
    this.node = element("div", { class: "chart" }, this.legend, this.svg, this.tip);
    this.svg.addEventListener("pointermove", (e) => this.point(e.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => this.read(null));
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // ``series``: a list of {name, at, values}; ``at`` are the x values.
  fill(series) {
    this.series = series.filter((one) => one.values.length);
    show(this.node, this.series.length > 0);
    this.draw();
  }

  draw() {
    const { svg, series, height } = this, width = svg.clientWidth;
    if (!series.length || !width) return;
    const xs = series.flatMap((one) => [one.at[0], one.at[one.at.length - 1]]);
    const ys = series.flatMap((one) => [Math.min(...one.values), Math.max(...one.values)]);
    let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (y0 === y1) { const pad = Math.abs(y0) * 0.05 || 0.5; y0 -= pad; y1 += pad; }
    const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const py = (y) => height - BOTTOM - ((y - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
    this.scale = { px, py, width };
    const parts = [];
    for (const y of ticks(y0, y1, 3)) {
      parts.push(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y) }));
      parts.push(shape("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, value(y)));
    }
    for (const x of ticks(x0, x1, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
      parts.push(shape("text", { x: px(x), y: height - 5, "text-anchor": "middle" }, number(x)));
    }
    series.forEach((one, i) => {
      const d = one.values.map((y, k) => `${k ? "L" : "M"}${px(one.at[k]).toFixed(1)} ${py(y).toFixed(1)}`).join("");
      parts.push(shape("path", { class: `c${i % COLOURS}`, d: one.values.length > 1 ? d : `${d}h0.01` , "stroke-linecap": "round" }));
    });
    this.cross = shape("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    svg.replaceChildren(...parts, this.cross);
    this.caption();
    if (this.at !== null) this.read(this.at);
  }

  caption() {
    const { legend, series } = this;
    while (legend.children.length > series.length) legend.lastChild.remove();
    series.forEach((one, i) => {
      if (!legend.children[i]) legend.append(element("span", {}, element("i", { class: `b${i % COLOURS}` }), element("span")));
      text(legend.children[i].lastChild, `${one.name} ${value(one.values[one.values.length - 1])}`);
    });
    const ranges = series.map((one) => `${one.name}: ${value(one.values[0])} to ${value(one.values[one.values.length - 1])}`).join("; ");
    this.svg.setAttribute("aria-label", `${this.label} by ${this.x}. ${ranges}. Arrow keys read the values.`);
  }

  point(x) {
    if (!this.scale) return;
    const first = this.series[0];
    let best = 0;
    first.at.forEach((at, k) => { if (Math.abs(this.scale.px(at) - x) < Math.abs(this.scale.px(first.at[best]) - x)) best = k; });
    this.read(first.at[best]);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.read(null);
    if (step === undefined || !this.series.length) return;
    event.preventDefault();
    const at = this.series[0].at;
    const now = this.at === null ? (step > 0 ? -1 : at.length) : at.findIndex((x) => x >= this.at);
    this.read(at[Math.min(at.length - 1, Math.max(0, (now < 0 ? at.length - 1 : now) + step))]);
  }

  read(at) {
    this.at = at;
    show(this.tip, at !== null);
    if (!this.cross) return;
    this.cross.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) return;
    const x = this.scale.px(at);
    this.cross.setAttribute("x1", x);
    this.cross.setAttribute("x2", x);
    const lines = this.series.map((one) => {
      const k = one.at.findIndex((x) => x >= at);
      return `${one.name} ${value(one.values[k < 0 ? one.values.length - 1 : k])}`;
    });
    text(this.tip, [`${this.x} ${number(at)}`, ...lines].join("\n"));
    const left = x > this.scale.width / 2 ? x - this.tip.offsetWidth - 10 : x + 10;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${this.svg.offsetTop + TOP}px`;
  }
}

// A line of the last values of a changing number.
export class Sparkline {
  constructor(maxLength = 120) {
    this.maxLength = maxLength;
    this.values = [];
    this.path = shape("path", { class: "c0", fill: "none", "stroke-width": "1.5", "vector-effect": "non-scaling-stroke" });
    this.node = shape("svg", { viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this.path);
  }

  add(y) {
    this.values.push(y ?? 0);
    if (this.values.length > this.maxLength) this.values.shift();
    const top = Math.max(...this.values, 1e-9), offset = this.maxLength - this.values.length;
    this.path.setAttribute("d", this.values.map((v, k) => `${k ? "L" : "M"}${offset + k} ${(22.5 - (21 * v) / top).toFixed(1)}`).join(""));
  }

  clear() {
    this.values = [];
    this.path.setAttribute("d", "");
  }
}

// A bar of shares that add up to 1, given as [[colour class, share]].
export class Shares {
  constructor() {
    this.node = shape("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  }

  fill(shares) {
    let x = 0;
    this.node.replaceChildren(...shares.map(([colour, share]) => {
      const part = shape("rect", { x, y: 0, width: 100 * share, height: 10, fill: `var(--${colour})` });
      x += 100 * share;
      return part;
    }));
  }
}
