"""Where the specification of runs and their ends decides otherwise than a vector."""

from __future__ import annotations

from typing import cast

from tests.vectors.cases import Case, Facts
from tests.vectors.rules import Rule


def _but(case: Case, facts: Facts, *keys: str) -> bool:
    """Whether all is as expected but for these."""
    expected = cast("dict[str, object]", case.expect)
    return all(facts.get(name) == value for name, value in expected.items() if name not in keys)


def _sums_up_without_a_model(case: Case, facts: Facts) -> bool:
    failed = case.given.get("compaction", "ok") != "ok"
    return failed and facts.get("history") == "compacted" and facts.get("error") == ""


def _prunes_early(case: Case, facts: Facts) -> bool:
    used = cast("float", facts.get("share", 0))
    return used >= 0.3 and facts["prune"] == 1 and _but(case, facts, "prune", "compact")


def _compacts_early(case: Case, facts: Facts) -> bool:
    used = cast("float", facts.get("share", 0))
    return used >= 0.75 and facts["compact"] == 1 and _but(case, facts, "compact")


def _waits_for_its_end(case: Case, facts: Facts) -> bool:
    expected = cast("dict[str, object]", case.expect)
    forced = expected.get("result") == "forced" and _but(case, facts, "result")
    return forced and facts["result"] == "still_running"


def _tells_the_sender_only(case: Case, facts: Facts) -> bool:
    blocked = case.given.get("action") == "block" and "was not accepted" in str(facts["refused"])
    return blocked and facts[""] == ()


def _owns_until_it_ends(case: Case, facts: Facts) -> bool:
    """The run that is not to write any more is the one that still has the session."""
    return facts.get("owner") == facts.get("finished") is not None


RULES = (
    Rule(
        "pipeline_later",
        'agent-loop.md 6: "If the model fails, an extractive summary"',
        _sums_up_without_a_model,
    ),
    Rule(
        "pipeline_later",
        'agent-loop.md 6: "when prompt tokens reach 0.75 of the window"',
        _compacts_early,
    ),
    Rule("pipeline_later", 'agent-loop.md 5: "Below 0.3: nothing"', _prunes_early),
    Rule(
        "abort_scenarios",
        'agent-loop.md 1: "The slot is free only when the run has ended"',
        _waits_for_its_end,
    ),
    Rule(
        "ownership_fence",
        'agent-loop.md 1: "The slot is free only when the run has ended"',
        _owns_until_it_ends,
    ),
    Rule(
        "event_order",
        'agent-loop.md 2: "A blocked message\'s text is not broadcast, and the sender is told why"',
        _tells_the_sender_only,
    ),
)
