// The client's side of motet.v1 without I/O: frames to send, given frames that came. It outlives
// connections; the Python client (motet/client/machine.py) is the same machine.

export const BACKOFF = { first: 500, most: 30000, healthy: 30000 };

/** Milliseconds to wait after a connection that held for `held` ms. Full jitter. */
export function backoff(failures, chance = Math.random) {
  return chance() * Math.min(BACKOFF.most, BACKOFF.first * 2 ** Math.min(failures, 16));
}

/** Close codes after which the next connection would end in the same way. */
export const FINAL = new Set([1000, 1003, 1008, 1009, 4002, 4003, 4008]);

// JSON numbers are text, and JavaScript rounds them: 9007199254740993 becomes ...992. A number that
// it would write differently is kept with its digits, where people read it: in arguments of calls.
const DIGITS = Symbol.for("motet.digits");
const MARK = `digits-${crypto.getRandomValues(new Uint32Array(4)).join("-")}:`;
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;

/** A JSON text without rounding: `{[DIGITS]: "…"}` for each number that JavaScript changes. */
export function exact(text) {
  let rounds = false;
  const marked = text.replace(TOKENS, (token) => {
    if (token[0] === '"' || String(Number(token)) === token) return token;
    rounds = true;
    return `"${MARK}${token}"`;
  });
  if (!rounds) return JSON.parse(text);
  return JSON.parse(marked, (_, value) => (typeof value === "string" && value.startsWith(MARK) ? { [DIGITS]: value.slice(MARK.length) } : value));
}

/** The value with JavaScript's numbers, except in arguments of calls. */
function rounded(value) {
  if (value === null || typeof value !== "object") return value;
  if (DIGITS in value) return Number(value[DIGITS]);
  for (const key of Object.keys(value)) {
    if (key !== "args" && key !== "proposed") value[key] = rounded(value[key]);
  }
  return value;
}

export class Machine {
  /** `deliver(frame)` gets each event once and in order; `missed(stream)`: read its history;
   *  `ended(stream, reason)`: it was deleted, or is not the user's any more;
   *  `followed(stream)`: from now on its passing events arrive;
   *  `storage(reason)`: why nothing can be stored now, empty when it can. */
  constructor({ token = null, deliver, missed, ended = () => {}, followed = () => {}, storage = () => {} }) {
    this.token = token;
    this.deliver = deliver;
    this.missed = missed;
    this.ended = ended;
    this.followed = followed;
    this.storage = storage;
    this.server = null;
    this.instance = null;
    this.streams = new Map(); // name -> {last, asking}
    this.pending = new Map(); // id -> {method, params, resolve, reject, sent}
    this.outgoing = [];
    this.ids = 0;
    this.connecting = null;
  }

  opened() {
    this.connecting = this.#id();
    const resume = {};
    for (const [name, one] of this.streams) {
      if (one.last !== null) {
        resume[name] = one.last;
        one.asking = this.connecting;
      }
    }
    this.#send(this.connecting, "connect", {
      protocol: { min: 1, max: 1 },
      client: { name: "motet-web", version: "1", caps: ["deltas", "gap"] },
      auth: { token: this.token },
      resume,
    });
  }

  lost() {
    this.server = this.connecting = null;
    this.outgoing = [];
    for (const one of this.streams.values()) one.asking = null;
    for (const [id, one] of [...this.pending]) {
      if (one.sent && !repeatable(one)) {
        this.pending.delete(id);
        one.reject({ code: "connection_lost", message: `the connection ended before ${one.method} was answered` });
      }
      one.sent = false;
    }
  }

  /** Returns {error} for a refused connect, {connected, restarted} for an accepted one. */
  received(text) {
    const frame = exact(text);
    if (this.pending.get(frame.id)?.method !== "errors.get") rounded(frame);
    if (frame.type === "event") this.#event(frame);
    else if (frame.type === "res") return this.#response(frame);
    return {};
  }

  request(method, params) {
    return new Promise((resolve, reject) => {
      this.pending.set(this.#id(), { method, params, resolve, reject, sent: false });
      this.#sendDue();
    });
  }

  follow(stream, after) {
    this.streams.set(stream, { last: after, asking: null, early: [] });
    this.#ask(stream);
  }

  unfollow(stream) {
    if (this.streams.delete(stream) && this.server) this.#send(this.#id(), "unsubscribe", { stream });
  }

  /** The last number of a stream, for callers who wait. */
  position(stream) {
    return this.streams.get(stream)?.last ?? null;
  }

  #response(frame) {
    if (frame.id === this.connecting) {
      if (!frame.ok) return { error: frame.error };
      return this.#letIn(frame.result);
    }
    const one = this.pending.get(frame.id);
    if (one) {
      this.pending.delete(frame.id);
      if (frame.ok) one.resolve(frame.result);
      else one.reject(frame.error);
    }
    for (const [name, stream] of this.streams) {
      if (stream.asking !== frame.id) continue;
      stream.asking = null;
      if (frame.ok) this.#standing(name, stream, frame.result);
      else if (!frame.error.retryable) this.#drop(name, "removed");
    }
    return {};
  }

  #letIn(result) {
    this.server = result;
    const restarted = this.instance !== null && this.instance !== result.server.instance;
    this.instance = result.server.instance;
    for (const [name, stream] of [...this.streams]) {
      const asked = stream.asking === this.connecting && name in result.streams;
      stream.asking = null;
      if (restarted) stream.early = [];
      if (asked) this.#standing(name, stream, result.streams[name]);
      else this.#ask(name);
    }
    this.connecting = null;
    this.#sendDue();
    return { connected: result, restarted };
  }

  #standing(name, stream, state) {
    if (stream.last === null) stream.last = state.head;
    else if (!state.resumed) {
      if (state.reason === "not_found") return this.#drop(name, "removed");
      if (state.reason === "limit_reached") this.streams.delete(name);
      stream.last = state.head;
      this.missed(name);
    }
    if (this.streams.has(name)) this.followed(name);
  }

  #drop(name, reason) {
    this.streams.delete(name);
    this.ended(name, reason);
  }

  #event(frame) {
    if (frame.event === "tick") {
      for (const [name, head] of Object.entries(frame.data.heads)) {
        const stream = this.streams.get(name);
        if (stream && stream.last !== null && head > stream.last) this.#ask(name);
      }
      return;
    }
    if (frame.event === "storage") this.storage(frame.data.reason);
    const stream = this.streams.get(frame.stream);
    if (frame.event === "stream.ended") {
      if (stream && stream.asking === null) this.#drop(frame.stream, frame.data.reason);
      return;
    }
    if (!stream || stream.last === null) return;
    if (frame.event === "gap") this.#ask(frame.stream);
    else if (frame.seq === undefined) {
      if (stream.asking !== null) return;
      if (!PASSING.has(frame.event)) stream.early.push(told(frame));
      this.deliver(frame);
    } else if (frame.seq === stream.last + 1) {
      stream.last = frame.seq;
      const at = stream.early.indexOf(told(frame));
      if (at < 0) this.deliver(frame);
      else stream.early.splice(at, 1);
    } else if (frame.seq > stream.last) this.#ask(frame.stream);
  }

  #ask(name) {
    const stream = this.streams.get(name);
    if (!this.server || stream.asking !== null) return;
    stream.asking = this.#id();
    const params = { stream: name };
    if (stream.last !== null) params.after = stream.last;
    this.#send(stream.asking, "subscribe", params);
  }

  #sendDue() {
    if (!this.server) return;
    for (const [id, one] of this.pending) {
      if (one.sent) continue;
      one.sent = true;
      this.#send(id, one.method, one.params);
    }
  }

  #send(id, method, params) {
    this.outgoing.push(JSON.stringify({ type: "req", id, method, params }));
  }

  #id() {
    this.ids += 1;
    return String(this.ids);
  }
}

// Events that never get a number. Any other one without a number could not be stored yet, and comes
// again with its number when the host can.
const PASSING = new Set(["text.delta", "thinking.delta", "tool.progress", "activity", "room.replied", "room.typing", "room.presence", "room.read"]);

/** The same for an event without and with its number. */
function told({ run_id, event, data }) {
  return JSON.stringify([run_id, event, data], (_, one) => (one && typeof one === "object" && DIGITS in one ? MARK + one[DIGITS] : one));
}

function repeatable(one) {
  return "key" in one.params || /\.(list|get|history)$/.test(one.method) || one.method === "status";
}

/** A fresh idempotency key. */
export function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
