// Numbers as people read them.

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});

export const count = (n) => whole.format(n);

/** A rate or another amount, with three digits that count. */
export function amount(value) {
  if (value >= 100) return whole.format(value);
  return value.toPrecision(value >= 1 ? 3 : 2).replace(/\.0+$/, "");
}

/** Milliseconds, with the unit that fits. */
export function time(ms) {
  return ms < 1000 ? `${ms < 10 ? ms.toFixed(1).replace(/\.0$/, "") : whole.format(ms)} ms` : shortTime(ms);
}

/** Milliseconds as seconds, without needless zeros. */
export function shortTime(ms) {
  return `${(ms / 1000).toFixed(ms % 1000 ? (ms % 100 ? 2 : 1) : 0)} s`;
}

/** 1 request, 2 requests. */
export const several = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
