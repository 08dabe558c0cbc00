"""Where the specification decides otherwise than a vector of the history."""

from __future__ import annotations

from typing import cast

from motet.actors.transcript.pruning import important_tail
from tests.vectors.cases import MAIN, Case, Facts, Given
from tests.vectors.rules import Rule


def _any_mode(case: Case, _facts: Facts) -> bool:
    return case.given.sub("config").get("mode") not in ("cache-ttl", "off")


def _would_grow(case: Case, facts: Facts) -> bool:
    before = [len(Given(row).text("content")) for row in case.given.items("messages")]
    wanted = cast("list[int]", Given(case.expect).items("content_lengths"))
    got = cast("list[int]", facts["content_lengths"])
    return any(w > b >= g for w, b, g in zip(wanted, before, got, strict=True))


def _important(case: Case, facts: Facts) -> bool:
    changed = [Given(item).number("index") for item in cast("list[object]", facts["changed"])]
    rows = [Given(row) for row in case.given.items("messages")]
    return any(important_tail(rows[at].text("content")) for at in changed)


def _refused(case: Case, facts: Facts) -> bool:
    return "error" in facts


def _first_cycle(case: Case, facts: Facts) -> bool:
    return not case.given.number("last_flush") and facts.get("run") is True


def _keeps_what_came(case: Case, facts: Facts) -> bool:
    return "good" in facts and facts["good"] == Given(case.expect).get("good")


def _at_a_batch(case: Case, facts: Facts) -> bool:
    at, roles = facts[MAIN], case.given.text("roles")
    return isinstance(at, int) and 1 < at <= len(roles) - 4 and roles[at] in "ca"


def _walks_back(case: Case, facts: Facts) -> bool:
    at, index = facts.get(MAIN), case.given.number("index")
    roles = case.given.text("roles") if case.given.get("op") == "advance" else ""
    return isinstance(at, int) and at <= index and roles[at : at + 1] in ("u", "a")


def _by_call_index(case: Case, facts: Facts) -> bool:
    wanted = Given(case.expect).items("messages")
    got = cast("list[object]", facts["messages"])
    return bool(wanted) and sorted(map(str, wanted)) == sorted(map(str, got))


def _with_arguments(case: Case, _facts: Facts) -> bool:
    return any("tool_calls" in Given(row) for row in case.given.items("messages"))


def _in_code_points(case: Case, facts: Facts) -> bool:
    text, size = case.given.text("text"), case.given.number("max")
    whole = text[:size] + ("..." if len(text) > size else "")
    return not text.isascii() and facts.get(MAIN) == whole


RULES = (
    Rule("prune", "agent-loop.md 5: the ratio alone decides; no mode switches it on", _any_mode),
    Rule("prune", 'agent-loop.md 5: "only if that makes them shorter"', _would_grow),
    Rule("prune", 'agent-loop.md 5: an important tail "gets 70 % of the room"', _important),
    Rule("prune", "agent-loop.md 9: what is unknown in it is a configuration error", _refused),
    Rule("cache_ttl_parse", "agent-loop.md 9: as in all configuration, an error", _refused),
    Rule(
        "memory_flush",
        'agent-loop.md 6: "once per compaction cycle (the first cycle included)"',
        _first_cycle,
    ),
    Rule(
        "post_run_compaction",
        'agent-loop.md 6: "rows that arrived meanwhile are never lost"',
        _keeps_what_came,
    ),
    Rule(
        "mid_loop_split",
        'agent-loop.md 6: "if nothing is left to summarise, cut inside the current turn"',
        _at_a_batch,
    ),
    Rule(
        "virtual_compaction",
        'agent-loop.md 6: "a split never separates a call from its results (walk back ...)"',
        _walks_back,
    ),
    Rule(
        "sanitize_history",
        "guarantees.md G8: results by call index, whatever came first",
        _by_call_index,
    ),
    Rule("estimate_tokens", 'agent-loop.md 5: "call arguments included"', _with_arguments),
    Rule("truncate_str", "agent-loop.md 1: lengths are code points", _in_code_points),
)
