"""The rooms of a host for its clients, and their update after a reload.

Invariants: every call is in the name of a principal; a room that the principal may not see does not
exist for them (G16); a message is signed with the principal's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
from msgspec import UnsetType
from msgspec.structs import replace

from motet.actors.agents.registry import AgentRegistry, Resolver
from motet.actors.rooms import administration
from motet.actors.rooms.access import RoomAccess
from motet.actors.rooms.definition import Room
from motet.actors.rooms.live import LiveRoom
from motet.actors.rooms.opening import (
    OpenRoom,
    configured_room,
    known_room,
    members_of,
    open_room,
    planned_room,
    reopen,
)
from motet.actors.rooms.state import Definition
from motet.actors.rooms.table import RoomTable, no_room
from motet.protocols.errors import ConfigError, InputValidation, NotFound, UnknownName
from motet.protocols.escalations import AnswerEscalation
from motet.protocols.events import RoomPresence, RoomRead, RoomTyping
from motet.protocols.host_rooms import RoomInfo, RoomPage
from motet.protocols.room_config import RoomConfig, standing_of
from motet.protocols.room_messages import RoomStoreRequest
from motet.protocols.room_newcomers import Summary
from motet.protocols.room_people import PeopleChange, Standing, replaced
from motet.protocols.room_presence import CountUnread, MarkRead, Pace, Presence, Unread
from motet.protocols.rooms import (
    CreateRoom,
    FindRoom,
    MemberInfo,
    PageRooms,
    ReadRoom,
    RoomChange,
    RoomMessage,
    RoomPlan,
    RoomRecord,
    Said,
)
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime import ActorRef
from motet.runtime.outside import fresh_hex, monotonic

_MOST = 200


@attrs.frozen(eq=False)
class RoomApi(RoomAccess):
    """See :class:`motet.protocols.host_rooms.HostRooms`: the lists of rooms, and talk in them.

    People and their roles are functions of :mod:`motet.actors.rooms.administration`.
    """

    _presence: Presence = attrs.field(factory=Presence, init=False)
    _pace: Pace = attrs.field(factory=partial(Pace, monotonic), init=False)

    manage = administration.manage
    people = administration.people
    invite = administration.invite
    invites = administration.invites
    revoke_invite = administration.revoke_invite
    export = administration.export
    deleting = administration.deleting

    def begin(self) -> None:
        """Open the rooms that the last host has left unfinished, from now on."""
        self.parts.table.begin(partial(reopen, self.parts))

    async def open(self, room: Room | str, principal: Principal) -> OpenRoom:
        """See :func:`open_room`."""
        return await open_room(self.parts, room, principal)

    async def list(self, *, principal: Principal = LOCAL) -> tuple[RoomInfo, ...]:
        found: list[RoomInfo] = []
        after: str | None = ""
        while after is not None:
            page = await self.page(after=after, limit=_MOST, principal=principal)
            found += page.rooms
            after = page.next
        return tuple(found)

    async def page(
        self,
        *,
        after: str = "",
        limit: int = 50,
        query: str = "",
        archived: bool = False,
        principal: Principal = LOCAL,
    ) -> RoomPage:
        user = None if principal.role == "admin" else principal.user
        stored = await self.parts.store.ask(PageRooms(user, after, limit, query, archived))
        records, full = {one.name: one for one in stored}, len(stored) == limit
        for name in self._named():
            if name > after and name not in records and not (full and name > stored[-1].name):
                found = await self.parts.store.ask(FindRoom(name, 0)) or RoomRecord(name, "")
                if found.terms.fits(name, query, archived=archived):
                    records[name] = found
        names = sorted(records)[:limit]
        infos = [self._info(records[name], principal) for name in names]
        more = names[-1] if full or len(records) > limit else None
        seen = [one for one in infos if one is not None]
        return RoomPage(await self._with_unread(seen, principal.user), more)

    def _named(self) -> set[str]:
        """The rooms whose definitions name people: no index of the store has them."""
        rooms = (one.settings.room for one in self.parts.table.rooms.values())
        return {*self.parts.config().rooms, *(room.name for room in rooms if room.people)}

    async def get(self, room: str, *, principal: Principal = LOCAL) -> RoomInfo:
        home, number = thread_of(room)
        if number:
            whole = await self.get(home, principal=principal)
            live = self.parts.table.rooms.get(room)
            idle = live is None or live.history.waits
            speaking = live.speaking() if live else ()
            names = tuple(one.name for one in speaking)
            if whole.hidden >= number:
                raise no_room(room)
            whole = replace(whole, hidden=0, hidden_events=0, plan=None)
            return replace(whole, name=room, idle=idle, speaking=names, floor=speaking)
        info = await self._found(room, principal)
        if info.newcomers != "all" and info.role in ("reader", "member"):
            await self.arrive(room, principal)
            info = await self._found(room, principal)
        return info

    async def _found(self, room: str, principal: Principal) -> RoomInfo:
        record = await self.parts.store.ask(FindRoom(room, 0))
        if record is None and room in self.parts.config().rooms:
            record = RoomRecord(room, "")
        info = self._info(record, principal) if record else None
        if info is None:
            raise no_room(room)
        return info

    async def join(self, token: str, *, principal: Principal = LOCAL) -> RoomInfo:
        room = await administration.let_in(self, token, principal)
        return await self.get(room, principal=principal)

    async def create(
        self,
        name: str,
        plan: RoomPlan,
        *,
        people: tuple[str, ...] = (),
        principal: Principal = LOCAL,
    ) -> RoomInfo:
        """Raises ``ConfigError``, ``UnknownName`` for a room that could not be opened."""
        # A unique suffix: a refusal of a taken name would reveal the rooms of others.
        name = f"{name}-{fresh_hex(4)}"
        await members_of(self.parts, planned_room(name, plan))
        async with self.parts.table.changing:
            await self.check_cap(principal, principal.user)
            await self.parts.store.ask(CreateRoom(name, principal.user, people, plan))
        return await self.get(name, principal=principal)

    async def change(
        self, room: str, change: RoomChange, *, principal: Principal = LOCAL
    ) -> RoomInfo:
        async with self.parts.table.changing:
            record, standing = await self.standing(room)
            standing.demand(principal, "set")
            plan = record.plan if record else None
            if change.plans and plan is None:
                raise ConfigError(
                    f"the room {room!r} was not made by a person: it is defined in the host's "
                    "configuration or its program; only `people` can be changed here"
                )
            changed = change.of(plan) if plan and change.plans else None
            planned = planned_room(room, changed) if changed else None
            definition = (planned, await members_of(self.parts, planned)) if planned else None
            users = None if isinstance(change.people, UnsetType) else change.people
            of_people = PeopleChange() if users is None else replaced(standing, users)
            await self.known(record, standing)
            await self.change_people(room, of_people, changed, definition)
        return await self.get(room, principal=principal)

    # Messages, and the people who read them

    async def post(
        self,
        room: str,
        text: str,
        *,
        key: str | None = None,
        reply_to: int | None = None,
        answers: AnswerEscalation | None = None,
        principal: Principal = LOCAL,
    ) -> Said:
        if not await self.is_begun(room):
            await self.speaker(room, principal)
        opened = await self.open(room, principal)
        user, role, settings = principal.user, principal.role, opened.live.settings
        if settings.standing.reads != "all":
            await self.arrive(thread_of(room)[0], principal)
        if reply_to and settings.hidden(principal) >= reply_to:
            raise InputValidation(f"reply_to: the room has no message {reply_to}")
        return await opened.post(
            text, user=user, role=role, key=key, reply_to=reply_to, answers=answers, invited=True
        )

    async def history(
        self,
        room: str,
        *,
        before: int | None = None,
        limit: int = 50,
        query: str = "",
        principal: Principal = LOCAL,
    ) -> tuple[RoomMessage, ...]:
        found = await self.parts.store.ask(ReadRoom(room, before, limit, query=query))
        # Afterwards: a member who is removed meanwhile gets none of the messages that follow.
        info = await self.get(room, principal=principal)
        return tuple(one for one in found if one.seq > info.hidden)

    async def summary(self, room: str, *, principal: Principal = LOCAL) -> Summary:
        info = await self.get(room, principal=principal)
        if info.newcomers != "summary" or not info.hidden:
            return Summary()
        opened = await self.open(room, principal)
        return Summary(info.hidden, (await opened.live.summary(info.hidden)).text)

    async def edit_message(
        self, room: str, number: int, text: str, *, principal: Principal = LOCAL
    ) -> RoomMessage:
        opened = await self.to_speak(room, principal)
        return await opened.edit(number, text, user=principal.user, role=principal.role)

    async def delete_message(
        self, room: str, number: int, *, principal: Principal = LOCAL
    ) -> RoomMessage:
        standing = await self.reader(room, principal)
        opened = await self.to_change(room, principal)
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
        opened, who = await self.to_speak(room, principal), principal
        if opened.live.settings.hidden(who) >= number:
            raise NotFound(f"no message {number} in room {room!r}")
        return await opened.react(number, reaction, user=who.user, role=who.role, on=on)

    async def mark_read(self, room: str, number: int, *, principal: Principal = LOCAL) -> None:
        await self.reader(room, principal)
        await self.parts.store.ask(MarkRead(room, principal.user, number))
        self.show(room, RoomRead(principal.user, number))

    async def typing(self, room: str, *, on: bool = True, principal: Principal = LOCAL) -> None:
        await self.speaker(room, principal)
        if self._pace.passes(room, principal.user, on=on):
            self.show(room, RoomTyping(principal.user, "user", on))

    async def present(self, room: str, *, principal: Principal = LOCAL) -> tuple[str, ...]:
        await self.reader(room, principal)
        return self._presence.of(room)

    def enter(self, room: str, principal: Principal) -> Callable[[], None]:
        user, left = principal.user, False
        if self._presence.enter(room, user):
            self.show(room, RoomPresence(user, here=True))

        def leave() -> None:
            nonlocal left
            if not left and self._presence.leave(room, user):
                self.show(room, RoomPresence(user, here=False))
            left = True

        return leave

    def open_to(self, room: str, principal: Principal) -> bool:
        rooms = self.parts.table.rooms
        live = rooms.get(room) or rooms.get(thread_of(room)[0])
        return live is None or live.settings.open_to(principal)

    # Shown of a room

    async def _with_unread(self, infos: Sequence[RoomInfo], user: str) -> tuple[RoomInfo, ...]:
        """The rooms of a list, with what a user has not read in each."""
        names = {one.name: one.hidden for one in infos}
        found = await self.parts.store.ask(CountUnread(user, names)) if names else {}
        marks = ((one, found.get(one.name, Unread())) for one in infos)
        return tuple(replace(one, read=mark.read, unread=mark.unread) for one, mark in marks)

    def _info(self, record: RoomRecord, who: Principal) -> RoomInfo | None:
        """None: it is not the principal's, or a program's that has not opened it yet."""
        live = self.parts.table.rooms.get(record.name)
        room = self._definition(record)
        if room is None:
            return None
        named = room.people if isinstance(room, Room) else ()
        people = live.settings.standing.configured if live else named
        newcomers = live.settings.standing.newcomers if live else room.newcomers
        standing = standing_of(record.name, record.owner, people, record, newcomers)
        role = standing.role(who)
        if role is None:
            return None
        floor = live.history.state.floor if live else record.state.floor
        return RoomInfo(
            name=record.name,
            owner=record.owner,
            people=standing.names,
            members=live.settings.members if live else self._members(room),
            idle=live.history.waits if live else not floor.going,
            speaking=tuple(turn.name for turn in floor.speaking),
            turns=floor.turns,
            left=room.max_turns - floor.turns if floor.going else 0,
            reason=floor.reason,
            mode=room.mode,
            plan=record.plan,
            terms=record.terms,
            role=role,
            details=standing.may(who, "details"),
            gone=live.settings.gone if live else (),
            floor=live.speaking() if live else (),
            activation=room.activation,
            stuck=live.stuck() if live else (),
            newcomers=standing.reads,
            hidden=standing.hidden(who).messages,
            hidden_events=standing.hidden(who).events,
        )

    def _definition(self, record: RoomRecord) -> Room | RoomPlan | None:
        """A plan is not made a room for a list, which would take most of its time."""
        live, config = self.parts.table.rooms.get(record.name), self.parts.config().rooms
        if live is None and record.name not in config:
            return record.plan
        return known_room(self.parts, record.name, record)

    def _members(self, room: Room | RoomPlan) -> tuple[MemberInfo, ...]:
        if isinstance(room, RoomPlan):
            infos = list(map(room.member, room.members))
        else:
            infos = [one.info for one in room.members]
        agents = [self.parts.resolver.known(one.name) for one in infos]
        return tuple(
            replace(info, description=agent.description) if agent else info
            for info, agent in zip(infos, agents, strict=True)
        )


# Reload


@attrs.frozen
class RoomUpdate:
    """The change that another configuration makes to one open room.

    ``definition`` None: it is not configured any more, and only admins see it.
    """

    room: LiveRoom
    definition: Definition | None
    standing: Standing
    gone: tuple[str, ...] = ()

    def commit(self) -> None:
        """Who may see the room changes at once, its definition from its next round on.

        Nothing here can fail or wait.
        """
        self.room.change(self.definition, self.standing, self.gone)


async def room_updates(
    table: RoomTable,
    store: ActorRef[RoomStoreRequest],
    resolver: Resolver,
    registry: AgentRegistry,
    before: Mapping[str, RoomConfig],
    after: Mapping[str, RoomConfig],
) -> list[RoomUpdate]:
    """The updates of all open rooms that are or were configured.

    Every error is found before any room changes. Raises ``ConfigError``, ``UnknownName``.
    ``registry``: of the agents that there will be; ``before`` and ``after``: the configured rooms.
    """
    found: list[RoomUpdate] = []
    for name, live in tuple(table.rooms.items()):
        if name in after:
            room = configured_room(name, after[name])
            record = await store.ask(FindRoom(name, 0))
            owner = record.owner if record else ""
            standing = standing_of(name, owner, room.people, record, room.newcomers)
            members = await _members(resolver, registry, room)
            found.append(RoomUpdate(live, (room, members), standing))
        elif name in before:
            found.append(RoomUpdate(live, None, Standing(name)))
        else:
            room, known = live.settings.latest, await _known(resolver, registry)
            here = tuple(one for one in room.members if one.name in known)
            gone = tuple(one.name for one in room.members if one not in here)
            if gone != live.settings.gone:
                infos = tuple(replace(one.info, description=known[one.name]) for one in here)
                found.append(RoomUpdate(live, (room, infos), live.settings.standing, gone))
    return found


async def _members(
    resolver: Resolver, registry: AgentRegistry, room: Room
) -> tuple[MemberInfo, ...]:
    known = await _known(resolver, registry)
    for member in room.members:
        if member.name not in known:
            raise UnknownName("agent", member.name, tuple(known))
    return tuple(replace(one.info, description=known[one.name]) for one in room.members)


async def _known(resolver: Resolver, registry: AgentRegistry) -> dict[str, str]:
    """The agents that there will be, with their descriptions."""
    stored = {one.name: one.description for one in await resolver.records()}
    return stored | {one.name: one.description for one in registry.infos()}
