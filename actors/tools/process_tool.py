"""Tools that can be killed: each call runs in a process of its own.

A thread cannot be ended, a process can: a stop, a time-out or the death of the host ends it with
all its descendants (G1, G2). The price is a fresh interpreter for each call, some tenths of a
second, which imports the module of the function and has nothing of the host's state.

Invariant: :func:`answer`, in that process, replies in every case, unless the function ends the
process.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn, Unpack, cast, overload

import attrs
import msgspec
import outcome
import trio
from trio.lowlevel import RunVar

from motet.actors.errors.classify import classify, failure_class
from motet.actors.tools.arguments import plain
from motet.actors.tools.context import Context, ToolOptions
from motet.actors.tools.schema import Function, describe
from motet.actors.tools.tool import Tool, fitting_result, has_place, limiter_of, tool
from motet.protocols.chat import FailureClass, JsonObject
from motet.protocols.texts import last_line, well_formed
from motet.protocols.tools import ToolDenied, ToolFailure, ToolNegative, ToolRetry
from motet.runtime import current_under_way
from motet.runtime.exceptions import message_of, serialize_error
from motet.runtime.outside import foreign_code
from motet.runtime.processes import HeadTail, open_child

FUNCTIONS: dict[tuple[str, str], Function] = {}
"""The decorated functions, by module and name: there, the module has the tool instead."""

AT_ONCE = 8
"""Processes at once, of all hosts of a program; further calls wait."""
MAX_REPLY = 64 << 20
MAX_OUTPUT = 8_000
MAIN = str(Path(__file__).with_name("process_main.py"))

_places: RunVar[trio.CapacityLimiter] = RunVar("motet tool processes")


class Reply(msgspec.Struct, frozen=True):
    """The end of a call. ``value`` is for ``returned``, the other fields for exceptions."""

    ended: Literal["returned", "retry", "denied", "negative", "failed"]
    value: object = None
    message: str = ""
    code: str = ""
    kind: str = ""
    detail: JsonObject = {}
    failure: FailureClass | Literal[""] = ""


# In the host


@overload
def process_tool(fn: Function, /, **options: Unpack[ToolOptions]) -> Tool: ...


@overload
def process_tool(
    fn: None = None, /, **options: Unpack[ToolOptions]
) -> Callable[[Function], Tool]: ...


def process_tool(
    fn: Function | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function that runs in a process of its own, which can be killed.

    As :func:`motet.tool`, ``@process_tool``, ``@process_tool(timeout=5)`` or ``process_tool(fn)``.
    The function must be in a module that a new process can import; arguments and result cross as
    data. Its output is kept only for the error of a failed call. It takes no ``Context``; its
    environment and current directory are the host's.

    Raises ``TypeError`` for a function that a process could not find or call, and as ``tool``.
    """

    def build(fn: Function) -> Tool:
        _check(fn)
        module, name = fn.__module__, fn.__qualname__
        FUNCTIONS[module, name] = fn

        async def run(_ctx: Context[object], args: JsonObject) -> object:
            return await _run(module, name, args)

        return attrs.evolve(tool(fn, **options), run=run, begins_itself=True)

    return build if fn is None else build(fn)


def _check(fn: Function) -> None:
    name = getattr(fn, "__qualname__", repr(fn))
    if not inspect.isfunction(fn) or "<" in name:
        raise TypeError(
            f"process_tool {name}: a new process has to find it by its name; give a function that "
            "stands in a module, no closure, lambda, method of an object or partial"
        )
    if fn.__module__ == "__main__":
        raise TypeError(
            f"process_tool {name}: it stands in the program that was started, which a new process "
            "cannot import; move it into a module of its own"
        )
    if describe(fn).takes_context:
        raise TypeError(
            f"process_tool {name}: a Context does not reach another process; take its values "
            "as arguments, or use motet.tool"
        )


async def _run(module: str, name: str, args: JsonObject) -> object:
    """The function's result. Cancelling kills the process and all its descendants."""
    request = {"path": sys.path, "module": module, "name": name, "args": args}
    output = HeadTail(MAX_OUTPUT)
    async with (
        has_place(current_under_way(), "a process", limiter_of(_places, AT_ONCE)),
        open_child([sys.executable, "-P", MAIN]) as child,
    ):
        question = json.dumps(request).encode()
        reply = await child.answer(question, room=MAX_REPLY, words=output)
        if reply is None:
            size = MAX_REPLY >> 20
            raise ToolFailure(f"its result has more than {size} MiB: write a file instead")
        code = await child.wait()
    try:
        answer = msgspec.msgpack.decode(reply, type=Reply)
    except msgspec.MsgspecError:
        _died(code, output)
    return _ended(answer, output)


def _ended(answer: Reply, output: HeadTail) -> object:
    match answer.ended:
        case "returned":
            return answer.value
        case "retry":
            raise ToolRetry(answer.message)
        case "denied":
            raise ToolDenied(answer.message)
        case "negative":
            raise ToolNegative(
                answer.message, value=answer.value, code=answer.code, kind=answer.kind
            )
        case "failed":
            detail = {**answer.detail, **_printed(output)}
            raise ToolFailure(
                answer.message,
                detail=detail,
                code=answer.code,
                kind=answer.kind,
                failure=answer.failure,
            )


def _died(code: int, output: HeadTail) -> NoReturn:
    """Raise for a process that ended without a reply: by a signal, or by the function itself."""
    how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
    said = last_line(output.text())
    message = f"the process of the tool {how} before it had a result" + (said and f": {said}")
    detail = {"message": message, "exit_code": code, **_printed(output)}
    raise ToolFailure(message, detail=detail, kind="exit")


def _printed(output: HeadTail) -> JsonObject:
    return {"output": output.text()} if output.total else {}


# In the process of the call


def answer(module: str, name: str, args: JsonObject) -> bytes:
    """Call the function; returns the reply as msgpack."""

    def called() -> object:
        fn, call = _prepared(module, name, args)
        if inspect.iscoroutinefunction(inspect.unwrap(fn)):
            value = trio.run(cast("Callable[[], Awaitable[object]]", call))
        else:
            value = call()
        return fitting_result(fn, object, value)

    return _reply(outcome.capture(called))


async def answer_here(module: str, name: str, args: JsonObject) -> bytes:
    """As :func:`answer`, in the current run of Trio: for simulations, which have no processes."""

    async def called() -> object:
        fn, call = _prepared(module, name, args)
        value = call()
        if inspect.iscoroutinefunction(inspect.unwrap(fn)):
            value = await cast("Awaitable[object]", value)
        return fitting_result(fn, object, value)

    return _reply(await outcome.acapture(called))


def _reply(result: outcome.Outcome[object]) -> bytes:
    try:
        try:
            with foreign_code:
                return _crossing(Reply("returned", result.unwrap()), "returned")
        except ToolNegative as no:
            reply = Reply("negative", no.value, message_of(no), well_formed(no.code), no.kind)
            return _crossing(reply, "raised ToolNegative with")
    except ToolRetry as retry:
        return msgspec.msgpack.encode(Reply("retry", message=message_of(retry)))
    except ToolDenied as denied:
        return msgspec.msgpack.encode(Reply("denied", message=message_of(denied)))
    except Exception as error:
        return msgspec.msgpack.encode(_failed(error))


def _crossing(reply: Reply, how: str) -> bytes:
    """The reply with its value. Raises ``ToolFailure`` for one that cannot cross as data."""
    try:
        return msgspec.msgpack.encode(reply, enc_hook=plain)
    except Exception as error:  # an object may raise anything here
        raise ToolFailure(
            f"it {how} a {type(reply.value).__qualname__} with no JSON form: give text or data\n"
            "A result crosses to the host as data: texts, numbers of at most 64 bits, lists, "
            f"dicts, dataclasses, structs and models of pydantic ({message_of(error)}).",
            kind="validation",
            detail=serialize_error(error),
        ) from error


def _found(module: str, name: str) -> Function:
    namespace: object = import_module(module)
    known = FUNCTIONS.get((module, name))
    found = known or reduce(getattr, name.split("."), namespace)
    return cast(Function, found)  # checked by the host


def _prepared(module: str, name: str, args: JsonObject) -> tuple[Function, Callable[[], object]]:
    fn = _found(module, name)
    return fn, partial(fn, **describe(fn).accepts.typed(args))


def _failed(error: Exception) -> Reply:
    if isinstance(error, ToolFailure):
        detail = serialize_error(error, detail=error.detail)
        failure, code = failure_class(error), well_formed(error.code)
        return Reply("failed", None, message_of(error), code, error.kind, detail, failure)
    raw, failure = serialize_error(error), failure_class(error)
    return Reply("failed", None, message_of(error), "", classify(error), raw, failure)
