"""The open rooms of a host: their table, and the parent of their actors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote
from weakref import WeakValueDictionary

import trio

from motet.actors.rooms.definition import acts_as
from motet.actors.rooms.live import LiveRoom
from motet.actors.rooms.room import RoomActor
from motet.actors.sessions.router import CROWDED_SWEEP, IDLE_AFTER, SWEEP_EVERY
from motet.protocols.errors import NotFound
from motet.protocols.messages import Request
from motet.protocols.room_clocks import RoomClocks
from motet.protocols.room_messages import RoomMessages
from motet.protocols.session_keys import thread_of
from motet.runtime import Actor, ActorRef, Supervision, handles
from motet.runtime.outside import steady_time, wall_time

MOST = 150
"""Actors of rooms that rest, at most; the longest idle end first."""
CATCH_UP_EVERY = 1.0
"""Seconds between two attempts to store what the storage did not take."""


class Open(Request[ActorRef[RoomMessages]], frozen=True, tag="rooms.open"):
    """The actor of an open room, started if it is not alive."""

    name: str


class Close(Request[None], frozen=True, tag="rooms.close"):
    """End the actor of a room, and forget it here; what is on disk stays."""

    name: str


class RoomTable:
    """The open rooms of a host by name: plain data, which stays when an actor is restarted.

    Attributes:
        rooms: changed by :func:`open_room` and :class:`Close` only. Weak: a room stays as long as
            anybody has it, so that there are never two of one name; ``held`` has the others.
        held: those that have an actor, are not at rest, or could not be opened again.
        decisions: counts the stored changes of people and plans.
        changing: held while the stored definition of a room is changed.
        clocks: of people's messages, mutes and invites.
        reopened: set when the unfinished rooms of the last host are open.
    """

    def __init__(self) -> None:
        self.rooms = WeakValueDictionary[str, LiveRoom]()
        self.held: dict[str, LiveRoom] = {}
        self.decisions = 0
        self.changing = trio.Lock()
        self.reopened = trio.Event()
        self.clocks = RoomClocks(steady_time, wall_time)
        self._reopen: Callable[[], Awaitable[None]] | None = None
        self._ready = trio.Event()
        self._lagging = trio.Event()

    def threads(self, room: str) -> tuple[LiveRoom, ...]:
        """The open threads of a room."""
        return tuple(one for name, one in self.rooms.items() if name.startswith(f"{room}/"))

    def family(self, room: str) -> tuple[LiveRoom, ...]:
        """The open ones among a room, or the room of a thread, and its threads."""
        home = thread_of(room)[0]
        whole = self.rooms.get(home)
        return (*(() if whole is None else (whole,)), *self.threads(home))

    def below(self, room: str) -> tuple[LiveRoom, ...]:
        """The open rooms that answer calls of a room's members."""
        user, open_now = acts_as(room).user, self.rooms.values()
        above = ((one, one.control.above) for one in open_now)
        return tuple(one for one, run in above if run and run.input.principal.user == user)

    def begin(self, reopen: Callable[[], Awaitable[None]]) -> None:
        """Have the unfinished rooms of the last host opened: from now on hooks are registered."""
        self._reopen = reopen
        self._ready.set()

    async def reopen(self) -> None:
        """Wait for :meth:`begin`, then open the unfinished rooms of the last host."""
        await self._ready.wait()
        assert self._reopen is not None
        await self._reopen()
        self.reopened.set()

    def lags(self) -> None:
        """The storage did not take the state of a room."""
        self._lagging.set()

    async def catch_up(self) -> None:
        """Store the states of rooms that are not on disk, as soon as the storage takes them."""
        while True:
            await self._lagging.wait()
            self._lagging = trio.Event()
            await trio.sleep(CATCH_UP_EVERY)
            for live in tuple(self.rooms.values()):
                await live.history.catch_up()


class Rooms(Actor[Open | Close]):
    """Parent of all room actors. One room's crash never touches another's."""

    supervision = Supervision(intensity=20, period=5.0, backoff=0.1)
    cleanup_budget = 12.0

    def __init__(self, table: RoomTable) -> None:
        self._table = table
        self._crowded = trio.Event()
        self._count = 0

    async def on_start(self) -> None:
        self.start_soon(self._sweep)
        self.start_soon(self._table.reopen)
        self.start_soon(self._table.catch_up)

    @handles(Open)
    async def open(self, request: Open) -> ActorRef[RoomMessages]:
        name = actor_name(request.name)
        actor: ActorRef[RoomMessages] | None = self.child(name)
        if actor is None or not actor.is_alive:
            live = self._table.rooms.get(request.name)
            if live is None:
                raise no_room(request.name)
            await self.stop_child(name)  # one that is ending has its name until it has ended
            self._table.held[request.name] = live
            live.control.busy()
            try:
                actor = await self.start_child(lambda: RoomActor(live), name=name)
            except BaseException:
                live.control.idle.set()  # a stop would wait for it
                raise
            self._count += 1
            if self._count > MOST:
                self._crowded.set()
        return actor

    @handles(Close)
    async def close(self, request: Close) -> None:
        self._table.rooms.pop(request.name, None)
        self._table.held.pop(request.name, None)
        await self.stop_child(actor_name(request.name))

    async def _sweep(self) -> None:
        while True:
            now, touched = trio.current_time(), [one.history.touched for one in self._alive()]
            due = touched[0] + IDLE_AFTER if touched else 0.0
            with trio.move_on_at(max(due, now + SWEEP_EVERY)):
                await self._crowded.wait()
                await trio.sleep(CROWDED_SWEEP)
            self._crowded = trio.Event()
            await self._passivate()  # a function of its own: it keeps no room once it has returned

    async def _passivate(self) -> None:
        """End the actors of rooms that rest for a while, or are too many, and let these go."""
        alive, old = self._alive(), trio.current_time() - IDLE_AFTER
        for place, live in enumerate(alive):
            is_spare = len(alive) - place > MOST
            if live.rests and (is_spare or live.history.touched <= old):
                await self.stop_child(actor_name(live.name))
        self._count = len(names := self.children)
        for name, live in tuple(self._table.held.items()):
            if live.is_stored and live.rests and actor_name(name) not in names:
                del self._table.held[name]

    def _alive(self) -> list[LiveRoom]:
        """The rooms that have an actor, the longest untouched first."""
        names = self.children
        found = (one for one in self._table.rooms.values() if actor_name(one.name) in names)
        return sorted(found, key=lambda one: one.history.touched)


def actor_name(room: str) -> str:
    """A room's name as the name of an actor."""
    return quote(room, safe=":@ ")


def no_room(name: str) -> NotFound:
    return NotFound(f"no room {name!r}")
