"""Which hooks there are: where each stands, what it matches, and what its failure means."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from motet.protocols.errors import ConfigError
from motet.protocols.hooks import GATES, AfterTool, BeforeTool, Decision, OnError, Point

E = TypeVar("E", BeforeTool, AfterTool)

GateFn: TypeAlias = Callable[[BeforeTool], Awaitable[Decision]]
ObserverFn: TypeAlias = Callable[[AfterTool], Awaitable[None]]
HookFn: TypeAlias = GateFn | ObserverFn

TIMEOUT = 5.0
PRIORITY = 100


@attrs.frozen(eq=False)
class Hook(Generic[E]):
    """One registered hook. ``patterns`` are matched with the tool's name, case included."""

    name: str
    fn: Callable[[E], Awaitable[object]] = attrs.field(repr=False)
    patterns: tuple[str, ...]
    on_error: OnError
    timeout: float
    priority: int

    def matches(self, tool: str) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in self.patterns)


class HookSet:
    """The hooks of one host, in the order they are asked: by priority, then as added."""

    def __init__(self) -> None:
        self._gates: list[Hook[BeforeTool]] = []
        self._observers: list[Hook[AfterTool]] = []

    def __repr__(self) -> str:
        return f"<HookSet gates={len(self._gates)} observers={len(self._observers)}>"

    def add(
        self,
        point: Point,
        fn: HookFn,
        *,
        match: str = "*",
        on_error: OnError | None = None,
        timeout: float = TIMEOUT,
        priority: int = PRIORITY,
        name: str | None = None,
    ) -> None:
        """Register an async function: a ``GateFn`` before, an ``ObserverFn`` after a tool.

        Args:
            match: ``|``-separated patterns (``*``, ``?``, ``[...]``) of tool names.
            on_error: what its exception, time-out or wrong return type means; a gate blocks
                and an observer continues unless told otherwise. An observer cannot block.
            timeout: seconds for one event.
            priority: lower is asked first.

        Raises:
            ConfigError: for a pattern, policy, time or function that could never work.
        """
        name = name or str(getattr(fn, "__qualname__", fn))
        policy: OnError = on_error or ("block" if point in GATES else "continue")
        _refuse_impossible(name, point, fn, policy, timeout)
        hook = Hook[Any](name, fn, _patterns(name, match), policy, timeout, priority)
        chain: list[Hook[Any]] = self._gates if point in GATES else self._observers
        chain.append(hook)
        chain.sort(key=_priority)

    def gates(self, tool: str) -> tuple[Hook[BeforeTool], ...]:
        """The gates a call of this tool has to pass, in order."""
        return tuple(hook for hook in self._gates if hook.matches(tool))

    def observers(self, tool: str) -> tuple[Hook[AfterTool], ...]:
        return tuple(hook for hook in self._observers if hook.matches(tool))


def _priority(hook: Hook[Any]) -> int:
    return hook.priority


def _patterns(name: str, match: str) -> tuple[str, ...]:
    patterns = tuple(pattern.strip() for pattern in match.split("|"))
    if not all(patterns):
        raise ConfigError(f"hook {name!r}: match={match!r} has an empty pattern; '*' matches all")
    return patterns


def _refuse_impossible(
    name: str, point: Point, fn: object, on_error: OnError, timeout: float
) -> None:
    if point not in ("before_tool", "after_tool"):
        raise ConfigError(f"hook {name!r}: no such point {point!r}: before_tool or after_tool")
    if on_error not in ("block", "continue"):
        raise ConfigError(f"hook {name!r}: on_error is 'block' or 'continue', not {on_error!r}")
    if point not in GATES and on_error == "block":
        raise ConfigError(f"hook {name!r}: an observer ({point}) cannot block; use a gate")
    if not timeout > 0:
        raise ConfigError(f"hook {name!r}: timeout must be above 0 seconds, not {timeout}")
    if inspect.isfunction(fn) and not inspect.iscoroutinefunction(inspect.unwrap(fn)):
        raise ConfigError(f"hook {name!r} must be an `async def` function")
