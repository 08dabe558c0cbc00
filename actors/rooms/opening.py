"""Opens rooms: from their definition in code, or from the host's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from motet.actors.log import logger
from motet.actors.rooms.access import may_see
from motet.actors.rooms.conditions import TextMention
from motet.actors.rooms.definition import Member, Room
from motet.actors.rooms.handle import OpenRoom
from motet.actors.rooms.place import Place
from motet.actors.rooms.rooms import Open
from motet.actors.rooms.speaker import Speaker
from motet.actors.rooms.speakers import FirstOf, Handoff, Mentions, RoundRobin, Selector, Speakers
from motet.actors.rooms.turns import Late
from motet.actors.rooms.voice import RoomVoice
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.room_config import SELECTOR, RoomConfig, listed
from motet.protocols.rooms import (
    CreateRoom,
    FindRoom,
    ListRooms,
    MemberInfo,
    RoomPlan,
    RoomRecord,
)
from motet.protocols.sessions import LOCAL, Principal

if TYPE_CHECKING:
    from motet.actors.intake import Intake
    from motet.actors.tree import Tree

_POLICIES: dict[str, Speakers] = {
    "mentions": Mentions(),
    "round_robin": RoundRobin(),
    "handoff": Handoff(),
}
_log = logger("motet.rooms")


def configured_room(name: str, config: RoomConfig) -> Room:
    """The room that a section of a file describes. Raises ``ConfigError``."""
    for one in config.called:
        if one not in config.members:
            raise ConfigError(f"rooms.{name}.called: {one!r} is no member of the room")
    return Room(
        name,
        members=[
            Member(one, speak="mentioned" if one in config.called else "chosen")
            for one in config.members
        ],
        speakers=FirstOf(tuple(_policy(word) for word in listed(config.speakers))),
        until=TextMention(config.until) if config.until else None,
        max_turns=config.max_turns,
        max_depth=config.max_depth,
        concurrency=config.concurrency,
        history=config.history,
        mode=config.mode,
        limits=config.limits,
        people=config.people,
    )


def _policy(word: str) -> Speakers:
    if word.startswith(SELECTOR):
        return Selector(word.removeprefix(SELECTOR))
    return _POLICIES[word]


def planned_room(name: str, plan: RoomPlan) -> Room:
    """The room that a person has made. Raises ``ConfigError``."""
    for one in plan.called:
        if one not in plan.members:
            raise ConfigError(f"called: {one!r} is no member of the room")
    return Room(
        name,
        members=[
            Member(one, speak="mentioned" if one in plan.called else "chosen")
            for one in plan.members
        ],
        speakers=FirstOf(tuple(_POLICIES[word] for word in plan.speakers)),
        until=TextMention(plan.until) if plan.until else None,
        max_turns=plan.max_turns,
        max_depth=plan.max_depth,
        concurrency=plan.concurrency,
        history=plan.history,
        mode=plan.mode,
        limits=plan.limits,
    )


async def open_room(tree: Tree, intake: Intake, room: Room | str, principal: Principal) -> OpenRoom:
    """The room, at work; one that is open already as it is.

    Raises ``UnknownName`` for a room or a member that nobody knows, ``NotFound`` for one that the
    principal may not see (G16), and to all but admins for any that is not there.
    """
    name = room if isinstance(room, str) else room.name
    place = tree.places.known.get(name) or await _opened(tree, intake, room, name, principal)
    if not place.open_to(principal):
        raise no_room(name)
    await tree.rooms.ask(Open(name))
    return OpenRoom(place, tree.rooms, tree.journal)


async def _opened(
    tree: Tree, intake: Intake, room: Room | str, name: str, principal: Principal
) -> Place:
    record = await tree.rooms_store.ask(FindRoom(name, 0))
    found = known_room(tree, name, record) or (room if isinstance(room, Room) else None)
    if found is None:
        if principal.role == "admin":
            raise UnknownName("room", name, list(tree.config.rooms))
        raise no_room(name)
    of_host = name in tree.config.rooms and isinstance(room, str)
    owner = record.owner if record else "" if of_host else principal.user
    people = frozenset(found.people).union(record.people if record else ())
    if not may_see(principal, owner, people):
        raise no_room(name)
    place = await _furnished(tree, intake, found)
    place.owner, place.people = owner, people
    if record is None:
        await tree.rooms_store.ask(CreateRoom(name, owner))
    return tree.places.known.setdefault(name, place)


def known_room(tree: Tree, name: str, record: RoomRecord | None) -> Room | None:
    """What the room of that name is, if it is open, configured or made by a person."""
    if name in tree.places.known:
        return tree.places.known[name].room  # from its next round on it may be another one
    if name in tree.config.rooms:
        return configured_room(name, tree.config.rooms[name])
    return planned_room(name, record.plan) if record and record.plan else None


def no_room(name: str) -> NotFound:
    return NotFound(f"no room {name!r}")


async def reopen(tree: Tree, intake: Intake) -> None:
    """Open the rooms whose rounds the last host left unfinished. Never fails the host."""
    try:
        unfinished = await tree.rooms_store.ask(ListRooms(unfinished=True))
    except Exception as error:
        _log.error("unfinished rooms cannot be read", exc_info=error)
        return
    for record in unfinished:
        if known_room(tree, record.name, record) is None:
            continue  # it goes on when the program opens it
        try:
            await open_room(tree, intake, record.name, LOCAL)
        except Exception as error:
            _log.error("a room cannot go on", room=record.name, exc_info=error)


async def members_of(tree: Tree, room: Room) -> tuple[MemberInfo, ...]:
    """Its members, all of whom the host knows from now on. Raises ``UnknownName``."""
    infos: list[MemberInfo] = []
    for member in room.members:
        if isinstance(member.agent, str):
            agent = await tree.resolver.resolve(member.agent)
        else:
            agent = member.agent
            tree.registry.add(agent)
            if tree.services.parking is not None:
                tree.services.parking.agent_known(agent.name)
            tree.recovery.news.set()
        infos.append(replace(member.info, description=agent.description))
    return tuple(infos)


async def _furnished(tree: Tree, intake: Intake, room: Room) -> Place:
    """A place for it, all of whose members are known."""
    late = Late(tree.store, tree.services)
    speaker = Speaker(room, await members_of(tree, room), intake, tree.store, late)
    voice = RoomVoice(room.name, tree.fanout, tree.journal)
    within = tree.config.recovery.resume_within
    return Place(room, speaker, tree.rooms_store, voice, tree.table.draining, within)
