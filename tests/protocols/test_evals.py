"""Records of evaluations: verdicts, outcomes, torn journals, and comparisons."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.protocols.evals import (
    End,
    Judged,
    Plan,
    Score,
    TrialRecord,
    by_case,
    change_of,
    fingerprint,
    journal_of,
    judged,
    line_of,
    outcome_of,
    results,
    totals,
)
from motet.protocols.models import Usage

PLAN = Plan(1, "0.1.0", "capitals", 3, "helper", "demo", "abc", 5.0, 2)
QUICK = settings(max_examples=25, deadline=None)

values = st.floats(0, 1)
verdicts = st.builds(Judged, st.sampled_from("ab"), st.booleans(), values, error=st.booleans())
trials = st.builds(
    TrialRecord,
    case=st.sampled_from(["france", "japan", "peru"]),
    repeat=st.integers(1, 3),
    fingerprint=st.sampled_from("xy"),
    outcome=st.sampled_from(["passed", "failed", "error"]),
    seconds=st.integers(0, 9).map(float),
    judged=st.lists(verdicts, max_size=3).map(tuple),
    output=st.text(max_size=5),
    usage=st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
)


@pytest.mark.parametrize(
    ("verdict", "passed", "value"),
    [
        (True, True, 1.0),
        (False, False, 0.0),
        (0.5, True, 0.5),
        (0.49, False, 0.49),
        (1, True, 1.0),
        (Score(True), True, 1.0),
        (Score(False, 0.9, "rude"), False, 0.9),
    ],
)
def test_a_verdict_is_a_bool_a_number_or_a_score(
    verdict: object, passed: bool, value: float
) -> None:
    found = judged("polite", verdict)

    assert (found.passed, found.value, found.error) == (passed, value, False)


@pytest.mark.parametrize(
    "nonsense", [None, "yes", 1.5, -0.1, float("nan"), [], Score(True, 2.0), Score(True, -1)]
)
def test_anything_else_is_an_error_of_the_judge(nonsense: object) -> None:
    found = judged("polite", nonsense)

    assert found.error
    assert not found.passed
    assert found.reason


@given(st.lists(verdicts, max_size=4))
@QUICK
def test_a_trial_passes_if_and_only_if_all_judges_pass_and_none_breaks(found: list[Judged]) -> None:
    outcome = outcome_of(found)

    assert (outcome == "error") == any(one.error for one in found)
    assert (outcome == "passed") == all(one.passed and not one.error for one in found)


@given(st.lists(trials, max_size=5), st.booleans(), st.data())
@QUICK
def test_a_torn_journal_has_the_first_trials_and_all_of_a_whole_one(
    written: list[TrialRecord], ended: bool, data: st.DataObject
) -> None:
    lines = [line_of(PLAN), *map(line_of, written)] + [line_of(End(1.5))] * ended
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))

    journal, torn = journal_of(whole), journal_of(whole[:cut])

    assert journal is not None
    assert list(journal.trials) == written
    assert journal.complete == ended
    if torn is None:
        assert cut < len(lines[0])
    else:
        count = len(torn.trials)
        assert list(torn.trials) == written[:count]
        assert sum(map(len, lines[: count + 2])) > cut or count == len(written)


def test_a_journal_of_another_format_or_of_something_else_is_none() -> None:
    assert journal_of(line_of(PLAN).replace(b'"format":1', b'"format":2')) is None
    assert journal_of(b"") is None
    assert journal_of(line_of(End(1.0))) is None


@given(st.lists(trials, min_size=1, max_size=12))
@QUICK
def test_an_evaluation_compared_with_itself_has_no_better_and_no_worse_case(
    done: list[TrialRecord],
) -> None:
    assert {case.change for case in results(done, by_case(done))} == {"same"}
    assert {case.change for case in results(done)} == {"new"}


@given(st.lists(trials, min_size=1, max_size=8), st.lists(trials, min_size=1, max_size=8))
@QUICK
def test_what_got_better_one_way_got_worse_the_other_way(
    then: list[TrialRecord], now: list[TrialRecord]
) -> None:
    opposite = {"better": "worse", "worse": "better", "same": "same"}

    assert change_of(totals(then), totals(now)) == opposite[change_of(totals(now), totals(then))]


@given(st.lists(trials, min_size=1, max_size=12))
@QUICK
def test_the_sums_of_the_cases_are_the_sums_of_all(done: list[TrialRecord]) -> None:
    cases = results(done)

    assert sum(case.totals.trials for case in cases) == len(done)
    assert sum(case.totals.passed for case in cases) == totals(done).passed
    assert sum((case.totals.usage for case in cases), Usage()) == totals(done).usage
    assert all((case.outcome == "error") == bool(case.totals.errors) for case in cases)


def test_a_case_that_became_another_one_is_neither_better_nor_worse() -> None:
    then = TrialRecord("france", 1, "x", "failed")
    now = TrialRecord("france", 1, "y", "passed")

    assert results([now], by_case([then]))[0].change == "changed"


def test_a_small_move_of_a_score_is_no_change() -> None:
    def trial(value: float) -> TrialRecord:
        return TrialRecord("a", 1, "x", "passed", judged=(Judged("tone", True, value),))

    assert change_of(totals([trial(0.8)]), totals([trial(0.805)])) == "same"
    assert change_of(totals([trial(0.8)]), totals([trial(0.9)])) == "better"


def test_the_order_of_keys_makes_no_other_fingerprint() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
