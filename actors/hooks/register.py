"""``host.on``: register functions as hooks, with the types that each point allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias, TypeVar, Unpack, overload

from motet.actors.hooks.hookset import HookFn, HookOptions, HookSet
from motet.protocols.hooks import (
    Abort,
    AfterChild,
    AfterCompact,
    AfterModel,
    AfterTool,
    Allow,
    BeforeChild,
    BeforeCompact,
    BeforeInput,
    BeforeModel,
    BeforeOutput,
    BeforeTool,
    Continue,
    Decision,
    Deny,
    Point,
    Replace,
    Respond,
    RunEnd,
    RunError,
    RunWarning,
    SessionEnd,
    SessionStart,
)

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
    ) -> Decorator[SessionStart, Abort | Allow | None]: ...
    @overload
    def __call__(
        self, point: Literal["session_end"], **options: Unpack[HookOptions]
    ) -> Decorator[SessionEnd, None]: ...
    @overload
    def __call__(
        self, point: Literal["before_input"], **options: Unpack[HookOptions]
    ) -> Decorator[BeforeInput, Allow | Deny | Replace | Respond | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["before_model"], **options: Unpack[HookOptions]
    ) -> Decorator[BeforeModel, Allow | Replace | Respond | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["after_model"], **options: Unpack[HookOptions]
    ) -> Decorator[AfterModel, Allow | Replace | Abort | None]: ...
    @overload
    def __call__(
        self, point: Literal["before_tool"], **options: Unpack[HookOptions]
    ) -> Decorator[BeforeTool, Decision]: ...
    @overload
    def __call__(
        self, point: Literal["after_tool"], **options: Unpack[HookOptions]
    ) -> Decorator[AfterTool, Allow | Replace | Abort | None]: ...
    @overload
    def __call__(
        self, point: Literal["before_output"], **options: Unpack[HookOptions]
    ) -> Decorator[BeforeOutput, Allow | Deny | Replace | Continue | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["before_child"], **options: Unpack[HookOptions]
    ) -> Decorator[BeforeChild, Allow | Deny | Abort]: ...
    @overload
    def __call__(
        self, point: Literal["after_child"], **options: Unpack[HookOptions]
    ) -> Decorator[AfterChild, None]: ...
    @overload
    def __call__(
        self, point: Literal["before_compact"], **options: Unpack[HookOptions]
    ) -> Decorator[BeforeCompact, Allow | Deny | Abort | None]: ...
    @overload
    def __call__(
        self, point: Literal["after_compact"], **options: Unpack[HookOptions]
    ) -> Decorator[AfterCompact, None]: ...
    @overload
    def __call__(
        self, point: Literal["run_end"], **options: Unpack[HookOptions]
    ) -> Decorator[RunEnd, None]: ...
    @overload
    def __call__(
        self, point: Literal["error"], **options: Unpack[HookOptions]
    ) -> Decorator[RunError, None]: ...
    @overload
    def __call__(
        self, point: Literal["warning"], **options: Unpack[HookOptions]
    ) -> Decorator[RunWarning, None]: ...
    def __call__(
        self, point: Point, **options: Unpack[HookOptions]
    ) -> Callable[[Any], Callable[[Any], Awaitable[Any]]]:
        """Raises ``ConfigError`` for a hook that could never work."""

        def register(fn: HookFn) -> HookFn:
            self._hooks.add(point, fn, **options)
            return fn

        return register
