"""Where the specification of queues decides otherwise than a vector."""

from __future__ import annotations

from tests.vectors.cases import Case, Facts, Given
from tests.vectors.rules import Rule


def _is_good(case: Case, facts: Facts) -> bool:
    """The case says itself what would be good, and that its origin was not."""
    wanted = Given(case.expect).get("good")
    return wanted is not None and facts.get("good") == wanted


def _has_other_defaults(case: Case, facts: Facts) -> bool:
    wanted = Given(case.expect)
    same = facts.get("cap") == wanted.get("cap") == 10
    return same and facts.get("debounce_ms") == 1000 and facts.get("mode") == "steer"


RULES = (
    Rule(
        "scheduler_scenarios",
        'agent-loop.md 11: "Debounce per sender 1,000 ms, emptied by `/stopall`"; "works while a '
        'run is stuck"; guarantees.md G1: who cancels waits for the clean-up',
        _is_good,
    ),
    Rule(
        "scheduler_scenarios",
        'agent-loop.md 11: "Capacity 10, policy declared", "Debounce per sender 1,000 ms", and no '
        "lanes: the order belongs to the session",
        _has_other_defaults,
    ),
)
