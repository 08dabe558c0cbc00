"""One room at work: it opens rounds, gives the floor, and has its members speak.

Guarantees: a message is acknowledged only when it is on disk (G15); only a person's message opens a
round, and what a round has used stays used after a restart; a stop ends every speaker and waits
for it (G1), and works while the room's own actor or the disk is stuck. What a policy or a condition
of the program raises ends the round and not the room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.rooms.definition import Room
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
    without_strangers,
)
from motet.actors.rooms.member import Interjections, Turn, more, prefix
from motet.actors.rooms.publisher import is_pass, told, without_name
from motet.actors.rooms.selection import NoSuchMember, only_members
from motet.actors.rooms.state import Change, Minutes, Place, Words
from motet.protocols.events import RoomTurn
from motet.protocols.messages import Request
from motet.protocols.models import Usage
from motet.protocols.rooms import (
    FAILED,
    INTERRUPTED,
    STOPPED,
    Due,
    RoomState,
    RoomView,
    Said,
    Waiting,
)
from motet.protocols.sessions import FINAL
from motet.runtime import Actor, handles
from motet.runtime.outside import wall_time

_log = logger("motet.rooms")


class Post(Request[Said], frozen=True, tag="room.post"):
    """A person says something. Answered when it is on disk. Raises as ``Minutes.post``.

    ``clears``: those of its place when it was said.
    """

    author: str
    text: str
    key: str | None = None
    clears: int = 0


RoomMessages: TypeAlias = Post


@attrs.frozen
class _Given:
    """One turn of several at once: all see the same messages.

    Attributes:
        shown: the number of the last one; ``heard``: of the last person's.
        overtaken: whether a stop has come since.
        before: set when the one before it has been heard, so that they are in order.
        done: the same of this one.
    """

    due: Due
    text: str
    shown: int
    heard: int
    overtaken: Callable[[], bool]
    before: trio.Event | None
    done: trio.Event = attrs.field(factory=trio.Event)


class RoomActor(Actor[RoomMessages]):
    """The actor of one open room. Its moves are made by one task of its own."""

    cleanup_budget = 10.0

    def __init__(self, place: Place) -> None:
        self.place = place
        self.minutes = Minutes(place)
        self.interjections = Interjections()
        self._driving = False
        self._recovered = False
        self._shown = self._heard = 0
        self._untold: set[str] = set()

    @property
    def room(self) -> Room:
        """What it is now; between two rounds it may be changed."""
        return self.place.room

    @property
    def state(self) -> RoomState:
        return self.minutes.state

    async def on_start(self) -> None:
        """Takes up what is on disk, also when another life of this actor has crashed."""
        await self.minutes.load()
        self.place.speaker.begin(self.room.limits, self.state)
        for name, waits in self.state.waiting.items():
            self.start_soon(self._hear, name, waits)
        self._drive_soon()

    async def on_stop(self) -> None:
        self.place.idle.set()  # nobody waits for a person's answer here any more

    @handles(Post, concurrent=64)
    async def post(self, request: Post) -> Said:
        said = await self.minutes.post(request.author, request.text, request.key)
        if not said.duplicate:
            if request.clears != self.place.clears:
                self.place.cleared = max(self.place.cleared, said.seq)
            elif self.state.floor.going and not (self.state.held and self.room.mode == "steer"):
                self._spoken_to(request, said.seq)
            self._drive_soon()
        return said

    def _spoken_to(self, post: Post, number: int) -> None:
        """A person says something while agents speak."""
        if self.room.mode == "interrupt":
            self.place.interrupt(f"{post.author} has spoken")
        elif self.room.mode == "steer":
            speaking = {turn.name for turn in self.state.floor.speaking}
            called = self.room.speakers.called(post.text, self.place.speaker.members)
            people = [one for one in self.minutes.messages if one.kind == "person"]
            before = max((one.seq for one in people if one.seq < number), default=0)
            message = next((one for one in people if one.seq == number), None)
            if message and speaking.issuperset(called) and self.interjections.add(message, before):
                self.start_soon(self.interjections.run, self.place.speaker)

    # Moves

    def _drive_soon(self) -> None:
        if not self._driving:
            self._driving = True
            if self.place.idle.is_set():
                self.place.idle = trio.Event()
            self.start_soon(self._drive)

    async def _drive(self) -> None:
        """Make moves until the room waits for a person."""
        try:
            while await self._safely(self._move if self._recovered else self._recover):
                pass
        finally:
            self._driving = False
            if not self.state.held:
                self.place.idle.set()

    async def _safely(self, move: Callable[[], Awaitable[bool]]) -> bool:
        """A move; one that fails, by a fault of the program's policies, ends its round."""
        try:
            return await move()
        except Exception as error:
            _log.error("a round has failed", room=self.room.name, exc_info=error)
            await self.minutes.warn(f"the round has failed: {type(error).__name__}; see the log")
            await self._end(FAILED)
            return bool(self.minutes.unheard())

    async def _move(self) -> bool:
        """Whether there was something to do."""
        place = self.place
        if place.ended != place.stops or place.cleared > self.state.heard:
            stops = place.stops
            if self.state.floor.going or place.cleared > self.state.heard:
                await self._end(STOPPED)
            place.ended = stops
            return True
        if place.closing.is_set():
            return False
        if self.minutes.unheard() and not self._waits_its_turn:
            await self._open()
            return True
        here = without_strangers(self.state.floor, [one.name for one in place.speaker.members])
        floor, deep = without_deep_calls(here, self.room.rules)
        self.minutes.assume(lambda state: replace(state, floor=floor))
        match next_move(floor, self.room.rules, met=deep or self._met()):
            case Over(reason):
                await self._end(reason)
            case Choose():
                await self._choose()
            case Give(speakers):
                await self._give(speakers)
            case Wait():
                return False
        return True

    # Rounds

    async def _recover(self) -> bool:
        """Go on where the last host, or the last life of this actor, was cut off."""
        self._recovered = True
        await self.minutes.tell_again()
        unheard = self.minutes.unheard()
        if not (self.state.floor.going or unheard):
            return True
        cut = [turn.name for turn in self.state.floor.speaking if not self.state.holds(turn.name)]
        expected = await self._find(cut)
        latest = max((one.at for one in self.minutes.messages[-1:]), default=0.0)
        old = wall_time() - max(self.state.opened, latest) >= self.place.resume_within
        if old and (unheard or not (expected or self.state.held)):
            await self.minutes.warn("the host was away for long: say it again to have it answered")
            await self._end(INTERRUPTED)
        elif cut:
            await self._give_back([name for name in cut if not self.state.holds(name)])
        return True

    async def _find(self, cut: list[str]) -> bool:
        """Hear what came of turns that were cut off; whether one goes on, or waits for a person."""
        expected, speaker = False, self.place.speaker
        for name in cut:
            run = await speaker.late.last(speaker.session(name), self.state.given)
            if run is not None and (run.status == "completed" or run.status not in FINAL):
                expected = expected or run.status not in FINAL
                await self._wait_for(name, run.run_id, Usage(), self._shown_to(name))
            elif run is not None:
                speaker.waited(0.0, run.usage)
        return expected

    def _shown_to(self, name: str) -> Change:
        """Note what a member must have been told when it got the floor that it has."""
        messages = self.minutes.messages

        def change(state: RoomState) -> RoomState:
            shown = [one.seq for one in messages if one.at <= state.given]
            return replace(
                state,
                seen=_raised(state.seen, [name], max(shown, default=0)),
                told=_raised(state.told, [name], state.heard),
            )

        return change

    async def _give_back(self, cut: list[str]) -> None:
        """Who was cut off speaks again, in another turn, unless that could do something twice."""
        again = [name for name in cut if await self.place.speaker.may_repeat(name)]
        for name in cut:
            if name not in again:
                await self.minutes.warn(f"{name} was cut off while it used its tools")

        def change(state: RoomState) -> RoomState:
            kept = [turn.name for turn in state.floor.speaking if state.holds(turn.name)]
            floor = after_a_crash(state.floor, again, kept)
            return replace(state, floor=floor, usage=self.place.speaker.usage)

        await self.minutes.record(change)

    @property
    def _waits_its_turn(self) -> bool:
        """Whether what people say waits for the end of the round; never for an approval."""
        going = self.state.floor.going and not self.state.held
        return self.room.mode == "followup" and going

    async def _open(self) -> None:
        """A round for all that people have said meanwhile, or for the first of it."""
        self.place.adopt()
        new, infos = self.minutes.unheard(), self.place.speaker.members
        if self.room.mode == "followup":
            new = new[:1]
        calls = [name for one in new for name in self.room.speakers.called(one.text, infos)]
        called = only_members(calls, self._view())

        def change(state: RoomState) -> RoomState:
            return replace(
                state,
                floor=opened(state.floor, called),
                heard=new[-1].seq,
                opened=wall_time(),
                usage=Usage(),
            )

        await self.minutes.record(change)
        self.place.speaker.begin(self.room.limits, self.state)

    def _met(self) -> str:
        """The condition or the limit that ends the round."""
        if not self.state.floor.going:
            return ""
        if limit := self.place.speaker.exhausted():
            return limit
        return self.room.until.met(self._view()) if self.room.until else ""

    async def _choose(self) -> None:
        overtaken, view = self.place.fence(), self._view()
        names: tuple[str, ...] = ()
        with trio.CancelScope() as self.place.choosing:
            names = await self._picked(view, overtaken)
        self.place.choosing = None
        if overtaken():
            return
        floor, reason = chosen(self.state.floor, names, view.free)
        if reason:
            await self._end(reason)
        else:
            self.minutes.assume(lambda state: replace(state, floor=floor))

    async def _picked(self, view: RoomView, overtaken: Callable[[], bool]) -> tuple[str, ...]:
        ask = partial(self.place.speaker.ask, overtaken)
        try:
            return only_members(await self.room.speakers.pick(view, ask), view)
        except NoSuchMember as error:
            await self.minutes.warn(str(error))
        except Exception as error:
            _log.error("nobody could be chosen", room=self.room.name, exc_info=error)
            await self.minutes.warn(f"nobody could be chosen: {type(error).__name__}; see the log")
        return ()

    async def _give(self, speakers: tuple[Due, ...]) -> None:
        """Their turns are counted on disk before they begin."""
        overtaken, number = self.place.fence(), self.state.floor.turns
        messages = tuple(self.minutes.messages)
        shown = self._shown = self.minutes.last
        heard = self._heard = self.state.heard
        self._untold = {due.name for due in speakers}
        self.interjections.begin(heard)
        await self.minutes.record(
            lambda state: replace(state, floor=given(state.floor, speakers), given=wall_time())
        )
        before: trio.Event | None = None
        async with trio.open_nursery() as nursery:
            for due in speakers:
                if overtaken():
                    break
                number += 1
                left = self.room.max_turns - number
                await self.place.voice.say(RoomTurn(due.name, number, left))
                after = self.state.seen.get(due.name, 0)
                people = range(self.state.told.get(due.name, after) + 1, heard + 1)
                text = told(
                    messages, name=due.name, agents=after, people=people, most=self.room.history
                )
                turn = _Given(due, text, shown, heard, overtaken, before)
                before = turn.done
                nursery.start_soon(self._speak, turn)

    async def _speak(self, given: _Given) -> None:
        place, name = self.place, given.due.name
        leave = place.voice.listen_to(place.speaker.session(name))
        try:
            turn = await place.speaker.turn(name, given.text, given.overtaken)
            if turn.run_id:
                self._untold.discard(name)
            if given.before is not None and not given.before.is_set():
                await given.before.wait()
            cut_off = given.overtaken() or place.closing.is_set()
            if turn.waits:
                await self._wait_for(name, turn.run_id, turn.usage, self._noting(given))
            elif not (cut_off and turn.problem):
                note = self._noting(given) if turn.run_id else _nothing
                await self._spoken(name, turn, note)
        finally:
            leave()
            given.done.set()

    async def _spoken(self, name: str, turn: Turn, note: Change, *, late: bool = False) -> None:
        """A turn is over; ``late``: its member may not have the floor any more."""
        text = without_name(turn.text, name)
        if turn.problem:
            await self.minutes.warn(f"{name} has not answered: {turn.problem}")
        silent = is_pass(text)
        infos = self.place.speaker.members
        called = [] if silent else list(self.room.speakers.called(text, infos))
        if turn.given in (member.name for member in infos):
            called.insert(0, turn.given)
        elif turn.given:
            await self.minutes.warn(
                f"{name} has given the floor to {turn.given!r}, who is not here"
            )

        def change(state: RoomState) -> RoomState:
            floor = state.floor
            if not late or state.holds(name):
                floor = spoken(floor, name, silent=silent, called=dict.fromkeys(called))
            return replace(note(state), floor=floor, usage=self.place.speaker.usage)

        words = () if silent else (Words(name, text, run_id=turn.run_id),)
        await self.minutes.record(change, *words)

    def _noting(self, given: _Given) -> Change:
        """Note what was told to a member in its turn."""
        name = given.due.name
        entered = self.interjections.spoken(name)
        people = (one for one in self.minutes.messages if one.kind == "person")
        later = [one for one in people if one.seq > given.heard]

        def change(state: RoomState) -> RoomState:
            return replace(
                state,
                heard=self.interjections.heard(self.minutes.unheard(), state.heard),
                seen={**state.seen, name: given.shown},
                told={**state.told, name: prefix(later, entered, given.heard)},
            )

        return change

    # Turns that wait for a person

    async def _wait_for(self, name: str, run_id: str, counted: Usage, note: Change) -> None:
        """A turn outlives its task: the floor stays its own until people say something else."""
        waits = Waiting(run_id, self.state.floor.round, wall_time(), counted)
        await self.minutes.record(
            lambda state: replace(note(state), waiting={**state.waiting, name: waits})
        )
        self.start_soon(self._hear, name, waits)

    async def _hear(self, name: str, waits: Waiting) -> None:
        """Wait until such a turn is over, and let the round go on, if it is still the same."""
        place, overtaken = self.place, self.place.fence()
        session = place.speaker.session(name)
        leave = place.voice.listen_to(session)
        try:
            turn = await place.speaker.late.outcome(session, waits.run_id)
        finally:
            leave()
        seconds = max(0.0, wall_time() - waits.since)
        holds = self.state.holds(name)
        if holds:
            place.speaker.waited(seconds, more(turn.usage, waits.counted))

        def note(state: RoomState) -> RoomState:
            others = {other: one for other, one in state.waiting.items() if other != name}
            opened = state.opened + seconds if holds else state.opened
            return replace(state, waiting=others, opened=opened)

        if turn.problem and overtaken():
            await self.minutes.record(note, patient=False)
        else:
            await self._spoken(name, turn, note, late=True)
        if self.state.floor.going:
            self._drive_soon()

    async def _end(self, reason: str) -> None:
        """The round is over. What has been said and is not answered stays so if it was cut off."""
        cleared = self.place.said if reason in (FAILED, INTERRUPTED) else self.place.cleared

        def change(state: RoomState) -> RoomState:
            speaking = [turn.name for turn in state.floor.speaking]
            names = [name for name in speaking if name not in self._untold]
            return replace(
                state,
                floor=ended(state.floor, reason),
                heard=max(state.heard, cleared),
                seen=_raised(state.seen, names, self._shown),
                told=_raised(state.told, names, self._heard),
                usage=self.place.speaker.usage,
            )

        await self.minutes.end(change, reason, patient=reason not in (STOPPED, FAILED))

    def _view(self) -> RoomView:
        state, messages = self.state, self.minutes.messages
        return RoomView(
            room=self.room.name,
            members=self.place.speaker.members,
            messages=tuple(messages[-self.room.history :]),
            round=tuple(one for one in messages if one.round == state.floor.round),
            floor=state.floor,
            left=self.room.max_turns - state.floor.turns,
            elapsed=max(0.0, wall_time() - state.opened) if state.opened else 0.0,
        )


def _nothing(state: RoomState) -> RoomState:
    """No change."""
    return state


def _raised(numbers: dict[str, int], names: Sequence[str], least: int) -> dict[str, int]:
    return numbers | {name: max(least, numbers.get(name, 0)) for name in names}
