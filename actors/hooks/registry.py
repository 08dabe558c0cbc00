"""The registered hooks of a host: their points, patterns and failure policies.

``host.on`` (:class:`On`) registers functions, with the types that each point allows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Set
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

import attrs

from motet.protocols import hooks
from motet.protocols.errors import ConfigError
from motet.protocols.hook_rules import TOOL_POINTS, PointRule, rule_of
from motet.protocols.hooks import (
    Abort,
    Allow,
    AnyHookEvent,
    Continue,
    Decision,
    Deny,
    OnError,
    Point,
    Replace,
    Respond,
    point_of,
)

# Each point has an event of its own, which one type cannot express; `On` has the exact types.
HookFn: TypeAlias = Callable[[Any], Awaitable[object]]

TIMEOUT = 5.0
PRIORITY = 100


class HookOptions(TypedDict, total=False):
    """The options of a hook.

    match: ``|``-separated patterns (``*``, ``?``, ``[...]``) of tool names, at the tool points.
    on_error: the meaning of its exception, time-out or wrong decision; else the point's.
    fail_open: the same option by another name: True is ``continue``, False is ``block``.
    timeout: seconds for one event; 5 if absent.
    priority: lower is asked first; 100 if absent.
    name: appears in verdicts and faults; the function's own if absent.
    """

    match: str
    on_error: OnError | None
    fail_open: bool | None
    timeout: float
    priority: int
    name: str | None


@attrs.frozen(eq=False)
class Hook:
    """One registered hook. ``patterns`` match the tool's name, case-sensitively."""

    name: str
    point: Point
    fn: HookFn = attrs.field(repr=False)
    patterns: tuple[str, ...]
    on_error: OnError
    timeout: float
    priority: int

    def matches(self, tool: str) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in self.patterns)


class HookSet:
    """The hooks of one host, in the order they are asked: by priority, then as added.

    Attributes:
        points: those that have hooks: a set to look into before an event is built.
        blocking: those with a hook whose failure blocks.
    """

    def __init__(self) -> None:
        self._hooks: dict[Point, list[Hook]] = {}
        self.points: Set[Point] = self._hooks.keys()
        self.blocking: Set[Point] = frozenset()

    def __repr__(self) -> str:
        return f"<HookSet hooks={len(self.all())}>"

    def add(
        self,
        point: Point,
        fn: HookFn,
        *,
        match: str = "*",
        on_error: OnError | None = None,
        fail_open: bool | None = None,
        timeout: float = TIMEOUT,
        priority: int = PRIORITY,
        name: str | None = None,
    ) -> None:
        """Register an async function, as :class:`HookOptions` says.

        Raises ``ConfigError`` for a point, pattern, policy, time or function that could never work.
        """
        rule = rule_of(point)
        name = name or str(getattr(fn, "__qualname__", fn))
        try:
            policy = _policy(point, rule, on_error, fail_open)
            _refuse_impossible(fn, timeout)
            patterns = _patterns(point, match)
        except ConfigError as error:
            raise ConfigError(f"hook {name!r}: {error}") from None
        chain = self._hooks.setdefault(point, [])
        chain.append(Hook(name, point, fn, patterns, policy, timeout, priority))
        chain.sort(key=_priority)
        self.blocking = _blocking(self.all())

    def swap(self, before: Collection[Hook], after: Iterable[Hook]) -> None:
        """Replace the hooks ``before`` by ``after``, which come first among equal priorities."""
        chains: dict[Point, list[Hook]] = {}
        for hook in (*after, *(hook for hook in self.all() if hook not in before)):
            chains.setdefault(hook.point, []).append(hook)
        for chain in chains.values():
            chain.sort(key=_priority)
        self._hooks, self.points = chains, chains.keys()
        self.blocking = _blocking(self.all())

    def at(self, point: Point, tool: str = "") -> tuple[Hook, ...]:
        """The hooks at a point, in order; at a tool point only those that match the tool."""
        chain = self._hooks.get(point, ())
        if not chain or point not in TOOL_POINTS:
            return tuple(chain)
        return tuple([hook for hook in chain if "*" in hook.patterns or hook.matches(tool)])

    def of(self, event: AnyHookEvent) -> tuple[Hook, ...]:
        """The hooks that an event concerns, in order."""
        # `isinstance` is slow for the events that are none of a tool.
        if type(event) is hooks.BeforeTool or type(event) is hooks.AfterTool:
            return self.at(point_of(event), event.name)
        return self.at(point_of(event))

    def all(self) -> tuple[Hook, ...]:
        """Every hook, point by point."""
        return tuple(hook for chain in self._hooks.values() for hook in chain)


def _priority(hook: Hook) -> int:
    return hook.priority


def _blocking(hooks: Iterable[Hook]) -> frozenset[Point]:
    return frozenset(hook.point for hook in hooks if hook.on_error == "block")


def _policy(
    point: Point, rule: PointRule, on_error: OnError | None, fail_open: bool | None
) -> OnError:
    said: OnError | None = None if fail_open is None else "continue" if fail_open else "block"
    if on_error not in ("block", "continue", None):
        raise ConfigError(f"on_error is 'block' or 'continue', not {on_error!r}")
    if said and on_error and said != on_error:
        raise ConfigError(f"fail_open={fail_open} and on_error={on_error!r} contradict each other")
    policy: OnError = on_error or said or rule.on_error
    if policy == "block" and not rule.is_gate:
        raise ConfigError(f"an observer ({point}) cannot block; use a gate")
    return policy


def _patterns(point: Point, match: str) -> tuple[str, ...]:
    patterns = tuple(pattern.strip() for pattern in match.split("|"))
    if not all(patterns):
        raise ConfigError(f"match={match!r} has an empty pattern; '*' matches all")
    if match != "*" and point not in TOOL_POINTS:
        raise ConfigError(f"match={match!r} chooses tools, and {point} is not about one")
    return patterns


def _refuse_impossible(fn: object, timeout: float) -> None:
    if not 0 < timeout < math.inf:
        raise ConfigError(f"timeout must be above 0 seconds and finite, not {timeout}")
    if inspect.isfunction(fn) and not inspect.iscoroutinefunction(inspect.unwrap(fn)):
        raise ConfigError("a hook is an `async def` function")


E = TypeVar("E")
R = TypeVar("R")

Decorator: TypeAlias = Callable[[Callable[[E], Awaitable[R]]], Callable[[E], Awaitable[R]]]


class On:
    """A decorator for each point: ``@host.on("before_tool", match="shell|write_*")``.

    The function is async, takes the event of its point, and returns one of the decisions that the
    point allows; a wrong one is a failure of the hook. See :class:`HookOptions` for the options.
    """

    def __init__(self, hooks: HookSet) -> None:
        self._hooks = hooks

    def __repr__(self) -> str:
        return f"<On {self._hooks!r}>"

    @overload
    def __call__(
        self, point: Literal["session_start"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.SessionStart, Abort | Allow | None]: ...
    @overload
    def __call__(
        self, point: Literal["session_end"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.SessionEnd, None]: ...
    @overload
    def __call__(
        self, point: Literal["before_input"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.BeforeInput, Allow | Deny | Replace | Respond | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["before_model"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.BeforeModel, Allow | Replace | Respond | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["after_model"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.AfterModel, Allow | Replace | Abort | None]: ...
    @overload
    def __call__(
        self, point: Literal["before_tool"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.BeforeTool, Decision]: ...
    @overload
    def __call__(
        self, point: Literal["after_tool"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.AfterTool, Allow | Replace | Abort | None]: ...
    @overload
    def __call__(
        self, point: Literal["before_output"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.BeforeOutput, Allow | Deny | Replace | Continue | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["before_child"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.BeforeChild, Allow | Deny | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["after_child"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.AfterChild, None]: ...
    @overload
    def __call__(
        self, point: Literal["before_compact"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.BeforeCompact, Allow | Deny | Abort | None]: ...
    @overload
    def __call__(
        self, point: Literal["after_compact"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.AfterCompact, None]: ...
    @overload
    def __call__(
        self, point: Literal["run_end"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.RunEnd, None]: ...
    @overload
    def __call__(
        self, point: Literal["error"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.RunError, None]: ...
    @overload
    def __call__(
        self, point: Literal["warning"], **options: Unpack[HookOptions]
    ) -> Decorator[hooks.RunWarning, None]: ...
    def __call__(
        self, point: Point, **options: Unpack[HookOptions]
    ) -> Callable[[Any], Callable[[Any], Awaitable[Any]]]:
        """Raises ``ConfigError`` for a hook that could never work."""

        def register(fn: HookFn) -> HookFn:
            self._hooks.add(point, fn, **options)
            return fn

        return register
