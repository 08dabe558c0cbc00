"""The open rooms of a host: each has an actor, which this one starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import attrs
import trio

from motet.actors.rooms.place import Place
from motet.actors.rooms.room import RoomActor, RoomMessages
from motet.actors.sessions.router import IDLE_AFTER, SWEEP_EVERY
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, Supervision, handles


class Open(Request[ActorRef[RoomMessages]], frozen=True, tag="rooms.open"):
    """The actor of a room of the table of places, started if it is not alive."""

    name: str


@attrs.define(eq=False)
class Places:
    """The open rooms by name: plain data, which stays when an actor is restarted.

    ``reopen`` opens those that the last host has left unfinished; called when ``ready`` is set.
    ``changing`` is held by who changes one.
    """

    known: dict[str, Place] = attrs.field(factory=dict[str, Place])
    reopen: Callable[[], Awaitable[None]] | None = None
    ready: trio.Event = attrs.field(factory=trio.Event)
    changing: trio.Lock = attrs.field(factory=trio.Lock)

    def begin(self, reopen: Callable[[], Awaitable[None]]) -> None:
        """The block of the host begins."""
        self.reopen = reopen
        self.ready.set()


class Rooms(Actor[Open]):
    """Parent of all room actors. One room's crash never touches another's."""

    supervision = Supervision(intensity=20, period=5.0, backoff=0.1)
    cleanup_budget = 12.0

    def __init__(self, places: Places) -> None:
        self._places = places

    async def on_start(self) -> None:
        self.start_soon(self._sweep)
        self.start_soon(self._reopen)

    @handles(Open)
    async def open(self, request: Open) -> ActorRef[RoomMessages]:
        name = actor_name(request.name)
        room: ActorRef[RoomMessages] | None = self.child(name)
        if room is None or not room.is_alive:
            place = self._places.known[request.name]
            await self.stop_child(name)  # one that is ending has its name until it has ended
            room = await self.start_child(lambda: RoomActor(place), name=name)
        return room

    async def _reopen(self) -> None:
        await self._places.ready.wait()
        assert self._places.reopen is not None
        await self._places.reopen()

    async def _sweep(self) -> None:
        """End the actors of rooms that have been idle for a while: what was said is on disk."""
        while True:
            await trio.sleep(SWEEP_EVERY)
            limit = trio.current_time() - IDLE_AFTER
            for place in list(self._places.known.values()):
                if place.rests and place.touched < limit:
                    await self.stop_child(actor_name(place.name))


def actor_name(room: str) -> str:
    """A room's name as a name in the tree."""
    return quote(room, safe=":@ ")
