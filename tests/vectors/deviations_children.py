"""Where the specification of sub-agents decides otherwise than a vector."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from tests.vectors.cases import MAIN, Case, Facts
from tests.vectors.rules import Rule


def _has_what_its_caller_has(case: Case, facts: Facts) -> bool:
    """No list of its own: of the tools it is to lack it has those that its caller has."""
    offered = cast("Collection[str]", facts.get("offered", ()))
    return "memory_search" in _names(case.expect) and "memory_search" in offered


def _starts_no_more(case: Case, facts: Facts) -> bool:
    """It has no children; tools that show sessions are none of ours."""
    offered = cast("Collection[str]", facts.get("offered", ()))
    lacks = cast("Collection[str]", facts.get(MAIN, ()))
    expected = _names(case.expect)
    return "spawn" in expected and "spawn" in lacks and not set(expected) & set(offered)


def _names(expect: object) -> list[str]:
    return cast("list[str]", expect) if isinstance(expect, list) else []


def _tells(case: Case, facts: Facts) -> bool:
    return "process" in case.given and facts.get("children") == "told of"


RULES = (
    Rule(
        "subagents",
        'agent-loop.md 9: "Sub-agents inherit the parent\'s denials"',
        _has_what_its_caller_has,
    ),
    Rule("subagents", 'agent-loop.md 12: "depth 1 by default (at most 5)"', _starts_no_more),
    Rule(
        "subagents",
        'agent-loop.md 12: "results announced once, in order, survive a restart"',
        _tells,
    ),
)
