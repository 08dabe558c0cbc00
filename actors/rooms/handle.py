"""An open room as a program holds it: post, watch, stop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Self

import trio

from motet.actors.events.subscription import Subscription, subscribe
from motet.actors.rooms.place import Place
from motet.actors.rooms.room import Post, RoomMessages
from motet.actors.rooms.rooms import Open
from motet.actors.rooms.stopping import stop_room
from motet.actors.rooms.voice import room_stream
from motet.protocols.errors import InputValidation
from motet.protocols.events import AnyEvent
from motet.protocols.host import Journal
from motet.protocols.rooms import Floor, ReadRoom, RoomMessage, Said
from motet.protocols.sessions import ShuttingDown, StopReport
from motet.runtime import ActorDead, ActorRef


class RoomEvents:
    """Iterate the events of a room, of all its members' turns."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        return (await anext(self._subscription)).event


class OpenRoom:
    """A room that a host has open, made by :meth:`motet.Host.open_room`."""

    def __init__(self, place: Place, rooms: ActorRef[Open], journal: Journal) -> None:
        self._place = place
        self._rooms = rooms
        self._journal = journal

    def __repr__(self) -> str:
        state = "idle" if self.idle else "speaking"
        return f"<OpenRoom {self.name} {state}>"

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(member.name for member in self._place.room.members)

    @property
    def idle(self) -> bool:
        """Whether it waits for a person."""
        return self._place.idle.is_set()

    @property
    def waits(self) -> bool:
        """Whether nothing that people have said is left to be answered."""
        return self._place.waits

    async def post(self, text: str, *, user: str, key: str | None = None) -> Said:
        """Say something as a person; it is on disk when this returns.

        It opens a round, or, while agents speak, the next one. ``key``: a resend under the same key
        is not said twice. Raises ``InputValidation`` for no text, ``KeyConflict``, ``QueueFull``,
        ``SessionBusy`` (mode ``reject``), ``ShuttingDown``, ``StorageError``.
        """
        if not text.strip():
            raise InputValidation("the message is empty: send some text")
        place = self._place
        if place.closing.is_set():
            raise ShuttingDown("the host is shutting down: try again when it is back")
        post = Post(user, text.encode("utf-8", "replace").decode(), key, place.clears)
        place.posting += 1
        try:
            while True:
                actor = await self._actor()
                with suppress(ActorDead):  # it ended in between: nothing was said
                    return await actor.ask(post)
                await trio.lowlevel.checkpoint()
        finally:
            place.posting -= 1

    @asynccontextmanager
    async def subscribe(self, after: int | None = None) -> AsyncGenerator[RoomEvents]:
        """Watch the room: ``async with room.subscribe() as events: async for event in events``.

        ``after=0``: from its first event on; None: what happens from now on.
        """
        async with subscribe(self._journal, room_stream(self.name), after) as subscription:
            yield RoomEvents(subscription)

    async def history(
        self, *, before: int | None = None, limit: int = 50
    ) -> tuple[RoomMessage, ...]:
        """What was said, oldest first."""
        return await self._place.store.ask(ReadRoom(self.name, before, limit))

    async def wait(self) -> Floor:
        """Wait until it waits for a person; how its last round ended. Cancelling is harmless."""
        await self._place.idle.wait()
        return self._place.floor

    async def stop(self, grace: float = 5.0, *, why: str = "the room was stopped") -> StopReport:
        """End every speaker, and have nobody speak until a person says something more.

        What people have said and nobody has answered yet stays so. Waits at most ``grace`` seconds.
        Needs neither the room's actor nor the disk.
        """
        stop = stop_room(self._place, why)
        with trio.move_on_after(grace):
            await stop.wait()
        return stop.report()

    async def _actor(self) -> ActorRef[RoomMessages]:
        return await self._rooms.ask(Open(self.name))
