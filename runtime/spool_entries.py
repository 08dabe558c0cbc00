"""Entries of a spool: items on their way into a store, and places for tasks that wait."""

from __future__ import annotations

from typing import Generic, Literal, TypeAlias, TypeVar

import attrs
import trio

from motet.runtime.spill import Identified

T = TypeVar("T")
R = TypeVar("R", bound=Identified)
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
        self.turn = trio.lowlevel.ParkingLot()
        self.arrived = trio.lowlevel.ParkingLot()
        self.crowded = trio.lowlevel.ParkingLot()
        self.prepared = trio.lowlevel.ParkingLot()
        self.room = trio.lowlevel.ParkingLot()
        self.threads = trio.CapacityLimiter(2)
