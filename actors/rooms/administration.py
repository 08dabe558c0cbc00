"""The administration of rooms: people and their roles, invites, archives, exports, deletion.

Invariants: a decision is made on the people that are on disk, while no other is made, and holds
from the step in which it is stored: then streams of those who were removed end, and their messages
that are not stored yet are refused. Of an invite only a digest is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from motet.actors.rooms.definition import acts_as
from motet.actors.rooms.opening import (
    RoomParts,
    in_thread,
    known_room,
    standing_of,
    thread_room,
)
from motet.actors.rooms.publisher import room_stream
from motet.actors.rooms.state import Definition
from motet.actors.rooms.table import Close, no_room
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.events import RoomChanged
from motet.protocols.host_rooms import NewInvite, RoomExport, RoomPeople
from motet.protocols.room_acts import Given, RoomAct, rank
from motet.protocols.room_invites import (
    AddInvite,
    FindInvite,
    ListInvites,
    Redeem,
    RevokeInvite,
    RoomInvite,
)
from motet.protocols.room_people import RoomPerson, RoomTerms, Standing, decide, invite_digest, told
from motet.protocols.rooms import (
    ChangePeople,
    CreateRoom,
    DeleteRoom,
    FindRoom,
    ReadSince,
    RoomRecord,
    SetRoom,
)
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import LOCAL, ListSessions, Principal, SessionInfo
from motet.runtime.outside import fresh_hex, wall_time

DELETED = "deleted"
"""The generation of a room's stream when the room is deleted."""
SETTLED = 0.5
"""Seconds to wait for the journal of events; it is late only while the storage is."""
Remaining = Callable[[], Awaitable[tuple[SessionInfo, ...]]]


class RoomAdministration:
    """The half of :class:`motet.protocols.host_rooms.HostRooms` that is about people."""

    def __init__(self, parts: RoomParts) -> None:
        self._parts = parts

    async def manage(self, act: RoomAct, *, principal: Principal = LOCAL) -> RoomPeople:
        async with self._parts.table.changing:
            record, standing = await self.standing(act.room)
            change = decide(standing, principal, act, wall_time())
            if record is None:
                await self._parts.store.ask(CreateRoom(act.room, standing.owner))
            after = await self._apply(act.room, ChangePeople(act.room, change))
        await self._tell(act.room, told(act, principal.user))
        return _shown(after, principal)

    async def people(self, room: str, *, principal: Principal = LOCAL) -> RoomPeople:
        _, standing = await self.standing(room)
        standing.demand(principal, "read")
        return _shown(standing, principal)

    async def standing(self, room: str) -> tuple[RoomRecord | None, Standing]:
        """Who may do what in a room, as it is stored. Raises ``NotFound``."""
        home, number = thread_of(room)
        if number:
            record, standing = await self.standing(home)
            return record, in_thread(standing, room)
        record = await self._parts.store.ask(FindRoom(room, 0))
        definition = known_room(self._parts, room, record)
        if definition is None:
            raise no_room(room)
        owner, live = record.owner if record else "", self._parts.table.rooms.get(room)
        if live is not None:  # the room of a call has an owner as long as the call lasts
            owner = owner or live.settings.standing.owner
        # Of an open room, a reload may have changed whom its definition names.
        of = live.settings.standing if live else None
        named, newcomers = (
            (of.configured, of.newcomers) if of else (definition.people, definition.newcomers)
        )
        return record, standing_of(room, owner, named, record, newcomers)

    async def _arrive(self, room: str, who: Principal) -> None:
        """Note the first visit of a newcomer, before anything is read or said."""
        if (await self.standing(room))[1].arrival(who) is not None:
            async with self._parts.table.changing:
                record, standing = await self.standing(room)
                if change := standing.arrival(who):
                    if record is None:
                        await self._parts.store.ask(CreateRoom(room, standing.owner))
                    await self._apply(room, ChangePeople(room, change))

    async def _apply(
        self,
        room: str,
        request: ChangePeople | SetRoom | Redeem,
        definition: Definition | None = None,
    ) -> Standing:
        """Store a change; it holds, and is told, in the step in which it is stored."""
        # A newcomer is not shown the events so far, which get their numbers first.
        with trio.move_on_after(SETTLED):
            await self._parts.journal.settle()
        # Shielded: what is on disk takes effect.
        with trio.CancelScope(shield=True):
            if await self._parts.store.ask(request) is False:
                raise NotFound("this invite is used up, over or revoked: ask for another one")
            _, standing = await self.standing(room)
            live = self._parts.table.rooms.get(room)
            if live is not None:
                before = live.settings.standing
                live.change(definition, standing)
                threads = self._parts.table.threads(room)
                for thread in threads:
                    room_of_it = thread_room(definition[0], thread.name) if definition else None
                    changed = (room_of_it, definition[1]) if definition and room_of_it else None
                    thread.change(changed, in_thread(standing, thread.name))
                for one in (live, *threads):
                    await one.retract(before, standing)
            else:
                self._parts.journal.access_changed(room_stream(room))
            return standing
        raise AssertionError("nobody cancels this scope")

    async def _tell(self, room: str, event: RoomChanged) -> None:
        await self._parts.publisher.emit(room_stream(room), event)

    # Invites

    async def invite(
        self,
        room: str,
        role: Given = "member",
        *,
        expires: float | None = None,
        uses: int | None = None,
        principal: Principal = LOCAL,
    ) -> NewInvite:
        async with self._parts.table.changing:
            record, standing = await self.standing(room)
            mine, now = standing.demand(principal, "invite"), wall_time()
            if rank(role) >= rank(mine):
                raise InputValidation(f"you are {mine}: an invite of yours cannot make a {role}")
            if (expires is not None and not expires > now) or (uses is not None and uses < 1):
                raise InputValidation("an invite works once at least, and ends in the future")
            if record is None:
                await self._parts.store.ask(CreateRoom(room, standing.owner))
            token = f"mti_{fresh_hex(16)}"
            known = invite_digest(token)
            made = RoomInvite(f"inv_{known[:12]}", room, role, principal.user, now, expires, uses)
            await self._parts.store.ask(AddInvite(known, made))
        return NewInvite(token, made)

    async def invites(self, room: str, *, principal: Principal = LOCAL) -> tuple[RoomInvite, ...]:
        (await self.standing(room))[1].demand(principal, "invite")
        return await self._parts.store.ask(ListInvites(room))

    async def revoke_invite(self, room: str, invite: str, *, principal: Principal = LOCAL) -> None:
        (await self.standing(room))[1].demand(principal, "invite")
        if not await self._parts.store.ask(RevokeInvite(room, invite)):
            raise NotFound(f"no invite {invite!r} of the room {room!r}")

    async def _join(self, token: str, principal: Principal) -> str:
        """Let the principal in; the name of the room."""
        known = invite_digest(token)
        async with self._parts.table.changing:
            found = await self._parts.store.ask(FindInvite(known))
            if found is None:
                raise NotFound("there is no such invite: it is used up, over or revoked")
            _, standing = await self.standing(found.room)
            if standing.role(principal) is not None:
                return found.room
            own = standing.people.get(principal.user)
            if own is not None and own.banned:  # the invite does not say so
                raise NotFound("there is no such invite: it is used up, over or revoked")
            person = RoomPerson(principal.user, found.role, came=True)
            await self._apply(found.room, Redeem(known, found.room, person))
        user = principal.user
        await self._tell(found.room, RoomChanged(f"{user} came in by an invite", user, user))
        return found.room

    async def export(
        self, room: str, *, after: int = 0, limit: int = 200, principal: Principal = LOCAL
    ) -> RoomExport:
        messages = await self._parts.store.ask(ReadSince(room, after, limit))
        _, standing = await self.standing(room)
        standing.demand(principal, "export")
        people = tuple(standing.people.values())
        more = messages[-1].seq if len(messages) == limit else None
        return RoomExport(room, standing.owner, standing.terms, people, messages, more)

    # Deletion

    @asynccontextmanager
    async def deleting(self, room: str, principal: Principal) -> AsyncGenerator[Remaining]:
        """Delete a room when the block ends, which has to delete its members' sessions.

        The block gets a function that reads those that are left. Nothing is said in the room any
        more. If the block fails, the room stays, with the sessions that are not deleted yet.
        """
        parts, owner = self._parts, acts_as(room).user
        async with parts.table.changing:
            _, standing = await self.standing(room)
            standing.demand(principal, "delete")
            if (live := parts.table.rooms.get(room)) is not None:
                live.settings.admit(Standing(room, terms=RoomTerms(archived=wall_time())))
                for one in (live, *parts.table.threads(room)):
                    one.settings.admit(Standing(room, terms=RoomTerms(archived=wall_time())))
                    await one.stop("the room is deleted").wait()
                    await parts.actor.ask(Close(one.name))
            yield lambda: parts.sessions.ask(ListSessions(owner, 100, children=True))
            await parts.services.toolkits.current.workspaces.forget(f"group:{owner}")
            await parts.journal.settle()
            with trio.CancelScope(shield=True):
                await parts.store.ask(DeleteRoom(room))
                parts.journal.access_changed(room_stream(room), DELETED)


def _shown(standing: Standing, who: Principal) -> RoomPeople:
    lifts = standing.may(who, "ban")
    rows = (one for one in standing.people.values() if (one.given and not one.banned) or lifts)
    people = tuple(sorted(rows, key=lambda one: one.user))
    return RoomPeople(standing.room, standing.owner, people, standing.terms, standing.role(who))
