"""Inputs that were sent and are no runs yet: a stop that came after them covers them all the same.

Between the moment in which somebody says something and the one in which the run table knows of it,
agents and sessions are looked up, and on a connection other messages may be before it. Touched by
one Trio thread only; nothing here awaits. Invariants: an arrival that was stopped never becomes a
run that starts; one that nobody holds any more is none.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

import attrs

from motet.protocols.sessions import Principal
from motet.runtime.outside import fresh_hex


@attrs.define(eq=False)
class Arrival:
    """One of them, from when it was sent until the run ``run_id`` is in the run table.

    Attributes:
        session: empty until it is known.
        sender: who said it, in a group whose session the principal keeps.
        stopped: why its run must not start; empty: it may.
    """

    session: str
    principal: Principal
    sender: str = ""
    run_id: str = attrs.field(factory=lambda: f"run_{fresh_hex(6)}")
    stopped: str = ""


class Arrivals:
    """All of one host, in the order in which they came."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[str, Arrival] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, session: str, principal: Principal, sender: str = "") -> Arrival:
        """Note that something was said, for as long as the note is held."""
        arrival = Arrival(session, principal, sender)
        self._open[arrival.run_id] = arrival
        return arrival

    def leave(self, arrival: Arrival) -> None:
        """It is in the run table, or will never be."""
        self._open.pop(arrival.run_id, None)

    def find(self, meant: Callable[[Arrival], bool]) -> list[Arrival]:
        """Those that are meant, the newest last."""
        return [one for one in self._open.values() if meant(one)]
