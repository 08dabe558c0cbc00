"""Errors are counted per tool and per run, and the limit is the escalation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.tracker import ErrorLimits, ErrorTracker, counts_as
from motet.protocols.errors import CompactError
from tests.vectors.error_forms import escalation_result

OPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=40)


def error(tool: str, message: str = "boom") -> CompactError:
    return CompactError(tool, "unknown", message)


def after(tracker: ErrorTracker, *tools: str) -> ErrorTracker:
    for tool in tools:
        tracker = tracker.failed(error(tool))
    return tracker


def test_the_third_error_of_a_tool_in_a_row_is_the_escalation() -> None:
    second = after(ErrorTracker(), "a", "a")
    assert second.escalation is None
    third = second.failed(error("a", "the third")).escalation
    assert third is not None
    assert (third.limit, third.count, third.reason) == ("consecutive", 3, "Too many errors with a")
    assert third.last_error.message == "the third"
    assert third.explanation == ("Too many errors with a (3 in a row); the last one, a: the third")
    assert len(third.history) == 3


def test_a_success_of_the_tool_resets_it_and_of_another_does_not() -> None:
    two = after(ErrorTracker(), "a", "a")
    assert two.succeeded("a").failed(error("a")).escalation is None
    assert two.succeeded("b").failed(error("a")).escalation is not None


def test_the_tenth_error_of_a_run_escalates_and_the_reason_says_so() -> None:
    nine = after(ErrorTracker(), *"abcdefghi")
    assert nine.escalation is None
    tenth = nine.failed(error("j")).escalation
    assert tenth is not None
    assert (tenth.limit, tenth.reason) == ("total", "Too many errors in this run: 10")
    assert escalation_result(tenth)["cause"] == "total"


def test_rows_live_with_the_session_and_the_total_with_the_run() -> None:
    next_run = after(ErrorTracker(), "a", "a", "b").new_run()
    assert (next_run.total, next_run.history, next_run.rows) == (0, (), {"a": 2, "b": 1})
    assert next_run.failed(error("a")).escalation is not None
    assert next_run.forgiven().failed(error("a")).escalation is None


def test_limits_can_be_absent_or_none_at_all() -> None:
    assert after(ErrorTracker(ErrorLimits(None, None)), *"a" * 50).escalation is None
    assert after(ErrorTracker(ErrorLimits(0, None)), "a").escalation is not None
    assert after(ErrorTracker(ErrorLimits(None, 0)), "a").escalation is not None
    with pytest.raises(ValueError, match="at least 0"):
        ErrorLimits(consecutive=-1)


def test_only_what_a_tool_did_itself_counts() -> None:
    assert counts_as("done") == "success"
    assert counts_as("failed") == "error"
    for outcome in (
        "answered",
        "denied",
        "cancelled_before_start",
        "cancelled_while_running",
        "unknown",
    ):
        assert counts_as(outcome) == "neither"


@given(OPS, st.integers(1, 5), st.integers(1, 12))
def test_it_escalates_exactly_when_a_recount_of_all_events_does(
    ops: list[tuple[bool, str]], consecutive: int, total: int
) -> None:
    """Law: the state after any events equals the one counted from scratch."""
    tracker, errors, rows = (
        ErrorTracker(ErrorLimits(consecutive, total)),
        0,
        dict.fromkeys("abc", 0),
    )
    for ok, tool in ops:
        if ok:
            tracker, rows[tool] = tracker.succeeded(tool), 0
            continue
        tracker, errors, rows[tool] = tracker.failed(error(tool)), errors + 1, rows[tool] + 1
        expected = rows[tool] >= consecutive or errors >= total
        assert (tracker.escalation is not None) == expected
        assert tracker.history[-1].tool_name == tool
    assert tracker.total == errors
    assert tracker.rows == {tool: n for tool, n in rows.items() if n}
