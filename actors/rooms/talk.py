"""The changes of messages in the rooms of a host, and what people there see of each other.

Invariants: every call is in the name of a principal, and a room that the principal may not see does
not exist (G16); what is not stored (who writes, who is here) is told to those who watch the room,
and to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from motet.actors.rooms.administration import RoomAdministration
from motet.actors.rooms.opening import OpenRoom, RoomParts, open_room
from motet.actors.rooms.publisher import room_stream
from motet.protocols.events import AnyEvent, RoomPresence, RoomRead, RoomTyping
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.room_people import Standing, refusal
from motet.protocols.room_presence import CountUnread, MarkRead, Pace, Presence, Unread
from motet.protocols.rooms import RoomMessage
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.outside import monotonic, wall_time


class RoomTalk(RoomAdministration):
    """The part of :class:`motet.protocols.host_rooms.HostRooms` that is about messages."""

    def __init__(self, parts: RoomParts) -> None:
        super().__init__(parts)
        self._presence = Presence()
        self._pace = Pace(monotonic)

    async def edit_message(
        self, room: str, number: int, text: str, *, principal: Principal = LOCAL
    ) -> RoomMessage:
        opened = await self._to_speak(room, principal)
        return await opened.edit(number, text, user=principal.user, role=principal.role)

    async def delete_message(
        self, room: str, number: int, *, principal: Principal = LOCAL
    ) -> RoomMessage:
        standing = await self._reader(room, principal)
        opened = await open_room(self._parts, room, principal)
        moderates, user = standing.may(principal, "moderate"), principal.user
        return await opened.delete(number, user=user, role=principal.role, moderates=moderates)

    async def react(
        self,
        room: str,
        number: int,
        reaction: str,
        *,
        on: bool = True,
        principal: Principal = LOCAL,
    ) -> RoomMessage:
        opened, who = await self._to_speak(room, principal), principal
        return await opened.react(number, reaction, user=who.user, role=who.role, on=on)

    async def mark_read(self, room: str, number: int, *, principal: Principal = LOCAL) -> None:
        await self._reader(room, principal)
        await self._parts.store.ask(MarkRead(room, principal.user, number))
        self._show(room, RoomRead(principal.user, number))

    async def typing(self, room: str, *, on: bool = True, principal: Principal = LOCAL) -> None:
        await self._speaker(room, principal)
        if self._pace.passes(room, principal.user, on=on):
            self._show(room, RoomTyping(principal.user, "user", on))

    async def present(self, room: str, *, principal: Principal = LOCAL) -> tuple[str, ...]:
        await self._reader(room, principal)
        return self._presence.of(room)

    def enter(self, room: str, principal: Principal) -> Callable[[], None]:
        user, left = principal.user, False
        if self._presence.enter(room, user):
            self._show(room, RoomPresence(user, here=True))

        def leave() -> None:
            nonlocal left
            if not left and self._presence.leave(room, user):
                self._show(room, RoomPresence(user, here=False))
            left = True

        return leave

    async def _reader(self, room: str, who: Principal) -> Standing:
        """Raises ``NotFound`` for a room that the principal may not see."""
        _, standing = await self.standing(room)
        standing.demand(who, "read")
        return standing

    async def _speaker(self, room: str, who: Principal) -> None:
        """Raises as a message would be refused, but for slow mode."""
        standing = await self._reader(room, who)
        if problem := refusal(standing, who, invited=True, last=-1e9, now=wall_time()):
            raise problem

    async def _to_speak(self, room: str, who: Principal) -> OpenRoom:
        await self._speaker(room, who)
        return await open_room(self._parts, room, who)

    async def _with_unread(
        self, infos: Iterable[RoomInfo], principal: Principal
    ) -> tuple[RoomInfo, ...]:
        """The rooms of a list, with what the principal has not read in each."""
        rooms = tuple(infos)
        names = tuple(one.name for one in rooms)
        found = await self._parts.store.ask(CountUnread(principal.user, names)) if names else {}
        marks = [found.get(one.name, Unread()) for one in rooms]
        return tuple(
            replace(one, read=mark.read, unread=mark.unread)
            for one, mark in zip(rooms, marks, strict=True)
        )

    def _show(self, room: str, event: AnyEvent) -> None:
        self._parts.publisher.put(room_stream(room), event, None)
