"""Where the specification decides otherwise than a vector of the conversation's memory."""

from __future__ import annotations

from tests.vectors.areas_compaction import as_designed
from tests.vectors.cases import MAIN, Case, Facts
from tests.vectors.rules import Rule


def _same_marks(case: Case, facts: Facts) -> bool:
    return "penalty" in case.given and as_designed(facts)


def _little_to_clear(case: Case, facts: Facts) -> bool:
    return case.given.number("row_bytes") < 50_000 and facts.get("evicted") is False


def _summary_of_a_user(case: Case, facts: Facts) -> bool:
    ours = ["system: rom", "user: summary", "l1 in order"]
    return "summary" in case.given.texts("layers") and facts.get(MAIN) == ours


def _short(case: Case, facts: Facts) -> bool:
    rows = case.given.number("messages")
    return 0 < rows <= 50 and facts.get("compressed") == 0 and facts.get("kept") == rows


RULES = (
    Rule(
        "context compaction",
        'errors.md 1: "Context-too-long: compact, retry once"; agent-loop.md 6: 0.75 of the '
        "window, about 30 % kept",
        _same_marks,
    ),
    Rule(
        "context compaction",
        'agent-loop.md 5: cleared "when the prunable results sum to 50,000 characters or more"',
        _little_to_clear,
    ),
    Rule(
        "extra: segmented memory",
        'agent-loop.md 4: "A summary is injected as a user row"',
        _summary_of_a_user,
    ),
    Rule(
        "extra: segmented memory",
        'agent-loop.md 6: "more than 50 messages or more than 0.75 of the window"',
        _short,
    ),
)
