"""Failures in crowds and of megabytes: the longest pass of the event loop, and the memory.

A pass is measured in CPU time of the loop's thread, garbage collections included, since others may
have the processor meanwhile. Its peer is the same crowd of tasks whose errors are only raised and
caught. Memory is that of Python objects, as a multiple of the bound of one error.
"""

from __future__ import annotations

import gc
import logging
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from tempfile import TemporaryDirectory

import trio

import motet
from motet.actors.errors.capture import capture, describe, whole_error
from motet.protocols.long_texts import ERROR_LIMIT

FAILURES, SESSIONS = 5_000, 600
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


def longest_passes(rounds: int) -> tuple[float, float]:
    """Milliseconds with the error channel, and without; the medians of interleaved rounds."""
    pairs = [(trio.run(_channel), trio.run(_bare)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


async def _channel() -> float:
    logging.getLogger("motet").setLevel(logging.CRITICAL)
    with TemporaryDirectory() as folder:
        async with motet.open_host(folder) as host:
            channel = host._parts.services.errors  # pyright: ignore[reportPrivateUsage]

            async def report(number: int, error: OSError) -> None:
                session = f"s{number % SESSIONS}"
                await channel.report(session=session, run_id="", tool="t", error=error)

            return await _longest(report)


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
    async def fail(number: int) -> None:
        try:
            raise OSError(f"no route to host {number}\npassword=hunter2hunter2")
        except OSError as error:
            await report(number, error)

    gc.collect()
    await trio.sleep(0.01)
    passes = _Passes()
    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for number in range(FAILURES):
            nursery.start_soon(fail, number)
    trio.lowlevel.remove_instrument(passes)
    return passes.longest * 1000


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
