"""One call in a process of its own: find the function, call it, and pack up how that ended.

Invariant: :func:`answer` returns a reply whatever the function does, short of ending the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, reduce
from importlib import import_module
from typing import Literal, cast

import msgspec
import outcome
import trio

from motet.actors.errors.classify import classify
from motet.actors.errors.raw import raw_error
from motet.actors.errors.text import message_of
from motet.actors.tools.models import dumped
from motet.actors.tools.schema import Function, describe
from motet.actors.tools.tool import ToolDenied, ToolFailure, ToolRetry
from motet.protocols.chat import JsonObject

FUNCTIONS: dict[tuple[str, str], Function] = {}
"""The functions behind decorators, by module and name: the module has the tool by that name."""


class Reply(msgspec.Struct, frozen=True):
    """How a call ended. ``value`` is for ``returned``, the rest for what was raised."""

    ended: Literal["returned", "retry", "denied", "failed"]
    value: object = None
    message: str = ""
    code: str = ""
    kind: str = ""
    detail: JsonObject = {}


def answer(module: str, name: str, args: JsonObject) -> bytes:
    """Call the function; the reply as msgpack."""

    def called() -> object:
        fn, call = _prepared(module, name, args)
        if inspect.iscoroutinefunction(inspect.unwrap(fn)):
            return trio.run(cast("Callable[[], Awaitable[object]]", call))
        return call()

    return _reply(outcome.capture(called))


async def answer_here(module: str, name: str, args: JsonObject) -> bytes:
    """The same in the run of Trio that is there: for a simulation, which has no processes."""

    async def called() -> object:
        fn, call = _prepared(module, name, args)
        value = call()
        if inspect.iscoroutinefunction(inspect.unwrap(fn)):
            return await cast("Awaitable[object]", value)
        return value

    return _reply(await outcome.acapture(called))


def _reply(result: outcome.Outcome[object]) -> bytes:
    try:
        return msgspec.msgpack.encode(Reply("returned", result.unwrap()), enc_hook=dumped)
    except ToolRetry as retry:
        return msgspec.msgpack.encode(Reply("retry", message=str(retry)))
    except ToolDenied as denied:
        return msgspec.msgpack.encode(Reply("denied", message=str(denied)))
    except (Exception, SystemExit) as error:
        return msgspec.msgpack.encode(_failed(error))


def _found(module: str, name: str) -> Function:
    namespace: object = import_module(module)
    known = FUNCTIONS.get((module, name))
    found = known or reduce(getattr, name.split("."), namespace)
    return cast(Function, found)  # the host has checked that it is one


def _prepared(module: str, name: str, args: JsonObject) -> tuple[Function, Callable[[], object]]:
    fn = _found(module, name)
    return fn, partial(fn, **describe(fn).accepts.typed(args))


def _failed(error: BaseException) -> Reply:
    if isinstance(error, ToolFailure):
        detail = error.detail or raw_error(error)
        return Reply("failed", None, str(error), error.code, error.kind, detail)
    raw = raw_error(error)
    return Reply("failed", None, message_of(error), "", classify(error), raw)
