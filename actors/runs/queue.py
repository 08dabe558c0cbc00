"""The queue of one session: pure rules, and the plain object that applies them to its runs.

An input is held while its sender may still be typing; then it is placed: it enters a run, ends
one, or waits. Waiting inputs start in order of arrival, some of them joined into one.

Laws: the inputs of one sender start in their order, and one sender has one run at a time; there are
never more runs than allowed; the queue is bounded; a run that leaves it is returned to the caller,
or is in ``dropped``, so that its sender is told once. Nothing here awaits. Source: agent loop
specification, section 11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import attrs
import trio

from motet.actors.runs.run import Burst, Placement, Run
from motet.protocols.queueing import QueueConfig
from motet.protocols.sessions import Ack, FinishRun, QueueFull, SessionBusy

Way: TypeAlias = Literal["enter", "wait", "join", "drop"]


class Queued(Protocol):
    """An input as the rules see it, or the run that it has become.

    Attributes:
        merge_key: only inputs that are equal in it can be answered as one.
        conversation_key: only an input that is equal in it to a run can enter that.
        is_stopping: it has been asked to end.
    """

    @property
    def id(self) -> str: ...
    @property
    def author(self) -> str: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def merge_key(self) -> object: ...
    @property
    def conversation_key(self) -> object: ...
    @property
    def is_stopping(self) -> bool: ...


In = TypeVar("In", bound=Queued)


@attrs.frozen
class Placed(Generic[In]):
    """Where an input belongs, and what has to give way to it.

    Attributes:
        into: the run that it enters.
        ends: runs that it ends.
        drops: inputs that will not be answered, since it is there.
        frees: inputs of others that were to enter a run that it ends.
    """

    way: Way
    into: In | None = None
    ends: tuple[In, ...] = ()
    drops: tuple[In, ...] = ()
    frees: tuple[In, ...] = ()


def allowed(most: int, tokens: int | None, window: int, throttle: float) -> int:
    """Runs that may go on at once: one as soon as the conversation fills much of the window."""
    if tokens is None or window <= 0:
        return most
    return 1 if tokens >= throttle * window else most


def held_with(queue: Iterable[In], new: In, now: float, pause: float) -> Burst:
    """The burst of a new input: that of its sender that is still held, or its own."""
    for one in queue:
        burst = one.placement.burst
        if burst is not None and burst.until > now and _alike(one, new):
            burst.grow(now, pause)
            return burst
    return Burst(now, now + pause)


def place(new: In, queue: Sequence[In], running: Sequence[In], limit: int) -> Placed[In]:
    """The fate of an input that is no longer held; ``queue`` has it already."""
    if not running and len(queue) == 1:
        return Placed("wait")
    others = [one for one in queue if one is not new and not _one_burst(one, new)]
    if new.placement.mode == "steer" and (target := entered(new, running, limit)) is not None:
        return Placed("enter", target)
    if new.placement.mode == "interrupt":
        return _interrupting(new, others, running)
    joins = new.placement.mode == "collect" and (
        running or any(_joined(new, one, limit) for one in others)
    )
    return Placed("join" if joins else "wait")


def _interrupting(new: In, others: Sequence[In], running: Sequence[In]) -> Placed[In]:
    ends = tuple(one for one in running if one.author == new.author)
    ending = {one.id for one in ends}
    drops = tuple(one for one in others if one.author == new.author)
    frees = tuple(
        one for one in others if one.author != new.author and one.placement.steers in ending
    )
    return Placed("wait", ends=ends, drops=drops, frees=frees)


def entered(new: In, running: Sequence[In], limit: int) -> In | None:
    """The run that a text which steers enters: its sender's, or if no other may start, the newest.

    None: it is to be a run of its own.
    """
    going_on = [
        one
        for one in running
        if not one.is_stopping and one.conversation_key == new.conversation_key
    ]
    own = [one for one in going_on if one.author == new.author]
    if own:
        return own[-1]
    return going_on[-1] if going_on and len(running) >= limit else None


def surplus(queue: Sequence[In], rules: QueueConfig) -> tuple[In, ...]:
    """The inputs that leave a queue that has grown too long."""
    over = len(queue) - rules.capacity
    if over <= 0 or rules.overflow == "reject":
        return ()
    waiting = tuple(queue)
    return waiting[:over] if rules.overflow == "drop_oldest" else waiting[-over:]


def next_batch(
    queue: Sequence[In], running: Sequence[In], limit: int, now: float
) -> tuple[In, ...]:
    """The inputs to start next, answered as one; empty when none may start."""
    if not queue or len(running) >= limit:
        return ()
    if not running and len(queue) == 1:
        return () if is_held(queue[0], now) else (queue[0],)
    at_work = {one.id for one in running}
    waiting = [one for one in queue if one.placement.steers not in at_work]
    passed_over = {one.author for one in running}  # whose later inputs must not come first
    batch: list[In] = []
    for one in waiting:
        free = one.author not in passed_over and not is_held(one, now)
        if free and (not batch or _joined(batch[0], one, limit) or _one_burst(batch[0], one)):
            batch.append(one)
        else:
            passed_over.add(one.author)
    return tuple(batch)


def is_held(one: Queued, now: float) -> bool:
    return one.placement.burst is not None and one.placement.burst.until > now


def wakes(queue: Iterable[Queued], now: float) -> float:
    """When the next of them is not held any more; infinity when none is."""
    return min(
        (one.placement.burst.until for one in queue if one.placement.burst and is_held(one, now)),
        default=inf,
    )


def joined_text(texts: Iterable[str]) -> str:
    """The text for the model of inputs that are answered as one."""
    return "\n".join(texts)


def _joined(one: In, other: In, limit: int) -> bool:
    """Whether both are collected: what one sender said, or if only one run may go on, what all."""
    both = (
        one.placement.mode == other.placement.mode == "collect" and one.merge_key == other.merge_key
    )
    return both and (limit == 1 or one.author == other.author)


def _one_burst(one: In, other: In) -> bool:
    return one.placement.burst is not None and one.placement.burst is other.placement.burst


def _alike(one: In, other: In) -> bool:
    return (one.author, one.placement.mode, one.merge_key) == (
        other.author,
        other.placement.mode,
        other.merge_key,
    )


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
        unsaved: ends of runs and inputs that could not be stored yet, oldest first.
        saving: a task of its actor stores them when it can.
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
    saving: bool = False
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
        """A lock on ``unsaved``, where several tasks may store at once."""
        if not self.group and not self.saving:
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
        most = allowed(rules.concurrent, self.tokens, self.window, rules.throttle)
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
            place.burst = burst = held_with(self.inputs, run, now, place.pause)
            shared = burst.began < now or any(one.placement.burst is burst for one in self.inputs)
        self.inputs.append(run)
        if over := surplus(self.inputs, rules):
            self._drop(over, f"the queue was full: {rules.capacity} inputs wait already")
            if run in over:
                return "drop"
        if place.burst is not None and is_held(run, now):
            return "join" if shared else "wait"
        return self._place(run, most)

    def ripen(self, held: Iterable[Run], most: int, now: float) -> None:
        """Place the inputs that were held long enough."""
        for run in held:
            if run in self.inputs and not is_held(run, now):
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
        placed = place(run, self.inputs, self.running, most)
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
        batch = next_batch(waiting, self.running, most, now)
        for run in batch:
            self.inputs.remove(run)
        if len(batch) > 1:
            first, text = batch[0], joined_text(run.input.text for run in batch)
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
