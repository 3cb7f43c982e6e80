// The live page: what the server tells, put where it belongs.

import {History} from "./history.js";
import {Lanes} from "./lanes.js";
import {Live, useKey} from "./live.js";
import {Plot} from "./plots.js";
import {PromptBox} from "./prompt.js";
import {amount, count, several} from "./words.js";

const at = (id) => document.getElementById(id);
const NONE = "\u2013";
const LABEL = 6;  // characters that the server tells of a request's id

const history = new History();
const lanes = new Lanes(at("lanes"), history);
const plots = {ttft: new Plot(at("ttft"), "request"), gaps: new Plot(at("gaps"), "gap")};
const STATES = {
  ready: "live",
  loading: "the model is being loaded",
  draining: "stopping: no new requests",
  dead: "the engine has ended",
};
let hello = null, frame = null;
let served = null;  // the server that was last ready
let offset = -Infinity;  // from this page's clock to the engine's
let paused = null, lost = null;  // moments that the picture stands at

const clock = () => performance.now() + offset;

/** The connection's state: live, waiting, lost or key. */
function told(state, words) {
  lost = state === "live" ? null : lost ?? clock();
  at("known").classList.toggle("stale", state !== "live");
  const link = at("link");
  if (link.dataset.state !== state || link.textContent !== words) {
    link.dataset.state = state;
    link.textContent = words;
  }
  at("key").hidden = state !== "key";
  if (state === "key") at("secret").focus();
}

function greet(next) {
  const fresh = !hello || lost !== null || hello.server !== next.server;
  const again = next.state === "ready" && served !== null && served !== next.server;
  const words = again ? "live again: the server was restarted" : STATES[next.state];
  told(next.state === "ready" || next.state === "draining" ? "live" : "waiting", words);
  if (hello?.server !== next.server) offset = -Infinity;
  if (next.state === "ready") served = next.server;
  if (fresh) history.clear();
  else history.keep(next.requests);
  hello = next;
  at("known").hidden = false;
  at("model").textContent = next.model;
  document.title = `${next.model} \u00b7 Phaseline`;
  at("facts").replaceChildren(...facts(next).map((text) => Object.assign(document.createElement("li"), {textContent: text})));
}

function facts(next) {
  return next.context === undefined ? [] : [
    several(next.threads, "thread"), next.level, `context ${count(next.context)}`, `chunk ${count(next.chunk)}`,
    `at most ${count(next.max_running)} running`, `policy ${next.policy}`,
  ];
}

/** A phase's rate, and what part of its ceiling that is. */
function rate(phase, ceiling, known) {
  const now = frame.rates?.[phase], share = Math.min(1, (frame.busy?.[phase] ?? 0) + (frame.busy?.mixed ?? 0));
  at(`${phase}-rate`).textContent = now ? amount(now) : NONE;
  const bar = at(`${phase}-bar`);
  bar.hidden = !ceiling;
  bar.firstElementChild.style.width = `${ceiling && now ? Math.min(100, 100 * now / ceiling) : 0}%`;
  const spent = now ? `${Math.round(100 * share)}% of the last second` : "none in the last second";
  at(`${phase}-hint`).textContent = ceiling
    ? `${spent}; ${now ? `${Math.round(100 * now / ceiling)}% of the` : "the"} ceiling ${known}`
    : `${spent}; ceiling not measured (serve with --ceilings)`;
}

function show() {
  for (const [name, plot] of Object.entries(plots)) {
    plot.draw(hello.bounds_ms, frame[name], history.counts[0]?.[name]);
  }
  const ceilings = hello.ceilings;
  rate("prefill", ceilings?.prefill, ceilings && `of ${amount(ceilings.prefill)} tok/s`);
  const decode = ceilings?.decode.find(([streams]) => streams >= (frame.streams ?? 1)) ?? ceilings?.decode.at(-1);
  rate("decode", decode?.[1], decode && `of ${amount(decode[1])} tok/s at ${several(decode[0], "stream")}`);
  const known = frame.t !== undefined;  // else no report has come yet
  at("running").textContent = known ? count(frame.running) : NONE;
  at("waiting").textContent = known ? count(frame.waiting) : NONE;
  const preempted = frame.preemptions ? `; ${several(frame.preemptions, "preemption")} so far` : "";
  at("queue-hint").textContent = known ? `${several(frame.queued_tokens, "prompt token")} to read${preempted}` : "";
  pages(frame.pages ?? []);
}

function pages(groups) {
  const [used, total] = groups.reduce(([a, b], [x, y]) => [a + x, b + y], [0, 0]);
  at("pages").textContent = total ? count(used) : NONE;
  at("pages-of").textContent = total ? `of ${count(total)}` : "";
  at("pages-bar").firstElementChild.style.width = `${total ? 100 * used / total : 0}%`;
  const each = groups.map(([x, y]) => `${count(x)} of ${count(y)}`).join(", ");
  const one = total ? `of ${several(hello.page_size, "position")} each` : "";
  at("pages-hint").textContent = groups.length > 1 ? `in ${several(groups.length, "group")}: ${each}` : one;
}

function take(event, data) {
  if (event === "hello") greet(data);
  history.take(data);
  frame = event === "hello" ? data : {...frame, ...data};
  if (data.t !== undefined) offset = Math.max(offset, data.t - performance.now());
  show();
}

function paint() {
  const now = paused ?? lost ?? clock();
  if (!Number.isFinite(now)) return;
  const drawn = lanes.draw(now);
  const words = frame?.running === undefined ? "" : `${several(frame.running, "completion")} running, ${count(frame.waiting)} queued. `;
  const label = `${words}${several(drawn, "request")} drawn.`;
  if (lanes.canvas.getAttribute("aria-label") !== label) lanes.canvas.setAttribute("aria-label", label);
}

/** Paints at most `rate` times a second, and not while nobody can see it. */
function animate() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let last = 0;
  const next = (moment) => {
    if (moment - last >= (calm.matches ? 950 : 30)) {
      last = moment;
      paint();
    }
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}

const live = new Live(take, told);
at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("secret").value);
  at("secret").value = "";
  live.hurry();
});
at("span").addEventListener("change", (event) => { lanes.span = 1e3 * Number(event.target.value); });
at("pause").addEventListener("click", () => {
  paused = paused === null ? clock() : null;
  at("pause").setAttribute("aria-pressed", String(paused !== null));
  at("pause").textContent = paused === null ? "Pause" : "Go on";
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => lanes.readColours());
new PromptBox({
  mine: (id) => lanes.mine.add(id.slice(-LABEL)),
  model: () => hello?.model ?? "",
  refused: () => told("key", "an API key is needed"),
});
animate();
live.run();
