"""Times of people in rooms: when they have spoken, and how long mutes and invites last. Pure.

The wall clock may be put back or forward at any time. Within one host all of this is counted by a
clock that never jumps; what the disk has is a time by the wall clock, since the next host has no
other. Invariants: a message counts from the moment in which it is taken, in its room and all
threads of it together, so that nobody evades slow mode by opening threads, nor by sending to
several at once; something that ends at a time by the wall clock ends, in the host in which that
was decided, when the seconds until then have passed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from motet.protocols.errors import MotetError
from motet.protocols.room_acts import MOST_RATE, SLOWEST
from motet.protocols.room_people import Standing, mute_of, refusal, rows_of
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import Principal

_MOST: Final = 1_000
"""Entries above which those are dropped that say nothing any more."""


@attrs.define
class RoomClocks:
    """The times of one host; bounded in memory.

    ``steady``: seconds that never jump; ``wall``: Unix seconds.
    """

    steady: Callable[[], float]
    wall: Callable[[], float]
    _spoken: dict[tuple[str, str], list[float]] = attrs.field(
        factory=dict[tuple[str, str], "list[float]"], init=False
    )
    _ends: dict[Hashable, tuple[float, float]] = attrs.field(
        factory=dict[Hashable, "tuple[float, float]"], init=False
    )

    # Messages

    def lately(self, room: str, user: str) -> Sequence[float]:
        """When the user has spoken in a room or its threads, the last time last."""
        return self._spoken.get((thread_of(room)[0], user), ())

    def note(self, room: str, user: str, age: float = 0.0) -> float:
        """The user has spoken so many seconds ago; the time of that."""
        at = self.steady() - age
        times = self._spoken.setdefault((thread_of(room)[0], user), [])
        insort(times, at)
        del times[:-MOST_RATE]
        if len(self._spoken) > _MOST:
            since = self.steady() - SLOWEST
            kept = {
                who: times for who, times in self._spoken.items() if times and times[-1] > since
            }
            self._spoken = kept
        return at

    @contextmanager
    def speaking(self, room: str, user: str) -> Generator[Callable[[bool], None]]:
        """A block that stores a message, and says at its end whether it did: else it counts not."""
        at, stored = self.note(room, user), False

        def told(was: bool) -> None:
            nonlocal stored
            stored = was

        try:
            yield told
        finally:
            times = self._spoken.get((thread_of(room)[0], user), [])
            if not stored and at in times:
                times.remove(at)

    def refusal(self, room: Standing, who: Principal, *, invited: bool) -> MotetError | None:
        """As :func:`motet.protocols.room_people.refusal`, now and by these clocks."""
        lately, muted = self.lately(room.room, who.user), self.muted(room, who)
        steady = self.steady()
        return refusal(
            room, who, invited=invited, now=self.wall(), lately=lately, steady=steady, muted=muted
        )

    # Ends

    def left(self, what: Hashable, at: float) -> float:
        """Seconds until something ends, which was to end ``at`` a time by the wall clock.

        The first question about it sets its end by the steady clock: it is to be asked when that
        is decided. Another time is another end.
        """
        known = self._ends.get(what)
        if known is None or known[0] != at:
            if len(self._ends) > _MOST:
                now = self.steady()
                self._ends = {key: end for key, end in self._ends.items() if end[1] > now}
            known = self._ends[what] = at, self.steady() + at - self.wall()
        return known[1] - self.steady()

    def muted(self, room: Standing, who: Principal) -> float:
        """Seconds for which somebody may not speak; 0: they may."""
        rows = (one for one in rows_of(who.user, room.people) if one.muted)
        left = (self.left((room.room, one.user), one.muted) for one in rows)
        return max(left, default=0.0)

    def demand_stop(self, room: Standing, who: Principal) -> None:
        """Who may not speak may not stop those who do. Raises as :meth:`Standing.demand`."""
        role, muted = room.demand(who, "stop"), self.muted(room, who)
        if role != "owner" and muted > 0:
            raise mute_of(room, muted)

    def decided(self, room: Standing) -> None:
        """The people of a room are these from now on: their mutes begin."""
        for one in room.people.values():
            if one.muted:
                self.left((room.room, one.user), one.muted)
