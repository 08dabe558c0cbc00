"""Where the specification of the turn decides otherwise than a vector."""

from __future__ import annotations

from typing import cast

from tests.vectors.cases import Case, Facts
from tests.vectors.rules import Rule


def _but(case: Case, facts: Facts, key: str) -> bool:
    """Whether all is as expected but for this."""
    expected = cast("dict[str, object]", case.expect)
    return key in expected and all(
        facts.get(name) == value for name, value in expected.items() if name != key
    )


def _answers_each_call(case: Case, facts: Facts) -> bool:
    return _but(case, facts, "pending_roles") and facts["pending_roles"] == ["assistant", "tool"]


def _checks_arguments(case: Case, facts: Facts) -> bool:
    return _but(case, facts, "retries") and facts.get("kinds") == ["validation"]


def _closes(case: Case, facts: Facts) -> bool:
    return _but(case, facts, "signal") and facts["signal"] == "closing"


RULES = (
    Rule(
        "pipeline_later",
        'agent-loop.md 1: every call has "exactly one result, whatever happens"',
        _answers_each_call,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 9: "argument check against the schema before the call, all problems named"',
        _checks_arguments,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 10: "tools are withdrawn and the model gets one closing turn"',
        _closes,
    ),
)
