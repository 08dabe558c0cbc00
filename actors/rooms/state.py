"""What a host knows of one open room, as plain data that a stop can reach while all else is stuck.

Invariants: nothing here awaits; what was given the floor, chosen or said before a stop is told by
its fence that it came too late, whenever it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.rooms.definition import Room, may_see
from motet.actors.rooms.member import Speaker
from motet.actors.rooms.publisher import RoomVoice
from motet.actors.runs.run import Run
from motet.actors.tools.tool import held_by
from motet.protocols.events import MessageAdded, Role, RoomIdle, Warned
from motet.protocols.rooms import (
    FindRoom,
    FindSaid,
    Floor,
    KeepState,
    Kind,
    MemberInfo,
    RoomMessage,
    RoomState,
    RoomStoreMessage,
    Said,
    Say,
)
from motet.protocols.sessions import Principal, QueueFull, SessionBusy, StopReport
from motet.protocols.storage import StorageError
from motet.runtime import ActorRef
from motet.runtime.outside import wall_time


@attrs.define(eq=False)
class Place:
    """One open room. It stays when the room's actor is restarted or rests.

    Attributes:
        closing: set when the host shuts down: then nobody gets the floor any more, and what is
            left of the round is for the next host.
        resume_within: seconds; an older round does not go on after a restart, since nobody expects
            it any more.
        floor: where its round stands.
        idle: no agent speaks, and none is to.
        stops: how often its round was stopped; ``ended``: for how many of them it has ended.
        clears: how often what people had said was not to be answered any more.
        said: number of the last message of a person; ``heard``: those up to this one have had
            their round; ``cleared``: those up to this one get none any more.
        choosing: while somebody is being chosen.
        stopped: set by the next stop.
        posting: messages that are on their way to disk.
        waiting: turns of it wait for a person, or are to be heard yet.
        touched: when something happened last, by trio's clock.
        owner: whose it is; empty: the host's.
        people: who may see it too.
        planned: what it is from its next round on, with its members, once that was changed.
    """

    room: Room
    speaker: Speaker
    store: ActorRef[RoomStoreMessage]
    voice: RoomVoice
    closing: trio.Event
    resume_within: float
    floor: Floor = attrs.field(factory=Floor)
    idle: trio.Event = attrs.field(factory=trio.Event)
    stops: int = 0
    ended: int = 0
    clears: int = 0
    said: int = 0
    heard: int = 0
    cleared: int = 0
    choosing: trio.CancelScope | None = None
    stopped: trio.Event = attrs.field(factory=trio.Event)
    posting: int = 0
    waiting: bool = False
    touched: float = attrs.field(factory=trio.current_time)
    owner: str = ""
    people: frozenset[str] = frozenset()
    planned: tuple[Room, tuple[MemberInfo, ...]] | None = None

    @property
    def name(self) -> str:
        return self.room.name

    @property
    def latest(self) -> Room:
        """What it is from its next round on."""
        return self.planned[0] if self.planned else self.room

    def open_to(self, who: Principal) -> bool:
        """Whether there is such a room, for whoever asks."""
        return may_see(who, self.owner, self.people)

    @property
    def rests(self) -> bool:
        """Whether nothing happens in it, so that its actor may go."""
        return self.idle.is_set() and not self.posting and not self.waiting

    @property
    def waits(self) -> bool:
        """Whether it waits for a person: the round is over, and no other is to be opened."""
        return not self.floor.going and self.said <= max(self.heard, self.cleared)

    def adopt(self) -> None:
        """Be what it was changed to, between two rounds."""
        if self.planned is not None:
            self.room, members = self.planned
            self.planned = None
            self.speaker.become(self.room, members)

    def fence(self) -> Callable[[], bool]:
        """Tells whether the room has been stopped since now."""
        stops = self.stops
        return lambda: self.stops != stops

    def stop(self, why: str) -> tuple[str, ...]:
        """Ask whoever speaks to end, and let nobody follow; the ids of their runs."""
        self.clears += 1
        self.cleared = self.said
        return self.interrupt(why)

    def interrupt(self, why: str) -> tuple[str, ...]:
        """End the round, and let what people have said open the next one."""
        self.stops += 1
        if self.choosing is not None:
            self.choosing.cancel()
        self.stopped.set()
        self.stopped = trio.Event()
        return self.speaker.stop(why)


# The stop of a room: whoever speaks is asked to end in one step, and then waited for.
#
# Invariant: asking needs neither the room's actor nor the disk; from then on nobody has the floor
# until a person speaks.


@attrs.frozen
class RoomStop:
    """What a stop of a room has asked for. ``asked``: ids of the runs that nobody had before."""

    place: Place
    runs: Sequence[Run]
    asked: Sequence[str]

    async def wait(self) -> None:
        """Until they have ended, and the room waits for a person."""
        for run in self.runs:
            await run.ended.wait()
        await self.place.idle.wait()

    def report(self) -> StopReport:
        """What has come of it by now."""
        still_running = [run.id for run in self.runs if not run.result]
        return StopReport(
            stopped=[run.id for run in self.runs if run.id in self.asked and run.result],
            already_stopping=[run.id for run in self.runs if run.id not in self.asked],
            still_running=still_running,
            held_by=held_by(still_running),
        )


def stop_room(place: Place, why: str) -> RoomStop:
    """Ask all who speak to end, now; nothing is awaited."""
    runs = place.speaker.wake()
    return RoomStop(place, runs, place.stop(why))


# The minutes of a room: what was said, and where its round stands, on disk and in memory.
#
# Invariants: one writes at a time, so that no change is lost to another; memory is never behind the
# disk. What a person says is refused when it cannot be stored; what the room does is tried until it
# is stored or the room is stopped, and then kept in memory until something can be.


Change: TypeAlias = Callable[[RoomState], RoomState]

WAITING = 100
"""Messages of people that may wait for the next round."""
ATTEMPT = 5.0
"""Seconds for one attempt to write, also while the host closes."""
PAUSE, LONGEST_PAUSE = 0.1, 10.0

_log = logger("motet.rooms")


@attrs.frozen
class Words:
    """What somebody says, not stored yet. ``run_id``: of the turn."""

    author: str
    text: str
    kind: Kind = "agent"
    run_id: str | None = None


class Minutes:
    """Of one room, for its actor. ``state`` and ``messages`` are for reading."""

    def __init__(self, place: Place) -> None:
        self.state = RoomState()
        self.messages: list[RoomMessage] = []
        self._place = place
        self._writing = trio.Lock()

    async def load(self) -> None:
        """What is on disk, and what the room's actor had done before it crashed."""
        place = self._place
        found = await place.store.ask(FindRoom(place.name, place.room.history))
        assert found is not None
        self.messages = list(found.messages)
        people = (one.seq for one in self.messages if one.kind == "person")
        self._place.said = max(self._place.said, found.state.heard, *people)
        self._now_is(found.state)

    @property
    def last(self) -> int:
        """Number of the last message."""
        return self.messages[-1].seq if self.messages else 0

    def unheard(self) -> tuple[RoomMessage, ...]:
        """What people have said since the last round was opened, or the room was stopped."""
        heard = max(self.state.heard, self._place.cleared)
        return tuple(one for one in self.messages if one.kind == "person" and one.seq > heard)

    async def post(self, author: str, text: str, key: str | None) -> Said:
        """Store what a person says.

        Raises ``QueueFull``, ``SessionBusy`` (mode ``reject``), ``KeyConflict``, ``StorageError``.
        """
        async with self._writing:
            refusal = self._refusal()
            if refusal is not None:
                find = FindSaid(self._place.name, author, text, key) if key else None
                said = await self._place.store.ask(find) if find else None
                if said is None:
                    raise refusal
                return said
            # Shielded: whether it is on disk would be ambiguous to whoever is cancelled meanwhile.
            with trio.CancelScope(shield=True):
                said = await self._say(self.state, Words(author, text, "person"), key)
                if not said.duplicate:
                    await self._tell(self.messages[-1])
                return said
        raise AssertionError("nobody cancels this scope")

    def _refusal(self) -> QueueFull | SessionBusy | None:
        """Why nobody may say anything more now."""
        room, unheard = self._place.room, self.unheard()
        speaking = self.state.floor.going and not self.state.held
        if room.mode == "reject" and (speaking or unheard):
            return SessionBusy(
                f"the agents of room {room.name!r} are speaking, and nothing is taken meanwhile: "
                "try again when their round is over, or stop it"
            )
        if len(unheard) >= WAITING:
            return QueueFull(
                f"{WAITING} messages wait in room {room.name!r}: let its agents answer, or stop it"
            )
        return None

    async def record(self, change: Change, *words: Words, patient: bool = True) -> None:
        """Store a change of the state, and what was said.

        Tried until it is on disk, a stop comes, or once if it is not to be ``patient``; cancelled
        only between two attempts. The change holds in any case, unless cancelled.
        """
        overtaken = self._place.fence()
        for pause in _pauses():
            problem = await self._attempt(change, words)
            if not problem:
                return
            await self._complain(problem, first=pause == PAUSE)
            if overtaken() or not patient:
                break
            with trio.move_on_after(pause):
                await self._place.stopped.wait()
        self.assume(change)
        for one in words:
            await self.warn(f"what {one.author} said is lost: it could not be stored")

    def assume(self, change: Change) -> None:
        """Change the state in memory; it goes to disk with what is stored next."""
        self._now_is(change(self.state))

    async def end(self, change: Change, reason: str, *, patient: bool) -> None:
        """Store that a round is over, and say so."""
        await self.record(change, patient=patient)
        await self._place.voice.say(RoomIdle(reason))

    async def tell_again(self) -> None:
        """Tell what a host that was killed could store, and not tell of any more."""
        floor, unheard = self.state.floor, self.unheard()
        known = tuple(self.messages)  # what is said meanwhile is told by who stores it
        try:
            told, is_idle = await self._place.voice.last_told()
        except StorageError as error:
            _log.error("what was told cannot be read", room=self._place.name, error=str(error))
            return
        last = self.state.heard if told is None else told
        untold = [one for one in known if one.seq > last]
        for one in untold:
            await self._tell(one)
        if floor.round and not (floor.going or unheard) and (untold or not is_idle):
            await self._place.voice.say(RoomIdle(floor.reason))

    async def warn(self, message: str) -> None:
        await self._place.voice.say(Warned("room", message))

    async def _attempt(self, change: Change, words: tuple[Words, ...]) -> str:
        """What was against it; nothing if it is on disk."""
        problem = f"the disk has not answered within {ATTEMPT:g} s"
        with trio.CancelScope(shield=True, deadline=trio.current_time() + ATTEMPT):
            async with self._writing:
                state = change(self.state)
                try:
                    if words:
                        await self._say(state, words[0], None)
                    else:
                        await self._place.store.ask(KeepState(self._place.name, state))
                        self._now_is(state)
                except Exception as error:
                    return str(error) or type(error).__name__
                problem = ""
                for one in words:
                    await self._tell(self.messages[-1], one.run_id)
        return problem

    async def _say(self, state: RoomState, words: Words, key: str | None) -> Said:
        message = RoomMessage(
            self.last + 1,
            words.author,
            words.kind,
            words.text,
            state.floor.round + (words.kind == "person"),
            wall_time(),
        )
        said = await self._place.store.ask(Say(self._place.name, message, state, key))
        if not said.duplicate:
            self.messages.append(message)
            if words.kind == "person":
                self._place.said = message.seq
            self._now_is(state)
            self._forget()
        return said

    async def _tell(self, message: RoomMessage, run_id: str | None = None) -> None:
        role: Role = "user" if message.kind == "person" else "assistant"
        added = MessageAdded(role, message.author, message.text, number=message.seq)
        await self._place.voice.say(added, run_id)

    async def _complain(self, problem: str, *, first: bool) -> None:
        _log.error("a room could not be stored", room=self._place.name, error=problem)
        if first:
            await self.warn("what happens here cannot be stored; it is being tried again")

    def _now_is(self, state: RoomState) -> None:
        self.state, self._place.floor = state, state.floor
        self._place.heard, self._place.waiting = state.heard, bool(state.waiting)
        self._place.touched = trio.current_time()

    def _forget(self) -> None:
        """Messages that nobody will be shown are on disk only."""
        first = max(len(self.messages) - self._place.room.history, 0)
        while first and self.messages[first - 1].seq >= self.state.heard > 0:
            first -= 1
        del self.messages[:first]


def _pauses() -> Iterator[float]:
    pause = PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
