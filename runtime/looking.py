"""What of an actor is to be seen from outside: its line in a dump, its counters, its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from motet.runtime.inspect import ActorInfo, Leftover, Statistics
from motet.runtime.stopping import blocking_tasks, stack_of

if TYPE_CHECKING:
    from motet.runtime.cell import Cell

__all__ = ["info_of", "leftovers_of", "statistics_of"]


def info_of(cell: Cell, now: float) -> ActorInfo:
    """The line of a dump."""
    age = now - cell.life.began if cell.life is not None else 0.0
    waiting = "; ".join(wait.describe(now) for wait in cell.turn.waits) or None
    queued = len(cell.mailbox.queue) + cell.mailbox.stashed
    return ActorInfo(cell.path, cell.state, queued, age, waiting, cell.paused)


def statistics_of(cell: Cell) -> Statistics:
    """The counters over all incarnations."""
    box = cell.mailbox
    return Statistics(
        state=cell.state,
        accepted=box.accepted,
        handled=box.handled,
        withdrawn=box.withdrawn,
        dead_lettered=box.dead_lettered,
        stashed=box.stashed,
        queued=len(box.queue),
        running=box.running,
        waiting=len(box.waiting),
        restarts=cell.restarts,
        in_turn=box.running - box.running_aside - (box.again is not None),
        capacity=box.spec.capacity,
        concurrency=_concurrency(cell),
    )


def _concurrency(cell: Cell) -> int:
    """How many handlers may run at once: one in the turn, if any is, and the concurrent."""
    handlers = cell.handlers.values()
    in_turn = any(handler.in_turn for handler in handlers)
    return in_turn + sum(handler.concurrent for handler in handlers if not handler.in_turn)


def leftovers_of(cell: Cell) -> Iterator[Leftover]:
    """The tasks of this actor that are still there, with their stacks."""
    for own in _tasks(cell):
        for task in blocking_tasks(own):
            yield Leftover(cell.path, f"{task.name} ignores cancellation", stack_of(task))


def _tasks(cell: Cell) -> Iterator[trio.lowlevel.Task]:
    """The task of the turn, unless it only waits for the others, and those beside the turn."""
    life = cell.life
    beside = () if life is None or life.workers is None else life.workers.tasks
    waits = beside and life is not None and life.scope is None
    if cell.task is not None and not waits:
        yield cell.task
    yield from beside
