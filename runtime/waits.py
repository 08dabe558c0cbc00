"""Who waits for whom: the graph in which an ask that could never be answered is found (G11).

A :class:`Work` is something that runs one thing at a time: the turn of an actor, or one concurrent
handler. Every ask and every start made from within it is an edge while it lasts. All waiting is
for *all* edges, so any cycle is a deadlock. One thread, no await in between: no locks.

Deadlines go the other way along the edges: what is asked while a request is handled has the
request's deadline, or an earlier one of its own.
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
    """An edge: the work that is waited for, and how to say so in a dump."""

    @property
    def target(self) -> Work: ...

    def describe(self, now: float) -> str: ...


class Served(Protocol):
    """A request that is being handled: by when, for whom, and whether its handler was cancelled.

    ``prompt``: its handler is cancelled in the very step in which its asker is.
    """

    until: float
    task: trio.lowlevel.Task
    cancelled_at: float | None

    @property
    def prompt(self) -> bool: ...


class Work(msgspec.Struct, eq=False):
    """A node: the turn of an actor, or one execution of a concurrent handler.

    A Struct because one is made for each of the latter.
    """

    path: str
    waits: list[Wait] = []  # of its own: a Struct copies the default
    serves: Served | None = None

    @property
    def deadline(self) -> float:
        """See :func:`current_deadline`."""
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


# Inherited by the tasks that a handler opens in a nursery of its own: they are part of the turn.
# Tasks of `Actor.start_soon` are not, and reset it.
current_work: ContextVar[Work | None] = ContextVar("motet_current_work", default=None)


def current_deadline() -> float:
    """When the request that this handler serves has to be answered, in Trio's clock.

    It is the earliest of the ask's ``timeout``, the deadline its asker had when it asked, and, if
    the asker was a handler itself, of this function there. ``math.inf``: there is none, or the
    handler was cancelled, so that what its clean-up asks has the deadlines of the clean-up only.
    At the deadline the asker cancels the handler; this is for those who want to know before, such
    as a client that tells a server how long it will wait.
    """
    work = current_work.get()
    return math.inf if work is None else work.deadline


def is_overdue(work: Work | None) -> bool:
    """Whether ``work`` is for an asker whose time is over, and who may not have noticed it yet."""
    now = trio.current_time()
    while work is not None and work.serves is not None and work.serves.cancelled_at is None:
        if not work.serves.prompt and work.serves.until <= now:
            return True
        work = work.serves.task.context.get(current_work)
    return False


def refuse_cycle(work: Work, target: Work) -> None:
    """Raise :class:`AskCycle` if ``target`` waits, directly or through others, for ``work``."""
    if target is not work and not target.waits:
        return
    chain = _path_between(target, work, seen=set())
    if chain is not None:
        raise AskCycle([work.path, *chain])


def _path_between(start: Work, goal: Work, seen: set[int]) -> list[str] | None:
    if start is goal:
        return [start.path]
    seen.add(id(start))
    for wait in start.waits:
        if id(wait.target) in seen:
            continue
        rest = _path_between(wait.target, goal, seen)
        if rest is not None:
            return [start.path, *rest]
    return None
