"""Many calls at once, with results by index; no call changes another's result (G8).

Invariant: every call has one entry, at its own index. Calls begin in their order, at most ``limit``
run at once, and each call that has begun has ended when :func:`gather_ordered` returns. Up to
``limit`` tasks share the calls. For calls that are plain asks, ``asks.py`` needs no tasks.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec
import trio

from motet.runtime.errors import unwrapped
from motet.runtime.outside import foreign_code

__all__ = ["Cut", "Done", "Failed", "Settled", "gather_ordered"]

T = TypeVar("T")


class Done(msgspec.Struct, Generic[T], frozen=True):
    """The call returned."""

    value: T


class Failed(msgspec.Struct, frozen=True):
    """The call raised; a group of one error is unwrapped."""

    error: Exception


class Cut(msgspec.Struct, frozen=True):
    """The deadline passed: before the call began, or while it ran, so that it was cancelled."""

    started: bool


Settled: TypeAlias = Done[T] | Failed | Cut


async def gather_ordered(
    calls: Sequence[Callable[[], Awaitable[T]]],
    *,
    limit: int,
    deadline: float = math.inf,
    isolate: bool = True,
) -> list[Settled[T]]:
    """Run every call once and return all outcomes by index, in whatever order they end.

    At most ``limit`` run at once; with 1 they run in order. At ``deadline``, on Trio's clock,
    running calls are cancelled and waited for, and no further call begins; a call that finishes
    nevertheless is :class:`Done`. With ``isolate=False`` the first failure does the same and is
    raised: all or nothing. Cancelled: as at the deadline, and ``Cancelled`` goes on.
    """
    if limit < 1:
        raise ValueError(f"limit is the number of calls at once, so >= 1, not {limit}")
    scope = trio.CancelScope(deadline=deadline)
    fan = _FanOut(calls, None if isolate else scope)
    with scope:
        await fan.run(limit)
    if fan.first_error is not None:
        raise fan.first_error
    return fan.results


class _FanOut(Generic[T]):
    """``abort``: the scope that a failure cancels; None if failures are isolated."""

    def __init__(
        self, calls: Sequence[Callable[[], Awaitable[T]]], abort: trio.CancelScope | None
    ) -> None:
        self.results: list[Settled[T]] = [Cut(started=False) for _ in calls]
        self.first_error: Exception | None = None
        self._calls = calls
        self._abort = abort
        self._pending: Iterator[int] = iter(range(len(calls)))

    async def run(self, limit: int) -> None:
        workers = min(limit, len(self._calls))
        if workers <= 1:
            await self._work()
            return
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        """Take the next call until none is left: the workers share one iterator."""
        # After a call that finished despite a cancellation no further call may begin. A function
        # without a checkpoint would hide the cancellation, so look for it before each call.
        await trio.lowlevel.checkpoint_if_cancelled()
        for index in self._pending:
            await self._settle(index)
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _settle(self, index: int) -> None:
        # Written before the call, so that whatever way the call is left by, the entry is right.
        self.results[index] = Cut(started=True)
        try:
            with foreign_code:
                self.results[index] = Done(await self._calls[index]())
        except Exception as error:
            self._failed(index, unwrapped(error))
        except BaseExceptionGroup as group:
            failures, going_on = group.split(Exception)
            if failures is not None:
                self._failed(index, unwrapped(failures))
                # A group that is no Exception holds a Cancelled, which must reach its scope.
                raise (going_on or group) from None
            raise

    def _failed(self, index: int, error: Exception) -> None:
        self.results[index] = Failed(error)
        if self._abort is not None:
            self.first_error = self.first_error or error
            self._abort.cancel()
