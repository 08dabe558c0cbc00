"""The wait-for graph, in which an ask that would deadlock is found before it is sent (G11).

A node is a :class:`Work`, which runs one thing at a time: the turn of an actor, or one concurrent
handler. Every ask and every start made from within it is an edge while it lasts. A node waits for
*all* of its edges, so any cycle is a deadlock. One thread and no await in between, so no locks.

The search starts at the target, so an ask of an actor that waits for none costs one comparison.
It is exact: without a cycle nothing is refused. A timeout instead would find a deadlock late, and
would take a slow answer for one.

Deadlines are inherited along the edges: an ask in the handler of a request has the deadline of the
request, or an earlier one of its own.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Protocol

import msgspec
import trio

from motet.runtime.errors import AskCycle

__all__ = [
    "StartWait",
    "Wait",
    "Work",
    "current_deadline",
    "current_work",
    "is_overdue",
    "refuse_cycle",
]


class Wait(Protocol):
    """An edge: the work that is waited for, and its description for a dump."""

    @property
    def target(self) -> Work: ...

    def describe(self, now: float) -> str: ...


class Served(Protocol):
    """A request that is being handled: its deadline, its asker, and when it was cancelled.

    ``prompt``: a cancellation of the asker reaches the handler in the same step.
    """

    until: float
    cancelled_at: float | None

    @property
    def prompt(self) -> bool: ...
    @property
    def asked_from(self) -> Work | None: ...


class Work(msgspec.Struct, eq=False):
    """A node: the turn of an actor, or one execution of a concurrent handler.

    A Struct, which is cheaper to make, since each execution makes one.
    """

    path: str
    waits: list[Wait] = []  # not shared: a Struct copies the default
    serves: Served | None = None

    @property
    def deadline(self) -> float:
        """See :func:`current_deadline`."""
        # A cancelled handler only cleans up: its asks must not be refused because of the deadline
        # that has just passed.
        if self.serves is None or self.serves.cancelled_at is not None:
            return math.inf
        return self.serves.until


class StartWait:
    """The edge of a parent that waits for a child's ``on_start``."""

    __slots__ = ("target",)

    def __init__(self, target: Work) -> None:
        self.target = target

    def describe(self, now: float) -> str:  # noqa: ARG002 (the protocol's signature)
        return f"start of {self.target.path}"


# A context variable, since the tasks that a handler opens in a nursery of its own inherit it: they
# are part of the turn. Tasks of `Actor.start_soon` are not, and reset it.
current_work: ContextVar[Work | None] = ContextVar("motet_current_work", default=None)


def current_deadline() -> float:
    """The deadline of the request that this handler serves, in Trio's clock.

    It is the earliest of the ask's ``timeout``, the deadline its asker had when it asked, and, if
    the asker was a handler itself, the result of this function there. ``math.inf``: there is none,
    or the handler was cancelled, so that asks of its clean-up have the clean-up's deadlines only.
    At the deadline the asker cancels the handler. Read it to know the time before that, such as in
    a client that tells a server how long it will wait.
    """
    work = current_work.get()
    return math.inf if work is None else work.deadline


def is_overdue(work: Work | None) -> bool:
    """Whether ``work`` serves an asker whose deadline has passed, noticed or not."""
    # Up the chain of askers. One that is parked in its ask (`prompt`) has no delay: when its
    # deadline passes, its handler is cancelled in that step, so it is not overdue here. The reader
    # of a stream, or an asker of many that is busy, notices only at its next checkpoint.
    now = trio.current_time()
    while work is not None and work.serves is not None and work.serves.cancelled_at is None:
        if not work.serves.prompt and work.serves.until <= now:
            return True
        work = work.serves.asked_from
    return False


def refuse_cycle(work: Work, target: Work) -> None:
    """Raise :class:`AskCycle` if ``target`` waits, directly or through others, for ``work``."""
    # The usual case first: most actors that are asked wait for nothing.
    if target is not work and not target.waits:
        return
    chain = _path_between(target, work, seen=set())
    if chain is not None:
        raise AskCycle([work.path, *chain])


def _path_between(start: Work, goal: Work, seen: set[int]) -> list[str] | None:
    if start is goal:
        return [start.path]
    # Depth first, each node once: several edges may lead to the same node.
    seen.add(id(start))
    for wait in start.waits:
        if id(wait.target) in seen:
            continue
        rest = _path_between(wait.target, goal, seen)
        if rest is not None:
            return [start.path, *rest]
    return None
