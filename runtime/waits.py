"""Who waits for whom: the graph in which an ask that could never be answered is found (G11).

A :class:`Work` is something that runs one thing at a time: the turn of an actor, or one concurrent
handler. Every ask and every start made from within it is an edge while it lasts. All waiting is
for *all* edges, so any cycle is a deadlock. One thread, no await in between: no locks.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from motet.runtime.errors import AskCycle

__all__ = ["StartWait", "Wait", "Work", "current_work", "refuse_cycle"]


class Wait(Protocol):
    """An edge: the work that is waited for, and how to say so in a dump."""

    @property
    def target(self) -> Work: ...

    def describe(self, now: float) -> str: ...


class Work:
    """A node: the turn of an actor, or one execution of a concurrent handler."""

    __slots__ = ("path", "waits")

    def __init__(self, path: str) -> None:
        self.path = path
        self.waits: list[Wait] = []


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
