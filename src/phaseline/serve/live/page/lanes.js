// The moving picture: a lane for each request, the engine's steps above them, pages and queue below, over one clock.

import {before} from "./history.js";
import {count, several, shortTime} from "./words.js";

const ENGINE = 14, STRIP = 34, AXIS = 22, GAP = 14;
const MOST = 48;  // lanes drawn
const HAIR = 6;  // pixels of a block that is set off from the one before it
const DELAY = 150;  // milliseconds that the picture is behind, so that it grows at its edge and not inside

export class Lanes {
  constructor(canvas, history) {
    this.canvas = canvas;
    this.history = history;
    this.span = 15_000;
    this.mine = new Set();  // labels of requests made here
    this.colours = {};
    this.readColours();
  }

  /** The page's colours, as they are now. */
  readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "muted", "rule", "grid", "prefill", "decode", "mixed", "warn", "s0"]) {
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }

  /** Requests with something to show since `from`, oldest first, and how many more there are. */
  shown(from) {
    const all = [...this.history.requests.values()].filter((r) => r.ended === null || r.ended >= from);
    all.sort((a, b) => a.n - b.n);
    const live = all.filter((r) => r.ended === null), over = all.filter((r) => r.ended !== null);
    const drawn = [...live.slice(0, MOST), ...over.slice(-Math.max(0, MOST - live.length) || over.length)];
    return {drawn: drawn.sort((a, b) => a.n - b.n).slice(0, MOST), more: Math.max(0, all.length - MOST)};
  }

  /** Draws everything as of `now`, on the engine's clock. */
  draw(now) {
    const edge = now - DELAY, from = edge - this.span;
    const {drawn, more} = this.shown(from);
    const width = this.canvas.clientWidth;
    const row = drawn.length > 24 ? 13 : drawn.length > 12 ? 17 : 24;
    const rows = Math.max(drawn.length, 4) * row;
    const height = ENGINE + GAP + rows + GAP + 2 * (STRIP + GAP) + AXIS;
    const pen = this.pen(width, height);
    const left = width < 560 ? 62 : 118;
    const view = {left, right: width - 1, from, edge, x: (t) => left + (width - 1 - left) * (t - from) / this.span};

    this.unwatched(pen, view, height - AXIS);
    this.axis(pen, view, height - AXIS);
    this.name(pen, "engine", ENGINE / 2, 12);
    this.engine(pen, view);
    let top = ENGINE + GAP;
    for (const request of drawn) {
      this.lane(pen, view, request, top, row);
      top += row;
    }
    if (!drawn.length) this.empty(pen, view, ENGINE + GAP + rows / 2);
    top = ENGINE + GAP + rows + GAP;
    this.strip(pen, view, top, "queued", "ink", (s) => s.waiting);
    this.strip(pen, view, top + STRIP + GAP, "pages", "s0", (s) => s.used);
    if (more) this.note(pen, view.left + 4, ENGINE + GAP + rows + 8, `${several(more, "request")} more, not drawn`, "left");
    return drawn.length;
  }

  pen(width, height) {
    const scale = window.devicePixelRatio || 1, canvas = this.canvas;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.textBaseline = "middle";
    return pen;
  }

  name(pen, text, y, size, colour = "muted", weight = 400) {
    pen.font = `${weight} ${size}px system-ui, sans-serif`;
    pen.fillStyle = this.colours[colour];
    pen.textAlign = "left";
    pen.fillText(text, 0, y);
  }

  note(pen, x, y, text, align = "right") {
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = this.colours.muted;
    pen.textAlign = align;
    pen.fillText(text, x, y);
  }

  axis(pen, view, bottom) {
    const wide = view.right - view.left, step = niceStep(this.span, wide / 70);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = this.colours.muted;
    for (let back = 0; back <= this.span; back += step) {
      const x = Math.round(view.x(view.edge - back)) + 0.5;
      pen.strokeStyle = this.colours[back ? "grid" : "rule"];
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, bottom);
      pen.stroke();
      pen.textAlign = back === 0 ? "right" : x - view.left < 14 ? "left" : "center";
      pen.fillText(back ? `\u2212${shortTime(back)}` : "now", x, bottom + 12);
    }
  }

  /** What was before this page began to watch. */
  unwatched(pen, view, bottom) {
    const x = Math.min(view.right, view.x(this.history.began));
    if (x <= view.left) return;
    pen.save();
    pen.globalAlpha = 0.45;
    pen.fillStyle = this.colours.grid;
    pen.fillRect(view.left, 0, x - view.left, bottom);
    pen.restore();
    pen.font = "12px system-ui, sans-serif";
    const text = "before this page watched";
    if (x - view.left > pen.measureText(text).width + 20) {
      pen.fillStyle = this.colours.muted;
      pen.textAlign = "left";
      pen.fillText(text, view.left + 8, ENGINE / 2);
    }
  }

  engine(pen, view) {
    pen.fillStyle = this.colours.grid;
    pen.fillRect(view.left, ENGINE - 1, view.right - view.left, 1);
    const seen = this.within(view, this.history.steps);
    if (this.history.busy) this.blocks(pen, view, [this.underWay(view)], 0, ENGINE, "rule");
    for (const kind of ["prefill", "decode", "mixed"]) {
      this.blocks(pen, view, seen.filter((step) => step.kind === kind), 0, ENGINE, kind);
    }
  }

  /** The step that nothing is known of yet, but that there is work for it. */
  underWay(view) {
    return {start: this.history.steps.at(-1)?.end ?? this.history.now, end: view.edge};
  }

  /** Those of some spans, in order, that have something in the picture. */
  within(view, spans) {
    return spans.slice(before(spans, view.from, (span) => span.end)).filter((span) => span.start < view.edge);
  }

  /** Filled stretches of time, joined where pixels can't keep them apart. */
  blocks(pen, view, spans, top, height, colour) {
    pen.fillStyle = this.colours[colour];
    let from = 0, to = -1;
    const flush = () => { if (to > from) pen.fillRect(from, top, to - from, height); };
    for (const span of spans) {
      const a = Math.max(view.left, Math.round(view.x(span.start))), b = Math.min(view.right, Math.round(view.x(span.end)));
      if (a <= to && b - a < HAIR) to = Math.max(to, b, a + 1);
      else {
        flush();
        [from, to] = [a + (a === to), Math.max(b, a + 1)];  // a hair between blocks that are wide enough
      }
    }
    flush();
  }

  lane(pen, view, request, top, row) {
    const middle = top + row / 2, bar = Math.min(14, row - 4), y = middle - bar / 2;
    const own = this.mine.has(request.label);
    const words = own ? `you \u00b7 ${count(request.prompt)}` : `${request.label} \u00b7 ${count(request.prompt)}`;
    const text = view.left < 100 ? (own ? "you" : request.label) : words;
    this.name(pen, text, middle, row < 15 ? 11 : 12, own ? "ink" : "muted", own ? 650 : 400);
    const begin = request.arrived, end = request.ended ?? view.edge;
    if (begin < view.edge && end > view.from) {
      pen.fillStyle = this.colours.grid;
      const a = Math.max(view.left, view.x(begin)), b = Math.min(view.right, view.x(end));
      pen.fillRect(a, middle - 0.5, Math.max(0, b - a), 1);
      this.queued(pen, view, begin, Math.min(request.admitted ?? end, view.edge), middle);
    }
    this.blocks(pen, view, this.within(view, request.blocks), y, bar, "prefill");
    this.ticks(pen, view, request, y, bar);
    if (request.ended !== null && request.ended <= view.edge) this.end(pen, view, request, middle);
  }

  queued(pen, view, from, to, y) {
    const a = Math.max(view.left, view.x(from)), b = Math.min(view.right, view.x(to));
    if (b - a < 2) return;
    pen.save();
    pen.setLineDash([2, 3]);
    pen.lineWidth = 2;
    pen.strokeStyle = this.colours.muted;
    pen.beginPath();
    pen.moveTo(a, y);
    pen.lineTo(b, y);
    pen.stroke();
    pen.restore();
  }

  /** Tokens as upright lines, or as a block where they come too fast to be told apart. */
  ticks(pen, view, request, y, bar) {
    pen.fillStyle = this.colours.decode;
    let last = -Infinity;
    const tick = (t) => {
      const x = Math.round(view.x(t)), near = x - last <= 3;
      if (x !== last) pen.fillRect(near ? last : x - 1, y, near ? x - last : 1.5, bar);
      last = x;
    };
    if (request.first > view.from && request.first <= view.edge) tick(request.first);
    for (let i = before(request.ticks, view.from, (t) => t); i < request.ticks.length; i++) {
      if (request.ticks[i] > view.edge) break;
      tick(request.ticks[i]);
    }
  }

  end(pen, view, request, y) {
    const x = view.x(request.ended), failed = request.reason !== "stop" && request.reason !== "length";
    if (x < view.left) return;
    pen.font = `${failed ? 650 : 400} 11px system-ui, sans-serif`;
    const text = ` ${request.reason}`, fits = x + pen.measureText(text).width < view.right;
    pen.fillStyle = this.colours[failed ? "warn" : "muted"];
    pen.textAlign = "left";
    if (fits) pen.fillText(text, x + 1, y);
  }

  empty(pen, view, y) {
    pen.font = "14px system-ui, sans-serif";
    pen.fillStyle = this.colours.muted;
    pen.textAlign = "center";
    const text = view.left < 100 ? "No request yet." : "No request in these seconds. Try a prompt, or send one to /v1.";
    pen.fillText(text, (view.left + view.right) / 2, y);
  }

  /** One quantity over time as steps, on a scale from 0 to the most that is shown. */
  strip(pen, view, top, name, colour, value) {
    const bottom = top + STRIP, samples = this.history.samples;
    this.name(pen, name, top + 8, 12);
    pen.fillStyle = this.colours.rule;
    pen.fillRect(view.left, bottom, view.right - view.left, 1);
    const first = Math.max(0, samples.findIndex((s) => s.t > view.from) - 1);
    const seen = samples.slice(first).filter((s) => s.t <= view.edge);
    if (!seen.length) return;
    const most = Math.max(...seen.map(value)), high = Math.max(1, most);
    this.name(pen, count(value(seen.at(-1))), top + 24, 13, "ink", 620);
    const y = (s) => bottom - (STRIP - 10) * value(s) / high;
    pen.beginPath();
    pen.moveTo(Math.max(view.left, view.x(seen[0].t)), bottom);
    for (let i = 0; i < seen.length; i++) {
      const until = i + 1 < seen.length ? seen[i + 1].t : view.edge;
      pen.lineTo(Math.max(view.left, view.x(seen[i].t)), y(seen[i]));
      pen.lineTo(Math.max(view.left, view.x(until)), y(seen[i]));
    }
    pen.lineTo(view.right, bottom);
    pen.fillStyle = pen.strokeStyle = this.colours[colour];
    pen.save();
    pen.globalAlpha = 0.3;
    pen.fill();
    pen.restore();
    if (most > value(seen.at(-1))) this.note(pen, view.right - 4, top + 3, `most ${count(most)}`);
  }
}

/** A step of 1, 2 or 5 times a power of ten, so that at most so many fit. */
function niceStep(span, most) {
  for (let step = 100; ; step *= 10) {
    for (const times of [1, 2, 5]) if (span / (step * times) <= most) return step * times;
  }
}
