"""Places of a resource, shared fairly by users, and those of a user by rooms and sessions.

A pure queue: the time is an argument, in seconds, and nothing awaits. It decides which of the
waiting requests gets a place that is free; a shell wakes it.

Invariants: at most ``places`` requests are at work, at most ``per_user`` of one user and
``per_key`` of one key, which is a room or a session; requests of one key begin in the order in
which they came; of the users that wait and may have more, one with the fewest places goes first, of
these the one that has used its places for the shortest time, and of the keys of that user likewise;
no place stays free while a user waits that has none.

A request keeps its place to its end, so a fair order alone would let a quiet user wait for a
request of the others, each time one comes. So an eighth of the places is kept: for users that have
none, as long as there were several lately, else for keys that have none. That costs a few busy
users an eighth of the places, and a single key nothing. Rejected: a place that is held for the next
request of the key that has just left it, since tools run between two requests of an agent, for an
unknown time. ``per_user`` is for the user who came alone, and whose requests do not end: nothing is
kept from that one otherwise. ``free`` names users without that limit.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import attrs
import msgspec

KEPT: Final = 8
"""One of so many places is kept for users, or keys, that have none."""
MOST_TOLD: Final = 10_000
"""Requests in a line in which each has a position."""
RECENT: Final = 60.0
"""Seconds after its last request for which a user or a key counts among the others."""


class Ticket(msgspec.Struct, eq=False):
    """A request, from when it came until it leaves.

    Attributes:
        since: when it got its place; None: it waits.
    """

    user: str
    key: str
    since: float | None = None

    @property
    def waits(self) -> bool:
        return self.since is None


# Until one waits: a queue of its own is three quarters of the memory of a key, and most never wait.
_NOBODY: Final = deque[Ticket]()


class _Share(msgspec.Struct, eq=False):
    """One key: its requests, and the seconds for which it has used places while others waited."""

    used: float
    seen: float
    most: int
    working: int = 0
    waiting: deque[Ticket] = msgspec.field(default_factory=lambda: _NOBODY)
    rank: tuple[int, float, int] | None = None

    @property
    def may_have_more(self) -> bool:
        return self.working < self.most and bool(self.waiting)

    @property
    def is_idle(self) -> bool:
        return not (self.working or self.waiting)


class _UserShare(msgspec.Struct, eq=False):
    """One user: as a key, with keys of its own."""

    used: float
    seen: float
    most: int
    keys: _Order[_Share]
    working: int = 0
    waiting: int = 0
    rank: tuple[int, float, int] | None = None

    @property
    def may_have_more(self) -> bool:
        return self.working < self.most and bool(self.waiting) and self.keys.first() is not None

    @property
    def is_idle(self) -> bool:
        return not (self.working or self.waiting)


S = TypeVar("S", _Share, _UserShare)


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)
class _Order(Generic[S]):
    """Those that share places, in the order in which they get the next one."""

    _new: Callable[[str, float, float], S]
    shares: OrderedDict[str, S] = attrs.field(factory=OrderedDict[str, S], init=False)
    used: float = attrs.field(default=0.0, init=False)
    lined: dict[str, S] = attrs.field(factory=dict[str, S], init=False)
    """Those of whom a request waits."""
    # Ranks of those that wait and may have more. One that is not its share's any more is skipped.
    ranks: list[tuple[tuple[int, float, int], str]] = attrs.field(
        factory=list[tuple[tuple[int, float, int], str]], init=False
    )
    _count: int = attrs.field(default=0, init=False)
    _forget_at: float = attrs.field(default=0.0, init=False)

    def find(self, name: str, now: float) -> S:
        share = self.shares.get(name)
        if share is None:
            share = self.shares[name] = self._new(name, self.used, now)
        # To have been away earns nothing: else a newcomer would go before the others for long.
        if share.used < self.used and share.is_idle:
            share.used = self.used
        return share

    def begin(self, name: str, share: S, now: float) -> None:
        """One more request of it is at work."""
        share.working += 1
        share.seen = now
        self.used = max(self.used, share.used)
        self.shares.move_to_end(name)

    def touch(self, name: str, share: S, now: float) -> None:
        """Note that it is there, and its place in the order."""
        share.seen = now
        self.shares.move_to_end(name)
        if share.waiting:
            self.lined[name] = share
        else:
            self.lined.pop(name, None)
        if not share.may_have_more:
            share.rank = None
        elif share.rank is None or share.rank[:2] != (share.working, share.used):
            self._count += 1
            share.rank = (share.working, share.used, self._count)
            heappush(self.ranks, (share.rank, name))
            if len(self.ranks) > 2 * len(self.shares) + KEPT:
                ranks = ((one.rank, name) for name, one in self.shares.items())
                self.ranks = [(rank, name) for rank, name in ranks if rank is not None]
                heapify(self.ranks)

    def first(self) -> str | None:
        """The one with the fewest places, of those that wait and may have more."""
        while self.ranks:
            rank, name = self.ranks[0]
            share = self.shares.get(name)
            if share is not None and share.rank == rank:
                return name
            heappop(self.ranks)
        return None

    def forget(self, now: float) -> None:
        """Forget those that were not there lately. They are in the order of their last use."""
        if now < self._forget_at:
            return
        self._forget_at = now + RECENT / 8
        while self.shares:
            name, share = next(iter(self.shares.items()))
            if now - share.seen <= RECENT:
                return
            if share.is_idle:
                del self.shares[name]
            else:  # a long request is use as well
                share.seen = now
                self.shares.move_to_end(name)


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)  # checks of counters cost more than them
class FairQueue:
    """The places of one resource. Each ticket of :meth:`enter` has to :meth:`leave`.

    ``per_user`` and ``per_key``: places that one may have; None: all of them. ``waiting``: requests
    that wait for a place.
    """

    places: int = attrs.field(validator=attrs.validators.ge(1))
    per_user: int | None = None
    per_key: int | None = None
    free: frozenset[str] = frozenset()
    waiting: int = attrs.field(default=0, init=False)
    working: int = attrs.field(default=0, init=False)
    _users: _Order[_UserShare] = attrs.field(init=False)
    _positions: dict[Ticket, int] = attrs.field(factory=dict[Ticket, int], init=False)
    _look_at: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._users = _Order(self._new_user)

    def __repr__(self) -> str:
        return f"<FairQueue {self.working} of {self.places} at work, {self.waiting} wait>"

    @property
    def users(self) -> int:
        """Users that were there lately."""
        return len(self._users.shares)

    @property
    def keys(self) -> int:
        """Keys that were there lately."""
        return sum(len(one.keys.shares) for one in self._users.shares.values())

    def enter(self, user: str, key: str, now: float) -> Ticket:
        """A request comes. It has its place at once, unless it :attr:`~Ticket.waits`."""
        if not self.waiting:  # else some of those might have a place now
            self._users.forget(now)
        owner = self._users.find(user, now)
        if not owner.waiting:
            owner.keys.forget(now)
        share = owner.keys.find(key, now)
        ticket = Ticket(user, key)
        if not self.waiting and self._may_begin(owner, share):
            # What the long way would do, for the usual case, at a third of its cost.
            self._begin(ticket, owner, share, now)
            return ticket
        if share.waiting is _NOBODY:
            share.waiting = deque()
        share.waiting.append(ticket)
        owner.waiting += 1
        self.waiting += 1
        self._touch(ticket, owner, share, now)
        granted = self._grant(now)
        assert granted in ((), (ticket,)), granted  # what waited before still waits
        return ticket

    def leave(self, ticket: Ticket, clock: Callable[[], float]) -> tuple[Ticket, ...]:
        """A request is over, or waits no more; the tickets that have a place now.

        The clock is read only if another one waits: use that nobody waits for is not counted.
        """
        owner = self._users.shares[ticket.user]
        share = owner.keys.shares[ticket.key]
        if not self.waiting:
            self._end(owner, share)
            return ()
        now = clock()
        if ticket.since is None:
            share.waiting.remove(ticket)
            owner.waiting -= 1
            self.waiting -= 1
        else:
            self._end(owner, share)
            owner.used += now - ticket.since
            share.used += now - ticket.since
        self._touch(ticket, owner, share, now)
        self._users.forget(now)
        return self._grant(now)

    def position(self, ticket: Ticket, now: float) -> int:
        """The place in the line of a ticket that waits: 1 is the next one; 0: it is not known yet.

        All positions are found at once, at most once a second and less often in a long line, since
        that takes as many steps as there are requests; in a line of more than 10,000, never.
        """
        if now >= self._look_at and self.waiting <= MOST_TOLD:
            self._look_at = now + max(1.0, self.waiting / 1000)
            self._positions = {one: at for at, one in enumerate(self._in_order(), start=1)}
        return self._positions.get(ticket, 0)

    def _in_order(self) -> list[Ticket]:
        """All that wait, in the order in which they begin if none of those at work ends before."""
        every: list[tuple[float, float, int, Ticket]] = []
        for owner in self._users.lined.values():
            own = [
                (share.working + turn, share.used, place, ticket)
                for place, share in enumerate(owner.keys.lined.values())
                for turn, ticket in enumerate(share.waiting)
            ]
            own.sort(key=lambda one: one[:3])
            rank = owner.rank[2] if owner.rank is not None else len(self._users.shares)
            every += [
                (owner.working + turn, owner.used, rank, ticket)
                for turn, (*_, ticket) in enumerate(own)
            ]
        every.sort(key=lambda one: one[:3])
        return [ticket for *_, ticket in every]

    def _new_user(self, user: str, used: float, now: float) -> _UserShare:
        limited = self.per_user is not None and user not in self.free
        most = self.places if not limited or self.per_user is None else self.per_user
        return _UserShare(used, now, most, _Order(self._new_key))

    def _new_key(self, _key: str, used: float, now: float) -> _Share:
        return _Share(used, now, self.places if self.per_key is None else self.per_key)

    def _may_begin(self, owner: _UserShare, share: _Share) -> bool:
        """Whether a request of a key gets a place, if it is the next one in the order."""
        free = self.places - self.working
        if free <= 0 or owner.working >= owner.most or share.working >= share.most:
            return False
        if free > self.places // KEPT:
            return True
        if len(self._users.shares) > 1:
            return owner.working == 0
        return share.working == 0 or len(owner.keys.shares) == 1

    def _begin(self, ticket: Ticket, owner: _UserShare, share: _Share, now: float) -> None:
        ticket.since = now
        self.working += 1
        self._users.begin(ticket.user, owner, now)
        owner.keys.begin(ticket.key, share, now)

    def _end(self, owner: _UserShare, share: _Share) -> None:
        self.working -= 1
        owner.working -= 1
        share.working -= 1

    def _touch(self, ticket: Ticket, owner: _UserShare, share: _Share, now: float) -> None:
        owner.keys.touch(ticket.key, share, now)
        self._users.touch(ticket.user, owner, now)

    def _grant(self, now: float) -> tuple[Ticket, ...]:
        granted: list[Ticket] = []
        while (user := self._users.first()) is not None:
            owner = self._users.shares[user]
            key = owner.keys.first()
            assert key is not None, "a user is in the order while one of its keys is"
            share = owner.keys.shares[key]
            # All others have as many places or more, so that none of them may begin either.
            if not self._may_begin(owner, share):
                break
            ticket = share.waiting.popleft()
            owner.waiting -= 1
            self.waiting -= 1
            self._begin(ticket, owner, share, now)
            self._touch(ticket, owner, share, now)
            granted.append(ticket)
        return tuple(granted)
