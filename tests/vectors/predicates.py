"""The forms of cases in which the code rightly does something else than a vector expects.

A predicate looks at the form of an input and at the facts that the code has shown, never at the
name of a case. :mod:`tests.vectors.deviations` says which line of the specification decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import cast

from motet.actors.transcript.window import important_tail
from tests.vectors.areas_compaction import as_designed
from tests.vectors.cases import MAIN, Case, Facts, Given

# Errors, results, loops and events


def names_the_secret(case: Case, facts: Facts) -> bool:
    """The expected text, but for masks that say more than ``[REDACTED]``."""
    said = re.sub(r"\[secret:[a-z0-9-]+:[0-9a-f]{4}\]", "[REDACTED]", str(facts.get(MAIN)))
    return said != facts.get(MAIN) and said == case.expect


def wraps_other_json(case: Case, facts: Facts) -> bool:
    try:
        value: object = json.loads(str(case.given.get("raw_error_text")), parse_constant=refused)
    except ValueError:
        return False
    return not isinstance(value, dict) and str(facts.get("stored_as")).startswith("wrapped")


def refused(constant: str) -> object:
    raise ValueError(constant)


def runs_every_call(case: Case, facts: Facts) -> bool:
    return "calls" in case.given and facts.get("executed") == facts.get("calls")


def counts_what_is_missing(case: Case, facts: Facts) -> bool:
    """A cut text that says how many characters of the error are really missing."""
    text, error = str(facts.get("text")), str(case.given.get("error"))
    cut = re.fullmatch(r"(Error: .*)\.\.\. \[truncated (\d+) chars\]", text, re.DOTALL)
    if cut is None or len(text) > 500:
        return False
    return len(cut[1]) + int(cut[2]) == len("Error: " + error)


def advertises_always(_case: Case, facts: Facts) -> bool:
    found = [value for key, value in facts.items() if key.startswith("advertised_")]
    return bool(found) and all(found)


def other_threshold(case: Case, facts: Facts) -> bool:
    return case.given.get("threshold", 16_384) != 16_384 and "inline" in facts


def does_not_count(_case: Case, facts: Facts) -> bool:
    never_ran = facts.get("outcome") in ("denied", "cancelled_while_running")
    return never_ran and facts.get("counted") is False


def is_no_fault(_case: Case, facts: Facts) -> bool:
    """A call of a tool that does not exist is a mistake of the model."""
    return facts.get("failure") == "argument" and facts.get("counted") is False


def higher_cap(case: Case, facts: Facts) -> bool:
    """As expected but for the highest delay: the cap is another."""
    if "opens" not in case.given:
        return False
    expected, got = cast("list[float]", case.expect), cast("list[float]", facts[MAIN])
    cap = max(expected)
    return len(expected) == len(got) and all(
        a == b or (a == cap and a < b <= 600) for a, b in zip(expected, got, strict=True)
    )


def in_three_lines(case: Case, facts: Facts) -> bool:
    """The model gets the expected text as the summary of the three lines."""
    expected = output_error(case.expect)
    text = str(facts.get("output_text"))
    return bool(expected) and text.startswith("Tool '") and expected in text and "err_" in text


def lists_what_there_is(case: Case, facts: Facts) -> bool:
    """An unknown name is refused with the names there are, in the words of the executor."""
    given: Given = case.given
    known = [*given.texts("available"), *given.texts("tools"), *given.texts("registered")]
    text = str(facts.get("output_text"))
    asked = repr(given.get("call")) in text
    return bool(known) and asked and all(name.replace(".", "_") in text for name in known)


def output_error(expect: object) -> str:
    fields = cast("dict[str, object]", expect) if isinstance(expect, dict) else {}
    output = fields.get("output")
    return (
        str(cast("dict[str, object]", output).get("error", "")) if isinstance(output, dict) else ""
    )


def other_words(case: Case, facts: Facts) -> bool:
    """What has to be in a text is; how long it is, is free."""
    expect = case.expect
    expected = cast("dict[str, object]", expect) if isinstance(expect, dict) else {}
    return "lengths" in expected and all(
        facts.get(key) == value for key, value in expected.items() if key != "lengths"
    )


def many_are_no_loop(case: Case, facts: Facts) -> bool:
    """As expected, but that a row of reads is not critical while most of them are different."""
    expected = cast("dict[str, dict[str, object]]", case.expect)
    last = cast("dict[str, object]", facts["last"])
    many = int(str(last["unique"])) > 0.6 * int(str(last["streak"]))
    levels = {**expected.get("highest", {}), **expected["last"]}
    got = {**cast("dict[str, object]", facts["highest"]), **last}
    return many and got == levels | {"read_only": "warning"} and levels["read_only"] == "critical"


def in_the_order_of_their_ends(case: Case, facts: Facts) -> bool:
    """The call that takes longer ends behind the other, and is told then."""
    times = [case.given.seconds(f"{name}_tool_ms") or 0.0 for name in ("first", "second")]
    return times[0] > times[1] and facts.get("results_end") == ["2", "1"]


# Compaction


def same_marks(case: Case, facts: Facts) -> bool:
    return "penalty" in case.given and as_designed(facts)


def little_to_clear(case: Case, facts: Facts) -> bool:
    return case.given.number("row_bytes") < 50_000 and facts.get("evicted") is False


def summary_of_a_user(case: Case, facts: Facts) -> bool:
    ours = ["system: rom", "user: summary", "l1 in order"]
    return "summary" in case.given.texts("layers") and facts.get(MAIN) == ours


def short(case: Case, facts: Facts) -> bool:
    rows = case.given.number("messages")
    return 0 < rows <= 50 and facts.get("compressed") == 0 and facts.get("kept") == rows


# Text that a model or a user wrote


REASONING = re.compile(r"<(?:think|thinking|thought|antThinking|redacted_thinking)\b", re.I)


ONE_ELEMENT = re.compile(r"\s*<(?:function|invoke|tool_|minimax:|parameter).*</[^<>]+>\s*", re.S)


CODE = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```|\Z)|`[^`\n]+`", re.S | re.M)


def text(case: Case) -> str:
    return str(case.given.get("text", case.given.value))


def hides_reasoning(case: Case, facts: Facts) -> bool:
    return bool(REASONING.search(str(case.expect))) and not REASONING.search(str(facts[MAIN]))


def only_calls(case: Case, facts: Facts) -> bool:
    return facts[MAIN] == "" and ONE_ELEMENT.fullmatch(text(case)) is not None


def takes_all_of_a_call(case: Case, facts: Facts) -> bool:
    """The expectation keeps the inner lines of a call's JSON; they are all gone."""
    said = text(case)
    leaked = str(case.expect).removesuffix(str(facts[MAIN]))
    return said.startswith("[Tool Call:") and leaked != "" and leaked in said


def keeps_code(case: Case, facts: Facts) -> bool:
    code = CODE.findall(text(case))
    lost = any(block not in str(case.expect) for block in code)
    return lost and all(block in str(facts[MAIN]) for block in code)


def only_trims(case: Case, facts: Facts) -> bool:
    return facts[MAIN] == text(case).strip()


def decorated(case: Case, facts: Facts) -> bool:
    """The token between decorations, in any case: silent."""
    bare = text(case).strip(" \t\r\n_*`'\"~()[]{}<>.,:;!?-–—#|")
    return facts[MAIN] is True and bare.upper() == "NO_REPLY"


def more_than_the_token(case: Case, facts: Facts) -> bool:
    """A reply with words besides the token: not silent."""
    words = re.findall(r"\w+", text(case))
    return facts[MAIN] is False and len(words) > 1 and "NO_REPLY" in text(case)


def refuses_the_word(case: Case, facts: Facts) -> bool:
    return "configured" in case.given and facts.get("error") == "ConfigError"


def tells_the_sender(case: Case, facts: Facts) -> bool:
    injected = "injected" in case.given.text("where")
    return injected and "the sender is told: " in str(facts.get("message"))


def says_nothing_of_it(_case: Case, facts: Facts) -> bool:
    """A blocked message: the sender knows why, and no event tells of it."""
    return "detected" in str(facts.get("error")) and facts.get("events") == []


def counts_code_points(case: Case, facts: Facts) -> bool:
    """Bytes and code points are not the same here, and the limit is held in the latter."""
    text, limit = case.given.text("text"), case.given.number("max")
    kept = text if len(text) <= limit else f"{text[:limit]}\n["
    return not text.isascii() and str(facts[MAIN]).startswith(kept)


def cuts_every_result(case: Case, facts: Facts) -> bool:
    return case.expect is None and facts[MAIN] == 1_000


REASONING_GOES = (
    'agent-loop.md 3: "thinking tags (`think thinking thought antThinking redacted_thinking`, '
    'attributes allowed, an unterminated block is removed to the end)"'
)


WHOLE_CALLS = 'agent-loop.md 3: "downgraded tool text" goes whole, JSON of several lines included'
GARBLED = 'agent-loop.md 3: "If a response was nothing but garbled XML, the result is empty"'


CODE_STAYS = 'agent-loop.md 3: "Code fences and code spans are left alone in every step"'


EIGHT = 'agent-loop.md 3: "Eight steps and a trim, in this order", and this is none of them'


# Turns


def but(case: Case, facts: Facts, key: str) -> bool:
    """Whether all is as expected but for this."""
    expected = cast("dict[str, object]", case.expect)
    return key in expected and all(
        facts.get(name) == value for name, value in expected.items() if name != key
    )


def answers_each_call(case: Case, facts: Facts) -> bool:
    return but(case, facts, "pending_roles") and facts["pending_roles"] == ["assistant", "tool"]


def checks_arguments(case: Case, facts: Facts) -> bool:
    return but(case, facts, "retries") and facts.get("kinds") == ["validation"]


def closes(case: Case, facts: Facts) -> bool:
    return but(case, facts, "signal") and facts["signal"] == "closing"


# Runs and their ends


def but_loop(case: Case, facts: Facts, *keys: str) -> bool:
    """Whether all is as expected but for these."""
    expected = cast("dict[str, object]", case.expect)
    return all(facts.get(name) == value for name, value in expected.items() if name not in keys)


def sums_up_without_a_model(case: Case, facts: Facts) -> bool:
    failed = case.given.get("compaction", "ok") != "ok"
    return failed and facts.get("history") == "compacted" and facts.get("error") == ""


def prunes_early(case: Case, facts: Facts) -> bool:
    used = cast("float", facts.get("share", 0))
    return used >= 0.3 and facts["prune"] == 1 and but_loop(case, facts, "prune", "compact")


def compacts_early(case: Case, facts: Facts) -> bool:
    used = cast("float", facts.get("share", 0))
    return used >= 0.75 and facts["compact"] == 1 and but_loop(case, facts, "compact")


def waits_for_its_end(case: Case, facts: Facts) -> bool:
    expected = cast("dict[str, object]", case.expect)
    forced = expected.get("result") == "forced" and but_loop(case, facts, "result")
    return forced and facts["result"] == "still_running"


def tells_the_sender_only(case: Case, facts: Facts) -> bool:
    blocked = case.given.get("action") == "block" and "was not accepted" in str(facts["refused"])
    return blocked and facts[""] == ()


def owns_until_it_ends(case: Case, facts: Facts) -> bool:
    """The run that is not to write any more is the one that still has the session."""
    return facts.get("owner") == facts.get("finished") is not None


# History


def any_mode(case: Case, _facts: Facts) -> bool:
    return case.given.sub("config").get("mode") not in ("cache-ttl", "off")


def would_grow(case: Case, facts: Facts) -> bool:
    before = [len(Given(row).text("content")) for row in case.given.items("messages")]
    wanted = cast("list[int]", Given(case.expect).items("content_lengths"))
    got = cast("list[int]", facts["content_lengths"])
    return any(w > b >= g for w, b, g in zip(wanted, before, got, strict=True))


def important(case: Case, facts: Facts) -> bool:
    changed = [Given(item).number("index") for item in cast("list[object]", facts["changed"])]
    rows = [Given(row) for row in case.given.items("messages")]
    return any(important_tail(rows[at].text("content")) for at in changed)


def refused_history(case: Case, facts: Facts) -> bool:
    return "error" in facts


def first_cycle(case: Case, facts: Facts) -> bool:
    return not case.given.number("last_flush") and facts.get("run") is True


def keeps_what_came(case: Case, facts: Facts) -> bool:
    return "good" in facts and facts["good"] == Given(case.expect).get("good")


def at_a_batch(case: Case, facts: Facts) -> bool:
    at, roles = facts[MAIN], case.given.text("roles")
    return isinstance(at, int) and 1 < at <= len(roles) - 4 and roles[at] in "ca"


def walks_back(case: Case, facts: Facts) -> bool:
    at, index = facts.get(MAIN), case.given.number("index")
    roles = case.given.text("roles") if case.given.get("op") == "advance" else ""
    return isinstance(at, int) and at <= index and roles[at : at + 1] in ("u", "a")


def by_call_index(case: Case, facts: Facts) -> bool:
    wanted = Given(case.expect).items("messages")
    got = cast("list[object]", facts["messages"])
    return bool(wanted) and sorted(map(str, wanted)) == sorted(map(str, got))


def with_arguments(case: Case, _facts: Facts) -> bool:
    return any("tool_calls" in Given(row) for row in case.given.items("messages"))


def in_code_points(case: Case, facts: Facts) -> bool:
    text, size = case.given.text("text"), case.given.number("max")
    whole = text[:size] + ("..." if len(text) > size else "")
    return not text.isascii() and facts.get(MAIN) == whole


# The system prompt


def reads_back(case: Case, facts: Facts) -> bool:
    return facts.get("reads_back") == case.given.value and facts.get("contained") is True


def is_good(case: Case, facts: Facts) -> bool:
    wanted = Given(case.expect).get("good")
    return wanted is not None and facts.get("good") == wanted


# Policies


def refuses_unknown_names(_case: Case, facts: Facts) -> bool:
    error = str(facts["error"])
    return "unknown tool or group" in error or "tools.profile: expected one of" in error


def only_takes_away(case: Case, facts: Facts) -> bool:
    """Of what would have been added in spite of a list or a denial, nothing is there."""
    if "also_allow" not in case.given.sub("agent"):
        return False
    return set(cast("list[str]", facts[MAIN])) < set(cast("list[str]", case.expect))


def is_nobodys(case: Case, facts: Facts) -> bool:
    return isinstance(case.given.value, str) and facts[MAIN] == "unknown_method"


def has_a_role(case: Case, facts: Facts) -> bool:
    return isinstance(case.given.value, list) and "no scopes" in str(facts[MAIN])


# Child runs


def has_what_its_caller_has(case: Case, facts: Facts) -> bool:
    """No list of its own: of the tools it is to lack it has those that its caller has."""
    offered = cast("Collection[str]", facts.get("offered", ()))
    return "memory_search" in names(case.expect) and "memory_search" in offered


def starts_no_more(case: Case, facts: Facts) -> bool:
    """It has no children; tools that show sessions are none of ours."""
    offered = cast("Collection[str]", facts.get("offered", ()))
    lacks = cast("Collection[str]", facts.get(MAIN, ()))
    expected = names(case.expect)
    return "spawn" in expected and "spawn" in lacks and not set(expected) & set(offered)


def names(expect: object) -> list[str]:
    return cast("list[str]", expect) if isinstance(expect, list) else []


def tells(case: Case, facts: Facts) -> bool:
    return "process" in case.given and facts.get("children") == "told of"


# Queues


def is_good_queues(case: Case, facts: Facts) -> bool:
    """The case says itself what would be good, and that its origin was not."""
    wanted = Given(case.expect).get("good")
    return wanted is not None and facts.get("good") == wanted


def has_other_defaults(case: Case, facts: Facts) -> bool:
    wanted = Given(case.expect)
    same = facts.get("cap") == wanted.get("cap") == 10
    return same and facts.get("debounce_ms") == 1000 and facts.get("mode") == "steer"


# Commands


BARE = 'agent-loop.md 11: "bare "stop", "abort", "esc" alone mean `/stop`; "don\'t stop" does not"'


QUEUE = 'agent-loop.md 11: "A message that arrives during a run follows the queue mode"'


def says_more(case: Case, facts: Facts) -> bool:
    """A text with a word that stops in it, or with another one than ours: it is a message."""
    return case.expect == "cancel" and facts.get(MAIN) is None


def is_a_question(case: Case, facts: Facts) -> bool:
    """It reaches the agent, and is not answered in its place."""
    return case.expect == "status_query" and facts.get(MAIN) is None


def has_a_full_stop(case: Case, facts: Facts) -> bool:
    text = str(case.given.value)
    return facts.get(MAIN) is True and text.rstrip(".!") != text


def own_newest(_: Case, facts: Facts) -> bool:
    return facts.get("cancelled") == [facts.get("by")]


def ends_children(_: Case, facts: Facts) -> bool:
    return (facts.get("run"), facts.get("subagents")) == ("cancelled", "have ended")


# The gateway


def is_this_machines(case: Case, facts: Facts) -> bool:
    return case.given.get("server_token") == "" and facts.get("role") == "admin"


def lets_nobody_in(case: Case, facts: Facts) -> bool:
    wrong = case.given.get("server_token") != case.given.get("client_token")
    return wrong and facts == {"role": "", "error": "unauthorized"}
