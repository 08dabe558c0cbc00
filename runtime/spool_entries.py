"""Entries of a spool: items on their way into a store, and places for tasks that wait."""

from __future__ import annotations

import gc
from collections.abc import Awaitable
from functools import partial
from itertools import islice
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import attrs
import trio

from motet.runtime.spill import Identified

T = TypeVar("T")
R = TypeVar("R", bound=Identified)
AT_ONCE: Final = 32
"""Items taken in one pass of the event loop: what is done with each takes some 70 us of it, and all
tasks of a crowd begin to wait in the first pass."""
SLICE: Final = 64
"""Calls that go on in one pass of the event loop: each takes some 70 us of it."""
HELD: Final = 500
"""Passes of the event loop that a crowd holds the collector up, at most: some milliseconds each."""
State: TypeAlias = Literal["waiting", "stored", "spilled", "held up", "lost", "blank"]
"""``held up``: in memory, while the storage takes nothing. ``blank``: it has nothing to store."""


@attrs.define(eq=False)
class Entry(Generic[T, R]):
    """An item in the spool.

    Attributes:
        timestamp: Unix seconds.
        problem: the reason why it is not durable.
        patient: it waits for the store, unless that fails.
        waiter: the task that waits until its fate is known. No event: thousands wait at once.
    """

    id: str
    item: T
    timestamp: float
    size: int
    record: R | None = None
    state: State = "waiting"
    problem: Exception | None = None
    attempts: int = 0
    patient: bool = False
    waiter: trio.lowlevel.Task | None = None

    @property
    def durable(self) -> bool:
        return self.state in ("stored", "spilled")

    def leave(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        """The task that waits is cancelled."""
        self.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def settle(self, state: State, problem: Exception | None = None) -> None:
        self.state, self.problem = state, problem
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            trio.lowlevel.reschedule(waiter)


@attrs.frozen
class SpoolStatistics:
    """Items in memory and their bytes, in the spill file, stored since the start, and lost."""

    waiting: int
    bytes: int
    spilled: int
    stored: int
    lost: int
    problem: str


@attrs.define
class Counts:
    """``told``: of the lost items, those that an item counts. ``steps``: any progress."""

    stored: int = 0
    lost: int = 0
    told: int = 0
    steps: int = 0


class Crowd:
    """Tasks that wait for their turn, first come first served.

    Thousands come in one pass of the event loop, and what is made for them there holds it up: so
    this is no parking lot, whose places take twice as much. For the same reason Python's collector
    of garbage waits until the crowd is gone, or for :data:`HELD` passes of the loop. Else it finds
    so many new objects that it looks at all objects of the program, for a fifth of a second, and
    most of the new ones are gone soon after. Those that are left go to the oldest generation, which
    costs nothing: as young ones, they would be looked at together in one pass. A collector that the
    program has switched off stays as it is.
    """

    def __init__(self) -> None:
        self._tasks: dict[trio.lowlevel.Task, None] = {}
        self._passes_held = 0

    def wait(self) -> Awaitable[object]:
        task = trio.lowlevel.current_task()
        self._tasks[task] = None
        if len(self._tasks) == AT_ONCE and gc.isenabled():
            gc.disable()
            self._passes_held = HELD
        return trio.lowlevel.wait_task_rescheduled(partial(self._leave, task))

    def end_pass(self, *, waits_long: bool = False) -> None:
        """A pass of the loop is over. ``waits_long``: the tasks will wait for more than that."""
        if self._passes_held:
            self._passes_held -= 1
            if waits_long or not self._tasks or not self._passes_held:
                self._passes_held = 0
                if not gc.get_freeze_count():  # else the program has set objects apart for itself
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()

    def wake(self, count: int) -> None:
        """Wake so many of them, or all that there are."""
        for task in [*islice(self._tasks, count)]:
            del self._tasks[task]
            trio.lowlevel.reschedule(task)

    def wake_all(self) -> None:
        self.wake(len(self._tasks))

    def _leave(
        self, task: trio.lowlevel.Task, _: trio.lowlevel.RaiseCancelT
    ) -> trio.lowlevel.Abort:
        del self._tasks[task]
        return trio.lowlevel.Abort.SUCCEEDED


class Doors:
    """The waiting places of a spool.

    ``entered``: items of this pass of the event loop. ``waiting``: tasks that wait for their turn.
    ``is_stuck``: those who have it need no room.
    """

    def __init__(self) -> None:
        self.open = False
        self.entered = 0
        self.waiting = 0
        self.is_stuck = False
        self.turn = Crowd()
        self.arrived = trio.lowlevel.ParkingLot()
        self.crowded = trio.lowlevel.ParkingLot()
        self.prepared = trio.lowlevel.ParkingLot()
        self.impatient = trio.lowlevel.ParkingLot()
        self.room = trio.lowlevel.ParkingLot()
        self.threads = trio.CapacityLimiter(2)


class Slices:
    """Lets 64 tasks go on in a pass of the loop, the first of which lets the next ones in."""

    def __init__(self) -> None:
        self._gone, self._is_led, self._waiting = 0, False, trio.lowlevel.ParkingLot()

    async def go_on(self) -> None:
        """Wait, if many others go on now. No checkpoint otherwise."""
        if self._gone < SLICE and not self._waiting:
            self._gone += 1
            return
        if self._is_led:
            await self._waiting.park()
            if self._is_led:
                return
        self._is_led = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._gone = len(self._waiting.unpark(count=SLICE))
            self._is_led = False
