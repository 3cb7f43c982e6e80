// The connection: server-sent events over fetch, since only that can carry a key; lost ones are taken up again.

/** The events of a streamed answer, as {event, data} texts. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    buffer += value.replaceAll("\r\n", "\n");
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const found = {event: "message", data: ""};
      for (const line of buffer.slice(0, end).split("\n")) {
        const field = /^(event|data): ?(.*)$/.exec(line);
        if (field) found[field[1]] = field[2];
      }
      buffer = buffer.slice(end + 2);
      if (found.data) yield found;
    }
  }
}

const KEY = "phaseline-key";

/** The key this tab was given, as a header. */
export function authorization() {
  const key = sessionStorage.getItem(KEY);
  return key ? {authorization: `Bearer ${key}`} : {};
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

const TRIES = [0.5, 1, 2, 4];  // seconds before the next one; the last goes on for ever
const SILENT = 15;  // seconds without a byte after which a connection is taken for dead

/** Calls `tell(state, detail)` as the connection comes and goes, `take(event, data)` for all it brings. Never ends. */
export class Live {
  constructor(take, tell) {
    this.take = take;
    this.tell = tell;
    this.wake = () => {};
  }

  /** Do not wait for the next try. */
  hurry() {
    this.wake();
  }

  async run() {
    for (let failed = 0; ; failed++) {
      try {
        await this.follow(() => { failed = 0; });
      } catch (error) {
        if (error.status === 401) {
          this.tell("key", "an API key is needed");
          await this.pause(3600);
          continue;
        }
      }
      const seconds = TRIES[Math.min(failed, TRIES.length - 1)];
      this.tell("lost", `connection lost, next try in ${seconds} s`);
      await this.pause(seconds);
      this.tell("waiting", "connecting");
    }
  }

  pause(seconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1e3);
      this.wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  async follow(arrived) {
    const control = new AbortController();
    let timer = setTimeout(() => control.abort(), SILENT * 1e3);
    try {
      const response = await fetch("live", {headers: authorization(), cache: "no-store", signal: control.signal});
      if (!response.ok) throw Object.assign(new Error(response.statusText), {status: response.status});
      const beat = new TransformStream({
        transform(chunk, out) {
          clearTimeout(timer);
          timer = setTimeout(() => control.abort(), SILENT * 1e3);
          out.enqueue(chunk);
        },
      });
      for await (const {event, data} of events({body: response.body.pipeThrough(beat)})) {
        arrived();
        this.take(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(timer);
      control.abort();
    }
  }
}
