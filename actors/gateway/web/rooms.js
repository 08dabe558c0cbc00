// Rooms on the page: their list, a page at a time, and what their people do with them. Each act is
// the method of the same name; the host decides who may, and says so.

import { element, moment, press } from "./elements.js";
import { reveal } from "./state.js";

const PAGE = 100;
const FOUND = 20;
const RULES = ["moderator", "owner"];
const GIVEN = ["reader", "member", "moderator"];
const MODES = ["steer", "followup", "collect", "interrupt", "reject"];
const NEWCOMERS = ["default", "none", "joining", "all", "summary"];

/** What the page gives: `ask` a method, `item` of the list for a room, `current` room or false. */
export class Rooms {
  constructor({ ask, item, current }) {
    Object.assign(this, { ask, item, current });
    this.pages = 1;
    this.told = element("p", { className: "told", role: "status" });
  }

  /** Show the rooms that fit what is looked for, as many pages as were asked for. */
  async list(into, query = "", archived = false) {
    const found = [];
    let after = "";
    for (let page = 0; page < this.pages && after !== null; page += 1) {
      const part = await this.ask("rooms.list", { limit: PAGE, after, query, archived }).catch(() => ({ rooms: [], next: null }));
      found.push(...part.rooms);
      after = part.next ?? null;
    }
    const more = () => {
      this.pages += 1;
      return this.list(into, query, archived);
    };
    into.replaceChildren(...found.map((one) => this.item(one)), ...(after === null ? [] : [element("li", {}, press("More rooms", more))]));
  }

  /**
   * The messages of the open room that have these words, the newest first, some at a time. `open`
   * gives, for a number, what shows that message in the conversation, if it is there.
   */
  async find(into, query, open) {
    const [room, list, told] = [this.current(), element("ol", { className: "found" }), element("p", { className: "told", role: "status" })];
    let before = null;
    const read = async () => {
      const part = await this.ask("rooms.history", { room, query, limit: FOUND, ...(before === null ? {} : { before }) });
      before = part.before;
      for (const { seq, author, kind, at, text } of part.messages.reverse()) {
        const show = open(seq);
        const about = ` ${reveal(author)}${kind === "agent" ? " (agent)" : ""}, ${moment(at)}`;
        list.append(element("li", {}, show ? press(`#${seq}`, show) : `#${seq}`, element("span", { className: "note" }, about), `\n${text}`));
      }
      more.hidden = before === null;
      told.textContent = list.children.length ? "" : "No message that you may read has these words.";
    };
    const more = press("Earlier messages", () => read().catch((error) => told.replaceChildren(error.message)));
    await read();
    into.replaceChildren(element("strong", {}, `Messages with “${reveal(query)}”`), list, more, told);
  }

  /** The people of the room that is open, and all that its reader may do; none without a room. */
  async people(into) {
    const room = this.current();
    if (!room) return false;
    const { owner, people, role, terms } = await this.ask("rooms.people", { room });
    const info = await this.ask("rooms.get", { room });
    const known = { room, into, role, terms, info };
    const rows = people.flatMap((one) => this.#person(known, one));
    const parts = [element("strong", {}, `owner: ${reveal(owner)}`), element("dl", {}, ...rows)];
    if (info.newcomers === "summary" && info.hidden) parts.push(this.#button(known, "What was said before I came", "rooms.summary", {}, ({ text }) => text || "There is no summary now."));
    if (RULES.includes(role)) parts.push(...this.#moderation(known));
    if (role === "owner") parts.push(...this.#ownership(known));
    else parts.push(this.#button(known, "Leave", "rooms.leave"));
    into.replaceChildren(...parts, this.told); // what was told stays while the rest is shown anew
    return true;
  }

  #person(known, { user, role, muted, banned }) {
    const name = element("dt", {}, reveal(user));
    if (!RULES.includes(known.role)) return [name, element("dd", {}, role)];
    const quiet = muted > Date.now() / 1000;
    const roles = this.#choice("role", GIVEN, role, `role of ${user}`);
    roles.onchange = () => this.#do(known, "rooms.add", { user, role: roles.value });
    const acts = [
      this.#button(known, quiet ? "Unmute" : "Mute", "rooms.mute", { user, seconds: 3600 * !quiet }),
      this.#button(known, "Remove", "rooms.remove", { user }),
      this.#button(known, banned ? "Unban" : "Ban", "rooms.ban", { user, banned: !banned }),
    ];
    if (known.role === "owner" && GIVEN.includes(role) && !banned && !user.endsWith("*")) acts.push(this.#button(known, "Make owner", "rooms.transfer", { user }));
    return [name, element("dd", {}, ...(GIVEN.includes(role) ? [roles] : [role]), ...acts)];
  }

  #moderation(known) {
    const { terms } = known;
    return [
      this.#form(known, "Add", "rooms.add", [this.#text("user", "user, or irc:*"), this.#choice("role", GIVEN, "member", "role")]),
      this.#form(known, "Slow mode, s", "rooms.slow", [this.#text("seconds", "seconds", terms.slow ?? 0, "number")], ({ seconds }) => ({ seconds: Number(seconds) })),
      this.#form(known, "Messages a minute", "rooms.rate", [this.#text("messages", "messages", terms.rate ?? 0, "number")], ({ messages }) => ({ messages: Number(messages) })),
      this.#button(known, "Invite by link", "rooms.invite", {}, ({ token }) => `${location.href}#join=${token}`),
      this.#button(known, "Invites", "rooms.invites", {}, ({ invites }) => this.#invites(known, invites)),
    ];
  }

  #invites(known, invites) {
    const items = invites.map(({ id, role, by }) => element("li", {}, `${id}: ${role}, by ${reveal(by)} `, this.#button(known, "End it", "rooms.revoke", { invite: id })));
    return items.length ? element("ul", {}, ...items) : "There are no invites.";
  }

  #ownership(known) {
    const { room, terms } = known;
    const kept = Boolean(terms.archived);
    const roles = [...GIVEN, "owner"];
    const rules = [
      this.#choice("answers", roles, terms.answers ?? "owner", "who answers approvals"),
      this.#choice("details", roles, terms.details ?? "moderator", "who sees the work of tools"),
      this.#choice("newcomers", NEWCOMERS, terms.newcomers ?? "default", "what newcomers read"),
    ];
    const named = ({ newcomers, ...others }) => ({ ...others, newcomers: newcomers === "default" ? null : newcomers });
    const chosen = ({ mode, activation }) => ({ mode, activation: activation === "default" ? null : activation });
    const sure = ({ name }) => (name === room ? {} : null);
    return [
      this.#form(known, "Title", "rooms.rename", [this.#text("title", "title", terms.title ?? "")]),
      this.#form(known, "Set", "rooms.terms", rules, named),
      ...(known.info.plan ? [this.#form(known, "Change", "rooms.set", this.#settings(known.info), chosen)] : []),
      this.#button(known, kept ? "Open again" : "Archive", "rooms.archive", { archived: !kept }),
      press("Export", () => this.#export(known).catch((error) => this.told.replaceChildren(error.message))),
      this.#form(known, "Delete for good", "rooms.delete", [this.#text("name", `to be sure: ${room}`)], sure),
    ];
  }

  #settings({ mode, activation }) {
    return [
      this.#choice("mode", MODES, mode, "messages while agents speak"),
      this.#choice("activation", ["default", "always", "mention", "off"], activation ?? "default", "what agents answer"),
    ];
  }

  /** Save the room as the command line exports it: the room, then each message, a line each. */
  async #export({ room }) {
    const lines = [];
    for (let after = 0; after !== null; ) {
      const { messages, next, ...head } = await this.ask("rooms.export", { room, after });
      if (!after) lines.push(head);
      lines.push(...messages);
      after = next ?? null;
    }
    const url = URL.createObjectURL(new Blob(lines.map((one) => `${JSON.stringify(one)}\n`), { type: "application/jsonl" }));
    element("a", { href: url, download: `${room}.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  }

  /** Do it, then show the room as it is; `answer` makes of the result what is told instead. */
  async #do(known, method, params, answer) {
    try {
      const found = await this.ask(method, { room: known.room, ...params });
      this.told.replaceChildren(answer ? answer(found) : "");
      if (answer) return;
      if (this.current() !== known.room || method === "rooms.leave" || method === "rooms.delete") known.into.closest("dialog")?.close();
      else await this.people(known.into);
    } catch (error) {
      this.told.replaceChildren(error.message);
    }
  }

  #button(known, label, method, params = {}, answer = null) {
    return press(label, () => this.#do(known, method, params, answer));
  }

  /** A form of one act; `read` makes its parameters of the fields, or null: nothing is done. */
  #form(known, label, method, fields, read = (values) => values) {
    const shown = fields.map((one) => (one.title ? element("label", {}, `${one.title}: `, one) : one));
    const form = element("form", { className: "act" }, ...shown, element("button", {}, label));
    form.onsubmit = (event) => {
      event.preventDefault();
      const params = read(Object.fromEntries(fields.map(({ name, value }) => [name, value.trim()])));
      if (params) this.#do(known, method, params);
    };
    return form;
  }

  #text(name, placeholder, value = "", type = "text") {
    return element("input", { name, placeholder, value, type, ariaLabel: placeholder });
  }

  #choice(name, values, chosen, ariaLabel) {
    return element("select", { name, ariaLabel, title: ariaLabel }, ...values.map((value) => element("option", { value, selected: value === chosen }, value)));
  }
}
