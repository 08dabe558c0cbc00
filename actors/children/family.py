"""The children that work beside a run: who is alive, and whose end it has not been told of.

Invariants: a child's end is taken once, and in the order in which children end; who waits is woken
by every end; after :meth:`Family.end` none of them is alive, nor anything that they started (G1).
Touched by one Trio thread only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import attrs
import trio

from motet.actors.sessions.run import Run

StartSoon: TypeAlias = Callable[..., None]
Work: TypeAlias = Callable[[], Awaitable[Any]]

TOGETHER = 1.0
"""Seconds for which an end waits for others, so that the caller's model is told of all at once."""


@attrs.define(eq=False)
class Child:
    """One of them.

    Attributes:
        label: what its caller calls the work.
        told: its caller knows its end.
        begun: its input is on disk, or will never be, which is a ``failure``.
        gone: it has ended, and so has what watches over it.
    """

    run: Run
    label: str = ""
    told: bool = False
    begun: trio.Event = attrs.field(factory=trio.Event)
    gone: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None


@attrs.define(eq=False)
class Family:
    """The children of one run that it does not wait for, in the order in which they began."""

    members: dict[str, Child] = attrs.field(factory=dict[str, Child])
    _ended: list[Child] = attrs.field(factory=list[Child])
    _news: trio.Event = attrs.field(factory=trio.Event)

    @property
    def alive(self) -> tuple[Child, ...]:
        return tuple(child for child in self.members.values() if not child.gone.is_set())

    @property
    def has_news(self) -> bool:
        """Whether a child has ended whose caller has not been told."""
        return any(not child.told for child in self._ended)

    @property
    def open(self) -> bool:
        """Whether there is a child whose end its caller does not know."""
        return any(not child.told for child in self.members.values())

    def begins(self, child: Child) -> None:
        self.members[child.run.id] = child

    def ends(self, child: Child) -> None:
        """Its run has ended, with all that it had started."""
        if child not in self._ended:
            self._ended.append(child)
        self._news.set()

    def never_began(self, child: Child) -> None:
        self.members.pop(child.run.id, None)
        self._news.set()

    def take(self) -> tuple[Child, ...]:
        """Those that have ended since the last time, first the one that ended first."""
        news = tuple(child for child in self._ended if not child.told)
        for child in news:
            child.told = True
        return news

    def nudge(self) -> None:
        """Wake who waits: there is something else for it to look at."""
        self._news.set()

    async def settled(self, enough: Callable[[], bool]) -> None:
        """Wait for news, until nobody is alive, or until it is ``enough``. Cancellable.

        What ends within a moment of the first is waited for too.
        """
        while self.alive and not self.has_news and not enough():
            await self._next()
        with trio.move_on_after(TOGETHER):
            while self.alive and not enough():
                await self._next()

    async def end(self, why: str) -> None:
        """Ask all of them to end, and wait until they have, without limit: less would break G1."""
        for child in self.alive:
            child.run.cancel(why)
        for child in tuple(self.members.values()):
            await child.gone.wait()

    async def _next(self) -> None:
        if self._news.is_set():
            self._news = trio.Event()
        await self._news.wait()
