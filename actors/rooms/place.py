"""What a host knows of one open room, as plain data that a stop can reach while all else is stuck.

Invariants: nothing here awaits; what was given the floor, chosen or said before a stop is told by
its fence that it came too late, whenever it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.rooms.access import may_see
from motet.actors.rooms.speaker import Speaker
from motet.actors.rooms.voice import RoomVoice
from motet.protocols.rooms import Floor, MemberInfo
from motet.protocols.sessions import Principal
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.rooms.definition import Room
    from motet.actors.rooms.store import RoomStoreMessage


@attrs.define(eq=False)
class Place:
    """One open room. It stays when the room's actor is restarted or rests.

    Attributes:
        closing: set when the host shuts down: then nobody gets the floor any more, and what is
            left of the round is for the next host.
        resume_within: seconds; an older round does not go on after a restart, since nobody expects
            it any more.
        floor: where its round stands.
        idle: no agent speaks, and none is to.
        stops: how often its round was stopped; ``ended``: for how many of them it has ended.
        clears: how often what people had said was not to be answered any more.
        said: number of the last message of a person; ``heard``: those up to this one have had
            their round; ``cleared``: those up to this one get none any more.
        choosing: while somebody is being chosen.
        stopped: set by the next stop.
        posting: messages that are on their way to disk.
        waiting: turns of it wait for a person, or are to be heard yet.
        touched: when something happened last, by trio's clock.
        owner: whose it is; empty: the host's.
        people: who may see it too.
        planned: what it is from its next round on, with its members, once that was changed.
    """

    room: Room
    speaker: Speaker
    store: ActorRef[RoomStoreMessage]
    voice: RoomVoice
    closing: trio.Event
    resume_within: float
    floor: Floor = attrs.field(factory=Floor)
    idle: trio.Event = attrs.field(factory=trio.Event)
    stops: int = 0
    ended: int = 0
    clears: int = 0
    said: int = 0
    heard: int = 0
    cleared: int = 0
    choosing: trio.CancelScope | None = None
    stopped: trio.Event = attrs.field(factory=trio.Event)
    posting: int = 0
    waiting: bool = False
    touched: float = attrs.field(factory=trio.current_time)
    owner: str = ""
    people: frozenset[str] = frozenset()
    planned: tuple[Room, tuple[MemberInfo, ...]] | None = None

    @property
    def name(self) -> str:
        return self.room.name

    @property
    def latest(self) -> Room:
        """What it is from its next round on."""
        return self.planned[0] if self.planned else self.room

    def open_to(self, who: Principal) -> bool:
        """Whether there is such a room, for whoever asks."""
        return may_see(who, self.owner, self.people)

    @property
    def rests(self) -> bool:
        """Whether nothing happens in it, so that its actor may go."""
        return self.idle.is_set() and not self.posting and not self.waiting

    @property
    def waits(self) -> bool:
        """Whether it waits for a person: the round is over, and no other is to be opened."""
        return not self.floor.going and self.said <= max(self.heard, self.cleared)

    def adopt(self) -> None:
        """Be what it was changed to, between two rounds."""
        if self.planned is not None:
            self.room, members = self.planned
            self.planned = None
            self.speaker.become(self.room, members)

    def fence(self) -> Callable[[], bool]:
        """Tells whether the room has been stopped since now."""
        stops = self.stops
        return lambda: self.stops != stops

    def stop(self, why: str) -> tuple[str, ...]:
        """Ask whoever speaks to end, and let nobody follow; the ids of their runs."""
        self.clears += 1
        self.cleared = self.said
        return self.interrupt(why)

    def interrupt(self, why: str) -> tuple[str, ...]:
        """End the round, and let what people have said open the next one."""
        self.stops += 1
        if self.choosing is not None:
            self.choosing.cancel()
        self.stopped.set()
        self.stopped = trio.Event()
        return self.speaker.stop(why)
