// The box to try a prompt: one streamed request, shown as it comes. Whatever a model writes stays text.

import {authorization, events} from "./live.js";
import {amount, count, several, time} from "./words.js";

/** What one request came to, by this page's own clock. */
class Spent {
  constructor() {
    this.sent = performance.now();
    this.first = this.last = null;
    this.worst = 0;
    this.pieces = 0;
    this.usage = null;
    this.reason = null;
  }

  piece() {
    const now = performance.now();
    if (this.first === null) this.first = now;
    else this.worst = Math.max(this.worst, now - this.last);
    this.last = now;
    this.pieces++;
  }

  /** One line. While no usage has come, pieces are counted for tokens. */
  toString() {
    if (this.first === null) return `waiting for the first token, ${time(performance.now() - this.sent)}`;
    const tokens = this.usage?.completion_tokens ?? this.pieces, cached = this.usage?.prompt_tokens_details?.cached_tokens;
    const parts = [`TTFT ${time(this.first - this.sent)}`];
    if (tokens > 1 && this.last > this.first) {
      parts.push(`${amount((tokens - 1) / (this.last - this.first) * 1e3)} tok/s`, `worst gap ${time(this.worst)}`);
    }
    parts.push(several(tokens, "token"));
    if (this.usage) parts.push(`prompt of ${count(this.usage.prompt_tokens)}${cached ? `, ${count(cached)} cached` : ""}`);
    if (this.reason) parts.push(`ended: ${this.reason}`);
    return parts.join(" \u00b7 ");
  }
}

export class PromptBox {
  /** `mine` takes the labels of this box's requests; `model` tells the served model's name; `refused` that a key is due. */
  constructor({mine, model, refused}) {
    const at = (id) => document.getElementById(id);
    Object.assign(this, {mine, model, refused, form: at("ask"), prompt: at("prompt"), most: at("most"), heat: at("heat")});
    Object.assign(this, {send: at("send"), stop: at("stop"), answer: at("answer"), spent: at("spent")});
    Object.assign(this, {control: null, unwritten: ""});
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    this.stop.addEventListener("click", () => this.control?.abort());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.ask(); }
    });
    this.prompt.addEventListener("keyup", (event) => { if (event.key === "Escape") this.control?.abort(); });
  }

  async ask() {
    if (this.control) return;
    this.control = new AbortController();
    this.send.disabled = true;
    this.stop.disabled = false;
    this.answer.textContent = this.unwritten = "";
    this.answer.classList.remove("failed");
    const spent = new Spent(), timer = setInterval(() => { this.spent.textContent = spent; }, 100);
    try {
      await this.stream(spent);
    } catch (error) {
      if (error.name === "AbortError") spent.reason = "stopped here";
      else this.fail(error);
    } finally {
      clearInterval(timer);
      this.spent.textContent = spent.first === null && !spent.reason ? "" : spent;
      this.control = null;
      this.send.disabled = false;
      this.stop.disabled = true;
    }
  }

  /** The path and body of the request that the form describes. */
  request() {
    const text = this.prompt.value || this.prompt.placeholder;
    const common = {model: this.model(), max_tokens: Number(this.most.value), temperature: Number(this.heat.value)};
    const body = {...common, stream: true, stream_options: {include_usage: true}};
    return document.querySelector("#mode :checked").value === "chat"
      ? ["v1/chat/completions", {...body, messages: [{role: "user", content: text}]}]
      : ["v1/completions", {...body, prompt: text}];
  }

  async stream(spent) {
    const [path, body] = this.request();
    const headers = {"content-type": "application/json", ...authorization()};
    const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body), signal: this.control.signal});
    if (!response.ok) throw await refusal(response, this.refused);
    for await (const {data} of events(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.id) this.mine(chunk.id);
      spent.usage = chunk.usage ?? spent.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      const text = choice.text ?? choice.delta?.content ?? choice.delta?.reasoning_content ?? "";
      if (text) {
        spent.piece();
        this.write(text);
      }
      spent.reason = choice.finish_reason ?? spent.reason;
    }
    if (!spent.reason) throw new Error("the answer broke off");
  }

  /** Adds text to the answer, at most once for each frame that is painted: tokens may come faster. */
  write(text) {
    if (!this.unwritten) requestAnimationFrame(() => this.flush());
    this.unwritten += text;
  }

  flush() {
    const box = this.answer, follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(document.createTextNode(this.unwritten));
    this.unwritten = "";
    if (follows) box.scrollTop = box.scrollHeight;
  }

  fail(error) {
    this.flush();
    this.answer.classList.add("failed");
    this.write(`${this.answer.textContent ? "\n\n" : ""}${error.message}`);
  }
}

/** The error of an answer that is none. */
async function refusal(response, refused) {
  if (response.status === 401) refused();
  const wait = response.headers.get("retry-after");
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not ours, perhaps a proxy's */ }
  return new Error(wait ? `${message} (try again in ${wait} s)` : message);
}
