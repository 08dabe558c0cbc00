"""Opens rooms: from their definition in code, or from the host's configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self
from urllib.parse import quote

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.registry import Resolver
from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.log import logger
from motet.actors.rooms.definition import Member, Room, TextMention, may_see
from motet.actors.rooms.member import Late, Speaker
from motet.actors.rooms.publisher import RoomVoice, room_stream
from motet.actors.rooms.room import Post, RoomActor, RoomMessages
from motet.actors.rooms.selection import FirstOf, Handoff, Mentions, RoundRobin, Selector, Speakers
from motet.actors.rooms.state import Place, stop_room
from motet.actors.runs.services import Services
from motet.actors.sessions.intake import Intake
from motet.actors.sessions.router import IDLE_AFTER, SWEEP_EVERY
from motet.actors.telemetry.event_bus import Publisher
from motet.actors.telemetry.subscription import Subscription, subscribe
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, InputValidation, NotFound, UnknownName
from motet.protocols.events import AnyEvent
from motet.protocols.host import Journal
from motet.protocols.messages import Request
from motet.protocols.room_config import SELECTOR, RoomConfig, listed
from motet.protocols.rooms import (
    CreateRoom,
    FindRoom,
    Floor,
    ListRooms,
    MemberInfo,
    ReadRoom,
    RoomMessage,
    RoomPlan,
    RoomRecord,
    RoomStoreMessage,
    Said,
)
from motet.protocols.sessions import LOCAL, Principal, SessionStoreMessage, ShuttingDown, StopReport
from motet.runtime import Actor, ActorDead, ActorRef, Supervision, handles

# The open rooms of a host: each has an actor, which this one starts.


class Open(Request[ActorRef[RoomMessages]], frozen=True, tag="rooms.open"):
    """The actor of a room of the table of places, started if it is not alive."""

    name: str


@attrs.define(eq=False)
class Places:
    """The open rooms by name: plain data, which stays when an actor is restarted.

    ``reopen`` opens those that the last host has left unfinished; called when ``ready`` is set.
    ``changing`` is held by who changes one.
    """

    known: dict[str, Place] = attrs.field(factory=dict[str, Place])
    reopen: Callable[[], Awaitable[None]] | None = None
    ready: trio.Event = attrs.field(factory=trio.Event)
    changing: trio.Lock = attrs.field(factory=trio.Lock)

    def begin(self, reopen: Callable[[], Awaitable[None]]) -> None:
        """The block of the host begins."""
        self.reopen = reopen
        self.ready.set()


class Rooms(Actor[Open]):
    """Parent of all room actors. One room's crash never touches another's."""

    supervision = Supervision(intensity=20, period=5.0, backoff=0.1)
    cleanup_budget = 12.0

    def __init__(self, places: Places) -> None:
        self._places = places

    async def on_start(self) -> None:
        self.start_soon(self._sweep)
        self.start_soon(self._reopen)

    @handles(Open)
    async def open(self, request: Open) -> ActorRef[RoomMessages]:
        name = actor_name(request.name)
        room: ActorRef[RoomMessages] | None = self.child(name)
        if room is None or not room.is_alive:
            place = self._places.known[request.name]
            await self.stop_child(name)  # one that is ending has its name until it has ended
            room = await self.start_child(lambda: RoomActor(place), name=name)
        return room

    async def _reopen(self) -> None:
        await self._places.ready.wait()
        assert self._places.reopen is not None
        await self._places.reopen()

    async def _sweep(self) -> None:
        """End the actors of rooms that have been idle for a while: what was said is on disk."""
        while True:
            await trio.sleep(SWEEP_EVERY)
            limit = trio.current_time() - IDLE_AFTER
            for place in list(self._places.known.values()):
                if place.rests and place.touched < limit:
                    await self.stop_child(actor_name(place.name))


def actor_name(room: str) -> str:
    """A room's name as a name in the tree."""
    return quote(room, safe=":@ ")


# An open room as a program holds it: post, watch, stop.


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


@attrs.frozen
class RoomParts:
    """The parts of a host that its rooms use.

    ``config`` returns the configuration in force, which a reload replaces; ``add`` registers an
    agent by its name; ``closing`` is set when the host shuts down.
    """

    places: Places
    actor: ActorRef[Open]
    store: ActorRef[RoomStoreMessage]
    sessions: ActorRef[SessionStoreMessage]
    journal: Journal
    publisher: Publisher
    services: Services
    resolver: Resolver
    intake: Intake
    closing: trio.Event
    config: Callable[[], HostConfig]
    add: Callable[[AnyAgent], None]


async def open_room(parts: RoomParts, room: Room | str, principal: Principal) -> OpenRoom:
    """The room, at work; one that is open already as it is.

    Raises ``UnknownName`` for a room or a member that nobody knows, ``NotFound`` for one that the
    principal may not see (G16), and to all but admins for any that is not there.
    """
    name = room if isinstance(room, str) else room.name
    place = parts.places.known.get(name) or await _opened(parts, room, name, principal)
    if not place.open_to(principal):
        raise no_room(name)
    await parts.actor.ask(Open(name))
    return OpenRoom(place, parts.actor, parts.journal)


async def _opened(parts: RoomParts, room: Room | str, name: str, principal: Principal) -> Place:
    record = await parts.store.ask(FindRoom(name, 0))
    found = known_room(parts, name, record) or (room if isinstance(room, Room) else None)
    if found is None:
        if principal.role == "admin":
            raise UnknownName("room", name, list(parts.config().rooms))
        raise no_room(name)
    of_host = name in parts.config().rooms and isinstance(room, str)
    owner = record.owner if record else "" if of_host else principal.user
    people = frozenset(found.people).union(record.people if record else ())
    if not may_see(principal, owner, people):
        raise no_room(name)
    place = await _furnished(parts, found)
    place.owner, place.people = owner, people
    if record is None:
        await parts.store.ask(CreateRoom(name, owner))
    return parts.places.known.setdefault(name, place)


def known_room(parts: RoomParts, name: str, record: RoomRecord | None) -> Room | None:
    """What the room of that name is, if it is open, configured or made by a person."""
    if name in parts.places.known:
        return parts.places.known[name].room  # from its next round on it may be another one
    if name in parts.config().rooms:
        return configured_room(name, parts.config().rooms[name])
    return planned_room(name, record.plan) if record and record.plan else None


def no_room(name: str) -> NotFound:
    return NotFound(f"no room {name!r}")


async def reopen(parts: RoomParts) -> None:
    """Open the rooms whose rounds the last host left unfinished. Never fails the host."""
    try:
        unfinished = await parts.store.ask(ListRooms(unfinished=True))
    except Exception as error:
        _log.error("unfinished rooms cannot be read", exc_info=error)
        return
    for record in unfinished:
        if known_room(parts, record.name, record) is None:
            continue  # it goes on when the program opens it
        try:
            await open_room(parts, record.name, LOCAL)
        except Exception as error:
            _log.error("a room cannot go on", room=record.name, exc_info=error)


async def members_of(parts: RoomParts, room: Room) -> tuple[MemberInfo, ...]:
    """Its members, all of whom the host knows from now on. Raises ``UnknownName``."""
    infos: list[MemberInfo] = []
    for member in room.members:
        if isinstance(member.agent, str):
            agent = await parts.resolver.resolve(member.agent)
        else:
            agent = member.agent
            parts.add(agent)
        infos.append(replace(member.info, description=agent.description))
    return tuple(infos)


async def _furnished(parts: RoomParts, room: Room) -> Place:
    """A place for it, all of whose members are known."""
    late = Late(parts.sessions, parts.services)
    speaker = Speaker(room, await members_of(parts, room), parts.intake, parts.sessions, late)
    voice = RoomVoice(room.name, parts.publisher, parts.journal)
    within = parts.config().recovery.resume_within
    return Place(room, speaker, parts.store, voice, parts.closing, within)
