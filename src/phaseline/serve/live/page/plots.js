// Distributions over the buckets that /metrics has, too: time on a logarithmic axis, share of all upwards.

import {several, time} from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const TOP = 18, BOTTOM = 24;  // pixels of the words above and below
const FOR_P99 = 100;  // values without which there is no 99th percentile

function add(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
}

const sum = (counts) => counts.reduce((a, b) => a + b, 0);

/** The bound of the bucket that holds the q-th part of all. */
function quantile(counts, bounds, q) {
  let left = q * sum(counts);
  for (let i = 0; i < counts.length; i++) if ((left -= counts[i]) <= 0) return bounds[i] ?? Infinity;
  return Infinity;
}

function percentiles(counts, bounds) {
  const n = sum(counts);
  const one = (p) => {
    const bound = quantile(counts, bounds, p / 100);
    return `p${p} ${bound === Infinity ? `over ${time(bounds.at(-1))}` : `\u2264 ${time(bound)}`}`;
  };
  return n >= FOR_P99 ? `${one(50)}, ${one(99)}` : one(50);
}

export class Plot {
  constructor(figure, noun) {
    this.told = figure.querySelector(".told");
    this.svg = figure.querySelector("svg");
    this.noun = noun;
  }

  /** Draws counts of each bucket since the server began, and those of the last minute. */
  draw(bounds, ever, before) {
    const minute = before ? ever.map((n, i) => n - before[i]) : ever.map(() => 0);
    const shown = sum(minute) ? minute : ever, when = sum(minute) ? "in the last minute" : "since the server began";
    this.told.textContent = sum(shown)
      ? `${percentiles(shown, bounds)} of ${several(sum(shown), this.noun)} ${when}`
      : `No ${this.noun} yet.`;
    const width = this.svg.clientWidth, height = this.svg.clientHeight, base = height - BOTTOM;
    const key = JSON.stringify([minute, ever, width]);
    if (key === this.key || !width) return;
    this.key = key;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", this.told.textContent);
    const low = Math.log(bounds[0] / 2), high = Math.log(bounds.at(-1) * 1.5);
    const x = (ms) => width * (Math.log(ms) - low) / (high - low);
    const edges = [0, ...bounds.map(x), width];
    for (const ms of [1, 10, 100, 1000, 10_000]) {
      add(this.svg, "line", {x1: x(ms), x2: x(ms), y1: TOP, y2: base, class: "grid"});
      add(this.svg, "text", {x: x(ms), y: base + 17, "text-anchor": "middle"}, time(ms));
    }
    const share = (counts) => counts.map((n) => n / Math.max(1, sum(counts)));
    const parts = [share(ever), share(minute)], top = Math.max(...parts.flat());
    const outline = (counts) => counts.map((part, i) => {
      const y = top ? base - (base - TOP) * part / top : base;
      return `L${edges[i].toFixed(1)} ${y.toFixed(1)}L${edges[i + 1].toFixed(1)} ${y.toFixed(1)}`;
    }).join("");
    add(this.svg, "path", {d: `M0 ${base}${outline(parts[1])}L${width} ${base}Z`, class: "minute"});
    if (sum(ever)) add(this.svg, "path", {d: `M0 ${base}${outline(parts[0])}L${width} ${base}`, class: "ever"});
    add(this.svg, "line", {x1: 0, x2: width, y1: base, y2: base, class: "base"});
    if (top) add(this.svg, "text", {x: width, y: 10, "text-anchor": "end"}, `tallest: ${Math.round(100 * top)}% of all`);
  }
}
