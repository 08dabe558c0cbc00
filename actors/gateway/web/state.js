// The state of one session or room on the page: a pure function of its events.
// An item is {id, kind, ...}; kinds: said, call, approval, escalation, note.

export const EMPTY = { items: [], running: new Set(), turn: null, usage: 0, here: [], moved: {}, typing: {}, last: 0 };

const ENDS = {
  "run.completed": null,
  "run.failed": (data) => `failed: ${data.message}${data.error_id ? ` [${data.error_id}]` : ""}`,
  "run.cancelled": () => "stopped",
  "run.limited": (data) => `stopped: the limit of ${data.limit} is reached`,
  "run.refused": (data) => `refused: ${data.reason}`,
  "run.escalated": () => null,
  "run.interrupted": (data) => `interrupted: ${data.reason}`,
  "input.dropped": (data, text) => `not answered: ${text ? `${text} (${data.reason})` : data.reason}`,
  "input.steered": () => null,
};

/** The state after an event frame. */
export function reduce(state, frame) {
  const { event, data, run_id: run } = frame;
  if (event === "run.escalated") return withEscalation(ended(state, frame), { id: data.escalation, reason: data.reason });
  if (event in ENDS) return ended(state, frame);
  switch (event) {
    case "input.accepted":
      return put({ ...state, running: with_(state.running, run) }, { id: inputId(run), kind: "note", text: `waiting: ${data.text}`, input: data.text });
    case "message":
      return said(without(state, inputId(run)), frame);
    case "text.delta":
      return delta(state, run, data);
    case "activity":
      return queued(state, run, data);
    case "run.retrying":
      return note(data.withdrawn ? without(state, textId(run, data.i)) : state, frame, `trying again: ${data.reason}`);
    case "tool.call":
      return put(state, { id: `call ${run} ${data.id}`, kind: "call", name: data.name, args: data.args, state: "running" });
    case "tool.result":
      return put(state, { id: `call ${run} ${data.id}`, kind: "call", name: data.name, state: data.ok ? "done" : "failed", ms: data.ms, preview: data.preview, error: data.error_id });
    case "tool.progress":
      return progress(state, `call ${run} ${data.id}`, data);
    case "approval.requested":
      return put(state, { id: `approval ${data.id}`, kind: "approval", approval: data.id, tool: data.tool, args: data.args, reason: data.reason, people: data.people, expires: data.expires, decision: null });
    case "approval.resolved":
      return put(state, { id: `approval ${data.id}`, kind: "approval", approval: data.id, decision: data.decision, by: data.by });
    case "escalation.resolved":
      return withEscalation(state, { id: data.escalation, decision: data.decision, note: data.note, resolved_by: data.by });
    case "message.edited":
      return changed(state, data.number, () => ({ text: data.text, edited: true }));
    case "message.deleted":
      return changed(state, data.number, () => ({ text: "", edited: false, deleted: true, reactions: [] }));
    case "message.reaction":
      return changed(state, data.number, (item) => ({ reactions: reacted(item.reactions ?? [], data) }));
    case "room.replied":
      return changed(state, data.number, () => ({ replies: data.replies }));
    case "room.typing": {
      const { [data.name]: _, ...others } = state.typing;
      return { ...state, typing: data.on ? { ...others, [data.name]: { role: data.role, at: frame.ts } } : others };
    }
    case "room.presence":
      return present({ ...state, moved: { ...state.moved, [data.user]: data.here } }, state.here);
    case "room.turn":
      return { ...state, turn: data, floor: null };
    case "room.idle":
      return note({ ...withdrawn(state), turn: null, floor: null }, frame, `the round is over: ${data.reason}`);
    case "room.changed":
      return note(state, frame, data.text);
    case "call.dropped":
      return note(state, frame, `${data.of} was called by ${data.by.join(", ")}, and will not speak: ${data.reason}`);
    case "child.started":
      return note(state, frame, `${data.agent} works on: ${data.text}`);
    case "agent.changed":
      return note(state, frame, `${data.before} hands over to ${data.agent}`);
    case "session.reset":
      return note(state, frame, "a new conversation");
    case "warning":
      return note(state, frame, `warning: ${data.message}`);
    default:
      return state;
  }
}

const WAITS = { queue: "its place in a queue", approval: "a person's approval", "sub-agents": "its sub-agents", summary: "a summary by the model" };

/** Who has the floor, since when, and what it waits for, in one line. */
export function holding(turn, floor) {
  const known = floor?.length ? floor : [{ name: turn.speaker ?? "" }];
  const since = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { timeStyle: "medium" });
  const who = known.map((one) => `${one.name} has the floor${one.since ? ` since ${since(one.since)}` : ""}${one.waits_for ? `, waits for ${WAITS[one.waits_for] ?? `the ${one.waits_for}`}` : ""}`);
  return `${who.join(" · ")} · turn ${turn.turn}, ${turn.left} left`;
}

/** The state with the users who had the room open when the host was asked; what events told since then is newer. */
export function present(state, users) {
  const moved = Object.keys(state.moved);
  return { ...state, here: [...users.filter((user) => !moved.includes(user)), ...moved.filter((user) => state.moved[user])].sort() };
}

/** The state with an approval as the host has it: events have long arguments cut. */
export function withApproval(state, { id, tool, args, proposed, reason }) {
  return put(state, { id: `approval ${id}`, kind: "approval", approval: id, tool, args, proposed, reason, whole: true });
}

/** The state with what is known of an escalation; its history comes from the host only. */
export function withEscalation(state, { id, reason, decision, note, resolved_by: by, error_history: history }) {
  const known = Object.entries({ reason, decision, note, by, history }).filter(([, value]) => value !== undefined && value !== null);
  return put(state, { id: `escalation ${id}`, kind: "escalation", escalation: id, ...Object.fromEntries(known) });
}

/** The failed calls of an escalation, a line each. */
export function tried(history) {
  return history.map((one) => {
    const id = one.error_id ? ` [${one.error_id}]` : "";
    const later = one.resolved ? " (a later call has succeeded)" : "";
    return reveal(`${one.tool_name}(${one.arguments}): ${one.error_type}: ${one.message}${id}${later}`).replace(/\n/g, " ");
  });
}

// -- a call as a person reads it before it is approved; motet/protocols/review.py is the same --

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Zs}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u2800\u3164\uffa0\ufe00-\ufe0f\u{e0100}-\u{e01ef}]/gu;
const PADDED = 40;

/** The text, with a visible name in place of each character that could not be seen as it is. */
export function reveal(text) {
  return text.replace(HIDDEN, (char) => " \t\n".includes(char) ? char : `<U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

const DIGITS = Symbol.for("motet.digits");
const MARK = `digits-${crypto.getRandomValues(new Uint32Array(4)).join("-")}:`;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, "g");

/** A value as JSON, with the digits that its numbers came with. */
export function json(value, indent = 2) {
  const marked = (_, one) => (one !== null && typeof one === "object" && DIGITS in one ? MARK + one[DIGITS] : one);
  return (JSON.stringify(value, marked, indent) ?? "").replace(MARKED, "$1");
}

/** A call in lines, with every character of its arguments. */
export function review(tool, args, proposed = null) {
  const edit = tool === "edit_file" && typeof args.old === "string" && typeof args.new === "string";
  const lines = [`${named(tool)}(`];
  for (const [name, value] of Object.entries(args)) {
    if (!edit || (name !== "old" && name !== "new")) lines.push(...argument(name, value));
  }
  if (edit) lines.push("  old -> new:", ...diff(args.old, args.new));
  lines.push(")");
  if (proposed) lines.push("changed by a hook; the model gave:", ...diff(json(proposed), json(args)));
  return lines;
}

function argument(name, value) {
  const text = typeof value === "string" ? value : json(value);
  const lines = reveal(text).split("\n");
  const longest = Math.max(0, ...(text.match(/ +/g) ?? []).map((run) => run.length));
  const warned = longest < PADDED ? [] : [`  (there are ${longest} blanks in a row: read on behind them)`];
  if (lines.length > 1) return [`  ${named(name)} = ${lines.length} lines:`, ...lines.map((line) => `  | ${line}`), ...warned];
  return [`  ${named(name)} = ${typeof value === "string" ? `"${lines[0]}"` : lines[0]}`, ...warned];
}

/** All lines of both texts; those at the beginning and the end that are the same stand once. */
function diff(old, now) {
  const [before, after] = [old.split("\n"), now.split("\n")];
  const most = Math.min(before.length, after.length);
  let [head, tail] = [0, 0];
  while (head < most && before[head] === after[head]) head += 1;
  while (tail < most - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail += 1;
  const shown = (mark, lines) => lines.map((line) => `  ${mark} ${reveal(line)}`);
  return [
    ...shown(" ", before.slice(0, head)),
    ...shown("-", before.slice(head, before.length - tail)),
    ...shown("+", after.slice(head, after.length - tail)),
    ...shown(" ", before.slice(before.length - tail)),
  ];
}

function named(name) {
  return reveal(name).replace(/\n/g, "<U+000A>").replace(/\t/g, "<U+0009>");
}

/** The state from a page of history, which replaces the one before. */
export function fromHistory(rows) {
  let state = EMPTY;
  for (const { pos, run_id: run, row } of rows) {
    const text = row.text ?? "";
    if (row.role === "tool") state = put(state, { id: `call ${run} ${row.call_id}`, kind: "call", name: row.name, state: row.outcome === "done" ? "done" : "failed", preview: text });
    else if (text) state = put(state, { id: `row ${pos}`, kind: "said", author: row.role === "user" ? "you" : "agent", role: row.role, text });
  }
  return state;
}

/** The same for the messages of a room. */
export function fromRoom(messages) {
  return messages.reduce((state, one) => {
    const { seq: number, author, text, deleted, reactions, replies } = one;
    const role = one.kind === "person" ? "user" : "assistant";
    return put({ ...state, last: Math.max(state.last, number) }, { id: `post ${number}`, kind: "said", author, role, text, number, edited: one.edited > 0 && !deleted, deleted, reactions, replies });
  }, EMPTY);
}

/** Drop parts of messages that will not be finished. */
export function withdrawn(state) {
  return { ...state, items: state.items.filter((item) => !item.partial && !item.id.startsWith(queuedId(""))) };
}

function ended(state, frame) {
  const running = new Set(state.running);
  running.delete(frame.run_id);
  const tokens = (frame.data.usage?.input_tokens ?? 0) + (frame.data.usage?.output_tokens ?? 0);
  const waited = state.items.find((item) => item.id === inputId(frame.run_id));
  const next = { ...without(without(state, inputId(frame.run_id)), queuedId(frame.run_id)), running, usage: state.usage + tokens };
  const text = ENDS[frame.event]?.(frame.data, waited?.input);
  return text ? note(next, frame, text) : next;
}

// For the model; people see the event of the end.
const STOPPED = /\s*\[(?:Stopped(?: by user|: [^\]\n]*)|Refused(?:: [^\]\n]*)?|Interrupted: [^\]\n]*)\]$/;

function said(state, { data, run_id: run, seq }) {
  const id = run ? textId(run, data.i ?? 0) : `post ${seq}`;
  const text = data.text.replace(STOPPED, "");
  const number = data.number ?? 0; // in a room
  if (!text && !(number && data.author)) return without(state, id); // or it is hidden from newcomers
  const { [data.author]: _, ...typing } = state.typing;
  const next = { ...state, typing, last: Math.max(state.last, number) };
  return put(next, { id, kind: "said", author: data.author, role: data.role, text, partial: false, number, deleted: !text });
}

function changed(state, number, change) {
  const item = state.items.find((one) => one.number === number && one.kind === "said");
  return item ? put(state, { id: item.id, ...change(item) }) : state;
}

function reacted(reactions, { reaction: text, by, on }) {
  const users = (reactions.find((one) => one.text === text)?.users ?? []).filter((user) => user !== by);
  const now = { text, users: on ? [...users, by] : users };
  const others = reactions.filter((one) => one.text !== text);
  return now.users.length ? [...others, now] : others;
}

export function busyText(state, me, now) {
  const busy = Object.entries(state.typing).filter(([name, { role, at }]) => role === "assistant" || (name !== me && now - at < 6));
  return busy.map(([name, { role }]) => `${name} ${role === "assistant" ? "is working" : "is typing"}…`).join(" ");
}

function delta(state, run, data) {
  const id = textId(run, data.i);
  const before = state.items.find((item) => item.id === id);
  const text = before?.text ?? "";
  // Offsets count code points; a missing part comes with the whole message.
  if (before && !before.partial) return state;
  const points = [...text];
  if (data.at > points.length) return state;
  return put(state, { id, kind: "said", author: before?.author ?? state.turn?.speaker ?? "", role: "assistant", text: points.slice(0, data.at).join("") + data.text, partial: true });
}

/** Progress of a running call. */
function progress(state, id, { message, done, total }) {
  if (state.items.find((item) => item.id === id)?.state !== "running") return state;
  const far = done === null ? "" : total ? `${Math.round((100 * done) / total)} %` : String(done);
  return put(state, { id, progress: [far, message].filter(Boolean).join(" ") });
}

/** The id of an input that has no message yet. */
function inputId(run) {
  return `input ${run}`;
}

function queuedId(run) {
  return `queued ${run}`;
}

/** A run that waits for one of the model's places says so until it goes on. */
function queued(state, run, { phase, position }) {
  if (phase !== "queued") return state.items.some((item) => item.id === queuedId(run)) ? without(state, queuedId(run)) : state;
  return put(state, { id: queuedId(run), kind: "note", text: `the model is busy${position ? `: number ${position} of those who wait for it` : ""}` });
}

function textId(run, i) {
  return `text ${run} ${i}`;
}

function note(state, frame, text) {
  return put(state, { id: `note ${frame.seq ?? state.items.length} ${frame.event}`, kind: "note", text });
}

function put(state, item) {
  const at = state.items.findIndex((one) => one.id === item.id);
  if (at < 0) return { ...state, items: [...state.items, item] };
  // Told again, it stays the same object: its element is not drawn anew, and keeps what is typed in it.
  if (Object.entries(item).every(([key, value]) => same(state.items[at][key], value))) return state;
  const items = [...state.items];
  items[at] = { ...items[at], ...item };
  return { ...state, items };
}

function same(one, other) {
  return one === other || (one instanceof Object && other instanceof Object && json(one) === json(other));
}

function without(state, id) {
  return { ...state, items: state.items.filter((item) => item.id !== id) };
}

function with_(set, value) {
  return new Set([...set, value]);
}

/** The result of a stop, for people. */
export function stopText(report) {
  const left = report.still_running.length;
  const dropped = report.dropped_inputs.length ? `, ${report.dropped_inputs.length} never began` : "";
  if (left) return `stopping… ${left} left${report.held_by.length ? ` (${report.held_by.join("; ")})` : ""}`;
  const count = report.stopped.length + report.already_stopping.length;
  const processes = report.processes?.length ? ` (${report.processes.join("; ")})` : "";
  return count || dropped ? `stopped ${count}${dropped}${processes}` : "nothing was running";
}
