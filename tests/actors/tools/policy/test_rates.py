"""Rates of calls: never more than the limit in an hour, a refusal costs nothing, idle is free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.policy import engine as rates
from motet.actors.tools.policy.engine import HOUR, CallRates, Window, window
from motet.protocols.policy import ToolFacts
from tests.actors.tools.policy.builders import fact

SHELL, READ = fact("shell"), fact("read_file")
times = st.lists(st.floats(0, 50), max_size=40).map(sorted)


@given(st.integers(1, 4), times)
def test_no_window_has_more_calls_than_the_limit(limit: int, some: list[float]) -> None:
    """Of calls at any times, no ``limit + 1`` that were let through lie within one period."""
    one = Window(limit, 10.0)
    taken = [at for at in some if one.take(at) == 0]
    assert all(late - early >= 10.0 for early, late in zip(taken, taken[limit:], strict=False))


@given(st.integers(1, 4), times, st.floats(50, 60))
def test_after_the_wait_that_is_told_a_call_is_let_through(
    limit: int, some: list[float], now: float
) -> None:
    """What a refusal says is true, and refusals move nothing."""
    one = Window(limit, 10.0)
    for at in some:
        one.take(at)
    wait = one.take(now)
    if wait > 0:
        assert one.take(now + wait / 2) > 0
        assert one.take(now + wait + 1e-6) == 0


def test_each_session_and_each_tool_counts_for_itself() -> None:
    some = CallRates()
    assert some.take("a", "shell", 1, 0.0) == 0
    assert some.take("a", "shell", 1, 600.0) == HOUR - 600
    assert some.take("b", "shell", 1, 600.0) == 0
    assert some.take("a", "read_file", 1, 600.0) == 0


def test_a_call_that_is_tried_again_is_counted_once() -> None:
    some, tries = CallRates(), ("1", "1", "2", "1", "2")
    assert [some.take("a", "shell", 2, 0.0, call) for call in tries] == [0.0] * 5
    assert some.take("a", "shell", 2, 0.0, "3") == HOUR
    assert some.take("a", "shell", 2, HOUR, "3") == 0.0


def test_a_session_that_is_at_rest_takes_no_memory() -> None:
    some = CallRates()
    for number in range(20):
        some.take(f"s{number}", "shell", 5, 0.0)
    assert len(some) == 20
    for step in range(20):
        some.take("s", "shell", 5, HOUR + step * HOUR)
    assert len(some) == 1


def test_memory_is_bounded_and_the_least_recent_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "KEPT", 3)
    some = CallRates()
    for number in range(9):
        assert some.take(f"s{number}", "shell", 1, 0.0) == 0
    assert len(some) == 3
    assert some.take("s8", "shell", 1, 1.0) > 0


@pytest.mark.parametrize(
    ("limits", "tool", "limit"),
    [
        ({}, SHELL, 150),
        ({"shell": 3, "group:shell": 9}, SHELL, 3),
        ({"bash": 3}, SHELL, 3),
        ({"group:shell": 9, "group:builtin": 4}, SHELL, 4),
        ({"group:shell": 0, "*": 4}, SHELL, 4),
        ({"group:shell": 0}, SHELL, 0),
        ({"shell": 0, "*": 4}, SHELL, 0),
        ({"mcp:*": 7}, ToolFacts("mcp__git__log", ("mcp:git",)), 7),
        ({"mcp:*": 7}, READ, 150),
    ],
)
def test_a_limit_of_the_tool_comes_before_that_of_a_group(
    limits: dict[str, int], tool: ToolFacts, limit: int
) -> None:
    assert CallRates(150, limits).limit(tool) == limit


def test_no_limit_keeps_nothing() -> None:
    some = CallRates()
    assert all(some.take("a", "shell", 0, 0.0) == 0 for _ in range(200))
    assert len(some) == 0
    assert window(-5) is None
