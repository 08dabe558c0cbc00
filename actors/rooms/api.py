"""The rooms of a host for its clients, and their update after a reload.

Invariants: every call is in the name of a principal; a room that the principal may not see does not
exist for them (G16); a message is signed with the principal's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs
from msgspec import UnsetType
from msgspec.structs import replace

from motet.actors.agents.registry import AgentRegistry, Resolver
from motet.actors.rooms.definition import Room, may_change, may_see
from motet.actors.rooms.live import LiveRoom
from motet.actors.rooms.opening import (
    OpenRoom,
    RoomParts,
    RoomTable,
    configured_room,
    known_room,
    members_of,
    no_room,
    open_room,
    planned_room,
    reopen,
)
from motet.actors.rooms.publisher import room_stream
from motet.actors.rooms.state import Definition
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.escalations import AnswerEscalation
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.room_config import RoomConfig
from motet.protocols.room_messages import RoomStoreRequest
from motet.protocols.rooms import (
    CreateRoom,
    FindRoom,
    ListRooms,
    MemberInfo,
    ReadRoom,
    RoomChange,
    RoomMessage,
    RoomPlan,
    RoomRecord,
    Said,
    SetRoom,
)
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime import ActorRef
from motet.runtime.outside import fresh_hex


class RoomApi:
    """See :class:`motet.protocols.host_rooms.HostRooms`."""

    def __init__(self, parts: RoomParts) -> None:
        self._parts = parts

    def begin(self) -> None:
        """Open the rooms that the last host has left unfinished, from now on."""
        self._parts.table.begin(partial(reopen, self._parts))

    async def open(self, room: Room | str, principal: Principal) -> OpenRoom:
        """See :func:`open_room`."""
        return await open_room(self._parts, room, principal)

    async def list(self, *, principal: Principal = LOCAL) -> tuple[RoomInfo, ...]:
        records = {one.name: one for one in await self._parts.store.ask(ListRooms())}
        for name in self._parts.config().rooms:
            records.setdefault(name, RoomRecord(name, ""))
        infos = [self._info(records[name]) for name in sorted(records)]
        return tuple(one for one in infos if one and may_see(principal, one.owner, one.people))

    async def get(self, room: str, *, principal: Principal = LOCAL) -> RoomInfo:
        record = await self._parts.store.ask(FindRoom(room, 0))
        if record is None and room in self._parts.config().rooms:
            record = RoomRecord(room, "")
        info = self._info(record) if record else None
        if info is None or not may_see(principal, info.owner, info.people):
            raise no_room(room)
        return info

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
        await members_of(self._parts, planned_room(name, plan))
        await self._parts.store.ask(CreateRoom(name, principal.user, people, plan))
        return await self.get(name, principal=principal)

    async def change(
        self, room: str, change: RoomChange, *, principal: Principal = LOCAL
    ) -> RoomInfo:
        info = await self.get(room, principal=principal)
        if not may_change(principal, info.owner):
            raise NotFound(f"the room {room!r} is not yours: only its owner changes it")
        async with self._parts.table.changing:
            await self._change(room, info.owner, change)
        return await self.get(room, principal=principal)

    async def _change(self, room: str, owner: str, change: RoomChange) -> None:
        store = self._parts.store
        record = await store.ask(FindRoom(room, 0))
        plan = record.plan if record else None
        if change.plans and plan is None:
            raise ConfigError(
                f"the room {room!r} was not made by a person: it is defined in the host's "
                "configuration or its program; only `people` can be changed here"
            )
        people = None if isinstance(change.people, UnsetType) else change.people
        changed = change.of(plan) if plan and change.plans else None
        planned = planned_room(room, changed) if changed else None
        infos = await members_of(self._parts, planned) if planned else ()
        if record is None:
            await store.ask(CreateRoom(room, owner))
        await store.ask(SetRoom(room, people, changed))
        live = self._parts.table.rooms.get(room)
        if live is not None:
            audience = None if people is None else {*live.settings.latest.people, *people}
            live.change((planned, infos) if planned is not None else None, audience)
        elif people is not None:
            self._parts.journal.access_changed(room_stream(room))

    async def post(
        self,
        room: str,
        text: str,
        *,
        key: str | None = None,
        answers: AnswerEscalation | None = None,
        principal: Principal = LOCAL,
    ) -> Said:
        opened = await self.open(room, principal)
        return await opened.post(
            text, user=principal.user, role=principal.role, key=key, answers=answers
        )

    async def history(
        self, room: str, *, before: int | None = None, limit: int = 50, principal: Principal = LOCAL
    ) -> tuple[RoomMessage, ...]:
        found = await self._parts.store.ask(ReadRoom(room, before, limit))
        # Afterwards: a member who is removed meanwhile gets none of the messages that follow.
        await self.get(room, principal=principal)
        return found

    def open_to(self, room: str, principal: Principal) -> bool:
        live = self._parts.table.rooms.get(room)
        return live is None or live.settings.open_to(principal)

    def _info(self, record: RoomRecord) -> RoomInfo | None:
        """None: a room of a program that has not opened it yet."""
        definition = known_room(self._parts, record.name, record)
        if definition is None:
            return None
        live = self._parts.table.rooms.get(record.name)
        floor = live.history.state.floor if live else record.state.floor
        people = live.settings.people if live else {*definition.people, *record.people}
        return RoomInfo(
            name=record.name,
            owner=record.owner,
            people=tuple(sorted(people)),
            members=live.settings.members if live else self._members(definition),
            idle=live.history.waits if live else not floor.going,
            speaking=tuple(turn.name for turn in floor.speaking),
            turns=floor.turns,
            left=definition.max_turns - floor.turns if floor.going else 0,
            reason=floor.reason,
            mode=definition.mode,
            plan=record.plan,
        )

    def _members(self, room: Room) -> tuple[MemberInfo, ...]:
        agents = [self._parts.resolver.known(one.name) for one in room.members]
        return tuple(
            replace(one.info, description=agent.description) if agent else one.info
            for one, agent in zip(room.members, agents, strict=True)
        )


# Reload


@attrs.frozen
class RoomUpdate:
    """The change that another configuration makes to one open room.

    ``definition`` None: it is not configured any more, and only admins see it.
    """

    room: LiveRoom
    definition: Definition | None
    people: frozenset[str]

    def commit(self) -> None:
        """Who may see the room changes at once, its definition from its next round on.

        Nothing here can fail or wait.
        """
        self.room.change(self.definition, self.people)


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
            people = frozenset(room.people).union(record.people if record else ())
            found.append(RoomUpdate(live, (room, await _members(resolver, registry, room)), people))
        elif name in before:
            found.append(RoomUpdate(live, None, frozenset()))
    return found


async def _members(
    resolver: Resolver, registry: AgentRegistry, room: Room
) -> tuple[MemberInfo, ...]:
    stored = {one.name: one.description for one in await resolver.records()}
    known = stored | {one.name: one.description for one in registry.infos()}
    for member in room.members:
        if member.name not in known:
            raise UnknownName("agent", member.name, tuple(known))
    return tuple(replace(one.info, description=known[one.name]) for one in room.members)
