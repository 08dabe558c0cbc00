"""Where the specification decides otherwise about the beginning of a run."""

from __future__ import annotations

from tests.vectors.cases import Case, Facts, Given
from tests.vectors.rules import Rule


def _reads_back(case: Case, facts: Facts) -> bool:
    return facts.get("reads_back") == case.given.value and facts.get("contained") is True


def _is_good(case: Case, facts: Facts) -> bool:
    wanted = Given(case.expect).get("good")
    return wanted is not None and facts.get("good") == wanted


RULES = (
    Rule(
        "path_segment",
        'agent-loop.md 11: "folders from a reversible escape, never a lossy one"',
        _reads_back,
    ),
    Rule(
        "seeding_and_bootstrap",
        'agent-loop.md 1: "done means written, not row inserted: a failed seeding is tried again"',
        _is_good,
    ),
)
