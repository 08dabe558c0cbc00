"""One room at work: it stores what is said, gives the floor, and has its members speak.

Guarantees: a message is acknowledged only when it is on disk (G15); only a person's message opens a
round, and what a round has used stays used after a restart; a stop ends every speaker and waits
for it (G1), and works while the room's own actor is stuck.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.rooms.floor import (
    Choose,
    Give,
    Over,
    Wait,
    after_a_crash,
    chosen,
    ended,
    given,
    next_move,
    opened,
    spoken,
    without_deep_calls,
)
from motet.actors.rooms.speaker import Speaker, Turn
from motet.actors.rooms.told import NOTHING_NEW, is_pass, told, without_name
from motet.actors.rooms.voice import RoomVoice
from motet.protocols.events import MessageAdded, Role, RoomIdle, RoomTurn, Warned
from motet.protocols.messages import Request
from motet.protocols.rooms import (
    STOPPED,
    Due,
    FindRoom,
    Floor,
    KeepState,
    RoomMessage,
    RoomState,
    RoomView,
    Said,
    Say,
)
from motet.runtime import Actor, ActorRef, handles

if TYPE_CHECKING:
    from motet.actors.rooms.definition import Room
    from motet.actors.rooms.store import RoomStoreMessage


class Post(Request[Said], frozen=True, tag="room.post"):
    """A person says something. Answered when it is on disk. Raises ``KeyConflict``."""

    author: str
    text: str
    key: str | None = None


class Halt(Request[None], frozen=True, tag="room.halt"):
    """Put on record that the round was stopped; who speaks has been asked to end before."""


RoomMessages: TypeAlias = Post | Halt


@attrs.define(eq=False)
class Place:
    """What a host knows of one open room, as plain data that a stop can reach.

    Attributes:
        halted: it was stopped, and nobody has the floor until a person speaks.
        stops: how often it was stopped.
        idle: no agent speaks, and none is to.
        floor: where its round stands, as far as that is on disk.
    """

    room: Room
    speaker: Speaker
    store: ActorRef[RoomStoreMessage]
    voice: RoomVoice
    halted: bool = False
    stops: int = 0
    floor: Floor = attrs.field(factory=Floor)
    idle: trio.Event = attrs.field(factory=trio.Event)

    @property
    def name(self) -> str:
        return self.room.name


class RoomActor(Actor[RoomMessages]):
    """The actor of one open room. Its turns are tasks of its own, one after the other."""

    cleanup_budget = 10.0

    def __init__(self, place: Place) -> None:
        self.place = place
        self.room = place.room
        self.state = RoomState()
        self.messages: list[RoomMessage] = []
        self._driving = False
        self._writing = trio.Lock()

    async def on_start(self) -> None:
        """Takes up what is on disk, also when another life of this actor has crashed."""
        found = await self.place.store.ask(FindRoom(self.room.name, self.room.history))
        assert found is not None
        self.messages = list(found.messages)
        self._now_is(replace(found.state, floor=after_a_crash(found.state.floor)))
        self.place.speaker.begin(self.room.limits, self.state)
        self._drive_soon()

    @handles(Post, concurrent=64)
    async def post(self, request: Post) -> Said:
        stops = self.place.stops
        async with self._writing:
            message = self._message(request.author, "person", request.text)
            # Shielded: whether it is on disk would be ambiguous to whoever is cancelled meanwhile.
            with trio.CancelScope(shield=True):
                said = await self._store(message, self.state, request.key)
                if not said.duplicate and self.place.stops == stops:
                    self.place.halted = False
                    self._drive_soon()
                return said
        raise AssertionError("nobody cancels this scope")

    @handles(Halt)
    async def halt(self, _: Halt) -> None:
        if not self._driving and self.state.floor.going:
            await self._end(STOPPED)

    def _drive_soon(self) -> None:
        if not self._driving:
            self._driving = True
            self.place.idle = trio.Event()
            self.start_soon(self._drive)

    async def _drive(self) -> None:
        """Make moves until the room waits for a person."""
        try:
            while not isinstance(await self._move(), Wait):
                pass
        finally:
            self._driving = False
            self.place.idle.set()

    async def _move(self) -> object:
        if self.place.halted:
            if self.state.floor.going:
                await self._end(STOPPED)
            return Wait()
        if self._unheard():
            await self._open()
        rules = self.room.rules
        floor, deep = without_deep_calls(self.state.floor, rules)
        self.state = replace(self.state, floor=floor)
        move = next_move(floor, rules, met=deep or self._met())
        match move:
            case Over(reason):
                await self._end(reason)
            case Choose():
                await self._choose()
            case Give(speakers):
                await self._give(speakers)
            case _:
                return move
        return None

    # Rounds

    def _unheard(self) -> tuple[RoomMessage, ...]:
        """What people have said since the last round was opened."""
        heard = self.state.heard
        return tuple(one for one in self.messages if one.kind == "person" and one.seq > heard)

    async def _open(self) -> None:
        """A round for all that people have said meanwhile."""
        new, infos = self._unheard(), self._view().members
        called = [
            name for one in new for name in self.room.speakers.called(one.text, infos)
        ]  # each once, below
        floor = opened(self.state.floor, dict.fromkeys(called))
        state = RoomState(floor, new[-1].seq, time.time(), self.state.seen)
        await self._keep(state)
        self.place.speaker.begin(self.room.limits, state)

    def _met(self) -> str:
        """The condition or the limit that ends the round."""
        if limit := self.place.speaker.exhausted():
            return limit
        return self.room.until.met(self._view()) if self.room.until else ""

    async def _choose(self) -> None:
        view, ask = self._view(), self.place.speaker.ask
        try:
            names = await self.room.speakers.pick(view, ask)
        except Exception as error:
            await self._warn(f"nobody could be chosen: {error}")
            names = ()
        floor, reason = chosen(self.state.floor, names, view.free)
        if reason:
            await self._end(reason)
        else:
            self.state = replace(self.state, floor=floor)

    async def _give(self, speakers: tuple[Due, ...]) -> None:
        """Their turns are counted on disk before they begin."""
        last = self.messages[-1].seq
        before = dict(self.state.seen)
        seen = before | {due.name: last for due in speakers}
        await self._keep(replace(self.state, floor=given(self.state.floor, speakers), seen=seen))
        snapshot = tuple(self.messages)
        async with trio.open_nursery() as nursery:
            for due in speakers:
                text = told(
                    snapshot,
                    name=due.name,
                    after=before.get(due.name, 0),
                    most=self.room.history,
                )
                nursery.start_soon(partial(self._speak, due, text or NOTHING_NEW))

    async def _speak(self, due: Due, text: str) -> None:
        floor = self.state.floor
        left = self.room.max_turns - floor.turns
        await self.place.voice.say(RoomTurn(due.name, floor.turns, left))
        speaker = self.place.speaker
        leave = self.place.voice.listen_to(speaker.session(due.name))
        try:
            turn = await speaker.turn(due.name, text, self._view().members)
        finally:
            leave()
        # A turn that was taken is counted and kept, also when the host is about to close.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await self._spoken(due, turn)

    async def _spoken(self, due: Due, turn: Turn) -> None:
        text = without_name(turn.text, due.name)
        if turn.problem:
            await self._warn(f"{due.name} has not answered: {turn.problem}")
        silent = is_pass(text)
        infos = self._view().members
        called = () if silent else self.room.speakers.called(text, infos)
        async with self._writing:
            floor = spoken(self.state.floor, due.name, silent=silent, called=called)
            state = replace(self.state, floor=floor, usage=self.place.speaker.usage)
            if silent:
                await self._keep(state)
            else:
                await self._store(self._message(due.name, "agent", text), state, None, turn.run_id)

    async def _end(self, reason: str) -> None:
        heard = max((one.seq for one in self._unheard()), default=self.state.heard)
        if reason != STOPPED:
            heard = self.state.heard
        state = replace(self.state, floor=ended(self.state.floor, reason), heard=heard)
        await self._keep(state)
        await self.place.voice.say(RoomIdle(reason))

    # What is on disk

    def _message(self, author: str, kind: str, text: str) -> RoomMessage:
        number = self.messages[-1].seq + 1 if self.messages else 1
        round_ = self.state.floor.round + (kind == "person")
        return RoomMessage(
            number, author, "person" if kind == "person" else "agent", text, round_, time.time()
        )

    async def _store(
        self, message: RoomMessage, state: RoomState, key: str | None, run_id: str | None = None
    ) -> Said:
        said = await self.place.store.ask(Say(self.room.name, message, state, key))
        if not said.duplicate:
            self._now_is(state)
            self.messages.append(message)
            self._forget()
            said_by: Role = "user" if message.kind == "person" else "assistant"
            added = MessageAdded(said_by, message.author, message.text)
            await self.place.voice.say(added, run_id)
        return said

    async def _keep(self, state: RoomState) -> None:
        await self.place.store.ask(KeepState(self.room.name, state))
        self._now_is(state)

    def _now_is(self, state: RoomState) -> None:
        self.state, self.place.floor = state, state.floor

    def _forget(self) -> None:
        """Messages that nobody will be shown are on disk only."""
        first = max(len(self.messages) - self.room.history, 0)
        while first and self.messages[first - 1].seq >= self.state.heard > 0:
            first -= 1
        del self.messages[:first]

    def _view(self) -> RoomView:
        state, members = self.state, self.place.speaker.members
        began = state.heard if state.floor.round else 0
        return RoomView(
            room=self.room.name,
            members=members,
            messages=tuple(self.messages[-self.room.history :]),
            round=tuple(one for one in self.messages if one.seq >= began),
            fresh=tuple(self.messages[-1:]),
            floor=state.floor,
            left=self.room.max_turns - state.floor.turns,
            elapsed=max(0.0, time.time() - state.opened) if state.opened else 0.0,
        )

    async def _warn(self, message: str) -> None:
        await self.place.voice.say(Warned("room", message))
