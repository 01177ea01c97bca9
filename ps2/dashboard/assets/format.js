// Formats numbers as text. null is a dash: the number is unknown.

const DASH = "–";

export function bytes(n) {
  if (n === null || n === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(n) >= 1023.5 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${unit && n < 99.95 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

export function number(n) {
  if (n === null || n === undefined) return DASH;
  if (Math.abs(n) >= 1e15) return n.toExponential(2);
  return Math.round(n).toLocaleString("en-US");
}

const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

// A short form for narrow columns: 5.69M for 5,690,319.
export function compact(n) {
  return n === null || n === undefined ? DASH : COMPACT.format(n);
}

export function rate(n) {
  if (n === null || n === undefined) return DASH;
  return n >= 99.5 || n === 0 ? number(n) : n.toPrecision(n < 1 ? 2 : 3);
}

export function value(n) {
  if (n === null || n === undefined) return DASH;
  const size = Math.abs(n);
  if (n !== 0 && (size < 1e-3 || size >= 1e6)) return n.toExponential(3);
  return String(Number(n.toPrecision(5)));
}

// A time span in seconds: 12 µs, 3.4 ms, 5.6 s, 2 min 03 s, 1 h 02 min, 3 d 4 h.
export function span(s) {
  if (s === null || s === undefined) return DASH;
  if (s === 0) return "0 s";
  if (s < 1e-3) return `${Number((s * 1e6).toPrecision(3))} µs`;
  if (s < 1) return `${Number((s * 1e3).toPrecision(3))} ms`;
  if (s < 100) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  const two = (n) => String(n).padStart(2, "0");
  const seconds = Math.round(s);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor((seconds % 3600) / 60))} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// Seconds per second, such as the time in which requests waited.
export function busy(s) {
  return s === 0 ? "0" : span(s);
}

export function percent(share) {
  return share === null || share === undefined || Number.isNaN(share) ? DASH : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

export function clockTime(s) {
  const then = new Date(1000 * s);
  const time = then.toLocaleTimeString("en-GB");
  return Date.now() - then.getTime() < 43200e3 ? time : `${then.toLocaleDateString("en-CA")} ${time}`;
}

export function ago(s, now) {
  const passed = Math.max(0, Math.round(now - s));
  return passed < 100 ? `${passed} s ago` : `${span(passed)} ago`;
}

// A number of columns. A large power of two is written as a power.
export function dim(n) {
  const power = Math.log2(n);
  return n >= 2 ** 40 && Math.abs(power - Math.round(power)) < 1e-9 ? `2^${Math.round(power)}` : number(n);
}

export function plural(n, noun, several = `${noun}s`) {
  return `${number(n)} ${n === 1 ? noun : several}`;
}
