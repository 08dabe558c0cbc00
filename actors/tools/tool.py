"""A tool: its description for the model, its limits, and the function that does the work.

A synchronous function runs in a worker thread. A thread cannot be killed: a cancelled or timed-out
call waits until its function returns, and a stop can list the functions it waits for (G2). Long
blocking work belongs in a process (:func:`~motet.actors.tools.process_tool.process_tool`).
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from typing import Any, TypeAlias, Unpack, cast, get_origin, overload

import attrs
import msgspec
import trio
from trio.lowlevel import RunVar

from motet.actors.errors.log import logger
from motet.actors.tools.arguments import Arguments, ForeignArguments, from_schema, has_form
from motet.actors.tools.context import Approval, Context, ToolOptions, traits
from motet.actors.tools.schema import Described, Function, describe, function_of, name_of
from motet.protocols.approvals import Asking
from motet.protocols.chat import JsonObject
from motet.protocols.errors import SchemaError
from motet.protocols.tools import Effects, ToolFailure, ToolSpec
from motet.runtime import UnderWay, current_under_way
from motet.runtime.outside import foreign_code, monotonic

log = logger(__name__)

TIMEOUT = 60.0
MAX_OUTPUT = 16_384
THREADS = 40
"""Calls in threads at once, of all hosts of a program; further calls wait."""

Runner: TypeAlias = Callable[[Context[object], JsonObject], Awaitable[object]]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class NotBegun(Exception):
    """Its run was stopped while the call waited for a place: it has done nothing."""


def Range(lo: float | None = None, hi: float | None = None) -> msgspec.Meta:
    """A number from ``lo`` to ``hi``, both included: ``Annotated[int, Range(1, 200)]``."""
    return msgspec.Meta(ge=lo, le=hi)


def Length(lo: int | None = None, hi: int | None = None) -> msgspec.Meta:
    """A text or list of ``lo`` to ``hi`` items: ``Annotated[str, Length(1)]``."""
    return msgspec.Meta(min_length=lo, max_length=hi)


def Pattern(regex: str) -> msgspec.Meta:
    """A text that contains a match of ``regex``; anchor it to match the whole."""
    return msgspec.Meta(pattern=regex)


def _check_name(_tool: object, _field: object, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TypeError(
            f"tool name {name!r}: 1 to 64 letters, digits, '_' and '-' are allowed; give name=..."
        )


def _check_limits(tool: Tool, _field: object, _value: object) -> None:
    for name, value in (("timeout", tool.timeout), ("max_output", tool.max_output)):
        if not value > 0:
            raise ValueError(f"tool {tool.name!r}: {name} must be above 0, not {value}")


def _accepting(tool: Tool) -> ForeignArguments:
    try:
        return from_schema(tool.parameters)
    except SchemaError as error:
        raise TypeError(
            f"tool {tool.name!r}: its parameters are not a JSON Schema: {error}"
        ) from error


@attrs.frozen(kw_only=True, eq=False)
class Tool:
    """One tool. :func:`tool` makes it from a function; or give a schema and ``run`` yourself.

    Attributes:
        parameters: a JSON Schema of type object.
        effects, parallel, approval, polling, timeout, max_output: see
            :class:`~motet.actors.tools.context.Traits`.
        run: gets arguments that ``accepts`` has checked, and returns the result.
        idempotent: a call that was interrupted by the end of the host may be run again; else its
            outcome stays unknown.
        begins_itself: it waits for a place first, such as a thread, and says when it begins.
        agent: the agent that does its work, if one does.
        groups: its names in policies besides its own, such as ``group:fs`` or ``mcp:git``; none is
            ``group:own``, a tool of the program.
        accepts: the check of arguments; made from ``parameters`` unless given.
    """

    name: str = attrs.field(validator=_check_name)
    description: str
    parameters: JsonObject = attrs.field(repr=False)
    run: Runner = attrs.field(repr=False)
    effects: Effects = attrs.field(
        default="read", validator=attrs.validators.in_(("read", "write"))
    )
    parallel: bool = True
    approval: Approval = attrs.field(default=False, repr=False)
    polling: bool = False
    idempotent: bool = False
    timeout: float = TIMEOUT
    max_output: int = attrs.field(default=MAX_OUTPUT, validator=_check_limits)
    begins_itself: bool = attrs.field(default=False, repr=False)
    agent: object = attrs.field(default=None, repr=False)
    groups: tuple[str, ...] = ()
    accepts: Arguments | ForeignArguments = attrs.field(
        default=attrs.Factory(_accepting, takes_self=True), repr=False
    )

    @property
    def only_reads(self) -> bool:
        """Whether it is declared to have no effects, so that a call may run without a journal.

        A tool that declares nothing runs beside others like one that reads, but is not trusted to.
        """
        return self.effects == "read" and self.idempotent

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.parameters, self.effects)


async def asked_by_tool(
    tool: Tool, context: Context[object], args: JsonObject
) -> tuple[Asking, ...]:
    """Whether the tool's ``approval`` wants a person for these arguments.

    An exception, a time-out, and anything but True and False count as True.
    """
    decide = tool.approval
    if isinstance(decide, bool):
        return (Asking("tool", "the tool needs an approval"),) if decide else ()
    problem = f"its condition took longer than {tool.timeout:g} s"
    with trio.move_on_after(tool.timeout):
        try:
            # A copy: the condition cannot change the arguments that the tool gets.
            with foreign_code:
                wanted = decide(context, deepcopy(args))
                if inspect.isawaitable(wanted):
                    wanted = await wanted
            if wanted is False:
                return ()
            problem = "" if wanted is True else f"its condition gave {type(wanted).__name__}"
        except Exception as error:
            log.warning("approval condition failed", tool=tool.name, exc_info=error)
            problem = f"its condition failed: {type(error).__name__}"
    return (Asking("tool", problem or "the tool needs an approval for these arguments"),)


@overload
def tool(fn: Function, /, **options: Unpack[ToolOptions]) -> Tool: ...


@overload
def tool(fn: None = None, /, **options: Unpack[ToolOptions]) -> Callable[[Function], Tool]: ...


def tool(
    fn: Function | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function, as ``@tool``, ``@tool(timeout=5)`` or ``tool(fn)``.

    The type hints make the schema, the docstring describes the tool and its parameters (Google,
    numpy or Sphinx style). A first parameter annotated ``Context[...]`` is filled by the host.

    Raises:
        TypeError: for a function that cannot be described to a model, and for an unknown option;
            the message names it.
    """
    name, description, how = options.get("name"), options.get("description"), traits(options)

    def build(fn: Function) -> Tool:
        described, called = describe(fn), name or name_of(fn)
        return Tool(
            name=called,
            description=described.description if description is None else description,
            parameters=described.parameters,
            accepts=described.accepts,
            run=_runner(called, fn, described),
            begins_itself=_is_blocking(fn),
            **how,
        )

    return build if fn is None else build(fn)


def _is_blocking(fn: Function) -> bool:
    return not inspect.iscoroutinefunction(inspect.unwrap(function_of(fn)))


def _runner(name: str, fn: Function, described: Described) -> Runner:
    inner = inspect.unwrap(function_of(fn))
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError(f"tool {name}: a generator has no one result; return a list instead")
    in_thread = _is_blocking(fn)
    fitting = partial(fitting_result, fn, described.returns)
    begin = cast("Callable[..., Awaitable[object]]", fn)  # if it is no blocking function

    async def run(ctx: Context[object], args: JsonObject) -> object:
        given = (ctx,) if described.takes_context else ()
        typed = described.accepts.typed(args)
        if in_thread:
            call, boxed = partial(fn, *given, **typed), list[object]()
            # In a box: Trio refuses a thread's function that returns a coroutine.
            await run_in_thread(lambda: boxed.append(call()), run_id=ctx.run_id, tool=name)
            (value,) = boxed
            if inspect.isawaitable(value) and not _is_declared(described.returns):
                value = await value
        else:
            value = await begin(*given, **typed)
        return value if type(value) is str else fitting(value)

    return run


def fitting_result(fn: Function, returns: object, value: object) -> object:
    """The value that a function has returned, which is the result of its call.

    Raises ``ToolFailure``, with the function and the remedy, for a value that is still to be
    awaited, and, where a type was declared, for one without a JSON form.
    """
    if type(value) is str:
        return value
    inner = function_of(fn)
    where = f"{inner.__module__}.{inner.__qualname__}"
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ToolFailure(f"{where} returned a {type(value).__name__}: await it, then return")
    if isinstance(value, str) or not _is_declared(returns) or has_form(value):
        return value
    declared = "'-> str'" if returns is str else "a type"
    raise ToolFailure(
        f"{where} returned a {type(value).__qualname__} with no JSON form: return text or data\n"
        f"It declares {declared}. Data are numbers, lists, dicts with text keys, dataclasses, "
        "structs and models of pydantic."
    )


def _is_declared(returns: object) -> bool:
    """Whether a hint says more than that anything, or something to await, may be returned."""
    if returns is object or returns is Any:
        return False
    return get_origin(returns) not in (Awaitable, Coroutine)


# Worker threads


_limiter: RunVar[trio.CapacityLimiter] = RunVar("motet tool threads")


async def run_in_thread(function: Callable[[], object], *, run_id: str, tool: str) -> object:
    """Call a function in a thread. A cancellation takes effect when the function has returned.

    Cancelled while it waits for a thread, it is never called. Raises ``NotBegun`` if it must not be
    called any more when it has one.
    """
    call = current_under_way()
    if call is not None:
        return await _in_thread(function, call)
    with UnderWay(run_id, f"tool {tool!r}") as call:
        return await _in_thread(function, call)


async def _in_thread(function: Callable[[], object], call: UnderWay) -> object:
    failed: list[BaseException] = []

    def called() -> object:
        call.thread, began = threading.get_ident(), monotonic()
        try:
            return function()
        except BaseException as error:  # Trio's thread reads its attributes, and would die of one
            failed.append(error)
            return None
        finally:
            call.worked = monotonic() - began

    async with has_place(call, "a thread", limiter_of(_limiter, THREADS)):
        value = await trio.to_thread.run_sync(called, abandon_on_cancel=False, limiter=_UNLIMITED)
    call.thread = 0
    if failed:
        raise failed.pop()
    return value


@asynccontextmanager
async def has_place(
    call: UnderWay | None, what: str, limiter: trio.CapacityLimiter
) -> AsyncGenerator[None]:
    """A block with a place for a call, which begins in its first step. Raises ``NotBegun``."""
    if call is not None:
        call.waits_for = what
    async with limiter:
        await trio.lowlevel.checkpoint_if_cancelled()
        if call is not None and not call.begin():
            raise NotBegun
        yield


class _Unlimited:
    """As a ``trio.CapacityLimiter``, for a thread that has its place already."""

    async def acquire_on_behalf_of(self, _: object) -> None:
        pass  # no checkpoint: the call would begin, and its function some steps later

    def release_on_behalf_of(self, _: object) -> None:
        pass


# Trio asks for no more than these two methods, and declares the class.
_UNLIMITED = cast("trio.CapacityLimiter", _Unlimited())


def limiter_of(places: RunVar[trio.CapacityLimiter], most: int) -> trio.CapacityLimiter:
    """The limiter of this run of Trio, made when it is first asked for."""
    try:
        return places.get()
    except LookupError:
        places.set(trio.CapacityLimiter(most))
        return places.get()
