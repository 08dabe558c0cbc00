"""Where the specification decides otherwise than a vector: one table of rules.

A rule looks at the form of an input and at what the code has shown, never at the name of a case.
It is asked only when a case is not as expected.
"""

from __future__ import annotations

import json
import re
from typing import cast

from tests.vectors import (
    deviations_children,
    deviations_commands,
    deviations_compaction,
    deviations_gateway,
    deviations_history,
    deviations_loop,
    deviations_policy,
    deviations_prompt,
    deviations_queues,
    deviations_text,
    deviations_turn,
)
from tests.vectors.cases import MAIN, Case, Facts, Given
from tests.vectors.rules import Rule


def decision(case: Case, facts: Facts) -> str | None:
    """The line that decides for what the code does, if one does."""
    return next((r.decided for r in RULES if r.area == case.area and r.applies(case, facts)), None)


def _wraps_other_json(case: Case, facts: Facts) -> bool:
    try:
        value: object = json.loads(str(case.given.get("raw_error_text")), parse_constant=_refused)
    except ValueError:
        return False
    return not isinstance(value, dict) and str(facts.get("stored_as")).startswith("wrapped")


def _refused(constant: str) -> object:
    raise ValueError(constant)


def _runs_every_call(case: Case, facts: Facts) -> bool:
    return "calls" in case.given and facts.get("executed") == facts.get("calls")


def _counts_what_is_missing(case: Case, facts: Facts) -> bool:
    """A cut text that says how many characters of the error are really missing."""
    text, error = str(facts.get("text")), str(case.given.get("error"))
    cut = re.fullmatch(r"(Error: .*)\.\.\. \[truncated (\d+) chars\]", text, re.DOTALL)
    if cut is None or len(text) > 500:
        return False
    return len(cut[1]) + int(cut[2]) == len("Error: " + error)


def _advertises_always(_case: Case, facts: Facts) -> bool:
    found = [value for key, value in facts.items() if key.startswith("advertised_")]
    return bool(found) and all(found)


def _other_threshold(case: Case, facts: Facts) -> bool:
    return case.given.get("threshold", 16_384) != 16_384 and "inline" in facts


def _does_not_count(_case: Case, facts: Facts) -> bool:
    never_ran = facts.get("outcome") in ("denied", "cancelled_while_running")
    return never_ran and facts.get("counted") is False


def _higher_cap(case: Case, facts: Facts) -> bool:
    """As expected but for the highest delay: the cap is another."""
    if "opens" not in case.given:
        return False
    expected, got = cast("list[float]", case.expect), cast("list[float]", facts[MAIN])
    cap = max(expected)
    return len(expected) == len(got) and all(
        a == b or (a == cap and a < b <= 600) for a, b in zip(expected, got, strict=True)
    )


def _in_three_lines(case: Case, facts: Facts) -> bool:
    """The model gets the expected text as the summary of the three lines."""
    expected = _output_error(case.expect)
    text = str(facts.get("output_text"))
    return bool(expected) and text.startswith("Tool '") and expected in text and "err_" in text


def _lists_what_there_is(case: Case, facts: Facts) -> bool:
    """An unknown name is refused with the names there are, in the words of the executor."""
    given: Given = case.given
    known = [*given.texts("available"), *given.texts("tools"), *given.texts("registered")]
    text = str(facts.get("output_text"))
    asked = repr(given.get("call")) in text
    return bool(known) and asked and all(name.replace(".", "_") in text for name in known)


def _output_error(expect: object) -> str:
    fields = cast("dict[str, object]", expect) if isinstance(expect, dict) else {}
    output = fields.get("output")
    return (
        str(cast("dict[str, object]", output).get("error", "")) if isinstance(output, dict) else ""
    )


def _other_words(case: Case, facts: Facts) -> bool:
    """What has to be in a text is; how long it is, is free."""
    expect = case.expect
    expected = cast("dict[str, object]", expect) if isinstance(expect, dict) else {}
    return "lengths" in expected and all(
        facts.get(key) == value for key, value in expected.items() if key != "lengths"
    )


def _many_are_no_loop(case: Case, facts: Facts) -> bool:
    """As expected, but that a row of reads is not critical while most of them are different."""
    expected = cast("dict[str, dict[str, object]]", case.expect)
    last = cast("dict[str, object]", facts["last"])
    many = int(str(last["unique"])) > 0.6 * int(str(last["streak"]))
    levels = {**expected.get("highest", {}), **expected["last"]}
    got = {**cast("dict[str, object]", facts["highest"]), **last}
    return many and got == levels | {"read_only": "warning"} and levels["read_only"] == "critical"


def _in_the_order_of_their_ends(case: Case, facts: Facts) -> bool:
    """The call that takes longer ends behind the other, and is told then."""
    times = [case.given.seconds(f"{name}_tool_ms") or 0.0 for name in ("first", "second")]
    return times[0] > times[1] and facts.get("results_end") == ["2", "1"]


RULES = (
    Rule(
        "error store store/get/list filters",
        'errors.md 2: "raw_error is valid JSON: an object as it is, anything else wrapped once"',
        _wraps_other_json,
    ),
    Rule(
        "tool result formatting",
        'guarantees.md G8: "index i holds the outcome of call i"; '
        'errors.md 4: a repeated failing call "adds advice to the result"',
        _runs_every_call,
    ),
    Rule(
        "tool result formatting",
        'errors.md 2: "the text cut at 500 code points in all"',
        _counts_what_is_missing,
    ),
    Rule(
        "get_error_detail errors",
        'errors.md 2: get_error_detail is "advertised from the start (a stable tool list ...)"',
        _advertises_always,
    ),
    Rule(
        "shared memory/get_tool_result",
        'errors.md 3: "a result over 16,384 bytes of UTF-8 is stored"',
        _other_threshold,
    ),
    Rule(
        "error tracker escalation",
        'errors.md 4: "Denials and gate skips do not count; cancelled calls do not count"',
        _does_not_count,
    ),
    Rule(
        "extra: circuit breaker",
        'errors.md 4: "30 s doubling to 10 min"',
        _higher_cap,
    ),
    Rule(
        "error strategy table",
        "errors.md 2: three lines for the model, `Tool 'X' failed: <summary>` first",
        _in_three_lines,
    ),
    Rule(
        "error strategy table",
        'errors.md 1: "not found lists the available tools"',
        _lists_what_there_is,
    ),
    Rule(
        "event_order",
        'agent-loop.md 13: "`tool.result` comes when that tool ends"',
        _in_the_order_of_their_ends,
    ),
    *deviations_compaction.RULES,
    *deviations_text.RULES,
    *deviations_turn.RULES,
    *deviations_loop.RULES,
    *deviations_history.RULES,
    *deviations_prompt.RULES,
    *deviations_policy.RULES,
    *deviations_children.RULES,
    *deviations_queues.RULES,
    *deviations_commands.RULES,
    *deviations_gateway.RULES,
    Rule(
        "tool_loop",
        'agent-loop.md 10: "3 = warning to the model", "5 = critical": the words are ours',
        _other_words,
    ),
    Rule(
        "tool_loop_later",
        'agent-loop.md 10: "A streak of reads with few distinct targets 8 / 12"',
        _many_are_no_loop,
    ),
)
