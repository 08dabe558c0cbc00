"""The open rooms of a host: each has an actor, which this one starts."""

from __future__ import annotations

from urllib.parse import quote

import attrs

from motet.actors.rooms.place import Place
from motet.actors.rooms.room import RoomActor, RoomMessages
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, Supervision, handles


class Open(Request[ActorRef[RoomMessages]], frozen=True, tag="rooms.open"):
    """The actor of a room of the table of places, started if it is not alive."""

    name: str


@attrs.define(eq=False)
class Places:
    """The open rooms by name: plain data, which stays when an actor is restarted."""

    known: dict[str, Place] = attrs.field(factory=dict[str, Place])


class Rooms(Actor[Open]):
    """Parent of all room actors. One room's crash never touches another's."""

    supervision = Supervision(strategy="one_for_one", intensity=20, period=5.0)
    cleanup_budget = 12.0

    def __init__(self, places: Places) -> None:
        self._places = places

    @handles(Open)
    async def open(self, request: Open) -> ActorRef[RoomMessages]:
        name = quote(request.name, safe=":@ ")
        room: ActorRef[RoomMessages] | None = self.child(name)
        if room is None or not room.is_alive:
            place = self._places.known[request.name]
            room = await self.start_child(lambda: RoomActor(place), name=name)
        return room
