// What the page remembers: the steps and requests of the last minute, on the engine's clock (milliseconds).

export const KEPT = 61_000;
const TICKS = 20_000;  // of one request

/** Drops what is older than `time` from the front of a list sorted by `moment`. */
function forget(list, time, moment) {
  let n = 0;
  while (n < list.length && moment(list[n]) < time) n++;
  if (n) list.splice(0, n);
}

export class History {
  constructor() {
    this.clear();
  }

  /** A new beginning, as after a hello. */
  clear() {
    this.requests = new Map();
    this.steps = [];      // {end, start, kind}
    this.samples = [];    // {t, waiting, used, total}
    this.counts = [];     // {t, ttft, gaps}: bucket counts so far, one each second
    this.now = 0;
    this.began = null;    // when the first of it came
  }

  /** Takes in a frame or a hello. */
  take(frame) {
    for (const told of frame.requests ?? []) this.request(told);
    for (const step of frame.steps ?? []) this.step(step);
    if (frame.t === undefined) return;
    this.now = Math.max(this.now, frame.t);
    this.began ??= frame.t;
    const [used, total] = frame.pages.reduce(([a, b], [x, y]) => [a + x, b + y], [0, 0]);
    this.samples.push({t: frame.t, waiting: frame.waiting, used, total});
    const last = this.counts.at(-1);
    if (!last || frame.t - last.t >= 1000) this.counts.push({t: frame.t, ttft: frame.ttft, gaps: frame.gaps});
    this.trim();
  }

  request(told) {
    const known = this.requests.get(told.n) ?? {blocks: [], ticks: []};
    this.requests.set(told.n, Object.assign(known, told));
  }

  step([end, ms, prefill, decode]) {
    const start = end - ms;
    this.steps.push({start, end, kind: prefill.length ? (decode.length ? "mixed" : "prefill") : "decode"});
    for (const [n, from, count] of prefill) this.requests.get(n)?.blocks.push({start, end, from, count});
    for (const n of decode) {
      const known = this.requests.get(n);
      if (!known) continue;
      if (known.ticks.at(-1) !== end) known.ticks.push(end);
      if (known.ended === null) known.tokens++;
      if (known.ticks.length > TICKS) known.ticks.splice(0, TICKS / 2);
    }
  }

  trim() {
    const oldest = this.now - KEPT;
    forget(this.steps, oldest, (step) => step.end);
    forget(this.samples, oldest, (sample) => sample.t);
    forget(this.counts, oldest, (counts) => counts.t);
    for (const [n, request] of this.requests) {
      if (request.ended !== null && request.ended < oldest) this.requests.delete(n);
      else {
        forget(request.ticks, oldest, (t) => t);
        forget(request.blocks, oldest, (block) => block.end);
      }
    }
  }
}
