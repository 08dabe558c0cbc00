"""Timers: the time limits of asks and the messages of schedules, in one task for a whole system.

A cancel scope with a deadline costs more than the ask itself. Here a limit is one entry in a heap.
Most asks are answered in time, so a stopped entry stays in the heap and is removed in bulk, when
such entries are the majority: removing one at a time would search the heap for each answer.
Invariant: the task sleeps until the earliest entry or an earlier time, so no limit is late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

import msgspec
import trio

__all__ = ["Timer", "Timers"]

_SLACK = 64  # stopped entries that are not worth removing


class Timer(msgspec.Struct, order=True):
    """One time limit: calls ``fire`` at ``when`` in Trio's clock, unless stopped before.

    Ordered by time, then by age, so that timers with the same time fire in their order.
    """

    when: float
    number: int
    fire: Callable[[], None] | None


class Timers:
    """The timers of one system. ``fire`` runs in the timers' task and must not raise."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._numbers = count()
        self._live = 0
        self._sleep = trio.CancelScope()
        # Shielded: clean-ups that run during a cancellation have time limits too.
        self._all = trio.CancelScope(shield=True)
        self._until = math.inf  # when the task wakes

    def start(self, when: float, fire: Callable[[], None]) -> Timer:
        """Call ``fire()`` at ``when``."""
        timer = Timer(when, next(self._numbers), fire)
        heappush(self._heap, timer)
        self._live += 1
        # Only ever earlier: a stopped timer leaves the task to wake once for nothing, which is
        # cheaper than to look for the next one at each stop.
        if when < self._until:
            self._until = when
            self._sleep.deadline = when
        return timer

    def stop(self, timer: Timer) -> None:
        """Forget a timer. Does nothing if it has fired."""
        if timer.fire is None:
            return
        timer.fire = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + _SLACK:
            self._heap = [timer for timer in self._heap if timer.fire is not None]
            heapify(self._heap)

    def __len__(self) -> int:
        """The number of entries in the heap, stopped ones included."""
        return len(self._heap)

    def fire_due(self) -> None:
        """Fire the due timers now, for a caller that cannot wait for the task."""
        now = trio.current_time()
        while self._heap and self._heap[0].when <= now:
            timer = heappop(self._heap)
            fire, timer.fire = timer.fire, None
            if fire is not None:
                self._live -= 1
                fire()

    async def run(self) -> None:
        """Fire the due timers and sleep until the next, until closed."""
        with self._all:
            while True:
                self.fire_due()
                self._until = self._heap[0].when if self._heap else math.inf
                with trio.CancelScope(deadline=self._until) as self._sleep:
                    await trio.sleep_forever()

    def close(self) -> None:
        """End the task. Only after the last ask has."""
        self._all.cancel()
