"""The benchmark's arithmetic, and that every case of ours still runs. No times are asserted."""

from __future__ import annotations

import math
import subprocess
from importlib import import_module
from types import SimpleNamespace

import msgspec
import pytest

from bench import harness, measure, rest
from bench.__main__ import BASELINE, GROUPS
from bench.measure import interpreter
from bench.report import compare, lines, ratios, table
from bench.rows import Case, Row
from bench.sample import sample, work_of
from tests import forks

RATE = Row(
    "tell",
    "1/s",
    (Case("motet", "m", "f", 1), Case("trio", "m", "f", 1), Case("slow", "m", "f", 1, goal=40)),
    "trio",
    5,
)
COST = Row("idle", "KB", (Case("motet", "m", "f", 1), Case("trio", "m", "f", 1)), "trio", 5, True)

ROWS = [row for group in GROUPS for row in import_module(f"bench.{group}").ROWS]


def test_a_ratio_says_how_many_times_as_fast_motet_is() -> None:
    samples = {
        ("tell", "motet"): [590.0, 600, 900],
        ("tell", "trio"): [100.0, 100, 100],
        ("tell", "slow"): [20.0, 20, 20],
    }

    motet, trio, slow = lines([RATE], samples)

    assert (motet.value, motet.ratio, motet.goal, motet.met) == (600, 6, 5, True)
    assert (trio.ratio, trio.goal, trio.met) == (6, None, None)
    assert (slow.ratio, slow.goal, slow.met) == (30, 40, False)


def test_where_less_is_better_the_goal_is_a_bound_and_the_ratio_still_grows_with_motet() -> None:
    motet, trio = lines([COST], {("idle", "motet"): [4.0], ("idle", "trio"): [8.0]})

    assert (motet.ratio, motet.met, trio.ratio) == (2, True, 2)
    assert not lines([COST], {("idle", "motet"): [5.1]})[0].met


def test_a_cost_of_nothing_meets_every_bound() -> None:
    (motet,) = lines([COST], {("idle", "motet"): [0.0, 0.0]})

    assert (motet.value, motet.spread, motet.met) == (0, 0, True)
    assert "met" in table([motet])


def test_the_bound_of_a_row_is_motets_and_the_goal_against_a_peer_is_a_ratio() -> None:
    peer = Case("slow", "m", "f", 1, goal=4)
    row = Row("turn", "us", (Case("motet", "m", "f", 1), peer), "slow", 200, bounded=True)

    motet, slow = lines([row], {("turn", "motet"): [250.0], ("turn", "slow"): [800.0]})

    assert (motet.ratio, motet.goal, motet.met) == (3.2, 200, False)
    assert (slow.ratio, slow.goal, slow.met) == (3.2, 4, False)
    assert lines([row], {("turn", "motet"): [200.0], ("turn", "slow"): [800.0]})[1].met


def test_a_peer_that_is_not_there_has_no_line_and_no_goal_is_claimed() -> None:
    (motet,) = lines([RATE], {("tell", "motet"): [600.0]})

    assert (motet.ratio, motet.met) == (None, None)
    assert "MISSED" not in table([motet])
    assert interpreter(Case("none", "m", "f", 1, package="no_such_package")) is None


def test_only_what_lost_more_than_the_tolerance_is_worse() -> None:
    report = lines([RATE], {("tell", "motet"): [600.0], ("tell", "trio"): [100.0]})

    assert ratios(report) == {"tell": 6.0}
    assert compare(report, {"tell": 7.0, "gone": 1.0}, tolerance=0.15) == []
    assert compare(report, {"tell": 7.1}, tolerance=0.15) != []


def test_the_baseline_has_a_ratio_for_every_row_that_has_a_reference() -> None:
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, float])

    assert set(baseline) == {row.name for row in ROWS if row.reference is not None}


def _works() -> list[tuple[str, str, int, int]]:
    """Each function once, and how many figures the rows take of it."""
    figures: dict[tuple[str, str, int], int] = {}
    for case in (case for row in ROWS for case in row.cases if case.package is None):
        work = (case.module, case.function, case.count)
        figures[work] = max(figures.get(work, 0), case.figure + 1)
    return [(*work, number) for work, number in figures.items()]


def _forked(command: list[str], **_pipes: bool) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run``, without the time of an interpreter's imports."""
    ended = forks.ran(*command[1:], timeout=120)
    ended.check_returncode()
    return ended


@pytest.mark.parametrize(
    ("module", "function", "count", "figures"),
    _works(),
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_every_case_that_needs_no_peer_runs(
    module: str, function: str, count: int, figures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "SETTLING", 0.01)
    monkeypatch.setattr(rest, "REST", 0.01)
    monkeypatch.setattr(harness, "subprocess", SimpleNamespace(run=_forked))
    values = work_of(module, function)(
        min(count, 5 if module in ("bench.gateway", "bench.harness") else 20)
    )
    assert all(map(math.isfinite, values))
    assert len(values) == figures


def test_a_sample_is_of_the_second_call_after_a_small_one() -> None:
    counts: list[int] = []

    def work(count: int) -> tuple[float, ...]:
        counts.append(count)
        return (float(len(counts)),)

    assert sample(work, 200) == (2.0,)
    assert counts == [20, 200]


def test_cases_of_one_function_are_measured_together_and_some_rows_not_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def taken(_python: str, case: Case) -> tuple[float, ...]:
        asked.append(case.function)
        return (1.0, 2.0)

    monkeypatch.setattr(measure, "_sample", taken)
    both = [Row(f"row {at}", "MB", (Case("motet", "m", "f", 1, figure=at),)) for at in range(2)]
    rare = Row("rare", "MB", (Case("motet", "m", "g", 1),), rounds=1)

    samples = measure.measure([*both, rare], 3, lambda _: None)

    assert sorted(asked) == ["f", "f", "f", "g"]
    assert samples == {
        ("row 0", "motet"): [1.0] * 3,
        ("row 1", "motet"): [2.0] * 3,
        ("rare", "motet"): [1.0],
    }
