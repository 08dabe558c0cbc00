"""The way to open a room, and the handle of an open one.

A room is defined in code, in the host's configuration, or by a person who has made it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import Self, TypeAlias, TypeVar

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.agents.registry import Resolver
from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.log import logger
from motet.actors.rooms.definition import Member, Room, thread_room
from motet.actors.rooms.history import RoomHistory
from motet.actors.rooms.live import LiveRoom
from motet.actors.rooms.member import DetachedTurns, MemberRunner
from motet.actors.rooms.publisher import RoomPublisher, room_stream
from motet.actors.rooms.state import RoomControl, RoomSettings
from motet.actors.rooms.table import Close, Open, RoomTable, no_room
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.actors.sessions.intake import CALLER_GONE, Intake
from motet.actors.telemetry.event_bus import Publisher
from motet.actors.telemetry.subscription import EventJournal, Subscription, subscribe
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, InputValidation, MotetError, NotFound, UnknownName
from motet.protocols.escalations import AnswerEscalation
from motet.protocols.events import AnyEvent
from motet.protocols.messages import Request
from motet.protocols.models import is_repeatable
from motet.protocols.room_conditions import TextMention
from motet.protocols.room_config import SELECTOR, RoomConfig, in_thread, listed, standing_of
from motet.protocols.room_copies import edits_of_copies
from motet.protocols.room_messages import (
    Act,
    Amend,
    Amendment,
    FindMessages,
    OpenThread,
    Post,
    RoomStoreRequest,
)
from motet.protocols.room_speakers import (
    FirstOf,
    Handoff,
    Mentions,
    RoundRobin,
    Selector,
    Speakers,
    WhenAlone,
)
from motet.protocols.rooms import (
    INTERRUPTED,
    CreateRoom,
    FindRoom,
    Floor,
    ListRooms,
    MemberInfo,
    ReadRoom,
    ReadSince,
    RoomLike,
    RoomMessage,
    RoomPlan,
    RoomRecord,
    RoomResult,
    Said,
)
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import (
    LOCAL,
    Principal,
    Role,
    SessionStoreMessage,
    ShuttingDown,
    StopReport,
)
from motet.runtime import ActorDead, ActorRef

T = TypeVar("T")
Above: TypeAlias = tuple[Run, str] | None


# The handle of a program


class RoomEvents:
    """The events of a room and of all its members' turns, as an iterator."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        return (await anext(self._subscription)).event


class OpenRoom:
    """A room that a host has open, made by :meth:`motet.Host.open_room`."""

    def __init__(self, live: LiveRoom, parts: RoomParts) -> None:
        self._live = live
        self._parts = parts

    def __repr__(self) -> str:
        state = "idle" if self.idle else "speaking"
        return f"<OpenRoom {self.name} {state}>"

    @property
    def name(self) -> str:
        return self._live.name

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(member.name for member in self._live.settings.room.members)

    @property
    def live(self) -> LiveRoom:
        """For the parts of the host."""
        return self._live

    async def thread(self, number: int) -> OpenRoom:
        """The thread of a message, which is a room of its own beside the main talk.

        It has the room's members, people and limits. Only those agents speak in it that are called,
        and they read the message and what was said in the thread. Raises ``NotFound``.
        """
        return await open_room(self._parts, f"{self.name}/{number}", LOCAL)

    @property
    def idle(self) -> bool:
        """Whether it waits for a person."""
        return self._live.control.idle.is_set()

    @property
    def waits(self) -> bool:
        """Whether all messages of people are answered."""
        return self._live.history.waits

    async def post(
        self,
        text: str,
        *,
        user: str,
        role: Role = "operator",
        key: str | None = None,
        reply_to: int | None = None,
        answers: AnswerEscalation | None = None,
        invited: bool = False,
    ) -> Said:
        """Say something as a person; it is on disk when this returns.

        ``role``: of the user; agents call no tool for these words that policy denies this user. It
        opens a round, or, while agents speak, the next one. ``key``: a resend under the same key
        is not said twice; ``reply_to``: number of the message that it answers; if that is an
        agent's, it calls this agent; ``answers``: as of ``Say``; ``invited``: refused unless the
        user is among the room's people when it is stored. Raises ``InputValidation`` for no text
        and for an unknown ``reply_to``, ``Forbidden`` and ``SlowDown`` as the room's terms have it,
        ``KeyConflict``, ``SessionBusy`` (mode ``reject``), ``ShuttingDown``, ``StorageError``.
        """
        who = Principal(user, role)
        return await self._post(who, text, key, answers, invited, reply_to=reply_to)

    async def _post(
        self,
        who: Principal,
        text: str,
        key: str | None,
        answers: AnswerEscalation | None = None,
        invited: bool = False,
        asked_by: tuple[Principal, ...] = (),
        reply_to: int | None = None,
    ) -> Said:
        if not text.strip():
            raise InputValidation("the message is empty: send some text")
        control = self._live.control
        if control.ends:
            raise ShuttingDown("the host is shutting down: try again when it is back")
        safe = text.encode("utf-8", "replace").decode()
        post = Post(who, safe, key, control.clears, answers, invited, asked_by, reply_to)
        with control.posting():
            return await self._ask(post)

    async def edit(
        self, number: int, text: str, *, user: str, role: Role = "operator"
    ) -> RoomMessage:
        """Give a message another text; only its author does. On disk when this returns.

        No copy of the old text is left: agents that have read it read the new one from their next
        model request on, and are told in their next turn. A name that it calls no more is not
        called, a new one is: such an edit counts, and is refused, as a message. Raises
        ``NotFound``, ``InputValidation``, ``StorageError``, ``SlowDown``, ``SessionBusy``.
        """
        wish = Amendment("edit", number, Principal(user, role), text)
        if not self._live.control.closing.is_set():
            await self._parts.actor.ask(Open(self.name))  # it knows when people have spoken
        async with self._live.calling(wish, self._parts.table.clocks):
            return await self._amend(wish)

    async def delete(
        self, number: int, *, user: str, role: Role = "operator", moderates: bool = False
    ) -> RoomMessage:
        """Withdraw a message; as :meth:`edit`, with no text. ``moderates``: also one of others."""
        who = Principal(user, role)
        moderates = moderates or self._live.settings.standing.may(who, "moderate")
        wish = Amendment("delete", number, who, moderates=moderates)
        return await self._amend(wish)

    async def react(
        self, number: int, reaction: str, *, user: str, role: Role = "operator", on: bool = True
    ) -> RoomMessage:
        """React to a message, or (``on`` false) no more. Agents are told if the room says so."""
        act: Act = "react" if on else "unreact"
        return await self._amend(Amendment(act, number, Principal(user, role), reaction))

    async def _amend(self, wish: Amendment) -> RoomMessage:
        control = self._live.control
        if control.closing.is_set():
            raise ShuttingDown("the host is shutting down: try again when it is back")
        safe = attrs.evolve(wish, text=wish.text.encode("utf-8", "replace").decode())
        with control.posting():
            found = await self._ask(Amend(safe))
        if (thread := self._parts.table.rooms.get(f"{self.name}/{found.seq}")) is not None:
            thread.history.follow(found)
            thread.members.correct(found, "", thread.name)
        for live in self._parts.table.below(self.name):
            for copy in edits_of_copies(await live.history.said_now(), found):
                with suppress(MotetError):  # it has ended in between: the copy on disk is changed
                    await OpenRoom(live, self._parts)._amend(copy)
        return found

    async def _ask(self, request: Request[T]) -> T:
        while True:
            actor = await self._parts.actor.ask(Open(self.name))
            with suppress(ActorDead):  # it ended in between: nothing was done
                return await actor.ask(request)  # type: ignore[arg-type]
            await trio.lowlevel.checkpoint()

    async def run(
        self, text: str, *, user: str = "", role: Role = "operator", key: str | None = None
    ) -> RoomResult:
        """Say something as a person, and wait until the room waits for people again.

        ``user`` empty: the program itself, as ``Host.run`` without a principal. Cancelling stops
        the room and waits for its speakers (G1), also for what others have said. Under a ``key``
        that was used before: the answers to the stored message. Raises as :meth:`post`.
        """
        return await self.answer(Principal(user, role) if user else LOCAL, text, key)

    async def answer(
        self, who: Principal, text: str, key: str | None, asked_by: tuple[Principal, ...] = ()
    ) -> RoomResult:
        """As :meth:`run`. ``asked_by``: the people whose words it answers; empty: ``who``."""
        above, found = self._live.control.above, list[RoomMessage]()
        try:
            said = await self._post(who, text, key, asked_by=asked_by)
            floor = await self.wait()
            last, more = said.seq, True
            while more:
                some = await self._parts.store.ask(wanted := ReadSince(self.name, last))
                found += [one for one in some if one.kind == "agent"]
                more = len(some) == wanted.limit
                last = some[-1].seq if some else last
        except trio.Cancelled:
            # Waits while being cancelled, without limit. What the next host goes on with is left.
            if above is None or not above.is_for_next_host:
                with trio.CancelScope(shield=True):
                    await self._live.stop(CALLER_GONE).wait()
            raise
        reason = INTERRUPTED if floor.going else floor.reason
        usage = self._live.history.state.usage
        return RoomResult(self.name, tuple(found), floor.turns, reason, usage)

    @asynccontextmanager
    async def subscribe(self, after: int | None = None) -> AsyncGenerator[RoomEvents]:
        """Watch the room: ``async with room.subscribe() as events: async for event in events``.

        ``after=0``: from its first event on; None: what happens from now on.
        """
        async with subscribe(self._parts.journal, room_stream(self.name), after) as subscription:
            yield RoomEvents(subscription)

    async def history(
        self, *, before: int | None = None, limit: int = 50
    ) -> tuple[RoomMessage, ...]:
        """The messages before number ``before``, the last ones by default, oldest first."""
        return await self._parts.store.ask(ReadRoom(self.name, before, limit))

    async def wait(self) -> Floor:
        """Wait until it waits for a person; its floor then. Cancelling is harmless."""
        await self._live.control.idle.wait()
        return self._live.history.state.floor

    async def stop(self, grace: float = 5.0, *, why: str = "the room was stopped") -> StopReport:
        """End every speaker. No agent speaks again until a person sends another message.

        Earlier messages without an answer stay unanswered. Waits at most ``grace`` seconds.
        Needs neither the room's actor nor the disk.
        """
        stop = self._live.stop(why)
        threads = [thread.stop(why) for thread in self._parts.table.threads(self.name)]
        with trio.move_on_after(grace):
            for one in (stop, *threads):
                await one.wait()
        return stop.report()


# Definitions

_POLICIES: dict[str, Speakers] = {
    "mentions": Mentions(),
    "round_robin": RoundRobin(),
    "handoff": Handoff(),
    "when_alone": WhenAlone(),
}
_log = logger("motet.rooms")


def configured_room(name: str, config: RoomConfig) -> Room:
    """The room that a section of a file describes. Raises ``ConfigError``."""
    policies = (
        Selector(word.removeprefix(SELECTOR)) if word.startswith(SELECTOR) else _POLICIES[word]
        for word in listed(config.speakers)
    )
    return _room(name, config, policies, where=f"rooms.{name}.called", people=config.people)


def planned_room(name: str, plan: RoomPlan) -> Room:
    """The room that a person has made. Raises ``ConfigError``."""
    return _room(name, plan, (_POLICIES[word] for word in plan.speakers), where="called")


def _room(
    name: str,
    plan: RoomConfig | RoomPlan,
    policies: Iterable[Speakers],
    *,
    where: str,
    people: Sequence[str] = (),
) -> Room:
    for one in plan.called:
        if one not in plan.members:
            raise ConfigError(f"{where}: {one!r} is not a member of the room")
    return Room(
        name,
        members=[
            Member(one, speak="mentioned" if one in plan.called else "chosen")
            for one in plan.members
        ],
        speakers=FirstOf(tuple(policies)),
        until=TextMention(plan.until) if plan.until else None,
        max_turns=plan.max_turns,
        max_depth=plan.max_depth,
        concurrency=plan.concurrency,
        history=plan.history,
        mode=plan.mode,
        limits=plan.limits,
        turn_timeout=plan.turn_timeout,
        budgets=plan.budgets,
        people=people,
        reactions=plan.reactions,
        activation=plan.activation,
        newcomers=plan.newcomers,
    )


# Opening


@attrs.frozen
class RoomParts:
    """The parts of a host that its rooms use.

    ``config`` returns the configuration in force, which a reload replaces; ``add`` registers an
    agent by its name; ``closing`` is set when the host shuts down.
    """

    table: RoomTable
    actor: ActorRef[Open | Close]
    store: ActorRef[RoomStoreRequest]
    sessions: ActorRef[SessionStoreMessage]
    journal: EventJournal
    publisher: Publisher
    services: Services
    resolver: Resolver
    intake: Intake
    closing: trio.Event
    config: Callable[[], HostConfig]
    add: Callable[[AnyAgent], None]


async def open_room(
    parts: RoomParts, room: Room | str, principal: Principal, above: Above = None
) -> OpenRoom:
    """Open a room; one that is open already stays as it is. ``above``: as of ``MemberRunner``.

    Raises ``UnknownName`` for an unknown room or member, ``NotFound`` for one that the
    principal may not see (G16), and to all but admins for any that is not there.
    """
    name = room if isinstance(room, str) else room.name
    home, number = thread_of(name)
    if number:
        live = parts.table.rooms.get(name) or await _opened_thread(parts, home, number, principal)
    else:
        live = parts.table.rooms.get(name) or await _opened(parts, room, name, principal, above)
    if not live.settings.open_to(principal):
        raise no_room(name)
    await parts.actor.ask(Open(name))
    return OpenRoom(live, parts)


async def _opened(
    parts: RoomParts, room: Room | str, name: str, principal: Principal, above: Above
) -> LiveRoom:
    while True:
        decisions = parts.table.decisions
        record = await parts.store.ask(FindRoom(name, 0))
        found = known_room(parts, name, record) or (room if isinstance(room, Room) else None)
        if found is None:
            if principal.role == "admin":
                raise UnknownName("room", name, list(parts.config().rooms))
            raise no_room(name)
        of_host = name in parts.config().rooms and isinstance(room, str)
        owner = record.owner if record and not above else "" if of_host else principal.user
        standing = standing_of(name, owner, found.people, record, found.newcomers)
        if standing.role(principal) is None:
            raise no_room(name)
        infos, gone = await present_members(parts, found)
        settings = RoomSettings(found, infos, standing, gone)
        if record is None:
            # The room of a call is none of those that its user made: no list and no cap counts it.
            run = above[0].id if above else None
            await parts.store.ask(CreateRoom(name, "" if above else owner, above=run))
        if decisions == parts.table.decisions:  # else one is not in what was read
            break
    returns = bool(record and record.plan and name not in parts.config().rooms)
    new = _live(parts, settings, above, returns=returns)
    live = parts.table.rooms.setdefault(name, new)
    if live is new:
        live.announce(gone)
    return live


async def _opened_thread(
    parts: RoomParts, home: str, number: int, principal: Principal
) -> LiveRoom:
    """The thread of a message: a room with rounds of its own, and the people of its room."""
    name = f"{home}/{number}"
    whole = await open_room(parts, home, principal)
    if not await parts.store.ask(FindMessages(name, (1,))):
        found = await parts.store.ask(FindMessages(home, (number,)))
        if not found or found[0].deleted:
            raise NotFound(f"no message {number} in room {home!r}")
        await parts.store.ask(OpenThread(name))
    of = whole.live.settings
    room, standing = thread_room(of.latest, name), in_thread(of.standing, name)
    settings = RoomSettings(room, of.expected, standing, of.gone)
    return parts.table.rooms.setdefault(name, _live(parts, settings, None, returns=True))


async def run_below(parts: RoomParts, run: Run, call: str, room: RoomLike, text: str) -> RoomResult:
    """Have a room answer as a part of a run's call; see ``Context.run_room``.

    It is another room for every call and text, so that a call that is repeated after a kill finds
    the messages that are on disk, and its round goes on.
    """
    assert isinstance(room, Room)
    call_of = run.id, call
    if run.input.turn and is_repeatable(run.agent.model):
        call_of = run.session, run.input.turn  # a run that repeats the turn has another id
    digest = sha256(msgspec.msgpack.encode((*call_of, room.name, text))).hexdigest()[:16]
    own, who = attrs.evolve(room, name=f"{room.name[:47]}.{digest}"), run.input.principal
    try:
        opened = await open_room(parts, own, who, (run, call))
        author = Principal(run.agent.name, who.role)
        return await opened.answer(author, text, digest, run.input.asked_by or (who,))
    finally:
        with trio.CancelScope(shield=True), suppress(ActorDead):
            await parts.actor.ask(Close(own.name))


def known_room(parts: RoomParts, name: str, record: RoomRecord | None) -> Room | None:
    """The definition of a room, if it is open, configured or made by a person."""
    if (live := parts.table.rooms.get(name)) is not None:
        return live.settings.room  # another may be planned for its next round
    if name in parts.config().rooms:
        return configured_room(name, parts.config().rooms[name])
    return planned_room(name, record.plan) if record and record.plan else None


async def reopen(parts: RoomParts) -> None:
    """Open the rooms whose rounds the last host left unfinished. Never fails the host."""
    try:
        unfinished = await parts.store.ask(ListRooms(unfinished=True))
    except Exception as error:
        _log.error("unfinished rooms cannot be read", exc_info=error)
        return
    for record in unfinished:
        home, number = thread_of(record.name)
        whole = await parts.store.ask(FindRoom(home, 0)) if number else record
        if known_room(parts, home, whole) is None:
            continue  # it goes on when the program opens it
        try:
            await open_room(parts, record.name, LOCAL)
        except Exception as error:
            _log.error("a room cannot go on", room=record.name, exc_info=error)


async def members_of(parts: RoomParts, room: Room) -> tuple[MemberInfo, ...]:
    """Describe its members, and register those that are given as agents. Raises ``UnknownName``."""
    return tuple([await _described(parts, member) for member in room.members])


async def present_members(
    parts: RoomParts, room: Room
) -> tuple[tuple[MemberInfo, ...], tuple[str, ...]]:
    """The same, and the names of members whose agents the host does not have any more.

    A room goes on with the others. Raises ``UnknownName`` when there are none.
    """
    infos: list[MemberInfo] = []
    gone: dict[str, UnknownName] = {}
    for member in room.members:
        try:
            infos.append(await _described(parts, member))
        except UnknownName as error:
            gone[member.name] = error
    if not infos:
        raise next(iter(gone.values()))
    return tuple(infos), tuple(gone)


async def _described(parts: RoomParts, member: Member) -> MemberInfo:
    if isinstance(member.agent, str):
        agent = await parts.resolver.resolve(member.agent)
    else:
        agent = member.agent
        parts.add(agent)
    return replace(member.info, description=agent.description)


def _live(parts: RoomParts, settings: RoomSettings, above: Above, *, returns: bool) -> LiveRoom:
    control = RoomControl(parts.closing, above[0] if above else None)
    publisher = RoomPublisher(settings.name, parts.publisher, parts.journal)
    table = parts.table
    detached = DetachedTurns(parts.sessions, parts.services)
    members = MemberRunner(settings, parts.intake, parts.sessions, detached, above)
    clocks, lags = table.clocks, table.lags
    history = RoomHistory(settings, control, parts.store, publisher, clocks, lags, members.correct)
    within = parts.config().recovery.resume_within
    family = partial(table.family, settings.name)
    return LiveRoom(settings, control, history, members, publisher, within, returns, family)
