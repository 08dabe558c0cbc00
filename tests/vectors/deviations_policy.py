"""Where the specification of tool policy decides otherwise than a vector."""

from __future__ import annotations

from typing import cast

from tests.vectors.cases import MAIN, Case, Facts
from tests.vectors.rules import Rule


def _refuses_unknown_names(_case: Case, facts: Facts) -> bool:
    error = str(facts["error"])
    return "unknown tool or group" in error or "tools.profile: expected one of" in error


def _only_takes_away(case: Case, facts: Facts) -> bool:
    """Of what would have been added in spite of a list or a denial, nothing is there."""
    if "also_allow" not in case.given.sub("agent"):
        return False
    return set(cast("list[str]", facts[MAIN])) < set(cast("list[str]", case.expect))


def _is_nobodys(case: Case, facts: Facts) -> bool:
    return isinstance(case.given.value, str) and facts[MAIN] == "unknown_method"


def _has_a_role(case: Case, facts: Facts) -> bool:
    return isinstance(case.given.value, list) and "no scopes" in str(facts[MAIN])


RULES = (
    Rule(
        "tool_policy",
        'agent-loop.md 9: "an unknown name is a configuration error with the nearest known one"',
        _refuses_unknown_names,
    ),
    Rule("tool_policy", 'agent-loop.md 9: "`deny` wins over everything"', _only_takes_away),
    Rule(
        "rbac",
        'gateway.md 1: "unknown method -> `unknown_method`", for every role; 3: the methods',
        _is_nobodys,
    ),
    Rule("rbac", 'gateway.md 2: "roles `viewer|operator|admin`, bound to one user"', _has_a_role),
)
