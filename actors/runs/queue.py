"""Carries out the rules of :mod:`~motet.actors.runs.queue_rules` on the runs of a session.

Nothing here awaits. Invariant: what is taken out of a queue is handed back, or is in the slot's
``dropped``, so that whoever sent it is told once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Final

import attrs
import trio

from motet.actors.runs import queue_rules as queueing
from motet.actors.runs.queue_rules import Way
from motet.protocols.queueing import QueueConfig
from motet.protocols.sessions import Ack, QueueFull, SessionBusy

if TYPE_CHECKING:
    from motet.actors.runs.run import Run
    from motet.protocols.sessions import FinishRun, SessionMessage
    from motet.runtime import ActorRef


INTERRUPTED = "interrupted by a newer input"
SUPERSEDED = "a newer input has taken its place"
TOO_LATE = "the run that it was for has ended"


def most_runs(rules: QueueConfig, *, group: bool) -> int:
    return rules.concurrent if group else 1


def limit(slot: Slot, rules: QueueConfig, suspended: int) -> int:
    """Runs of the session that may go on at once, beside those that are suspended."""
    if not slot.group:
        return 1 - suspended
    most = most_runs(rules, group=True)
    return queueing.allowed(most, slot.tokens, slot.window, rules.throttle) - suspended


def check(slot: Slot, run: Run, rules: QueueConfig, *, busy: bool) -> None:
    """Whether an input may come in. Raises ``QueueFull``, ``SessionBusy``; nothing is stored."""
    if any(
        one.input.principal.user != run.input.principal.user for one in (*slot.running, *slot.queue)
    ):
        return  # it is told nothing of another's session: the store does not know it there
    if run.placement.mode == "reject" and busy:
        raise SessionBusy(
            f"session {run.session!r} is at work, and its inputs are refused meanwhile: "
            "try again when it has answered, or choose another queue mode"
        )
    waiting = slot.arriving if rules.overflow != "reject" else len(slot.queue) + slot.arriving
    if waiting >= rules.capacity:
        raise QueueFull(
            f"session {run.session!r} has {rules.capacity} inputs waiting; "
            "try again when a run has ended, or stop one"
        )


def arrive(slot: Slot, run: Run, rules: QueueConfig, most: int, now: float) -> Way:
    """Queue an input that is on disk, or let it enter a run; ``most``: that may go on at once."""
    shared = False
    if run.placement.pause and run.placement.steers is None:
        run.placement.burst = queueing.held_with(slot.queue, run, now, run.placement.pause)
        shared = run.placement.burst.began < now or any(
            one.placement.burst is run.placement.burst for one in slot.queue
        )
    slot.queue.append(run)
    if over := queueing.surplus(slot.queue, rules):
        _drop(slot, over, f"the queue was full: {rules.capacity} inputs wait already")
        if run in over:
            return "drop"
    if run.placement.burst is not None and queueing.is_held(run, now):
        return "join" if shared else "wait"
    return _place(slot, run, most)


def ripen(slot: Slot, held: Iterable[Run], most: int, now: float) -> None:
    """Place what has been held long enough."""
    for run in held:
        if run in slot.queue and not queueing.is_held(run, now):
            _place(slot, run, most)


def drop_strays(slot: Slot, live: Container[str | None]) -> None:
    """Drop what was only to enter a run which is not ``live`` any more."""
    lost = [
        run for run in slot.queue if run.placement.only_enters and run.placement.steers not in live
    ]
    if lost:
        _drop(slot, lost, TOO_LATE)


def take(slot: Slot, most: int, now: float) -> tuple[Run, ...]:
    """Take out of the queue what starts next, to be answered as one."""
    queue = [run for run in slot.queue if not run.placement.only_enters]
    batch = queueing.next_batch(queue, slot.running, most, now)
    for run in batch:
        slot.queue.remove(run)
    if len(batch) > 1:
        first = batch[0]
        first.input = attrs.evolve(
            first.input, text=queueing.joined_text(run.input.text for run in batch)
        )
        first.placement.joined = tuple(run.id for run in batch[1:])
    return batch


def target(slot: Slot, author: str) -> Run | None:
    """The run that somebody means who names none: their newest, or the newest."""
    own = [run for run in slot.running if run.author == author] or slot.running
    return own[-1] if own else None


def told(slot: Slot, run: Run, way: Way, live: Container[str | None]) -> Ack:
    """What has become by now of an input that came ``way``."""
    if way == "drop":
        return Ack(run.id, "dropped")
    if run not in slot.queue:
        return Ack(run.id, "accepted" if run.is_running else "collected")
    waiting = [one for one in slot.queue if one.placement.steers not in live]
    if run not in waiting:
        return Ack(run.id, "steered")
    position = waiting.index(run) + 1
    return Ack(run.id, "collected" if way == "join" else "queued", position)


def _place(slot: Slot, run: Run, most: int) -> Way:
    run.placement.placed = True
    if run.placement.steers is not None:
        return "enter"
    placed = queueing.place(run, slot.queue, slot.running, most)
    if placed.into is not None:
        run.placement.steers = placed.into.id
        if run.input.deps is None:
            run.input = attrs.evolve(run.input, deps=placed.into.input.deps)
    for one in placed.frees:
        one.placement.steers = None
    if placed.drops:
        _drop(slot, placed.drops, SUPERSEDED)
    for one in placed.ends:
        one.cancel(INTERRUPTED)
    return placed.way


def _drop(slot: Slot, runs: Iterable[Run], reason: str) -> None:
    for run in runs:
        slot.queue.remove(run)
        run.drop(reason)
        slot.dropped.append(run)


# What a host knows of one session while it is busy, as plain data.


_ALONE: Final = nullcontext()
"""Has no state, so that one is enough."""


@attrs.define(eq=False)
class Slot:
    """What a host knows of one session while it is busy.

    Attributes:
        starting: those of ``running`` that its actor has not begun yet.
        dropped: inputs that have left the queue, to be put on record by its actor.
        chores: what is still being done for it after its runs, such as a summary.
        unsaved: finished runs whose rows could not be stored yet, oldest first.
        running: its runs that go on, the newest last; several in a ``group``.
        ended: how many of its runs have ended, for who works beside them.
        tokens: of its last request, in a window of ``window``; None: nobody knows.
        actor: the session's actor, as the router has begun it last.
    """

    session: str
    queue: deque[Run] = attrs.field(factory=deque["Run"])
    running: list[Run] = attrs.field(factory=list["Run"])
    starting: list[Run] = attrs.field(factory=list["Run"])
    dropped: list[Run] = attrs.field(factory=list["Run"])
    group: bool = False
    arriving: int = 0
    chores: int = 0
    unsaved: list[FinishRun] = attrs.field(factory=list["FinishRun"])
    ended: int = 0
    tokens: int | None = None
    window: int = 0
    touched: float = 0.0
    actor: ActorRef[SessionMessage] | None = attrs.field(default=None, repr=False)

    _lock: trio.Lock | None = attrs.field(default=None, init=False, repr=False)

    def storing(self) -> AbstractAsyncContextManager[None]:
        """Held by who stores, or reads, what is unsaved: several runs may do so at once."""
        if not self.group:
            return _ALONE
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    def steering(self, run_id: str) -> list[Run]:
        """The inputs that are to enter this run, in their order."""
        return [run for run in self.queue if run.placement.steers == run_id]

    @property
    def active(self) -> Run | None:
        """The newest of its runs that go on."""
        return self.running[-1] if self.running else None

    @property
    def waits(self) -> bool:
        """Whether there is something that its actor has to begin."""
        return bool(self.queue or self.starting or self.dropped)

    def give_up(self, reason: str) -> list[Run]:
        """Take out whatever waits: nobody will begin it."""
        runs = [*self.dropped, *self.starting, *self.queue]
        for waiting in (self.dropped, self.starting, self.queue):
            waiting.clear()
        for run in runs:
            if run.is_running:
                run.cancel(reason)
            else:
                run.drop(reason)
        return runs

    @property
    def idle(self) -> bool:
        busy = self.running or self.arriving or self.chores or self.waits
        return not (busy or self.unsaved)
