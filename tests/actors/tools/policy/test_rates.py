"""Calls per session and tool: limits by name, counted once, and none for an idle session."""

from __future__ import annotations

import pytest

from motet.actors.tools.policy.engine import HOUR, CallRates
from motet.protocols.policy import ToolFacts
from tests.actors.tools.policy.builders import fact

SHELL, READ = fact("shell"), fact("read_file")


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
    assert CallRates(-5).limit(SHELL) == 0
