// The page's modules without a browser: node --test web_modules.mjs

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const load = async (name) => {
  const text = readFileSync(new URL(`../../../actors/gateway/web/${name}`, import.meta.url));
  return import(`data:text/javascript;base64,${text.toString("base64")}`);
};
const { Machine, backoff, exact } = await load("proto.js");
const { TAGS, markdown, plain } = await load("markdown.js");
const { EMPTY, busyText, fromHistory, fromRoom, holding, json, present, reduce, reveal, review, stopText, tried, withApproval, withdrawn, withEscalation } = await load("state.js");

const STREAM = "session:a";

/** Numbers in [0, 1) that a seed repeats. */
function chance(seed) {
  let state = seed + 0x9e3779b9;
  return () => {
    state = Math.imul(state ^ (state >>> 15), 2246822519) + 0x6d2b79f5;
    return ((state ^ (state >>> 13)) >>> 0) / 2 ** 32;
  };
}

/** A host with one stream, over a network that loses and doubles events and breaks. */
class World {
  constructor(seed) {
    this.chance = chance(seed);
    this.head = 0;
    this.sent = 0; // up to which number this connection was sent events
    this.subscribed = false;
    this.open = false;
    this.seen = [];
    this.taken = new Map();
    this.machine = new Machine({ deliver: (frame) => this.seen.push(frame.seq), missed: () => assert.fail("nothing is missed") });
  }

  step() {
    const dice = this.chance();
    if (!this.open) this.#connect();
    else if (dice < 0.1) this.#break();
    else if (dice < 0.4) this.head += 1;
    else if (dice < 0.5) this.machine.request("chat.send", { key: String(this.taken.size), text: "hi" }).catch(() => {});
    else if (dice < 0.6) this.#say({ type: "event", stream: "system", event: "tick", data: { heads: this.subscribed ? { [STREAM]: this.head } : {} } });
    else if (this.subscribed && this.sent < this.head) this.#event(this.chance());
    this.#hear(dice);
  }

  settle() {
    this.chance = () => 0.99;
    if (!this.open) this.#connect();
    for (let round = 0; round < 5; round += 1) {
      this.#hear(0.99);
      while (this.subscribed && this.sent < this.head) this.#event(0.99);
      this.#say({ type: "event", stream: "system", event: "tick", data: { heads: { [STREAM]: this.head } } });
    }
  }

  #connect() {
    this.open = true;
    this.subscribed = false;
    this.machine.opened();
    this.#hear(0.99);
  }

  #break() {
    this.open = false;
    this.machine.lost();
  }

  #event(dice) {
    this.sent += 1;
    if (dice < 0.2) return; // lost
    for (const _ of dice < 0.4 ? [1, 2] : [1]) this.#say({ type: "event", stream: STREAM, seq: this.sent, event: "x", data: {} });
  }

  #hear(dice) {
    for (const text of this.machine.outgoing.splice(0)) {
      const { id, method, params } = JSON.parse(text);
      if (method === "connect") this.#welcome(id, params);
      else if (method === "subscribe") {
        this.subscribed = true;
        this.sent = params.after;
        this.#answer(id, { head: this.head, oldest: 1, resumed: true });
      } else if (method === "chat.send") {
        this.taken.set(params.key, (this.taken.get(params.key) ?? 0) + 1);
        if (dice < 0.55) return this.#break(); // it is on disk, and nobody is told
        this.#answer(id, { run_id: "r", status: "accepted", position: 0 });
      }
    }
  }

  #welcome(id, { resume }) {
    const streams = {};
    if (STREAM in resume) {
      this.subscribed = true;
      this.sent = resume[STREAM];
      streams[STREAM] = { head: this.head, oldest: 1, resumed: true };
    }
    this.#answer(id, { server: { instance: "boot_1" }, streams, limits: {}, methods: [] });
  }

  #answer(id, result) {
    this.#say({ type: "res", id, ok: true, result });
  }

  #say(frame) {
    if (this.open) this.machine.received(JSON.stringify(frame));
  }
}

test("for 500 networks each event comes once and in order, and what was said arrives", () => {
  for (let seed = 0; seed < 500; seed += 1) {
    const world = new World(seed);
    world.machine.follow(STREAM, 0);
    for (let step = 0; step < 120; step += 1) world.step();
    world.settle();
    assert.deepEqual(world.seen, Array.from({ length: world.head }, (_, at) => at + 1), `seed ${seed}`);
    assert.equal(world.machine.pending.size, 0, `seed ${seed}`);
  }
});

test("the wait doubles up to 30 s, with full jitter", () => {
  const most = [0, 1, 2, 3, 4, 5, 6, 7].map((failures) => backoff(failures, () => 1));
  assert.deepEqual(most, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
  assert.equal(backoff(3, () => 0), 0);
});

const frame = (event, data, more = {}) => ({ stream: STREAM, event, data, run_id: "r", ts: 1, ...more });
const delta = (at, text) => frame("text.delta", { i: 1, at, text });
const shown = (state) => state.items.map((item) => item.text ?? item.name);

test("text is shown while it comes, whichever parts are lost, and is whole in the end", () => {
  let state = [delta(0, "h😀"), delta(2, "llo"), delta(9, "lost before")].reduce(reduce, EMPTY);
  assert.deepEqual(shown(state), ["h😀llo"]);
  state = reduce(state, frame("message", { role: "assistant", author: "ann", text: "h😀llo you", i: 1 }));
  assert.deepEqual(shown(state), ["h😀llo you"]);
  assert.deepEqual(shown(reduce(state, delta(0, "late"))), ["h😀llo you"]);
});

test("a restart and a retry withdraw what was not finished", () => {
  const partial = reduce(EMPTY, delta(0, "half"));
  assert.deepEqual(shown(withdrawn(partial)), []);
  const retried = reduce(partial, frame("run.retrying", { i: 1, withdrawn: true, reason: "503" }, { seq: 4 }));
  assert.deepEqual(shown(retried), ["trying again: 503"]);
});

test("a run that waits for the model says its place in the line until it goes on", () => {
  const waits = (position) => frame("activity", { phase: "queued", iteration: 0, position });
  const state = [waits(3), waits(1)].reduce(reduce, EMPTY);
  assert.deepEqual(shown(state), ["the model is busy: number 1 of those who wait for it"]);
  assert.deepEqual(shown(reduce(state, frame("activity", { phase: "waiting_model", iteration: 0, position: 0 }))), []);
  assert.deepEqual(shown(reduce(state, frame("run.cancelled", {}))), ["stopped"]);
  assert.deepEqual(shown(withdrawn(state)), []);
});

test("a call keeps its arguments when its result comes, an approval its question", () => {
  const events = [
    frame("tool.call", { id: "c", name: "shell", args: { command: "ls" } }),
    frame("tool.result", { id: "c", name: "shell", ok: false, ms: 3, preview: "no", error_id: "err_1" }),
    frame("approval.requested", { id: "a", tool: "rm", args: {}, reason: "why", expires: 9 }),
    frame("approval.resolved", { id: "a", decision: "deny", by: "bob" }),
  ];
  const [call, approval] = events.reduce(reduce, EMPTY).items;
  assert.deepEqual([call.args, call.state, call.error], [{ command: "ls" }, "failed", "err_1"]);
  assert.deepEqual([approval.tool, approval.decision, approval.by], ["rm", "deny", "bob"]);
  const far = reduce(reduce(EMPTY, events[0]), frame("tool.progress", { id: "c", message: "reading", done: 1, total: 4 }));
  assert.equal(far.items[0].progress, "25 % reading");
  assert.equal(reduce(reduce(far, events[1]), frame("tool.progress", { id: "c", message: "late", done: null, total: null })).items[0].progress, "25 % reading");
});

test("an escalation keeps its history when it is answered, and shows what hides in it", () => {
  const history = [{ tool_name: "shell", arguments: "{}", error_type: "unknown", message: "no\u202e\nroute", error_id: "err_1", resolved: true }];
  const known = { id: "e", reason: "too many", decision: null, note: "", resolved_by: null, error_history: history };
  const begun = withEscalation(reduce(EMPTY, frame("run.escalated", { escalation: "e", reason: "too many", tool: "shell" })), known);
  assert.deepEqual([begun.items.length, begun.items[0].decision, begun.items[0].history.length], [1, undefined, 1]);
  const over = reduce(begun, frame("escalation.resolved", { escalation: "e", decision: "skip", note: "go on", by: "bob" }));
  const [item] = over.items;
  assert.deepEqual([item.decision, item.note, item.by, item.reason, item.history], ["skip", "go on", "bob", "too many", history]);
  assert.equal(withEscalation(over, known).items[0].decision, "skip");
  assert.deepEqual(tried(history), ["shell({}): unknown: no<U+202E> route [err_1] (a later call has succeeded)"]);
});

test("an item that is told again without a change stays the same, with what is typed in its element", () => {
  const known = { id: "e", reason: "too many", error_history: [{ tool: "shell", error: { message: "no", count: 1 } }] };
  const once = withEscalation(EMPTY, known);
  assert.equal(withEscalation(once, structuredClone(known)).items[0], once.items[0]);
  const changed = structuredClone(known);
  changed.error_history[0].error.count = 2;
  assert.notEqual(withEscalation(once, changed).items[0], once.items[0]);
  const digits = (text) => withApproval(EMPTY, { id: "a", tool: "pay", args: exact(`{"cents": ${text}}`) });
  const one = digits("9007199254740993");
  const other = withApproval(one, { id: "a", tool: "pay", args: exact('{"cents": 9007199254740992.0}') });
  assert.notEqual(other.items[0], one.items[0]);
});

test("an approval shows every character of its arguments, and what cannot be seen by its name", () => {
  const args = { command: `ls ${" ".repeat(50)}; rm\u001b[2K\u202e x`, path: "a\nb\n", limit: 3 };
  const text = review("shell", args).join("\n");
  assert.ok(text.includes(`"ls ${" ".repeat(50)}; rm<U+001B>[2K<U+202E> x"`));
  assert.ok(text.includes("there are 51 blanks in a row"));
  assert.ok(text.includes("path = 3 lines:\n  | a\n  | b\n  | ") && text.includes("limit = 3"));
  assert.equal(reveal("a\u200b\u00a0\r"), "a<U+200B><U+00A0><U+000D>");
  assert.deepEqual(review("edit_file", { path: "p", old: "a\nb\nc", new: "a\nB\nc" }).slice(2, 7), ["  old -> new:", "    a", "  - b", "  + B", "    c"]);
  assert.ok(review("shell", { command: "rm" }, { command: "ls" }).join("\n").includes('-   "command": "ls"'));
  const asked = reduce(EMPTY, frame("approval.requested", { id: "a", tool: "shell", args: { command: "ls" }, reason: "why", expires: 9 }));
  const [whole] = withApproval(asked, { id: "a", tool: "shell", args, proposed: null, reason: "why" }).items;
  assert.deepEqual([whole.whole, whole.args, whole.decision, whole.expires], [true, args, null, 9]);
});

test("runs begin and end, and an event of a later version changes nothing", () => {
  const begun = reduce(EMPTY, frame("input.accepted", { text: "hi" }));
  assert.equal(begun.running.size, 1);
  const ended = reduce(begun, frame("run.completed", { usage: { input_tokens: 3, output_tokens: 2 } }));
  assert.deepEqual([ended.running.size, ended.usage, ended.items.length], [0, 5, 0]);
  assert.equal(reduce(ended, frame("run.levitated", {})), ended);
});

test("in a room people's words stay apart, and a run says one thing", () => {
  const inRoom = (event, data, more) => ({ ...frame(event, data, more), stream: "room:dev" });
  const state = [
    inRoom("message", { role: "user", author: "bob", text: "one", i: 0 }, { seq: 1, run_id: undefined }),
    inRoom("message", { role: "user", author: "bob", text: "two", i: 0 }, { seq: 2, run_id: undefined }),
    inRoom("room.turn", { speaker: "ann", turn: 1, left: 7 }, { seq: 3 }),
    inRoom("text.delta", { i: 0, at: 0, text: "thr" }, { seq: undefined }),
    inRoom("message", { role: "assistant", author: "ann", text: "three", i: 0 }, { seq: 4 }),
  ].reduce(reduce, EMPTY);
  assert.deepEqual(shown(state), ["one", "two", "three"]);
  assert.equal(state.turn.speaker, "ann");
  assert.equal(holding(state.turn, state.floor), "ann has the floor · turn 1, 7 left");
  const floor = [{ name: "ann", since: 0, waits_for: "tool look" }, { name: "ben", since: 0, waits_for: "approval" }];
  assert.equal(holding(state.turn, floor), "ann has the floor, waits for the tool look · ben has the floor, waits for a person's approval · turn 1, 7 left");
  const cut = reduce(state, inRoom("text.delta", { i: 0, at: 0, text: "I th" }, { seq: undefined, run_id: "run_2" }));
  assert.equal(shown(cut).at(-1), "I th");
  const dropped = inRoom("call.dropped", { of: "ben", by: ["bob", "ann"], reason: "stopped", round: 1, number: 1, first: 1, last: 4 }, { seq: 5 });
  assert.equal(shown(reduce(state, dropped)).at(-1), "ben was called by bob, ann, and will not speak: stopped");
  assert.deepEqual(shown(reduce(cut, inRoom("room.idle", { reason: "stopped" }, { seq: 5 }))), ["one", "two", "three", "the round is over: stopped"]);
});

test("an answer is shown with what it has of Markdown, and nothing else of it is anything but text", () => {
  const text = "# Plan\nsee **this** `<b>` and [it](https://a.example/x)\n- one\n- two *2*\n```js\n<script>**no**</script>\n```\n![x](https://e.example/?q=secret) [y](javascript:alert(1)) <img src=x>";
  assert.deepEqual(markdown(text), [
    { tag: "p", children: [{ tag: "strong", children: ["Plan"] }, "\nsee ", { tag: "strong", children: ["this"] }, " ", { tag: "code", children: ["<b>"] }, " and ", { tag: "a", href: "https://a.example/x", children: ["it"] }] },
    { tag: "ul", children: [{ tag: "li", children: ["one"] }, { tag: "li", children: ["two ", { tag: "em", children: ["2"] }] }] },
    { tag: "pre", children: ["<script>**no**</script>"] },
    { tag: "p", children: ["!", { tag: "a", href: "https://e.example/?q=secret", children: ["x"] }, " [y](javascript:alert(1)) <img src=x>"] },
  ]);
});

test("whatever a model says, it makes no element but those of the list and no address but of the web", () => {
  const parts = ["**", "*", "`", "```\n", "\n", "- ", "1. ", "[", "](", ")", "http://", "https://x.y/", "javascript:", "data:", "<a onclick=1>", "word ", "# ", "!", " ", "~~~"];
  const judge = (nodes) => {
    for (const node of nodes) {
      if (typeof node === "string") continue;
      assert.ok(TAGS.has(node.tag), node.tag);
      assert.equal("href" in node, node.tag === "a");
      if (node.href) assert.match(node.href, /^https?:\/\//);
      assert.deepEqual(Object.keys(node).filter((key) => !["tag", "href", "children"].includes(key)), []);
      judge(node.children);
    }
  };
  for (let seed = 0; seed < 2000; seed += 1) {
    const dice = chance(seed);
    const text = Array.from({ length: 1 + Math.floor(dice() * 20) }, () => parts[Math.floor(dice() * parts.length)]).join("");
    const nodes = markdown(text);
    judge(nodes);
    const words = (what) => what.split("word").length;
    assert.equal(words(plain(nodes)) <= words(text), true);
  }
  const long = "**[`".repeat(20000);
  const began = performance.now();
  markdown(long);
  assert.ok(performance.now() - began < 2000);
});

test("a message that waits is shown until it is answered, enters a run or is dropped", () => {
  const accepted = (run) => frame("input.accepted", { text: `text of ${run}`, author: "ann" }, { run_id: run });
  const waits = [accepted("a"), accepted("b"), accepted("c")].reduce(reduce, EMPTY);
  assert.deepEqual(shown(waits), ["waiting: text of a", "waiting: text of b", "waiting: text of c"]);
  const after = [
    frame("message", { role: "user", author: "ann", text: "text of a", i: 0 }, { run_id: "a" }),
    frame("input.steered", { into: "a" }, { run_id: "b", seq: 8 }),
    frame("input.dropped", { reason: "stopped by ann" }, { run_id: "c", seq: 9 }),
  ].reduce(reduce, waits);
  assert.deepEqual(shown(after), ["text of a", "not answered: text of c (stopped by ann)"]);
});

test("histories are shown, and what a stop left", () => {
  const rows = [{ pos: 1, run_id: "r", row: { role: "user", text: "hi" } }, { pos: 2, run_id: "r", row: { role: "assistant", text: "", calls: [] } }];
  assert.deepEqual(shown(fromHistory(rows)), ["hi"]);
  assert.deepEqual(shown(fromRoom([{ seq: 1, author: "ann", kind: "agent", text: "yes" }])), ["yes"]);
  const report = { stopped: ["a"], already_stopping: [], dropped_inputs: ["b"], still_running: [], held_by: [] };
  assert.equal(stopText(report), "stopped 1, 1 never began");
  assert.equal(stopText({ ...report, still_running: ["a"], held_by: ["shell (pid 4)"] }), "stopping… 1 left (shell (pid 4))");
});

test("messages of a room are changed by their numbers", () => {
  const start = [
    frame("message", { role: "user", author: "ann", text: "one", i: 0, number: 1 }, { run_id: undefined, seq: 1 }),
    frame("message", { role: "assistant", author: "ben", text: "two", i: 0, number: 2 }, { run_id: "r", seq: 2 }),
  ].reduce(reduce, EMPTY);
  assert.equal(start.last, 2);
  const after = [
    frame("message.edited", { number: 1, text: "uno", by: "ann", change: 1 }),
    frame("message.reaction", { number: 1, reaction: "+1", by: "bob", on: true, change: 2 }),
    frame("message.reaction", { number: 1, reaction: "+1", by: "cid", on: true, change: 3 }),
    frame("message.reaction", { number: 1, reaction: "+1", by: "bob", on: false, change: 4 }),
    frame("message.deleted", { number: 2, by: "eve", change: 5 }),
    frame("message.edited", { number: 9, text: "nothing", by: "ann", change: 6 }),
  ].reduce(reduce, start);
  assert.deepEqual(shown(after), ["uno", ""]);
  assert.deepEqual([after.items[0].edited, after.items[0].reactions], [true, [{ text: "+1", users: ["cid"] }]]);
  assert.equal(after.items[1].deleted, true);
  const replayed = reduce(EMPTY, frame("message", { role: "user", author: "ann", text: "", i: 0, number: 1 }, { run_id: undefined, seq: 1 }));
  assert.equal(replayed.items[0].deleted, true);
  const read = fromRoom([{ seq: 4, author: "ann", kind: "person", text: "", edited: 5, deleted: true, reactions: [] }]);
  assert.deepEqual([read.last, read.items[0].deleted, read.items[0].edited], [4, true, false]);
});

test("who writes and who is here is told, and fades", () => {
  const state = [
    frame("room.typing", { name: "bob", role: "user", on: true }, { ts: 100 }),
    frame("room.typing", { name: "me", role: "user", on: true }, { ts: 100 }),
    frame("room.typing", { name: "ann", role: "assistant", on: true }, { ts: 100 }),
    frame("room.presence", { user: "cid", here: true }),
    frame("room.presence", { user: "bob", here: true }),
    frame("room.presence", { user: "cid", here: false }),
  ].reduce(reduce, EMPTY);
  assert.equal(busyText(state, "me", 101), "bob is typing… ann is working…");
  assert.equal(busyText(state, "me", 107), "ann is working…");
  const spoke = reduce(state, frame("message", { role: "user", author: "bob", text: "hi", i: 0, number: 1 }, { run_id: undefined, seq: 1 }));
  assert.equal(busyText(reduce(spoke, frame("room.typing", { name: "ann", role: "assistant", on: false })), "me", 101), "");
  assert.deepEqual(state.here, ["bob"]);
});

test("who is here is right, whatever overtakes the answer", () => {
  // Law: once all events and the answer have come, the page shows who has the room open.
  const next = chance(11);
  for (let world = 0; world < 300; world += 1) {
    const here = new Set(["ann"]);
    let [state, answer, told, subscribed] = [EMPTY, null, [], false];
    for (let step = 0; step < 20; step += 1) {
      const dice = next();
      const user = ["ann", "bob", "cid"][Math.floor(next() * 3)];
      if (dice < 0.5) {
        here.has(user) ? here.delete(user) : here.add(user);
        if (subscribed) told.push(frame("room.presence", { user, here: here.has(user) }));
      } else if (dice < 0.6) [state, answer, told, subscribed] = [{ ...state, moved: {} }, [...here], [], true];
      else if (dice < 0.9 && told.length) state = reduce(state, told.shift());
      else if (answer) [state, answer] = [present(state, answer), null];
    }
    if (!subscribed) continue;
    if (next() < 0.5 && answer) [state, answer] = [present(state, answer), null];
    state = told.reduce(reduce, state);
    if (answer) state = present(state, answer);
    assert.deepEqual(state.here, [...here].sort());
  }
});

test("what passes is asked for once its stream is followed, and after each reconnection", () => {
  const followed = [];
  const machine = new Machine({ deliver: () => {}, missed: () => {}, followed: (stream) => followed.push(stream) });
  const answer = (result) => machine.received(JSON.stringify({ type: "res", id: JSON.parse(machine.outgoing.pop()).id, ok: true, result }));
  machine.follow(STREAM, 0);
  machine.opened();
  const server = { server: { instance: "a" }, streams: { [STREAM]: { head: 0, resumed: true } } };
  answer(server);
  assert.deepEqual(followed, [STREAM]);
  machine.received(JSON.stringify({ type: "event", stream: STREAM, event: "room.presence", data: { user: "bob", here: true } }));
  assert.deepEqual(machine.streams.get(STREAM).early, [], "it never comes again with a number");
  machine.lost();
  machine.opened();
  answer(server);
  assert.deepEqual(followed, [STREAM, STREAM]);
});

test("every digit of a number is shown as it was sent", () => {
  // Law: JSON that is read and shown is the same text, whatever its numbers and strings.
  const texts = ["0", "-0", "5.0", "9007199254740993", "-12345678901234567890123", "1e400", "1E+2", "0.1", "0.10", "1.0000000000000002", '"1.0"', '"a\\"1.0"', '"\\u0000"', "null", "true", '"digits-1-2-3-4:5"'];
  const next = chance(7);
  const draw = (depth) => {
    const dice = Math.floor(next() * (depth > 3 ? texts.length : texts.length + 8));
    if (dice < texts.length) return texts[dice];
    const items = Array.from({ length: Math.floor(next() * 4) }, () => draw(depth + 1));
    if (dice % 2) return `[${items.join(",")}]`;
    return `{${items.map((item, at) => `"${["k", "__proto__", "args", "1.0 "][at]}${at ? "" : "_1.0"}":${item}`).join(",")}}`;
  };
  for (let round = 0; round < 2000; round += 1) {
    const text = draw(0);
    assert.equal(json(exact(text), 0), text);
  }
});

test("numbers that the page counts with are numbers", () => {
  const heard = [];
  const machine = new Machine({ deliver: (frame) => heard.push(frame), missed: () => {} });
  machine.follow("session:a", 0);
  machine.opened();
  machine.received(JSON.stringify({ type: "res", id: machine.connecting, ok: true, result: { server: { instance: "x" }, streams: { "session:a": { head: 0, resumed: true } } } }));
  machine.received('{"type":"event","stream":"session:a","seq":1,"event":"tool.call","data":{"id":"c","ms":5.0,"args":{"n":5.0,"args":[1e400]}}}');
  assert.equal(heard[0].data.ms, 5);
  assert.equal(json(heard[0].data.args, 0), '{"n":5.0,"args":[1e400]}');
});

test("an event that had no number is not told again when it gets one", () => {
  const seen = [];
  const machine = new Machine({ deliver: (frame) => seen.push(frame.data.text), missed: () => {} });
  const event = (text, seq, name = "warning") => machine.received(JSON.stringify({ type: "event", stream: STREAM, event: name, data: { text }, run_id: "r", ...(seq && { seq }) }));
  const meet = (instance, resumed) => {
    machine.opened();
    machine.received(JSON.stringify({ type: "res", id: machine.connecting, ok: true, result: { server: { instance }, streams: { [STREAM]: { head: resumed, resumed: true } } } }));
  };
  machine.follow(STREAM, 0);
  meet("one", 0);
  event("a", 1);
  event("b");
  event("part", undefined, "text.delta");
  event("b");
  event("b", 2);
  event("part", 3, "text.delta");
  event("b", 4);
  event("b", 5);
  event("c");
  machine.lost();
  meet("two", 5);
  event("c", 6);
  assert.deepEqual(seen, ["a", "b", "part", "b", "part", "b", "c", "c"]);
});
