"""Runs cases through their area's adapter and says what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import attrs

from tests.vectors.areas import ADAPTERS
from tests.vectors.cases import MAIN, Case, Facts, NotUnderstood, NotYet, shown
from tests.vectors.compare import differences
from tests.vectors.deviations import decision

Verdict: TypeAlias = Literal["passed", "failed", "decided", "not yet"]


@attrs.frozen
class Outcome:
    """``why``: the differences, the specification's line, or what is missing."""

    case: Case
    verdict: Verdict
    why: str = ""
    facts: Facts = attrs.field(factory=dict[str, object])

    @property
    def got(self) -> str:
        if not isinstance(self.case.expect, dict):
            return shown(self.facts.get(MAIN))
        return shown({key or "text": value for key, value in self.facts.items()})


def run_case(case: Case) -> Outcome:
    """Raises nothing: an adapter that fails is a failure of its case."""
    adapter = ADAPTERS.get(case.area)
    if adapter is None:
        return Outcome(case, "not yet", "this area has no adapter yet")
    try:
        facts = adapter(case.given)
    except NotYet as missing:
        return Outcome(case, "not yet", str(missing))
    except NotUnderstood as unknown:
        return Outcome(case, "failed", f"no adapter understands this input: {unknown}")
    except Exception as error:
        return Outcome(case, "failed", f"{type(error).__name__}: {error}")
    found = differences(case.expect, facts)
    if not found:
        return Outcome(case, "passed", facts=facts)
    decided = decision(case, facts)
    if decided is not None:
        return Outcome(case, "decided", decided, facts)
    return Outcome(case, "failed", "; ".join(found), facts)


def report(area: str, outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Lines about one area: its sum, failures, deviations by decision, what is not there yet."""
    done = list(outcomes)
    counts = {verdict: [o for o in done if o.verdict == verdict] for verdict in _ORDER}
    if len(counts["not yet"]) == len(done):
        yield f"{area}: not yet ({len(done)})"
        return
    more = ", ".join(f"{len(counts[v])} {_WORDS[v]}" for v in _ORDER[1:] if counts[v])
    yield f"{area} {len(counts['passed'])}/{len(done)}" + (f" ({more})" if more else "")
    for outcome in counts["failed"]:
        yield f"  FAILED {outcome.case.name}: {shown(outcome.why)}"
        yield f"    input    {outcome.case.given}"
        yield f"    expected {shown(outcome.case.expect)}"
        yield f"    got      {outcome.got}"
    for outcome in counts["decided"]:
        yield f"  deviation by decision: {outcome.case.name}"
        yield f"    {outcome.why}"
        yield f"    expected {shown(outcome.case.expect)}"
        yield f"    got      {outcome.got}"
    for outcome in counts["not yet"]:
        yield f"  not yet: {outcome.case.name} ({outcome.why})"


_ORDER: tuple[Verdict, ...] = ("passed", "failed", "decided", "not yet")
_WORDS = {"failed": "failed", "decided": "by decision", "not yet": "not yet"}
