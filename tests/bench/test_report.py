"""The benchmark's arithmetic, and that every case of ours still runs. No times are asserted."""

from __future__ import annotations

import math
from importlib import import_module

import msgspec
import pytest

from bench import crowd, gateway
from bench.__main__ import BASELINE, GROUPS
from bench.measure import interpreter
from bench.report import compare, lines, ratios, table
from bench.rows import Case, Row
from bench.sample import sample

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


@pytest.mark.parametrize(
    "case",
    [case for row in ROWS for case in row.cases if case.package is None],
    ids=lambda case: f"{case.module}.{case.function}",
)
def test_every_case_that_needs_no_peer_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "SIZE", 5)
    monkeypatch.setattr(gateway, "SETTLING", 0.01)
    monkeypatch.setattr(gateway, "REST", 0.01)
    assert math.isfinite(sample(case.module, case.function, min(case.count, 200)))
