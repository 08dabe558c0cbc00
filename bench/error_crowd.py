"""Failures in crowds and of megabytes: the longest pass of the event loop, and the memory.

A pass is measured in CPU time of the loop's thread, garbage collections included, since others may
have the processor meanwhile. All of a crowd wait for one event, and fail in the pass after it. Its
peer is the same crowd of tasks whose errors are only raised and caught. Memory while a record is
made is that of Python objects, as a multiple of the bound of one error; memory on its way into the
database is that of the process, as a multiple of what is stored.
"""

from __future__ import annotations

import gc
import logging
import statistics
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import ClassVar

import trio
import trio.testing

import motet
from motet.actors.errors.capture import capture, describe, whole_error
from motet.protocols.chat import ToolMessage
from motet.protocols.error_records import Origin
from motet.protocols.long_texts import ERROR_LIMIT
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
)

FAILURES, SESSIONS, CALLS = 5_000, 600, 8
HUGE = 100_000_000


class _Passes(trio.abc.Instrument):
    """The longest pass of the loop, in seconds of CPU."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began: float | None = None

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        if self._began is not None:
            self.longest = max(self.longest, time.thread_time() - self._began)


def longest_passes(rounds: int) -> tuple[float, float, float]:
    """Milliseconds with the error channel, of calls of tools, and of bare tasks.

    Medians of interleaved rounds.
    """
    logging.getLogger("motet").setLevel(logging.CRITICAL)
    crowds = (_channel, _sessions, _bare)
    figures = [[trio.run(crowd) for crowd in crowds] for _ in range(rounds)]
    channel, sessions, bare = map(statistics.median, zip(*figures, strict=True))
    return channel, sessions, bare


async def _channel() -> float:
    with TemporaryDirectory() as folder:
        async with motet.open_host(folder) as host:
            channel = host._parts.services.errors  # pyright: ignore[reportPrivateUsage]

            async def report(number: int, error: OSError) -> None:
                session = f"s{number % SESSIONS}"
                await channel.report(Origin(session, "t"), error)

            return await _longest(report)


class _Model:
    """Calls the tool at first, and then answers."""

    name = "crowd"
    calls: ClassVar[list[ModelEvent]] = [
        *(CallStart(index, f"c{index}", "fail") for index in range(CALLS)),
        *(CallArguments(index, f'{{"number": {index}}}') for index in range(CALLS)),
        Finished("tool_calls"),
    ]
    answer: ClassVar[list[ModelEvent]] = [TextPart("so be it"), Finished("stop")]

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        has_failed = any(isinstance(message, ToolMessage) for message in request.messages)
        yield _events(self.answer if has_failed else self.calls)


async def _events(events: list[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    for event in events:
        await trio.lowlevel.checkpoint()
        yield event


async def _sessions() -> float:
    """So many sessions, each with some parallel calls of one tool."""
    gate, waiting, all_wait = trio.Event(), 0, trio.Event()

    async def fail(number: int) -> str:
        """Wait, and fail."""
        nonlocal waiting
        waiting += 1
        if waiting == SESSIONS * CALLS:
            all_wait.set()
        await gate.wait()
        raise OSError(f"no route to host {number}\npassword=hunter2hunter2")

    agent = motet.Agent("crowd", model=_Model(), tools=[fail])
    with TemporaryDirectory() as folder:
        async with motet.open_host(folder, agents=[agent]) as host, trio.open_nursery() as nursery:
            for number in range(SESSIONS):
                run = partial(host.run, agent, "hi", session=f"s{number}", check=False)
                nursery.start_soon(run)
            await all_wait.wait()
            with _measured() as passes:
                gate.set()
                while nursery.child_tasks:
                    await trio.sleep(0.05)
    return passes.longest * 1000


async def _bare() -> float:
    gate = trio.Event()

    async def report(_number: int, _error: OSError) -> None:
        await gate.wait()

    async def open_later() -> None:
        await trio.sleep(0.3)
        gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_later)
        return await _longest(report)


async def _longest(report: Callable[[int, OSError], Awaitable[None]]) -> float:
    gate = trio.Event()

    async def fail(number: int) -> None:
        await gate.wait()
        try:
            raise OSError(f"no route to host {number}\npassword=hunter2hunter2")
        except OSError as error:
            await report(number, error)

    async with trio.open_nursery() as nursery:
        for number in range(FAILURES):
            nursery.start_soon(fail, number)
        await trio.testing.wait_all_tasks_blocked(0.01)
        with _measured() as passes:
            gate.set()
            while nursery.child_tasks:
                await trio.sleep(0.05)
    return passes.longest * 1000


@contextmanager
def _measured() -> Generator[_Passes]:
    gc.collect()
    passes = _Passes()
    trio.lowlevel.add_instrument(passes)
    try:
        yield passes
    finally:
        trio.lowlevel.remove_instrument(passes)


def memory_factor() -> float:
    """The largest of some errors of 100 MB, beside the error itself."""
    return round(max(_memory(make()) for make in _ERRORS) / ERROR_LIMIT, 2)


def _noted() -> BaseException:
    error = ValueError("boom")
    error.add_note("no such thing\n" * (HUGE // 14))
    return error


_ERRORS: tuple[Callable[[], object], ...] = (
    lambda: ValueError("no such thing\n" * (HUGE // 14)),
    lambda: ValueError(b"\0ab" * (HUGE // 3)),
    lambda: ExceptionGroup("several", [ValueError("é" * HUGE), KeyError("x" * HUGE)]),
    _noted,
)


def _memory(error: object) -> int:
    """Bytes at most while the record of an error is made; the redactor only slows counting."""
    tracemalloc.start()
    captured = capture(error)
    raw, _ = whole_error(captured, describe(captured).code, keep_raw=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert raw
    return most
