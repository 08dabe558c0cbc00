// The page: elements on one side, the protocol machine and the state of one session or room on the
// other. All text of models, tools and people is put into text nodes, never into HTML.

import { $, element, press } from "./elements.js";
import { Lists } from "./lists.js";
import { markdown } from "./markdown.js";
import { FINAL, BACKOFF, Machine, backoff, freshKey } from "./proto.js";
import { Rooms } from "./rooms.js";
import { EMPTY, busyText, fromHistory, fromRoom, holding, json, present, reduce, reveal, review, stopText, tried, withApproval, withEscalation, withdrawn } from "./state.js";

const box = $("error-box");
const TOKEN = "motet-token";
const LATER = "not connected: sent when the connection is back";
const FLOOR = new Set(["room.turn", "room.idle", "room.changed", "activity", "tool.call", "tool.result", "approval.requested", "approval.resolved"]);
const STEERED = "goes into the running turn";
const DECIDED = { allow: "allowed", deny: "denied", cancelled: "withdrawn" };
let place = null; // {stream, kind: "session" | "room", name, agent}
let state = EMPTY;
let waiting = 0; // approvals and escalations that the person in front of the page has to answer
let failures = 0;
let joining; // the token of an invite
let socket = null;
let drawing = false;
const reading = {}; // reads of what waits for a person, by their method
let editing = null; // the number of a message
let asking = 0; // reads of who is here: the answer of the last one counts
let [signed, read] = [0, 0]; // when the person was said to write; the last message read

const machine = new Machine({ token: firstToken(), deliver, missed, ended, followed: readPresent, storage });

// -- the connection

function firstToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  joining = given.get("join");
  if (given.get("token")) sessionStorage.setItem(TOKEN, given.get("token"));
  if (joining || given.get("token")) history.replaceState(null, "", location.pathname);
  return sessionStorage.getItem(TOKEN);
}

function connect() {
  const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
  const current = new WebSocket(url, "motet.v1");
  socket = current;
  let since = null;
  let silence;
  const listen = (ms) => {
    clearTimeout(silence);
    silence = setTimeout(() => current.close(), ms);
  };
  listen(10000);
  current.onopen = () => {
    machine.opened();
    flush();
  };
  current.onmessage = ({ data }) => {
    const { error, connected, restarted } = machine.received(data);
    if (error) {
      since = error;
      return;
    }
    if (connected) {
      since = Date.now();
      online(connected, restarted);
    }
    if (machine.server) listen(machine.server.limits.ping_ms * 2.5);
    flush();
  };
  current.onclose = ({ code, reason }) => {
    clearTimeout(silence);
    machine.lost();
    const refused = since !== null && typeof since === "object" ? since : null;
    if ((refused && !refused.retryable) || FINAL.has(code)) {
      const asked = refused?.code === "unauthorized" && !machine.token;
      turnedAway(asked ? "enter your token" : refused?.message || reason || `closed (${code})`);
      return;
    }
    if (typeof since === "number" && Date.now() - since >= BACKOFF.healthy) failures = 0;
    wait(backoff(failures++), reason);
  };
}

function wait(ms, reason) {
  const from = place && machine.position(place.stream);
  const until = Date.now() + ms;
  const tell = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    say("offline", `${reason ? `${reason}; ` : ""}reconnecting in ${left} s${from ? `, resuming from ${from}` : ""}`);
  };
  tell();
  const timer = setInterval(tell, 1000);
  setTimeout(() => {
    clearInterval(timer);
    connect();
  }, ms);
}

function turnedAway(reason) {
  say("offline", "not connected");
  $("login").hidden = false;
  $("login-error").textContent = reason;
  $("token").focus();
}

function online(connected, restarted) {
  const { user, role } = connected.principal;
  say("online", "connected");
  $("who").textContent = `${user} (${role})`;
  $("login").hidden = true;
  storage(""); // if it is otherwise, the host says so next
  $("stop-all").disabled = role === "viewer";
  if (restarted) state = withdrawn(state);
  if (place) readWaiting("escalations", withEscalation); // answered meanwhile, perhaps
  refresh();
  draw();
}

function storage(reason) {
  $("storage").textContent = reason && `Nothing can be stored now, since ${reason}: new messages are refused, and calls with effects wait.`;
  $("storage").hidden = !reason;
}

function say(which, text) {
  $("connection").dataset.state = which;
  $("connection").textContent = text;
}

function flush() {
  if (socket?.readyState !== WebSocket.OPEN) return;
  for (const text of machine.outgoing.splice(0)) socket.send(text);
}

async function ask(method, params = {}) {
  const answer = machine.request(method, params);
  flush();
  return answer;
}

const may = (method) => machine.server?.methods.includes(method);

// -- lists

async function refresh() {
  if (joining) await ask("rooms.join", { token: joining }).then((one) => enter(roomPlace(one)), problem);
  joining = null;
  const { sessions } = await ask("sessions.list").catch(() => ({ sessions: [] }));
  $("sessions").replaceChildren(...sessions.map((one) => placeItem(sessionPlace(one.session, `${one.needs_review ? "⚠ " : ""}${one.session} · ${one.agent}`))));
  await showRooms();
  const { agents } = await ask("agents.list").catch(() => ({ agents: [] }));
  $("new-agent").replaceChildren(...agents.map((one) => element("option", { value: one.name }, one.name)));
  await Promise.all([lists.runs(), lists.errors()]);
}

const sessionPlace = (name, label) => ({ stream: `session:${name}`, kind: "session", name, label });

function roomPlace({ name, role, members, terms, unread }) {
  const count = unread ? ` (${unread < 100 ? unread : "99+"})` : "";
  return { stream: `room:${name}`, kind: "room", name, role, title: terms.title, label: `#${terms.title || name} · ${members.map((one) => one.name).join(", ")}${count}` };
}

function placeItem(one) {
  const button = press(one.label, () => enter(one));
  button.dataset.stream = one.stream;
  button.setAttribute("aria-current", String(place?.stream === one.stream));
  return element("li", {}, button);
}

function enter(one) {
  if (place) machine.unfollow(place.stream);
  place = one;
  state = EMPTY;
  read = 0;
  stopEditing();
  showTitle(one);
  $("stopped").textContent = $("problem").textContent = $("said-query").value = "";
  $("text").disabled = $("send").disabled = $("stop").disabled = machine.server?.principal.role === "viewer";
  for (const button of document.querySelectorAll("nav li button[data-stream]")) {
    button.setAttribute("aria-current", String(button.dataset.stream === one.stream));
  }
  machine.follow(one.stream, 0);
  readWaiting("escalations", withEscalation);
  if (one.kind === "room") readFloor();
  flush();
  draw();
  $("text").focus();
}

/** The host no longer has all events of a stream: show its history instead. */
async function missed(stream) {
  const [kind, name] = [stream.split(":", 1)[0], stream.slice(stream.indexOf(":") + 1)];
  try {
    const found = kind === "room" ? await ask("rooms.history", { room: name }) : await ask("sessions.history", { session: name });
    if (place?.stream !== stream) return;
    const { here, moved } = state;
    state = kind === "room" ? { ...fromRoom(found.messages), here, moved } : fromHistory(found.rows);
    readWaiting("escalations", withEscalation);
    draw();
  } catch (error) {
    problem(error);
  }
}

/** The session was deleted, or its stream is another's: nothing of it stays on the screen. */
function ended(stream, reason) {
  if (place?.stream !== stream) return;
  const { kind, name } = place;
  place = null;
  state = EMPTY;
  $("title").textContent = "";
  $("text").disabled = $("send").disabled = $("stop").disabled = true;
  $("problem").textContent = reason === "deleted" ? `${name} was deleted` : `the ${kind} ${name} is not open to you any more`;
  draw();
  refresh();
}

/** Read who has the room open, each time its events begin to arrive: those before are not sent. */
async function readPresent(stream) {
  if (place?.stream !== stream || place.kind !== "room") return;
  const asked = (asking += 1);
  state = { ...state, moved: {} };
  const found = await ask("rooms.present", { room: place.name }).catch(() => null);
  if (!found || asked !== asking || place?.stream !== stream) return;
  state = present(state, found.users);
  draw();
}

function markRead() {
  if (place?.kind !== "room" || document.hidden || state.last <= read) return;
  read = state.last;
  ask("rooms.read", { room: place.name, number: read }).catch(() => {});
  const label = document.querySelector("nav li button[aria-current=true]");
  if (label) label.textContent = label.textContent.replace(/ \(\d+\+?\)$/, "");
}

function deliver(frame) {
  if (frame.stream !== place?.stream) return;
  state = reduce(state, frame);
  if (frame.event === "approval.requested") readWaiting("approvals", withApproval);
  if (frame.event === "run.escalated" || frame.event === "room.idle") readWaiting("escalations", withEscalation);
  if (place.kind === "room" && FLOOR.has(frame.event)) readFloor();
  if (frame.event === "input.steered" && $("stopped").textContent === STEERED) $("stopped").textContent = "";
  draw();
}

/** A room is shown by its title, and its name says which one of that title it is. */
function showTitle({ kind, name, title }) {
  const [home, thread] = name.split("/");
  $("title").textContent = kind === "room" ? `#${title || home}${thread ? `/${thread}` : ""}` : name;
  $("title").title = name;
}

/** Read who has the floor, since when, and what it waits for: several may have it at once. */
function readFloor() {
  if (reading.floor || !may("rooms.get")) return;
  reading.floor = setTimeout(async () => {
    reading.floor = null;
    const here = place;
    if (here?.kind !== "room") return;
    const found = await ask("rooms.get", { room: here.name }).catch(() => null);
    if (place !== here || !found) return;
    showTitle(Object.assign(here, { title: found.terms.title }));
    state = { ...state, floor: found.floor ?? [], turn: found.speaking.length ? state.turn ?? { turn: found.turns, left: found.left } : null };
    draw();
  }, 200);
}

/** Read what waits for a person as a whole. Until then, nobody is asked to answer. */
function readWaiting(what, take) {
  if (reading[what] || !may(`${what}.list`)) return;
  reading[what] = setTimeout(async () => {
    reading[what] = null;
    const here = place;
    if (!here) return;
    const which = here.kind === "room" ? { room: here.name } : { session: here.name };
    const found = await ask(`${what}.list`, { ...which, ...(what === "approvals" ? { state: "pending" } : {}), limit: 200 }).catch(() => ({}));
    if (place !== here) return;
    state = (found[what] ?? []).reduce(take, state);
    draw();
  }, 30);
}

// -- people's input

async function post(event) {
  event.preventDefault();
  const text = $("text").value;
  if (!text.trim() || !place) return;
  $("text").value = $("problem").textContent = "";
  $("stopped").textContent = machine.server ? "" : LATER;
  try {
    if (editing !== null) {
      const number = editing;
      stopEditing();
      await ask("messages.edit", { room: place.name, number, text });
      $("stopped").textContent = "";
      return;
    }
    signed = 0;
    const params = place.kind === "room" ? { room: place.name, text, key: freshKey() } : { session: place.name, text, key: freshKey(), ...chosen() };
    const answer = await ask(place.kind === "room" ? "rooms.post" : "chat.send", params);
    $("stopped").textContent = "";
    if (answer.text) $("stopped").textContent = answer.text;
    else if (answer.status === "queued" || answer.status === "collected") $("stopped").textContent = `${answer.status} #${answer.position}`;
    else if (answer.status === "steered") $("stopped").textContent = STEERED;
    if (place.agent) refresh();
  } catch (error) {
    $("text").value ||= text;
    problem(error);
  }
}

function typing() {
  if (place?.kind !== "room" || !$("text").value || editing !== null || Date.now() - signed < 2500) return;
  signed = Date.now();
  ask("rooms.typing", { room: place.name }).catch(() => {});
}

function edit(item) {
  editing = item.number;
  $("text").value = item.text;
  $("send").textContent = "Save";
  $("text").focus();
}

function enterThread(item) {
  const of = (name) => `${name}/${item.number}`;
  enter({ ...place, name: of(place.name), stream: of(place.stream) });
  state = { ...state, items: [{ ...item, id: "0", number: 0 }] };
}

function stopEditing() {
  if (editing === null) return;
  editing = null;
  $("text").value = $("stopped").textContent = "";
  $("send").textContent = "Send";
}

function change(method, item, more = {}) {
  ask(method, { room: place.name, number: item.number, ...more }).catch(problem);
}

/** The parameters of a message to a session, beside its text. */
function chosen() {
  const mode = state.running.size ? $("mode").value : "";
  return { ...(place.agent ? { agent: place.agent } : {}), ...(mode ? { mode } : {}) };
}

async function stop(params) {
  $("stopped").textContent = machine.server ? "stopping…" : LATER;
  try {
    $("stopped").textContent = stopText(await ask("runs.stop", { ...params, key: freshKey() }));
  } catch (error) {
    $("stopped").textContent = "";
    problem(error);
  }
}

const resolve = (id, decision) => ask("approvals.resolve", { id, decision, key: freshKey() }).catch(problem);

async function decide(escalation, decision, note) {
  $("problem").textContent = "";
  try {
    state = withEscalation(state, await ask("escalations.resolve", { escalation, decision, note }));
    draw();
    refresh();
  } catch (error) {
    problem(error);
    readWaiting("escalations", withEscalation); // somebody else may have answered it
  }
}

function problem(error) {
  $("problem").textContent = error.message ?? String(error);
}

// -- drawing

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const log = $("log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    reconcile(log, state.items);
    if (atEnd) log.scrollTop = log.scrollHeight;
    if (atEnd) markRead();
    $("here").hidden = $("said").hidden = place?.kind !== "room";
    $("here").textContent = state.here.length ? `here: ${state.here.join(", ")}` : "People";
    drawBusy();
    $("turn").textContent = state.turn ? holding(state.turn, state.floor) : state.running.size ? "working…" : "";
    $("mode").hidden = $("mode-label").hidden = place?.kind !== "session" || !state.running.size;
    waiting = state.items.filter(({ kind, decision }) => (kind === "approval" || kind === "escalation") && !decision).length;
    document.title = waiting ? `(${waiting}⚠) motet` : "motet";
  });
}

function drawBusy() {
  $("busy").textContent = busyText(state, machine.server?.principal.user, Date.now() / 1000);
}

/** Elements of unchanged items stay, with their folding and focus. */
function reconcile(log, items) {
  const there = new Map([...log.children].map((child) => [child.dataset.id, child]));
  items.forEach((item, index) => {
    let child = there.get(item.id);
    there.delete(item.id);
    if (!child || child.item !== item) {
      const fresh = itemElement(item, child);
      child?.replaceWith(fresh);
      child = fresh;
    }
    if (log.children[index] !== child) log.insertBefore(child, log.children[index] ?? null);
  });
  for (const child of there.values()) child.remove();
}

function itemElement(item, before) {
  const li = element("li", { className: `${item.kind} ${item.role ?? ""} ${item.state ?? ""}` }, ...parts(item, before));
  li.dataset.id = item.id;
  li.item = item;
  return li;
}

function parts(item, before) {
  switch (item.kind) {
    case "said":
      return [element("span", { className: "author" }, item.author), ...saidParts(item)];
    case "call":
      return [callElement(item, before)];
    case "approval":
      return approvalParts(item);
    case "escalation":
      return escalationParts(item);
    default:
      return [item.text];
  }
}

function saidParts(item) {
  if (item.deleted) return [element("span", { className: "mark" }, "withdrawn")];
  if (!item.number || place?.kind !== "room") return [textElement(item)];
  const me = machine.server?.principal;
  const own = item.role === "user" && item.author === me?.user;
  const moderates = me?.role === "admin" || ["moderator", "owner"].includes(place.role);
  const reactions = (item.reactions ?? []).map(({ text, users }) => {
    const mine = users.includes(me?.user);
    const react = () => change("messages.react", item, { reaction: text, on: !mine });
    return press(`${text} ${users.length}`, react, { title: users.join(", "), ariaPressed: String(mine) });
  });
  const acts = [
    ...["👍", "👀"].map((sign) => ["react", sign, () => change("messages.react", item, { reaction: sign })]),
    ...(place.name.includes("/") ? [] : [["edit", `Thread ${item.replies || ""}`, () => enterThread(item)]]),
    ...(own ? [["edit", "Edit", () => edit(item)]] : []),
    ...(own || moderates ? [["delete", "Delete", () => change("messages.delete", item)]] : []),
  ].filter(([method]) => may(`messages.${method}`)).map(([, label, onclick]) => element("button", { type: "button", onclick }, label));
  const row = (className, ...shown) => element("span", { className }, ...shown);
  return [textElement(item), row("mark", item.edited ? " (edited)" : ""), row("acts", ...acts), row("reactions", ...reactions)];
}

function textElement({ role, text }) {
  if (role !== "assistant") return element("span", { className: "text" }, text);
  return element("div", { className: "text" }, ...markdown(text).map(nodeElement));
}

function nodeElement(node) {
  if (typeof node === "string") return node;
  const link = node.tag === "a" ? { href: node.href, title: node.href, target: "_blank", rel: "noreferrer noopener" } : {};
  return element(node.tag, link, ...node.children.map(nodeElement));
}

function callElement(item, before) {
  const mark = { running: "▸", done: "✓", failed: "✗" }[item.state];
  const given = Object.entries(item.args ?? {}).map(([name, value]) => `${name}=${json(value, 0)}`).join(", ");
  const short = given.length > 80 ? `${given.slice(0, 79)}…` : given;
  const far = item.progress ? ` ${item.progress}` : "";
  const took = item.ms === undefined ? far : ` ${Math.round(item.ms)} ms`;
  const details = element("details", { open: before?.querySelector("details")?.open ?? false },
    element("summary", {}, `${mark} ${item.name}(${short})${took}${item.error ? ` [${item.error}]` : ""}`),
    element("pre", {}, [item.args && json(item.args), item.preview].filter(Boolean).join("\n\n")));
  return details;
}

function approvalParts(item) {
  const people = item.people?.length ? ` (asked by ${reveal(item.people.join(", "))})` : "";
  const head = element("div", {}, `${reveal(item.reason ?? "")}${people}`);
  const call = element("pre", {}, review(item.tool ?? "a call", item.args ?? {}, item.proposed).join("\n"));
  const cut = item.whole ? "" : "Long arguments are shortened here.";
  if (item.decision !== null) return [head, call, `${DECIDED[item.decision] ?? item.decision}${item.by ? ` by ${item.by}` : ""}. ${cut}`];
  if (!item.whole) return [head, call, `${place?.kind === "room" ? "Only the owner of this room or an admin can answer. " : ""}${cut}`];
  const choices = [["Allow once", "allow-once"], ["Always", "allow-always"], ["Deny", "deny"]];
  const buttons = choices.map(([label, decision]) => press(label, () => resolve(item.approval, decision)));
  const until = item.expires ? `expires ${new Date(item.expires * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}` : "";
  return [head, call, element("div", {}, until), element("div", { role: "group", ariaLabel: `May ${item.tool} do that?` }, ...buttons)];
}

function escalationParts(item) {
  const head = element("div", {}, `a person has to decide: ${reveal(item.reason ?? "")}`);
  const calls = element("ol", {}, ...tried(item.history ?? []).map((line) => element("li", {}, line)));
  if (item.decision) return [head, calls, `${item.decision}${item.by ? ` by ${item.by}` : ""}${item.note ? `: ${item.note}` : ""}`];
  if (!item.history || !may("escalations.resolve")) return [head, calls];
  const note = element("textarea", { rows: 2, ariaLabel: "What the agent is told", placeholder: "what the agent is told; needed to skip" });
  const buttons = [["Retry", "retry"], ["Skip with this text", "skip"], ["Give up", "give_up"]].map(([label, decision]) => press(label, () => decide(item.escalation, decision, note.value)));
  return [head, calls, note, element("div", { role: "group", ariaLabel: "What shall become of it?" }, ...buttons)];
}

// -- rooms, runs and errors

const lists = new Lists({ ask, may, problem, enter: (name) => enter(sessionPlace(name)) });
const rooms = new Rooms({ ask, item: (one) => placeItem(roomPlace(one)), current: () => place?.kind === "room" && place.name });
const showRooms = () => rooms.list($("rooms"), $("room-query").value, $("room-archived").checked);

async function showPeople() {
  rooms.told.replaceChildren();
  if (!(await rooms.people($("error")))) return box.close();
  if (!box.open) box.showModal();
}

/** Show the messages of the open room that have the words of the search field. */
async function showFound(event) {
  event.preventDefault();
  await rooms.find($("error"), $("said-query").value.trim(), (number) => {
    const shown = [...$("log").children].find(({ item }) => item?.number === number);
    return shown && (() => {
      box.close();
      shown.scrollIntoView({ block: "center" });
    });
  });
  if (!box.open) box.showModal();
}

// -- start

$("composer").onsubmit = post;
$("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) post(event);
  if (event.key === "Escape") stopEditing();
};
$("text").oninput = typing;
document.onvisibilitychange = draw;
setInterval(drawBusy, 2000);
$("stop").onclick = () => place && stop(place.kind === "room" ? { room: place.name } : { session: place.name });
$("room-query").oninput = $("room-archived").onchange = () => {
  rooms.pages = 1;
  showRooms();
};
$("said").onsubmit = (event) => showFound(event).catch(problem);
$("here").onclick = () => showPeople().catch(problem);
$("stop-all").onclick = () => stop({ all: true });
$("login").onsubmit = (event) => {
  event.preventDefault();
  machine.token = $("token").value.trim();
  sessionStorage.setItem(TOKEN, machine.token);
  $("token").value = $("login-error").textContent = "";
  connect();
};
$("runs-box").ontoggle = () => lists.runs();
$("errors-box").ontoggle = () => lists.errors();
$("new").onsubmit = (event) => {
  event.preventDefault();
  const agent = $("new-agent").value;
  const name = `${machine.server?.principal.user ?? "web"}:${freshKey().slice(0, 8)}`;
  if (agent) enter({ ...sessionPlace(name), agent });
};
connect();
