"""The entry point of a program: one system, its main function, and the signals that end them.

The first SIGINT or SIGTERM drains: the system is stopped with its grace, and the answers under way
arrive. The second cancels at once. A third reaches Python's own handlers, which end the process. A
program that has a nursery uses :func:`open_system` in it, and handles signals as it likes.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import trio

from motet.runtime.errors import ActorDead, only_error
from motet.runtime.scopes import open_hidden_nursery
from motet.runtime.supervision import Supervision
from motet.runtime.system import System, open_system
from motet.runtime.telemetry import Meter

__all__ = ["run_system"]

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger("motet.runtime")


def run_system(
    main: Callable[[System], Awaitable[T]],
    *,
    grace: float | None = None,
    name: str = "system",
    supervision: Supervision | None = None,
    telemetry: Meter | None = None,
) -> T | None:
    """Run ``main(system)`` in a new system under ``trio.run``, and return its result.

    When ``main`` returns, the system is stopped within ``grace`` seconds (None: five). A first
    signal stops it too, and then cancels ``main``: the result is None. A second one cancels every
    handler, runs the clean-ups within their budgets, and raises ``SystemExit(128 + number)``.
    Leftovers of a stop are logged. Errors of ``main`` and :class:`RestartLimitExceeded` are raised.
    Only in the main thread, since Python delivers signals nowhere else.
    """

    async def program() -> T | None:
        async with open_system(name, supervision=supervision, telemetry=telemetry) as system:
            return await _Program(system, main, grace).run()

    return trio.run(program)


class _Program(Generic[T]):
    def __init__(
        self, system: System, main: Callable[[System], Awaitable[T]], grace: float | None
    ) -> None:
        self._system = system
        self._main = main
        self._grace = grace
        self._result: T | None = None
        self._draining = False
        self._cut_by: int | None = None

    async def run(self) -> T | None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async with open_hidden_nursery() as nursery:
                nursery.start_soon(self._handle_signals, signals, nursery)
                await self._work()
                # A drain that a signal began keeps its own grace, though main has ended.
                if not self._draining:
                    await self._drain()
                    nursery.cancel_scope.cancel()
        if self._cut_by is not None:
            # An exception that leaves the system's block ends the system at once.
            raise SystemExit(128 + self._cut_by)
        return self._result

    async def _work(self) -> None:
        try:
            self._result = await self._main(self._system)
        except Exception as error:
            # During the drain the asks of main are refused, which is no failure of the program.
            if not (self._draining and isinstance(only_error(error), ActorDead)):
                raise

    async def _handle_signals(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        number = await anext(signals)
        _log.info("%s: stopping; once more to stop at once", signal.Signals(number).name)
        if not self._draining:
            self._draining = True
            nursery.start_soon(self._drain_and_leave, nursery)
        self._cut_by = await anext(signals)
        nursery.cancel_scope.cancel()

    async def _drain_and_leave(self, nursery: trio.Nursery) -> None:
        await self._drain()
        nursery.cancel_scope.cancel()

    async def _drain(self) -> None:
        self._draining = True
        report = await self._system.stop(self._grace)
        for left in (*report.abandoned, *report.still_running):
            _log.warning("left by the stop: %s: %s", left.path, left.what)
