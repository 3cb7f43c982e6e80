// What the page remembers: the steps and requests of the last minute, on the engine's clock (milliseconds).

export const KEPT = 61_000;
const TICKS = 20_000;  // of one request

/** How many of a list sorted by `moment` come before `time`. */
export function before(list, time, moment) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moment(list[middle]) < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Drops what is older than `time` from the front of a list sorted by `moment`. */
function forget(list, time, moment) {
  const n = before(list, time, moment);
  if (n) list.splice(0, n);
}

export class History {
  constructor() {
    this.clear();
  }

  /** Forgets everything. */
  clear() {
    this.requests = new Map();
    this.steps = [];      // {end, start, kind}
    this.samples = [];    // {t, waiting, used, total}
    this.counts = [];     // {t, ttft, gaps}: bucket counts so far, one each second
    this.now = 0;
    this.began = null;    // when the first of it came
    this.busy = false;    // whether there is work
  }

  /** Keeps of the requests that have not ended only those that a hello knows: others have ended unseen. */
  keep(requests) {
    const live = new Set(requests.map((request) => request.n));
    for (const [n, request] of this.requests) if (request.ended === null && !live.has(n)) this.requests.delete(n);
  }

  /** Takes in a frame or a hello. */
  take(frame) {
    for (const told of frame.requests ?? []) this.request(told);
    for (const step of frame.steps ?? []) this.step(step);
    const last = this.counts.at(-1);
    if (!last || frame.t - last.t >= 1000) this.counts.push({t: frame.t ?? -Infinity, ttft: frame.ttft, gaps: frame.gaps});
    if (frame.t === undefined) return;
    this.now = Math.max(this.now, frame.t);
    this.began ??= frame.t;
    this.busy = frame.running + frame.waiting > 0;
    const [used, total] = frame.pages.reduce(([a, b], [x, y]) => [a + x, b + y], [0, 0]);
    this.samples.push({t: frame.t, waiting: frame.waiting, used, total});
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
    while (this.counts.length > 1 && this.counts[1].t <= oldest) this.counts.shift();  // the first is of a minute ago
    for (const [n, request] of this.requests) {
      if (request.ended !== null && request.ended < oldest) this.requests.delete(n);
      else {
        forget(request.ticks, oldest, (t) => t);
        forget(request.blocks, oldest, (block) => block.end);
      }
    }
  }
}
