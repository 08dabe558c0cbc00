"""Opens rooms: from their definition in code, or from the host's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.actors.rooms.conditions import TextMention
from motet.actors.rooms.definition import Member, Room
from motet.actors.rooms.handle import OpenRoom
from motet.actors.rooms.place import Place
from motet.actors.rooms.rooms import Open
from motet.actors.rooms.speaker import Speaker
from motet.actors.rooms.speakers import FirstOf, Mentions, RoundRobin, Selector, Speakers
from motet.actors.rooms.voice import RoomVoice
from motet.protocols.errors import ConfigError, NotFound, UnknownName
from motet.protocols.room_config import SELECTOR, RoomConfig, listed
from motet.protocols.rooms import CreateRoom, FindRoom
from motet.protocols.sessions import Principal

if TYPE_CHECKING:
    from motet.actors.intake import Intake
    from motet.actors.tree import Tree


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
        limits=config.limits,
    )


def _policy(word: str) -> Speakers:
    if word.startswith(SELECTOR):
        return Selector(word.removeprefix(SELECTOR))
    return Mentions() if word == "mentions" else RoundRobin()


async def open_room(tree: Tree, intake: Intake, room: Room | str, principal: Principal) -> OpenRoom:
    """The room, at work; one that is open already as it is.

    Raises ``UnknownName`` for a room or a member that nobody knows, ``NotFound`` for one that is
    another's (G16).
    """
    name = room if isinstance(room, str) else room.name
    place = tree.places.known.get(name)
    if place is None:
        if isinstance(room, str):
            if room not in tree.config.rooms:
                raise UnknownName("room", room, list(tree.config.rooms))
            room = configured_room(room, tree.config.rooms[room])
        place = await _furnished(tree, intake, room)
    record = await tree.rooms_store.ask(FindRoom(name, 0))
    if record is None:
        await tree.rooms_store.ask(CreateRoom(name, principal.user))
    elif principal.role != "admin" and record.owner != principal.user:
        raise NotFound(f"no room {name!r}")
    place.owner = record.owner if record else principal.user
    tree.places.known.setdefault(name, place)
    handle = OpenRoom(tree.places.known[name], tree.rooms, tree.journal)
    await tree.rooms.ask(Open(name))
    return handle


async def _furnished(tree: Tree, intake: Intake, room: Room) -> Place:
    """A place for it, all of whose members are known."""
    for member in room.members:
        if isinstance(member.agent, str):
            await tree.resolver.resolve(member.agent)
        else:
            tree.registry.add(member.agent)
    speaker = Speaker(room, intake, tree.store)
    return Place(room, speaker, tree.rooms_store, RoomVoice(room.name, tree.fanout))
