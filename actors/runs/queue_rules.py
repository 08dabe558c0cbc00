"""What becomes of inputs that come while a session works, and what starts next: pure.

An input is *held* while its sender may still be typing, then it is placed: it enters a run, ends
one, or waits. What waits starts in the order of arrival, some of it joined to one input.
Laws: one sender's inputs start in their order, and one sender has one run at a time; there are
never more runs than are allowed; what waits is bounded; whatever a rule takes out, it names.
Source: agent loop specification, section 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import attrs

from motet.protocols.queueing import QueueConfig, QueueMode

LONGEST = 5
"""Pauses for which a burst is held at most, however fast its inputs come."""

Way: TypeAlias = Literal["enter", "wait", "join", "drop"]


@attrs.define(eq=False)
class Burst:
    """Inputs of one sender that come close together: held until ``until``, answered as one."""

    began: float
    until: float

    def grow(self, now: float, pause: float) -> None:
        """One more has come."""
        self.until = max(self.until, min(now + pause, self.began + LONGEST * pause))


@attrs.define(eq=False)
class Placement:
    """Where an input stands in its session.

    Attributes:
        mode: what becomes of it if the session is at work.
        steers: the id of the run that it is to enter; None: it is to be a run of its own.
        only_enters: it never becomes a run: if it comes too late, its sender is told.
        pause: seconds for which it is held, in case its sender types on; ``burst``: with what.
        placed: it is not held any more, and was looked at since.
        joined: the runs of inputs that it answers too.
    """

    mode: QueueMode = "followup"
    steers: str | None = None
    only_enters: bool = False
    pause: float = 0.0
    burst: Burst | None = None
    placed: bool = False
    joined: tuple[str, ...] = ()


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
    """What becomes of an input that is not held any more; ``queue`` has it already."""
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
    """What has to leave a queue that has grown too long."""
    over = len(queue) - rules.capacity
    if over <= 0 or rules.overflow == "reject":
        return ()
    waiting = tuple(queue)
    return waiting[:over] if rules.overflow == "drop_oldest" else waiting[-over:]


def next_batch(
    queue: Sequence[In], running: Sequence[In], limit: int, now: float
) -> tuple[In, ...]:
    """What starts next, to be answered as one; empty when nothing may."""
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
    """What a model reads of inputs that are answered as one."""
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
