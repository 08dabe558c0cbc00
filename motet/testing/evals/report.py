"""The report of an evaluation: data for CI, sums and changes, and a table for people.

Invariant: the JSON of a report is its fields; a field is added, but not renamed or removed, as
long as ``format`` is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from motet.protocols.errors import ConfigError
from motet.protocols.evals import FORMAT, CaseResult, Change, Totals, TrialRecord, by_case
from motet.protocols.models import Usage

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "EvalReport",
    "EvaluationFailed",
    "Previous",
    "load_report",
    "money",
    "print_report",
    "trials_of",
    "visible",
]

WIDTH = 120
MOST_ROWS = 200
"""Cases that are all in the table."""
MOST_REASONS = 20
"""Causes that are printed below the table; the report has all of them."""
NAMED = 5
"""Trials that are named for one cause."""

STYLES = {"passed": "green", "failed": "red", "error": "red"}
CHANGES: dict[Change, tuple[str, str]] = {
    "better": ("▲ better", "green"),
    "worse": ("▼ worse", "red"),
    "same": ("", ""),
    "new": ("new", "dim"),
    "changed": ("other case", "dim"),
}


class EvaluationFailed(AssertionError):
    """Fewer cases have passed than :meth:`EvalReport.check` wants; the message is the table."""


class Previous(msgspec.Struct, frozen=True):
    """The earlier evaluation that a report compares with: the sums of the cases in both."""

    number: int
    started: float
    model: str
    totals: Totals


class EvalReport(msgspec.Struct, frozen=True):
    """An evaluation, as JSON and as a table: ``print(report)``.

    Attributes:
        number: of the evaluation among those of its name, from 1.
        started, seconds: Unix seconds; how long it took.
        planned: trials that it wanted; ``stopped``: not all of them have ended.
        totals: the sums of all trials.
        cases: in the order of their first trials.
        previous: the earlier complete evaluation; None: there is none.
        state: the directory with the sessions and traces; empty: they are gone.
        unsaved: why the results are not all on disk; empty: they are.
        left: cases whose run did not end after its time-out.
        why_stopped: the budget, where that was the reason; empty: another one.
        in_rooms: a room was evaluated, and the session of a trial is the name of its room.
    """

    name: str
    number: int
    agent: str
    model: str
    started: float
    seconds: float
    planned: int
    totals: Totals
    cases: tuple[CaseResult, ...]
    previous: Previous | None = None
    stopped: bool = False
    state: str = ""
    unsaved: str = ""
    left: tuple[str, ...] = ()
    format: int = FORMAT
    why_stopped: str = ""
    in_rooms: bool = False

    @property
    def passed(self) -> bool:
        """Whether every planned trial has ended and passed."""
        return not self.stopped and self.share == 1.0

    @property
    def share(self) -> float:
        """The share of cases that have passed, from 0 to 1."""
        passed = sum(case.outcome == "passed" for case in self.cases)
        return passed / len(self.cases) if self.cases else 0.0

    @property
    def better(self) -> tuple[str, ...]:
        """The names of the cases that got better."""
        return tuple(case.name for case in self.cases if case.change == "better")

    @property
    def worse(self) -> tuple[str, ...]:
        """The names of the cases that got worse."""
        return tuple(case.name for case in self.cases if case.change == "worse")

    def case(self, name: str) -> CaseResult:
        """The result of a case. Raises ``KeyError``."""
        return next((case for case in self.cases if case.name == name), None) or _missing(name)

    def check(self, least: float = 1.0) -> EvalReport:
        """Itself, if at least this share of the cases has passed.

        Raises ``EvaluationFailed``, an ``AssertionError``, with the table; also for an evaluation
        that was stopped.
        """
        if not 0 <= least <= 1:
            raise ConfigError(f"least is a share from 0 to 1, not {least!r}")
        if self.stopped or self.share < least:
            raise EvaluationFailed(f"{_headline(self)}\n{self}")
        return self

    def __str__(self) -> str:
        from rich.console import Console

        out = StringIO()
        print_report(self, Console(file=out, width=WIDTH, highlight=False, emoji=False))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _missing(name: str) -> CaseResult:
    raise KeyError(f"no case {name!r} was evaluated")


def load_report(file: Path) -> EvalReport:
    """A report that ``--json`` has written. Raises ``ConfigError``."""
    try:
        report = msgspec.json.decode(file.read_bytes(), type=EvalReport)
    except OSError as error:
        raise ConfigError(f"the report {file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is no report of `motet eval --json`: {error}") from error
    if report.format != FORMAT:
        raise ConfigError(f"{file} has format {report.format}; this version reads {FORMAT}")
    return report


def trials_of(report: EvalReport) -> dict[str, tuple[TrialRecord, ...]]:
    """The trials of a report by case, as a baseline for another one."""
    return by_case(trial for case in report.cases for trial in case.trials)


# The table


def print_report(report: EvalReport, out: Console) -> None:
    """Print the table, the reasons of what has not passed, and the comparison."""
    from rich.text import Text

    shown = _shown(report)
    if shown:
        out.print(_table(report, shown))
    if len(shown) < len(report.cases):
        out.print(Text(f"… and {len(report.cases) - len(shown)} that passed", "dim"))
    groups = _causes(report)
    for reasons, trials in groups[:MOST_REASONS]:
        _print_cause(report, reasons, trials, out)
    if len(groups) > MOST_REASONS:
        out.print(f"\n… and {len(groups) - MOST_REASONS} more causes, which the report has")
    out.print()
    style = "green" if report.passed else "yellow" if report.stopped else "red"
    out.print(Text(_headline(report), style), soft_wrap=True)
    for line in _notes(report):
        out.print(Text(line, "dim"), soft_wrap=True)


def _shown(report: EvalReport) -> list[CaseResult]:
    """All cases; of very many, those that have not passed or have changed."""
    if len(report.cases) <= MOST_ROWS:
        return list(report.cases)
    told = ("better", "worse")
    return [case for case in report.cases if case.outcome != "passed" or case.change in told]


def _causes(report: EvalReport) -> list[tuple[tuple[str, ...], list[TrialRecord]]]:
    """The trials that have not passed, by their reasons: a full disk is one cause of many."""
    found: dict[tuple[str, ...], list[TrialRecord]] = {}
    for case in report.cases:
        for trial in case.trials:
            if trial.outcome != "passed":
                found.setdefault(trial.reasons, []).append(trial)
    return list(found.items())


def _print_cause(
    report: EvalReport, reasons: tuple[str, ...], trials: list[TrialRecord], out: Console
) -> None:
    from rich.text import Text

    first, rest = trials[0], len(trials) - NAMED
    names = ", ".join(_trial_name(report, one) for one in trials[:NAMED])
    more = f" and {rest} more" if rest > 0 else ""
    out.print(Text(f"\n✗ {names}{more}", "red"), soft_wrap=True)
    for reason in reasons:
        out.print(Text(f"  {visible(reason)}"), soft_wrap=True)
    if first.output and first.outcome == "failed" and len(trials) == 1:
        out.print(Text(f"  answer: {visible(_cut(first.output, 300))}", "dim"), soft_wrap=True)
    if first.runs and report.state:
        command = f"motet traces show {first.runs[-1]} --state {report.state}"
        out.print(Text(f"  {command}", "dim"), soft_wrap=True)


def _table(report: EvalReport, cases: list[CaseResult]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    repeated = any(case.totals.trials > 1 for case in report.cases)
    priced = any(case.totals.spent.cost for case in report.cases)
    compared = any(case.before for case in report.cases)
    table.add_column("case", overflow="fold")
    table.add_column("passed", no_wrap=True)
    headings = ["score", "tokens", *(["cost"] if priced else []), "time", "judges"]
    for heading in headings:
        table.add_column(heading, no_wrap=True, justify="right")
    if compared:
        table.add_column("since", no_wrap=True)
    if report.state:
        table.add_column("room" if report.in_rooms else "session", overflow="fold", style="dim")
    for case in cases:
        sums, spent = case.totals, case.totals.spent
        mark = {"passed": "✓", "failed": "✗", "error": "✗ error"}[case.outcome]
        passed = f"{mark} {sums.passed}/{sums.trials}" if repeated else mark
        change, style = CHANGES[case.change]
        table.add_row(
            Text(visible(case.name)),
            Text(passed, STYLES[case.outcome]),
            f"{sums.score:.2f}",
            f"{spent.total_tokens:,}",
            *([money(spent)] if priced else []),
            f"{sums.seconds:.2f} s",
            f"{sums.judging_seconds:.2f} s",
            *([Text(change, style)] if compared else []),
            *([Text(case.trials[0].session)] if report.state else []),
        )
    return table


def _headline(report: EvalReport) -> str:
    sums, passed = report.totals, sum(case.outcome == "passed" for case in report.cases)
    errors = sum(case.outcome == "error" for case in report.cases)
    parts = [
        f"{report.name} {report.number}: {passed} of {len(report.cases)} cases passed",
        *([f"{errors} with an error"] if errors else []),
        *([f"stopped after {sums.trials} of {report.planned} trials"] if report.stopped else []),
        f"score {sums.score:.2f}",
        f"{sums.spent.total_tokens:,} tokens",
        *([money(sums.spent)] if sums.spent.cost else []),
        f"{report.seconds:.1f} s",
    ]
    return ", ".join(parts)


def _notes(report: EvalReport) -> Iterator[str]:
    if (before := report.previous) is not None and before.totals.trials:
        then, now = before.totals, _shared(report)
        figures = [
            f"passed {then.passed} of {then.trials} → {now.passed} of {now.trials} trials",
            f"score {then.score:.2f} → {now.score:.2f}",
            f"tokens {then.spent.total_tokens:,} → {now.spent.total_tokens:,}",
            *(
                [f"cost {money(then.spent)} → {money(now.spent)}"]
                if then.spent.cost or now.spent.cost
                else []
            ),
            f"seconds {then.seconds:.1f} → {now.seconds:.1f}",
        ]
        model = f" ({before.model})" if before.model != report.model else ""
        yield f"since {report.name} {before.number}{model}: {', '.join(figures)}"
        for word, names in (("better", report.better), ("worse", report.worse)):
            if names:
                yield f"  {word}: {', '.join(map(visible, names))}"
    if report.why_stopped:
        yield f"stopped: {report.why_stopped}"
    if report.unsaved:
        yield f"the results are not all stored: {report.unsaved}"
    if report.left:
        yield f"still at work after the time-out: {', '.join(map(visible, report.left))}"
    if report.state and report.cases:
        show = "rooms show ROOM" if report.in_rooms else "sessions show SESSION"
        yield f"a talk: motet {show} --state {report.state}"


def _shared(report: EvalReport) -> Totals:
    """The sums of the cases that the earlier evaluation has, too."""
    from motet.protocols.evals import totals

    trials = [trial for case in report.cases if case.before for trial in case.trials]
    return totals(trials)


def _trial_name(report: EvalReport, trial: TrialRecord) -> str:
    repeated = any(case.name == trial.case and case.totals.trials > 1 for case in report.cases)
    return visible(f"{trial.case} ({trial.repeat})" if repeated else trial.case)


def money(usage: Usage) -> str:
    """The cost in dollars; ``?`` for an unknown one."""
    cost = usage.cost
    if cost is None:
        return "?"
    return f"${cost:.4f}" if cost < 1 else f"${cost:,.2f}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def visible(text: str) -> str:
    """On one line, with a mark in place of what would act on a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
