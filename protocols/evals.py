"""Records of evaluations: scores, trials, their journal, and comparisons of evaluations. Pure.

An evaluation runs each of its cases once or several times; one such run is a trial. The journal of
an evaluation has a line for its plan, one for each ended trial, and one for its end.

Laws: a trial passes if and only if all of its judges pass and none of them broke; the trials of a
torn journal are a prefix of those that were written; an evaluation compared with itself has no
better and no worse case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final, Literal, TypeAlias

import msgspec

from motet.protocols.models import Usage
from motet.protocols.sessions import RunStatus

FORMAT: Final = 1
"""Of the journal and of the report. It changes when a field changes its meaning or goes."""
PASS: Final = 0.5
"""The least number that passes, where a judge gives a bare number."""
NOISE: Final = 0.01
"""A smaller difference of two mean scores counts as none."""

Outcome: TypeAlias = Literal["passed", "failed", "error"]
"""``error``: the agent or a judge broke, or took too long: nothing is known of the answer."""
Change: TypeAlias = Literal["better", "worse", "same", "new", "changed"]
"""``changed``: the case itself is another one than in the earlier evaluation."""


class Score(msgspec.Struct, frozen=True):
    """The verdict of a judge with its reasons; also the ``output_type`` of an agent that judges.

    Attributes:
        passed: whether the answer is good enough.
        value: from 0 to 1; None: 1 if passed, else 0.
        reason: in one sentence, why.
    """

    passed: bool
    value: float | None = None
    reason: str = ""


class Judged(msgspec.Struct, frozen=True):
    """The verdict of one judge on one trial. ``error``: it broke, for this reason."""

    judge: str
    passed: bool
    value: float
    reason: str = ""
    error: bool = False


def judged(judge: str, verdict: object) -> Judged:
    """The verdict as a judge has returned it: a bool, a number from 0 to 1, or a :class:`Score`.

    Anything else, such as the None of a forgotten ``return``, is an error of the judge: a check
    that passes by accident would prove nothing.
    """
    match verdict:
        case bool():
            return Judged(judge, verdict, float(verdict))
        case int() | float() if 0 <= verdict <= 1:
            return Judged(judge, verdict >= PASS, float(verdict))
        case Score(passed, value, reason):
            value = float(passed) if value is None else value
            if not isfinite(value) or not 0 <= value <= 1:
                return broken(judge, f"it gave the value {value}, which is not from 0 to 1")
            return Judged(judge, passed, value, reason)
        case _:
            wanted = "return a bool, a number from 0 to 1, or mt.Score"
            if callable(verdict):
                wanted = f"call it in the list of judges, `{judge}()`"
            return broken(judge, f"it returned {shortened(repr(verdict), 80)}: {wanted}")


def broken(judge: str, reason: str) -> Judged:
    """The verdict of a judge that could not judge."""
    return Judged(judge, False, 0.0, reason, error=True)


class TrialRecord(msgspec.Struct, frozen=True, tag="trial", tag_field="line"):
    """The record of one run of one case.

    Attributes:
        repeat: its number among the trials of its case, from 1.
        fingerprint: of the case: what was asked, expected, and judged by whom.
        session: its conversation in the state; ``runs``: the ids of its runs there.
        status: of the last run; None: none has begun.
        seconds: until the answer, judges not counted.
        usage: of the agent; ``judging``: of agents that judged.
        output: the beginning of the answer.
        error: why nothing is known of the answer.
        judging_seconds: that its judges took, one after another.
    """

    case: str
    repeat: int
    fingerprint: str
    outcome: Outcome
    session: str = ""
    runs: tuple[str, ...] = ()
    status: RunStatus | None = None
    seconds: float = 0.0
    usage: Usage = Usage()
    judging: Usage = Usage()
    judged: tuple[Judged, ...] = ()
    output: str = ""
    error: str = ""
    judging_seconds: float = 0.0

    @property
    def score(self) -> float:
        """The mean of the values of its judges; without any: 1 if it passed, else 0."""
        values = [one.value for one in self.judged]
        return sum(values) / len(values) if values else float(self.outcome == "passed")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it has not passed, one text for each cause."""
        wrong = (one for one in self.judged if not one.passed)
        said = [f"{one.judge}: {one.reason or 'not passed'}" for one in wrong]
        return (*([self.error] if self.error else []), *said)


def outcome_of(verdicts: Sequence[Judged]) -> Outcome:
    """The outcome of a trial whose run has ended as its case wants it."""
    if any(one.error for one in verdicts):
        return "error"
    return "passed" if all(one.passed for one in verdicts) else "failed"


# The journal


class Plan(msgspec.Struct, frozen=True, tag="plan", tag_field="line"):
    """The first line of a journal.

    Attributes:
        number: of the evaluation, from 1 among those of its name.
        agent, model: their names.
        setup: fingerprint of the agent, by which a resumed evaluation is known to have the same.
        started: Unix seconds.
        trials: how many it wanted; ``whole``: all cases, not only chosen ones.
    """

    format: int
    motet: str
    name: str
    number: int
    agent: str
    model: str
    setup: str
    started: float
    trials: int
    whole: bool = True


class End(msgspec.Struct, frozen=True, tag="end", tag_field="line"):
    """The last line. ``stopped``: before all trials had ended."""

    seconds: float
    stopped: bool = False


def unaffordable(budget: float, spent: Usage) -> str:
    """Why nothing more may be spent of a budget in dollars; empty: there is some left."""
    if spent.unpriced:
        return (
            f"a price is unknown, so that the budget of ${budget:,.2f} cannot be kept: "
            "use models with prices (pip install 'motet[prices]'), or no budget"
        )
    return f"the budget of ${budget:,.2f} is spent" if (spent.cost or 0.0) >= budget else ""


Line: TypeAlias = Plan | TrialRecord | End
_LINES = msgspec.json.Decoder(Line)


class Journal(msgspec.Struct, frozen=True):
    """A journal as it was read. ``end`` None: its process has died, or is still at work."""

    plan: Plan
    trials: tuple[TrialRecord, ...] = ()
    end: End | None = None

    @property
    def complete(self) -> bool:
        """Whether all of its cases were evaluated, so that another one can be compared with it."""
        return self.end is not None and not self.end.stopped and self.plan.whole


def line_of(line: Line) -> bytes:
    """One line of a journal, with its line break."""
    return msgspec.json.encode(line) + b"\n"


def journal_of(data: bytes) -> Journal | None:
    """Read a journal; None for one without a plan, or of another format.

    A line that was torn by a crash or a full disk is left out, with all that follow it.
    """
    lines: list[Line] = []
    for text in data.split(b"\n"):
        try:
            lines.append(_LINES.decode(text))
        except msgspec.DecodeError:
            break
    plan = lines[0] if lines else None
    if not isinstance(plan, Plan) or plan.format != FORMAT:
        return None
    trials = [line for line in lines if isinstance(line, TrialRecord)]
    ends = [line for line in lines if isinstance(line, End)]
    return Journal(plan, tuple(trials), ends[-1] if ends else None)


def fingerprint(value: object) -> str:
    """A digest of plain data, in which the order of keys makes no difference."""
    text = msgspec.json.encode(value, enc_hook=repr, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]


# Sums and comparisons


class Totals(msgspec.Struct, frozen=True):
    """The sums of some trials. ``seconds``: of all trials together, as if one ran after another;
    ``judging_seconds``: of their judges, in addition.
    """

    trials: int = 0
    passed: int = 0
    errors: int = 0
    score: float = 0.0
    seconds: float = 0.0
    usage: Usage = Usage()
    judging: Usage = Usage()
    judging_seconds: float = 0.0

    @property
    def spent(self) -> Usage:
        """Of the agent and of the agents that judged."""
        return self.usage + self.judging


def totals(trials: Sequence[TrialRecord]) -> Totals:
    """The sums of these trials; ``score`` is the mean."""
    return Totals(
        len(trials),
        sum(one.outcome == "passed" for one in trials),
        sum(one.outcome == "error" for one in trials),
        sum(one.score for one in trials) / len(trials) if trials else 0.0,
        sum(one.seconds for one in trials),
        sum((one.usage for one in trials), Usage()),
        sum((one.judging for one in trials), Usage()),
        sum(one.judging_seconds for one in trials),
    )


class CaseResult(msgspec.Struct, frozen=True):
    """The trials of one case, and how it compares with the earlier evaluation.

    ``outcome``: ``passed`` if all trials have passed; ``error`` if one of them broke.
    """

    name: str
    outcome: Outcome
    totals: Totals
    change: Change = "new"
    before: Totals | None = None
    trials: tuple[TrialRecord, ...] = ()


def by_case(trials: Iterable[TrialRecord]) -> dict[str, tuple[TrialRecord, ...]]:
    """The trials of each case, in the order of the cases' first trials."""
    found: dict[str, list[TrialRecord]] = {}
    for one in trials:
        found.setdefault(one.case, []).append(one)
    return {case: tuple(sorted(ones, key=lambda one: one.repeat)) for case, ones in found.items()}


def results(
    trials: Iterable[TrialRecord], before: Mapping[str, Sequence[TrialRecord]] | None = None
) -> tuple[CaseResult, ...]:
    """The result of each case. ``before``: the trials of an earlier evaluation by case."""
    return tuple(
        _result(name, ones, (before or {}).get(name, ())) for name, ones in by_case(trials).items()
    )


def _result(
    name: str, trials: tuple[TrialRecord, ...], before: Sequence[TrialRecord]
) -> CaseResult:
    now = totals(trials)
    outcome: Outcome = "passed" if now.passed == now.trials else "failed"
    if now.errors:
        outcome = "error"
    if not before:
        return CaseResult(name, outcome, now, trials=trials)
    then = totals(before)
    change = change_of(then, now)
    if before[0].fingerprint != trials[0].fingerprint:
        change = "changed"
    return CaseResult(name, outcome, now, change, then, trials)


def change_of(before: Totals, now: Totals) -> Change:
    """By the share of passed trials; where that is the same, by the mean score."""
    passed = now.passed * before.trials - before.passed * now.trials
    if passed:
        return "better" if passed > 0 else "worse"
    moved = now.score - before.score
    if abs(moved) < NOISE:
        return "same"
    return "better" if moved > 0 else "worse"


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
