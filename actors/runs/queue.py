"""The queue of one session and its runs, as plain data.

It carries out the rules of :mod:`~motet.actors.runs.queue_rules`. Nothing here awaits. Invariant:
a run that leaves the queue is returned to the caller, or is in ``dropped``, so that its sender is
told once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import attrs
import trio

from motet.actors.runs import queue_rules as rules_of
from motet.actors.runs.queue_rules import Way
from motet.actors.runs.run import Run
from motet.protocols.queueing import QueueConfig
from motet.protocols.sessions import Ack, FinishRun, QueueFull, SessionBusy

INTERRUPTED = "interrupted by a newer input"
SUPERSEDED = "a newer input has taken its place"
TOO_LATE = "the run that it was for has ended"

_UNLOCKED: Final = nullcontext()
"""Has no state, so that one is enough."""


@attrs.define(eq=False)
class SessionQueue:
    """The inputs and runs of one session while it is busy.

    Attributes:
        inputs: that wait, oldest first.
        running: its runs under way, the newest last; several in a ``group``.
        starting: those of ``running`` that its actor has not begun yet.
        dropped: inputs that have left the queue, to be put on record by its actor.
        arriving: how many inputs are on their way to disk.
        chores: how many jobs are done for it after its runs, such as a summary.
        unsaved: finished runs whose rows could not be stored yet, oldest first.
        ended: how many of its runs have ended, for those that run at the same time.
        tokens: of its last request, in a window of ``window``; None: unknown.
        touched: when it was used last.
    """

    session: str
    inputs: deque[Run] = attrs.field(factory=deque[Run])
    running: list[Run] = attrs.field(factory=list[Run])
    starting: list[Run] = attrs.field(factory=list[Run])
    dropped: list[Run] = attrs.field(factory=list[Run])
    group: bool = False
    arriving: int = 0
    chores: int = 0
    unsaved: list[FinishRun] = attrs.field(factory=list[FinishRun])
    ended: int = 0
    tokens: int | None = None
    window: int = 0
    touched: float = 0.0
    _lock: trio.Lock | None = attrs.field(default=None, init=False, repr=False)

    @property
    def active(self) -> Run | None:
        """The newest of its runs under way."""
        return self.running[-1] if self.running else None

    @property
    def has_work(self) -> bool:
        """Whether there is something that its actor has to begin."""
        return bool(self.inputs or self.starting or self.dropped)

    @property
    def idle(self) -> bool:
        busy = self.running or self.arriving or self.chores or self.has_work
        return not (busy or self.unsaved)

    def storing(self) -> AbstractAsyncContextManager[None]:
        """A lock on ``unsaved``: in a group, several runs may store at once."""
        if not self.group:
            return _UNLOCKED
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    def newest(self, author: str) -> Run | None:
        """The run that a sender means who names none: their latest, else the latest of all."""
        own = [run for run in self.running if run.author == author] or self.running
        return own[-1] if own else None

    def steering(self, run_id: str) -> list[Run]:
        """The inputs that are to enter a run, in their order."""
        return [run for run in self.inputs if run.placement.steers == run_id]

    def limit(self, rules: QueueConfig, suspended: int) -> int:
        """How many of its runs may be under way at once; a suspended one keeps its place."""
        if not self.group:
            return 1 - suspended
        most = rules_of.allowed(rules.concurrent, self.tokens, self.window, rules.throttle)
        return most - suspended

    # Coming in

    def check(self, run: Run, rules: QueueConfig, *, busy: bool) -> None:
        """Whether an input may come in. Raises ``QueueFull``, ``SessionBusy``."""
        user = run.input.principal.user
        if any(one.input.principal.user != user for one in (*self.running, *self.inputs)):
            return  # it is told nothing of another's session: the store does not know it there
        if run.placement.mode == "reject" and busy:
            raise SessionBusy(
                f"session {run.session!r} is at work, and its inputs are refused meanwhile: "
                "try again when it has answered, or choose another queue mode"
            )
        waiting = self.arriving if rules.overflow != "reject" else len(self.inputs) + self.arriving
        if waiting >= rules.capacity:
            raise QueueFull(
                f"session {run.session!r} has {rules.capacity} inputs waiting; "
                "try again when a run has ended, or stop one"
            )

    def arrive(self, run: Run, rules: QueueConfig, most: int, now: float) -> Way:
        """Queue an input that is on disk, or let it enter a run. ``most``: runs at once."""
        shared, place = False, run.placement
        if place.pause and place.steers is None:
            place.burst = burst = rules_of.held_with(self.inputs, run, now, place.pause)
            shared = burst.began < now or any(one.placement.burst is burst for one in self.inputs)
        self.inputs.append(run)
        if over := rules_of.surplus(self.inputs, rules):
            self._drop(over, f"the queue was full: {rules.capacity} inputs wait already")
            if run in over:
                return "drop"
        if place.burst is not None and rules_of.is_held(run, now):
            return "join" if shared else "wait"
        return self._place(run, most)

    def ripen(self, held: Iterable[Run], most: int, now: float) -> None:
        """Place the inputs that were held long enough."""
        for run in held:
            if run in self.inputs and not rules_of.is_held(run, now):
                self._place(run, most)

    def ack(self, run: Run, way: Way, live: Container[str | None]) -> Ack:
        """The acknowledgement of an input that came ``way``, by its state now."""
        if way == "drop":
            return Ack(run.id, "dropped")
        if run not in self.inputs:
            return Ack(run.id, "accepted" if run.is_running else "collected")
        waiting = [one for one in self.inputs if one.placement.steers not in live]
        if run not in waiting:
            return Ack(run.id, "steered")
        position = waiting.index(run) + 1
        return Ack(run.id, "collected" if way == "join" else "queued", position)

    def _place(self, run: Run, most: int) -> Way:
        run.placement.placed = True
        if run.placement.steers is not None:
            return "enter"
        placed = rules_of.place(run, self.inputs, self.running, most)
        if placed.into is not None:
            run.placement.steers = placed.into.id
            if run.input.deps is None:
                run.input = attrs.evolve(run.input, deps=placed.into.input.deps)
        for one in placed.frees:
            one.free()
        if placed.drops:
            self._drop(placed.drops, SUPERSEDED)
        for one in placed.ends:
            one.cancel(INTERRUPTED)
        return placed.way

    # Leaving

    def take_next(self, most: int, now: float) -> tuple[Run, ...]:
        """Take out what starts next, to be answered as one."""
        waiting = [run for run in self.inputs if not run.placement.only_enters]
        batch = rules_of.next_batch(waiting, self.running, most, now)
        for run in batch:
            self.inputs.remove(run)
        if len(batch) > 1:
            first, text = batch[0], rules_of.joined_text(run.input.text for run in batch)
            first.input = attrs.evolve(first.input, text=text)
            first.placement.joined = tuple(run.id for run in batch[1:])
        return batch

    def drop_strays(self, live: Container[str | None]) -> None:
        """Drop inputs that were only to enter a run which is not ``live`` any more."""
        places = [(run, run.placement) for run in self.inputs]
        lost = [run for run, place in places if place.only_enters and place.steers not in live]
        if lost:
            self._drop(lost, TOO_LATE)

    def give_up(self, reason: str) -> list[Run]:
        """Take out everything: nobody will begin it."""
        runs = [*self.dropped, *self.starting, *self.inputs]
        for waiting in (self.dropped, self.starting, self.inputs):
            waiting.clear()
        for run in runs:
            if run.is_running:
                run.cancel(reason)
            else:
                run.drop(reason)
        return runs

    def _drop(self, runs: Iterable[Run], reason: str) -> None:
        for run in runs:
            self.inputs.remove(run)
            run.drop(reason)
            self.dropped.append(run)
