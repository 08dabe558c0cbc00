"""Registering hooks: patterns, order, and refused ones."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from motet.actors.hooks.registry import HookSet
from motet.protocols.errors import ConfigError
from motet.protocols.hook_rules import POINTS
from motet.protocols.hooks import Abort, AfterTool, Allow, BeforeTool, Decision, Point


async def allow(_event: BeforeTool) -> Decision:
    return Allow()


async def watch(_event: AfterTool) -> None: ...


def not_async(_event: BeforeTool) -> Decision:
    return Allow()


def test_patterns_choose_the_tools() -> None:
    hooks = HookSet()
    hooks.add("before_tool", allow, match="shell | write_*|?et", name="guard")
    names = ["shell", "write_file", "get", "Shell", "write", "budget", "read"]
    assert [name for name in names if hooks.at("before_tool", name)] == [
        "shell",
        "write_file",
        "get",
    ]


def test_lower_priority_comes_first_and_equals_keep_their_order() -> None:
    hooks = HookSet()
    for name, priority in (("c", 100), ("a", 1), ("d", 100), ("b", 50)):
        hooks.add("before_tool", allow, name=name, priority=priority)
    assert [gate.name for gate in hooks.at("before_tool", "any")] == ["a", "b", "c", "d"]


def test_gates_block_and_observers_continue_by_default() -> None:
    hooks = HookSet()
    hooks.add("before_tool", allow)
    hooks.add("before_tool", allow, on_error="continue")
    hooks.add("after_tool", watch)
    assert [gate.on_error for gate in hooks.at("before_tool", "any")] == ["block", "continue"]
    assert [observer.on_error for observer in hooks.at("after_tool", "any")] == ["continue"]
    assert hooks.at("after_tool", "any")[0].name == "watch"


@pytest.mark.parametrize("point", POINTS)
def test_fail_open_is_another_name_of_on_error(point: Point) -> None:
    rule = POINTS[point]
    hooks = HookSet()
    hooks.add(point, allow)
    hooks.add(point, allow, fail_open=True)
    if rule.is_gate:
        hooks.add(point, allow, fail_open=False)
        hooks.add(point, allow, fail_open=False, on_error="block")
    policies = [hook.on_error for hook in hooks.at(point, "any")]
    assert policies[:2] == [rule.on_error, "continue"]
    assert set(policies[2:]) <= {"block"}


def test_every_point_has_its_row_and_its_event() -> None:
    assert set(POINTS) == set(get_args(Point))
    for point, rule in POINTS.items():
        assert rule.event.__struct_config__.tag == point
        assert not rule.is_gate or Abort in rule.decides


@pytest.mark.parametrize(
    ("point", "fn", "options", "said"),
    [
        ("before_tool", allow, {"match": ""}, "has an empty pattern"),
        ("before_tool", allow, {"match": "shell|"}, "has an empty pattern"),
        ("before_tool", allow, {"timeout": 0}, "timeout must be above 0"),
        ("before_tool", allow, {"on_error": "ignore"}, "on_error is 'block' or 'continue'"),
        ("before_tool", not_async, {}, "'not_async': a hook is an `async def` function"),
        ("before_tool", allow, {"timeout": float("inf")}, "above 0 seconds and finite"),
        ("run_end", watch, {"on_error": "block"}, r"an observer \(run_end\) cannot block"),
        ("warning", watch, {"fail_open": False}, r"an observer \(warning\) cannot block"),
        ("before_input", allow, {"match": "shell"}, "before_input is not about one"),
        ("before_tool", allow, {"fail_open": True, "on_error": "block"}, "contradict each other"),
        ("before_lunch", allow, {}, "no such point 'before_lunch': hooks stand at session_start"),
        ("before_meal", allow, {}, "no such point 'before_meal'"),
    ],
)
def test_a_hook_that_could_never_work_is_refused(
    point: Any, fn: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        HookSet().add(point, fn, **options)
