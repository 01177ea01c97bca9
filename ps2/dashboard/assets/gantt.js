// A Gantt chart of the workers' recent past on a canvas. Between two snapshots, the time axis moves.

import { element, show, text } from "./dom.js";
import { span } from "./format.js";

// The categories of a run's time, and the order of the categories in a bar, as in ps2/run/timeline.py.
export const CATEGORIES = [
  "compute", "pull", "push", "wait", "onClock", "checkpoint", "coordinator", "kernels", "outside", "connect", "imports", "spark", "other",
];
export const ROW_ORDER = [
  "spark", "imports", "connect", "wait", "onClock", "checkpoint", "coordinator", "kernels", "pull", "compute", "push",
];
const LEFT = 46, AXIS = 18;
const FRAME_MS = 100;

// Returns the height of a lane, and of the gap between two lanes. The more workers, the narrower the lanes.
function lanes(workers) {
  return workers > 20 ? [11, 2] : workers > 10 ? [14, 3] : [18, 4];
}

export class Gantt {
  constructor() {
    this.canvas = element("canvas", { role: "img", tabindex: "0" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.node = element("div", { class: "chart" }, this.canvas, this.tip);
    this.run = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => show(this.tip, false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.timer = setInterval(() => this.move(), FRAME_MS);
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  fill(run) {
    this.run = run;
    this.arrivedMs = performance.now();
    const waits = run.shown.filter((worker) => worker.state === "wait").length;
    this.canvas.setAttribute("aria-label", `Gantt chart of ${run.shown.length} workers, the last ${run.window_s} s; ${waits} wait. The table below has the numbers.`);
    this.draw();
  }

  move() {
    if (this.run && !this.run.is_over && !document.hidden && !this.still.matches) this.draw();
  }

  // Returns the present time in seconds since the run began. It stops if no snapshot arrives.
  now() {
    const { run } = this;
    return run.is_over ? run.seconds : run.seconds + Math.min(1.5, (performance.now() - this.arrivedMs) / 1000);
  }

  draw() {
    const { canvas, run } = this, width = canvas.clientWidth;
    if (!run || !width) return;
    const sharp = window.devicePixelRatio || 1, [lane, gap] = lanes(run.shown.length);
    const height = run.shown.length * (lane + gap) + AXIS;
    if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
      canvas.width = Math.round(width * sharp);
      canvas.height = Math.round(height * sharp);
      canvas.style.height = `${height}px`;
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = Object.fromEntries([...CATEGORIES, "rest", "ink", "quiet", "line", "card"].map((name) => [name, colour(name)]));
    const c = canvas.getContext("2d");
    c.setTransform(sharp, 0, 0, sharp, 0, 0);
    c.clearRect(0, 0, width, height);
    const end = this.now(), begin = end - run.window_s;
    const px = (s) => LEFT + ((s - begin) / run.window_s) * (width - LEFT);
    this.scale = { begin, px };
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    this.axis(c, colours, width, height);
    run.shown.forEach((worker, i) => this.lane(c, colours, worker, [i * (lane + gap), lane], px, end, width));
  }

  axis(c, colours, width, height) {
    const { begin, px } = this.scale, step = this.run.window_s / (width < 500 ? 3 : 5);
    const digits = step % 1 ? 1 : 0;
    for (let s = Math.ceil(begin / step) * step; s <= begin + this.run.window_s; s += step) {
      const x = px(s);
      if (s < -1e-9 || x < LEFT) continue;
      c.strokeStyle = colours.line;
      c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height - AXIS); c.stroke();
      c.fillStyle = colours.quiet;
      c.textAlign = x > width - 20 ? "right" : "center";
      c.fillText(`${s.toFixed(digits)} s`, x, height - 7);
    }
  }

  lane(c, colours, worker, [y, height], px, end, width) {
    const fill = (from, to, colour) => {
      const x = Math.max(LEFT, px(from)), right = Math.min(width, px(to));
      if (right <= x) return;
      c.fillStyle = colour;
      c.fillRect(x, y, Math.max(right - x, 0.75), height);
    };
    for (const bar of worker.bars) {
      let at = bar.began_s;
      bar.parts.forEach((s, k) => {
        if (s > 0) fill(at, at + s, colours[bar.outside && ROW_ORDER[k] === "compute" ? "outside" : ROW_ORDER[k]]);
        at += s;
      });
      const x = px(bar.began_s), room = px(at) - x;
      if (bar.clocks === 1 && !bar.outside && room > 34 && x >= LEFT) {
        c.fillStyle = colours.card; c.globalAlpha = 0.85; c.fillRect(x, y, 1.5, height); c.globalAlpha = 1;
      }
    }
    const last = worker.bars[worker.bars.length - 1];
    const past = last ? last.began_s + last.parts.reduce((a, b) => a + b, 0) : 0;
    if (worker.state === "wait" || worker.state === "onClock") {
      if (worker.since_s > past) fill(past, worker.since_s, colours.rest);
      fill(Math.max(past, worker.since_s), end, colours[worker.state]);
    } else if (worker.state === "working") {
      fill(past, end, colours.rest);
    }
    c.fillStyle = worker.slowdown >= 1.5 ? colours.onClock : colours.quiet;
    c.textAlign = "left";
    c.fillText(`rank ${worker.rank}`, 0, y + height / 2);
  }

  point(event) {
    const { run, scale } = this, box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const worker = run && run.shown[Math.floor(y / lanes(run.shown.length).reduce((a, b) => a + b))];
    const s = scale && scale.begin + ((x - LEFT) / (box.width - LEFT)) * run.window_s;
    const bar = worker && worker.bars.find((one) => one.began_s <= s && s < one.began_s + one.parts.reduce((a, b) => a + b, 0));
    show(this.tip, Boolean(worker) && x > LEFT);
    if (!worker) return;
    const activity = bar ? (bar.outside ? "outside of clocks" : bar.clocks > 1 ? `clocks up to ${bar.clock} (${bar.clocks} in one bar)` : `clock ${bar.clock}`) : `in clock ${worker.clock}: ${worker.state}`;
    const times = bar ? ROW_ORDER.map((kind, k) => [kind, bar.parts[k]]).filter(([, s]) => s > 0).map(([kind, s]) => `${kind} ${span(s)}`) : [worker.why].filter(Boolean);
    text(this.tip, [`rank ${worker.rank}, ${activity}`, ...times].join("\n"));
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${y + 14}px`;
  }
}
