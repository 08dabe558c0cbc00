"""Exceptions that are no ``Exception``, as code of others raises them, for tests of the edges."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

import trio

MakeError: TypeAlias = Callable[[], BaseException]


class Panic(BaseException):
    """As the base of the panics of Rust extensions."""


class Unreadable(BaseException):
    """It raises itself again in each method that could describe it."""

    def __str__(self) -> str:
        raise Unreadable

    __repr__ = __str__


def _of_no_class(_: object) -> NoReturn:
    raise Panic("of no class")


Secretive = type("Secretive", (BaseException,), {"__class__": property(_of_no_class)})
"""Does not say what its class is."""


class OwnGroup(BaseExceptionGroup[BaseException]):
    """Takes part in nothing that groups do."""

    def derive(self, _: object, /) -> NoReturn:
        raise Panic("not derived")

    def split(self, *_: object) -> NoReturn:
        raise Panic("not split")


def stray_cancelled() -> BaseException:
    """A ``Cancelled`` of a scope in another loop, which has ended."""

    async def cancelled() -> BaseException:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                return error.with_traceback(None)
        raise AssertionError

    found: list[BaseException] = []
    thread = threading.Thread(target=lambda: found.append(trio.run(cancelled)))
    thread.start()
    thread.join()
    return found[0]


_STRAY = stray_cancelled()


def circular() -> BaseException:
    """Two errors, each the cause and the context of the other."""
    one, other = Panic("one"), Panic("other")
    one.__cause__ = one.__context__ = other
    other.__cause__ = other.__context__ = one
    return one


def long_chain(length: int = 20_000) -> BaseException:
    """An error with so many causes."""
    last = error = Panic("the first")
    for _ in range(length):
        last.__cause__ = Panic("one more")
        last = last.__cause__
    return error


def nested(depth: int) -> BaseException:
    """A group in a group in a group, deeper than Python recurses."""
    error: BaseException = Panic("deep inside")
    for _ in range(depth):
        members: list[BaseException] = [error]
        error = BaseExceptionGroup("group", members)
    return error


ERRORS: Mapping[str, MakeError] = {
    "asyncio.CancelledError": lambda: asyncio.CancelledError("of another loop"),
    "GeneratorExit": lambda: GeneratorExit("of a generator"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("of no user"),
    "SystemExit": lambda: SystemExit(3),
    "own class": lambda: Panic("at the disco"),
    "trio.Cancelled": lambda: _STRAY.with_traceback(None),
    "StopIteration": lambda: StopIteration("of an iterator"),
    "StopAsyncIteration": lambda: StopAsyncIteration("of an iterator"),
    "RecursionError": lambda: RecursionError("too deep"),
    "MemoryError": lambda: MemoryError("too much"),
    "group": lambda: BaseExceptionGroup("group", [Panic("one"), GeneratorExit("two")]),
    "group of one": lambda: BaseExceptionGroup("group", [KeyboardInterrupt("alone")]),
    "group with a Cancelled": lambda: BaseExceptionGroup(
        "group", [ValueError("a"), _STRAY.with_traceback(None)]
    ),
    "unreadable": Unreadable,
    "secretive": Secretive,
    "own group": lambda: OwnGroup("group", [Panic("one"), ValueError("two")]),
    "circular": circular,
    "long chain": long_chain,
    "deeply nested": lambda: nested(3_000),
}
"""By name, ways to make them anew."""
