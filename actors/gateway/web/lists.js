// The newest runs and the stored errors on the page, and one error whole in a dialog.

import { $, element, moment, press } from "./elements.js";
import { exact } from "./proto.js";
import { json, reveal } from "./state.js";

const MOST = 20;

/** `ask` a method, `may` it be asked, `enter` a session, `problem` shows what went wrong. */
export class Lists {
  constructor({ ask, may, enter, problem }) {
    Object.assign(this, { ask, may, enter, problem });
  }

  async runs() {
    const { runs } = await this.ask("runs.list", { limit: MOST }).catch(() => ({ runs: [] }));
    $("runs").replaceChildren(...runs.map((one) => this.#run(one)));
  }

  async errors() {
    if (!this.may("errors.list")) return;
    const { groups } = await this.ask("errors.list", { limit: MOST, grouped: true }).catch(() => ({ groups: [] }));
    $("errors").replaceChildren(...groups.map((one) => this.#group(one)));
  }

  #run(one) {
    const { input_tokens: read, output_tokens: said, cost } = one.usage;
    const spent = `${read + said} tok${cost ? ` · $${cost.toFixed(4)}` : ""}`;
    const label = `${one.status}${one.unsaved ? ", not saved yet" : ""} · ${one.agent} · ${spent} · ${one.text}`;
    return element("li", {}, press(label, () => this.enter(one.session)));
  }

  /** A group of equal errors, which shows the newest of them. */
  #group(one) {
    const times = one.count > 1 ? `${one.count} times, last ` : "";
    const what = `${one.tool_name} · ${times}${moment(one.last_seen)} · ${reveal(one.summary || one.malformed)}`;
    return element("li", {}, press(what, () => this.#whole(one.newest).then((error) => this.#show(error), this.problem)));
  }

  /** A stored error with its whole raw error: a large one comes in pages. */
  async #whole(id) {
    const { page, next_offset: first, size, ...error } = await this.ask("errors.get", { id });
    if (!page) return error;
    const pages = [page];
    for (let offset = first; offset != null; ) {
      const next = await this.ask("errors.get", { id, offset });
      pages.push(next.page);
      offset = next.next_offset;
    }
    return { ...error, raw_error: exact(pages.join("")) };
  }

  #show(one) {
    const box = $("error-box");
    const { message, traceback, ...rest } = one.raw_error;
    const session = press(reveal(one.session_id), () => {
      box.close();
      this.enter(one.session_id);
    });
    const seen = one.count > 1 ? `${one.count} times since ${moment(one.first_seen)}` : "";
    const facts = [
      ["id", one.id], ["time", moment(one.timestamp)], ["seen", seen], ["tool", one.tool_name], ["kind", one.kind],
      ["agent", one.agent], ["user", one.user], ["session", one.session_id && session], ["run", one.run_id],
      ["resolved", one.resolved && moment(one.resolved)], ["damaged", one.malformed],
    ].filter(([, value]) => value);
    const shown = facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value === session ? value : reveal(value))]);
    const pre = (text) => element("pre", {}, reveal(typeof text === "string" ? text : json(text)));
    const parts = [["Arguments", one.arguments], ["Message", message], ["More", Object.keys(rest).length ? rest : null], ["Traceback", traceback]];
    const texts = parts.filter(([, value]) => value != null).flatMap(([name, value]) => [element("h2", {}, name), pre(value)]);
    $("error").replaceChildren(element("strong", {}, reveal(one.short_summary)), element("dl", {}, ...shown), ...texts);
    box.showModal();
  }
}
