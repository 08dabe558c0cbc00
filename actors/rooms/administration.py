"""The administration of rooms: people and their roles, invites, exports, deletion.

Each function is a method of :class:`motet.actors.rooms.api.RoomApi`, whose table names it.
Invariants: who may do it is decided on what is on disk, by :class:`.access.RoomAccess`; of an
invite only a digest is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from motet.actors.rooms.access import RoomAccess
from motet.actors.rooms.definition import acts_as
from motet.actors.rooms.publisher import room_stream
from motet.actors.rooms.table import Close
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.events import RoomChanged
from motet.protocols.host_rooms import NewInvite, RoomExport, RoomPeople
from motet.protocols.room_acts import Given, RoomAct, TransferRoom, rank, told
from motet.protocols.room_invites import (
    AddInvite,
    FindInvite,
    ListInvites,
    Redeem,
    RevokeInvite,
    RoomInvite,
)
from motet.protocols.room_people import (
    RoomPerson,
    RoomTerms,
    Standing,
    decide,
    invite_digest,
    newly_named,
)
from motet.protocols.room_presence import KnowsUser, RolesOf
from motet.protocols.rooms import DeleteRoom, ReadSince
from motet.protocols.sessions import LOCAL, ListSessions, Principal, SessionInfo
from motet.runtime.outside import fresh_hex, wall_time

DELETED: Final = "deleted"
"""The generation of a room's stream when the room is deleted."""
SPENT: Final = "there is no such invite: it is used up, over or revoked"
Remaining = Callable[[], Awaitable[tuple[SessionInfo, ...]]]


async def manage(rooms: RoomAccess, act: RoomAct, *, principal: Principal = LOCAL) -> RoomPeople:
    async with rooms.parts.table.changing:
        record, standing = await rooms.standing(act.room)
        change = decide(standing, principal, act, wall_time())
        named, tokens = newly_named(standing, act), rooms.parts.config().gateway.tokens
        known = KnowsUser(act.room, named, tuple(one.user for one in tokens))
        if named and not await rooms.parts.store.ask(known):
            raise InputValidation(f"nobody here is called {named!r}: see the room's people")
        if isinstance(act, TransferRoom):
            await rooms.check_cap(principal, act.user)
            roles = {one.role for one in tokens if one.user == act.user}
            if roles.union(await rooms.parts.store.ask(RolesOf(act.user))) == {"viewer"}:
                raise InputValidation(f"{act.user!r} cannot own a room: their tokens only view")
        await rooms.known(record, standing)
        after = await rooms.change_people(act.room, change)
    await rooms.tell(act.room, told(act, principal.user))
    return _shown(after, principal)


async def people(rooms: RoomAccess, room: str, *, principal: Principal = LOCAL) -> RoomPeople:
    return _shown(await rooms.reader(room, principal), principal)


def _shown(standing: Standing, who: Principal) -> RoomPeople:
    lifts = standing.may(who, "ban")
    rows = (one for one in standing.people.values() if (one.given and not one.banned) or lifts)
    people = tuple(sorted(rows, key=lambda one: one.user))
    return RoomPeople(standing.room, standing.owner, people, standing.terms, standing.role(who))


# Invites


async def invite(
    rooms: RoomAccess,
    room: str,
    role: Given = "member",
    *,
    expires: float | None = None,
    uses: int | None = None,
    principal: Principal = LOCAL,
) -> NewInvite:
    async with rooms.parts.table.changing:
        record, standing = await rooms.standing(room)
        mine, now = standing.demand(principal, "invite"), wall_time()
        if rank(role) >= rank(mine):
            raise InputValidation(f"you are {mine}: an invite of yours cannot make a {role}")
        if (expires is not None and not expires > now) or (uses is not None and uses < 1):
            raise InputValidation("an invite works once at least, and ends in the future")
        await rooms.known(record, standing)
        token = f"mti_{fresh_hex(16)}"
        known = invite_digest(token)
        made = RoomInvite(f"inv_{known[:12]}", room, role, principal.user, now, expires, uses)
        await rooms.parts.store.ask(AddInvite(known, made))
        if expires is not None:
            rooms.parts.table.clocks.left(known, expires)
    return NewInvite(token, made)


async def invites(
    rooms: RoomAccess, room: str, *, principal: Principal = LOCAL
) -> tuple[RoomInvite, ...]:
    (await rooms.standing(room))[1].demand(principal, "invite")
    return await rooms.parts.store.ask(ListInvites(room))


async def revoke_invite(
    rooms: RoomAccess, room: str, invite: str, *, principal: Principal = LOCAL
) -> None:
    (await rooms.standing(room))[1].demand(principal, "invite")
    if not await rooms.parts.store.ask(RevokeInvite(room, invite)):
        raise NotFound(f"no invite {invite!r} of the room {room!r}")


async def let_in(rooms: RoomAccess, token: str, who: Principal) -> str:
    """Let somebody in by an invite; the name of the room."""
    known, clocks = invite_digest(token), rooms.parts.table.clocks
    async with rooms.parts.table.changing:
        found = await rooms.parts.store.ask(FindInvite(known))
        # By the seconds that have passed since it was made, also where the clock was set since.
        left = 1.0 if found is None or not found.expires else clocks.left(known, found.expires)
        if found is None or left <= 0:
            raise NotFound(SPENT)
        _, standing = await rooms.standing(found.room)
        if standing.role(who) is not None:
            return found.room
        own = standing.people.get(who.user)
        if own is not None and own.banned:  # the invite does not say so
            raise NotFound(SPENT)
        person, now = RoomPerson(who.user, found.role, came=True), (found.expires or left) - left
        await rooms.redeem(Redeem(known, found.room, person, now))
    came = RoomChanged(f"{who.user} came in by an invite", who.user, who.user)
    await rooms.tell(found.room, came)
    return found.room


# Export and deletion


async def export(
    rooms: RoomAccess,
    room: str,
    *,
    after: int = 0,
    limit: int = 200,
    principal: Principal = LOCAL,
) -> RoomExport:
    messages = await rooms.parts.store.ask(ReadSince(room, after, limit))
    _, standing = await rooms.standing(room)
    standing.demand(principal, "export")
    people = tuple(standing.people.values())
    more = messages[-1].seq if len(messages) == limit else None
    return RoomExport(room, standing.owner, standing.terms, people, messages, more)


async def close(rooms: RoomAccess, room: str, why: str) -> None:
    """Close an open room and its threads, for a caller that holds ``table.changing``."""
    table = rooms.parts.table
    for one in (*filter(None, (table.rooms.get(room),)), *table.threads(room)):
        one.settings.admit(Standing(room, terms=RoomTerms(archived=wall_time())))
        await one.stop(why).wait()
        await rooms.parts.actor.ask(Close(one.name))


@asynccontextmanager
async def deleting(rooms: RoomAccess, room: str, principal: Principal) -> AsyncGenerator[Remaining]:
    """Delete a room when the block ends, which has to delete its members' sessions.

    The block gets a function that reads those that are left. Nothing is said in the room any
    more. If the block fails, the room stays, with the sessions that are not deleted yet.
    """
    parts, owner = rooms.parts, acts_as(room).user
    async with parts.table.changing:
        _, standing = await rooms.standing(room)
        standing.demand(principal, "delete")
        await close(rooms, room, "the room is deleted")
        yield lambda: parts.sessions.ask(ListSessions(owner, 100, children=True))
        await parts.services.toolkits.current.workspaces.forget(f"group:{owner}")
        await parts.journal.settle()
        with trio.CancelScope(shield=True):
            await parts.store.ask(DeleteRoom(room))
            stream = room_stream(room)
            parts.journal.access_changed(stream, DELETED, below=f"{stream}/")
