"""Registering hooks: what matches, in which order, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from motet.actors.hooks.chain import HookSet
from motet.protocols.errors import ConfigError
from motet.protocols.hooks import AfterTool, Allow, BeforeTool, Decision


async def allow(_event: BeforeTool) -> Decision:
    return Allow()


async def watch(_event: AfterTool) -> None: ...


def not_async(_event: BeforeTool) -> Decision:
    return Allow()


def test_patterns_choose_the_tools() -> None:
    hooks = HookSet()
    hooks.add("before_tool", allow, match="shell | write_*|?et", name="guard")
    names = ["shell", "write_file", "get", "Shell", "write", "budget", "read"]
    assert [name for name in names if hooks.gates(name)] == ["shell", "write_file", "get"]


def test_lower_priority_comes_first_and_equals_keep_their_order() -> None:
    hooks = HookSet()
    for name, priority in (("c", 100), ("a", 1), ("d", 100), ("b", 50)):
        hooks.add("before_tool", allow, name=name, priority=priority)
    assert [gate.name for gate in hooks.gates("any")] == ["a", "b", "c", "d"]


def test_gates_block_and_observers_continue_unless_told_otherwise() -> None:
    hooks = HookSet()
    hooks.add("before_tool", allow)
    hooks.add("before_tool", allow, on_error="continue")
    hooks.add("after_tool", watch)
    assert [gate.on_error for gate in hooks.gates("any")] == ["block", "continue"]
    assert [observer.on_error for observer in hooks.observers("any")] == ["continue"]
    assert hooks.observers("any")[0].name == "watch"


@pytest.mark.parametrize(
    ("point", "fn", "options", "said"),
    [
        ("before_tool", allow, {"match": ""}, "has an empty pattern"),
        ("before_tool", allow, {"match": "shell|"}, "has an empty pattern"),
        ("before_tool", allow, {"timeout": 0}, "timeout must be above 0"),
        ("before_tool", allow, {"on_error": "ignore"}, "on_error is 'block' or 'continue'"),
        ("before_tool", not_async, {}, "'not_async' must be an `async def` function"),
        ("after_tool", watch, {"on_error": "block"}, r"an observer \(after_tool\) cannot block"),
        ("before_lunch", allow, {}, "no such point 'before_lunch'"),
    ],
)
def test_a_hook_that_could_never_work_is_refused(
    point: Any, fn: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        HookSet().add(point, fn, **options)
