"""The report: one line per row and implementation, and the comparison with the baseline.

``ratio`` compares motet with the implementation of the line, and on motet's own line with the row's
reference: the median over the rounds of the ratio within a round. Above 1 motet is better, for all
units.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from bench.measure import Samples
from bench.rows import MOTET, Case, Row

__all__ = ["Line", "compare", "lines", "ratios", "table"]


class Line(msgspec.Struct, frozen=True):
    """The median of one implementation in one row. See the module for ``ratio``."""

    row: str
    impl: str
    value: float
    unit: str
    ratio: float | None
    goal: float | None
    met: bool | None
    spread: float  # (largest - smallest) / median of the rounds


def lines(rows: Iterable[Row], samples: Samples) -> list[Line]:
    """The report of all cases with samples."""
    return [
        _line(row, case, samples)
        for row in rows
        for case in row.cases
        if samples.get((row.name, case.impl))
    ]


def _line(row: Row, case: Case, samples: Samples) -> Line:
    own = samples[row.name, case.impl]
    value = statistics.median(own)
    against = row.reference if case.impl == MOTET else case.impl
    ratio = _ratio(row, against, samples)
    goal = _goal(row, case)
    spread = (max(own) - min(own)) / value if value else 0.0
    return Line(
        row.name, case.impl, value, row.unit, ratio, goal, _met(row, case, value, ratio), spread
    )


def _ratio(row: Row, against: str | None, samples: Samples) -> float | None:
    motet = samples.get((row.name, MOTET))
    other = samples.get((row.name, against)) if against is not None else None
    if not motet or not other:
        return None
    quotients = [mine / theirs for mine, theirs in zip(motet, other, strict=True)]
    if not row.more_is_better:
        quotients = [1 / quotient for quotient in quotients]
    return statistics.median(quotients)


def _met(row: Row, case: Case, value: float, ratio: float | None) -> bool | None:
    goal = _goal(row, case)
    if goal is None:
        return None
    if row.bounded and case.impl == MOTET:
        return value >= goal if row.more_is_better else value <= goal
    return None if ratio is None else ratio >= goal


def _goal(row: Row, case: Case) -> float | None:
    return row.goal if case.impl == MOTET else case.goal


def ratios(report: Iterable[Line]) -> dict[str, float]:
    """Motet's ratios by row, in the form of ``baseline.json``."""
    return {
        line.row: round(line.ratio, 3)
        for line in report
        if line.impl == MOTET and line.ratio is not None
    }


def compare(report: Iterable[Line], baseline: dict[str, float], tolerance: float) -> list[str]:
    """Ratios below ``baseline`` by more than the share ``tolerance``, in words."""
    return [
        f"{row}: {now:.2f} times as fast as its reference, {baseline[row]:.2f} before"
        for row, now in ratios(report).items()
        if row in baseline and now < baseline[row] * (1 - tolerance)
    ]


def table(report: Iterable[Line]) -> str:
    """The report as aligned text."""
    text = [f"{'row':36}{'impl':18}{'value':>12} {'unit':6}{'motet is':>10}{'goal':>8}  spread"]
    for line in report:
        ratio = f"{line.ratio:.2f}x" if line.ratio is not None else ""
        goal = f"{round(line.goal, 3):g}" if line.goal is not None else ""
        met = {True: "met", False: "MISSED", None: ""}[line.met]
        text.append(
            f"{line.row:36}{line.impl:18}{line.value:12,.{_digits(line.value)}f} {line.unit:6}"
            f"{ratio:>10}{goal:>8}  {line.spread:4.0%}  {met}".rstrip()
        )
    return "\n".join(text)


def _digits(value: float) -> int:
    return 0 if value >= 100 else 2
