"""Places of a resource, shared fairly by the rooms and sessions that use it.

A pure queue: the time is an argument, in seconds, and nothing awaits. It decides which of the
waiting requests gets a place that is free; a shell wakes it.

Invariants: at most ``places`` requests are at work; requests of one key begin in the order in which
they came; of the keys that wait, one with the fewest places goes first, of these the one that has
used its places for the shortest time; no place stays free while a key waits that has none.

A request keeps its place to its end, so a fair order alone would let a quiet key wait for a request
of the others, each time it comes. So an eighth of the places is kept for keys that have none, as
long as there were several keys lately. That costs a few busy keys an eighth of the places, and a
single key nothing. Rejected: a place that is held for the next request of the key that has just
left it, since tools run between two requests of an agent, for an unknown time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

import attrs
import msgspec

KEPT: Final = 8
"""One of so many places is kept for keys that have none."""
RECENT: Final = 60.0
"""Seconds after its last request for which a key counts among the others, and its use is known."""


class Ticket(msgspec.Struct, eq=False):
    """A request, from when it came until it leaves.

    Attributes:
        since: when it got its place; None: it waits.
    """

    key: str
    since: float | None = None

    @property
    def waits(self) -> bool:
        return self.since is None


class _Share(msgspec.Struct, eq=False):
    """One key: its requests, and the seconds for which it has used places while others waited."""

    used: float
    seen: float
    working: int = 0
    waiting: deque[Ticket] = msgspec.field(default_factory=deque[Ticket])
    rank: tuple[int, float, int] | None = None


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)  # checks of counters cost more than them
class FairQueue:
    """The places of one resource. Each ticket of :meth:`enter` has to :meth:`leave`.

    ``waiting``: requests that wait for a place.
    """

    places: int = attrs.field(validator=attrs.validators.ge(1))
    waiting: int = attrs.field(default=0, init=False)
    _working: int = attrs.field(default=0, init=False)
    _shares: OrderedDict[str, _Share] = attrs.field(factory=OrderedDict[str, _Share], init=False)
    # Ranks of keys that wait. One that is not its key's rank any more is skipped.
    _ranks: list[tuple[tuple[int, float, int], str]] = attrs.field(
        factory=list[tuple[tuple[int, float, int], str]], init=False
    )
    _count: int = attrs.field(default=0, init=False)
    _used: float = attrs.field(default=0.0, init=False)
    _forget_at: float = attrs.field(default=0.0, init=False)

    def __repr__(self) -> str:
        return f"<FairQueue {self._working} of {self.places} at work, {self.waiting} wait>"

    @property
    def working(self) -> int:
        """Requests that have a place."""
        return self._working

    @property
    def _kept(self) -> int:
        """The places that are for keys which have none."""
        return self.places // KEPT if len(self._shares) > 1 else 0

    @property
    def keys(self) -> int:
        """Keys that were there lately."""
        return len(self._shares)

    def enter(self, key: str, now: float) -> Ticket:
        """A request comes. It has its place at once, unless it :attr:`~Ticket.waits`."""
        if now >= self._forget_at and not self.waiting:  # else some of those might have a place now
            self._forget(now)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share(self._used, now)
        # To have been away earns nothing: else a newcomer would go before the others for long.
        if share.used < self._used and not (share.working or share.waiting):
            share.used = self._used
        ticket = Ticket(key)
        if not self.waiting and (
            self._working + (self._kept if share.working else 0) < self.places
        ):
            # What the long way would do, for the usual case, at a third of its cost.
            ticket.since = share.seen = now
            share.working += 1
            self._working += 1
            self._used = max(self._used, share.used)
            self._shares.move_to_end(key)
            return ticket
        share.waiting.append(ticket)
        self.waiting += 1
        self._touch(key, share, now)
        granted = self._grant(now)
        assert granted in ((), (ticket,)), granted  # what waited before still waits
        return ticket

    def leave(self, ticket: Ticket, clock: Callable[[], float]) -> tuple[Ticket, ...]:
        """A request is over, or waits no more; the tickets that have a place now.

        The clock is read only if another one waits: use that nobody waits for is not counted.
        """
        share = self._shares[ticket.key]
        if not self.waiting:
            share.working -= 1
            self._working -= 1
            return ()
        now = clock()
        if ticket.since is None:
            share.waiting.remove(ticket)
            self.waiting -= 1
        else:
            share.working -= 1
            share.used += now - ticket.since
            self._working -= 1
        self._touch(ticket.key, share, now)
        if now >= self._forget_at:
            self._forget(now)
        return self._grant(now)

    def _grant(self, now: float) -> tuple[Ticket, ...]:
        granted: list[Ticket] = []
        while self._working < self.places and (key := self._next()) is not None:
            share = self._shares[key]
            ticket = share.waiting.popleft()
            self.waiting -= 1
            ticket.since = now
            share.working += 1
            self._working += 1
            self._used = max(self._used, share.used)
            self._touch(key, share, now)
            granted.append(ticket)
        return tuple(granted)

    def _next(self) -> str | None:
        """The key whose first request gets the next free place; None: nobody may have it."""
        while self._ranks:
            rank, key = self._ranks[0]
            share = self._shares.get(key)
            if share is None or share.rank != rank:
                heappop(self._ranks)
                continue
            # All others have as many places or more, so that none of them may have it either.
            return None if share.working and self.places - self._working <= self._kept else key
        return None

    def _touch(self, key: str, share: _Share, now: float) -> None:
        """Note that a key is there, and its place in the order."""
        share.seen = now
        self._shares.move_to_end(key)
        if not share.waiting:
            share.rank = None
        elif share.rank is None or share.rank[:2] != (share.working, share.used):
            self._count += 1
            share.rank = (share.working, share.used, self._count)
            heappush(self._ranks, (share.rank, key))
            if len(self._ranks) > 2 * len(self._shares) + KEPT:
                ranks = ((one.rank, name) for name, one in self._shares.items())
                self._ranks = [(rank, name) for rank, name in ranks if rank is not None]
                heapify(self._ranks)

    def _forget(self, now: float) -> None:
        """Forget the keys that were not there lately. They are in the order of their last use."""
        self._forget_at = now + RECENT / 8
        while self._shares:
            key, share = next(iter(self._shares.items()))
            if now - share.seen <= RECENT:
                return
            if share.working or share.waiting:  # a long request is use as well
                share.seen = now
                self._shares.move_to_end(key)
            else:
                del self._shares[key]
