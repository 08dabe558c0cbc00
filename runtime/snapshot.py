"""Snapshots of a living system: plain records, each taken in one synchronous step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import trio

from motet.runtime.cell import Cell
from motet.runtime.envelope import Ask
from motet.runtime.lifecycle import LifeState
from motet.runtime.queues import WaitingTell
from motet.runtime.stopping import Leftover, blocking_tasks, stack_of

__all__ = ["ActorInfo", "Statistics", "info_of", "leftovers_of", "statistics_of"]


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one actor over all its incarnations.

    At every checkpoint (G4) accepted = handled + withdrawn + dead_lettered + stashed + queued +
    running. ``waiting`` senders are parked before the mailbox; their messages are not accepted yet.
    ``running`` includes a message that waits for its retry; ``in_turn``, the number of handlers in
    the turn now, 0 or 1 (G5), does not. ``capacity`` and ``concurrency``, the number of handlers
    that may run at once, are as declared (G13, G5). ``deferred``: requests that were handled, and
    whose answer is due by a :class:`ReplyTo`.
    """

    state: LifeState
    accepted: int
    handled: int
    withdrawn: int
    dead_lettered: int
    stashed: int
    queued: int
    running: int
    waiting: int
    restarts: int
    in_turn: int = 0
    capacity: int = 0
    concurrency: int = 0
    deferred: int = 0


class ActorInfo(msgspec.Struct, frozen=True):
    """One line of a dump: ``age_s`` in seconds since the incarnation began, 0 if there is none.

    ``waiting_on``: the actors that its turn, its concurrent handlers and its tasks wait for, those
    beside the turn with their names in front. ``paused``: suspended by :meth:`ActorRef.suspend`,
    which is not part of the state.
    """

    path: str
    state: LifeState
    queued: int
    age_s: float
    waiting_on: str | None
    paused: bool = False


def info_of(cell: Cell, now: float) -> ActorInfo:
    """The line of a dump."""
    age = now - cell.incarnation.began if cell.incarnation is not None else 0.0
    waiting = "; ".join(_waits(cell, now)) or None
    queued = cell.mailbox.queue.items + cell.mailbox.stashed
    return ActorInfo(cell.path, cell.state, queued, age, waiting, cell.paused)


def _waits(cell: Cell, now: float) -> Iterator[str]:
    """The waits for actors of every task of this actor."""
    yield from (wait.describe(now) for wait in cell.turn.waits)
    workers = None if cell.incarnation is None else cell.incarnation.workers
    for method, work in () if workers is None else workers.named_work():
        yield from (f"{method}: {wait.describe(now)}" for wait in work.waits)
    # A task of `start_soon` is no work of the wait-for graph, since no handler waits for it.
    for own in () if workers is None else workers.background:
        for task in blocking_tasks(own):
            wait = task.custom_sleep_data
            if isinstance(wait, Ask | WaitingTell):
                yield f"{task.name.removeprefix(cell.path).strip()}: {wait.describe(now)}"


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
        queued=box.queue.items,
        running=box.running,
        waiting=len(box.waiting),
        restarts=cell.restarts,
        in_turn=box.running - box.running_concurrently - (box.retrying is not None),
        capacity=box.spec.capacity,
        concurrency=_concurrency(cell),
        deferred=0 if cell.deferred is None else len(cell.deferred),
    )


def _concurrency(cell: Cell) -> int:
    """The declared number of handlers at once: one in the turn, if any, and the concurrent."""
    in_turn = beside = 0
    for handler in cell.handlers.values():
        if handler.in_turn:
            in_turn = 1
        else:
            beside += handler.concurrent
    return in_turn + beside


def leftovers_of(cell: Cell) -> Iterator[Leftover]:
    """The tasks of this actor that have not ended, with their stacks."""
    if cell.is_occupied and cell.task is None:
        yield Leftover(cell.path, "its task has not taken its first step", "")
    for own in _tasks(cell):
        for task in blocking_tasks(own):
            yield Leftover(cell.path, f"{task.name} ignores cancellation", stack_of(task))
    for method, asker in _askers(cell):
        name = f"{cell.path} {method}, in the task {asker.name},"
        for task in blocking_tasks(asker):
            yield Leftover(cell.path, f"{name} ignores cancellation", stack_of(task))


def _askers(cell: Cell) -> Sequence[tuple[str, trio.lowlevel.Task]]:
    """The handlers in the tasks of their askers: the method's name, and the task."""
    workers = None if cell.incarnation is None else cell.incarnation.workers
    return () if workers is None else workers.askers


def _tasks(cell: Cell) -> Iterator[trio.lowlevel.Task]:
    """The tasks beside the turn, and the task of the turn unless it only waits for these."""
    incarnation = cell.incarnation
    beside = () if incarnation is None or incarnation.workers is None else incarnation.workers.tasks
    # Without a scope the actor's own task has left its turns, and waits for the others to end: it
    # is not the one that ignores the cancellation.
    others = beside or _askers(cell)
    waits = others and incarnation is not None and incarnation.scope is None
    if cell.task is not None and not waits:
        yield cell.task
    yield from beside
