"""One open room, and its stop: neither needs the room's actor or the disk.

Invariant: a stop asks all runs of the room to end in one step, and clears all that was said so far.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.rooms.history import Change, RoomHistory
from motet.actors.rooms.member import MemberRunner
from motet.actors.rooms.publisher import RoomPublisher
from motet.actors.rooms.state import Definition, RoomControl, RoomSettings
from motet.actors.runs.run import Run
from motet.protocols.budget import OverBudget
from motet.protocols.errors import MotetError
from motet.protocols.events import RoomChanged
from motet.protocols.host_rooms import Speaking
from motet.protocols.room_clocks import RoomClocks
from motet.protocols.room_limits import ROOM, Costs, FindCosts, UnderWay, plan, refusal
from motet.protocols.room_messages import Amendment, line_of, retract
from motet.protocols.room_newcomers import (
    CHUNK,
    EVERYTHING,
    INSTRUCTIONS,
    FindSummary,
    FoundSummary,
    KeepSummary,
    chunks,
    request_of,
)
from motet.protocols.room_people import Standing, is_gone
from motet.protocols.room_reading import arrive, view_of
from motet.protocols.rooms import LATELY, OFF, Due, ReadSince, RoomMessage, RoomState, RoomView
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import StopReport
from motet.runtime import held_by
from motet.runtime.outside import wall_time

_log = logger("motet.rooms")

_WAITS = {"queued": "queue", "waiting_children": "sub-agents", "compacting": "summary"}


def waits_for(run: Run | None) -> str:
    """What a turn waits for, as of ``Speaking``; None: its run has not begun."""
    if run is None:
        return "queue"
    progress = run.progress
    if progress.approvals:
        return "approval"
    if progress.calls:
        return f"tool {', '.join(dict.fromkeys(progress.calls.values()))}"
    return _WAITS.get(progress.doing, "model")


@attrs.frozen(eq=False)
class LiveRoom:
    """One open room. It stays when the room's actor is restarted or passivated.

    ``resume_within``: seconds after which an unfinished round is not resumed after a restart: its
    answer would come too late to be expected. ``returns``: its definition is on disk. ``family``:
    the open ones among its room and that one's threads.
    """

    settings: RoomSettings
    control: RoomControl
    history: RoomHistory
    members: MemberRunner
    publisher: RoomPublisher
    resume_within: float
    returns: bool
    family: Callable[[], Iterable[LiveRoom]]
    _summarising: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def rests(self) -> bool:
        """Whether nothing happens in it, so that its actor may go."""
        waiting = self.control.is_posting or self.history.state.waiting or self.members.live()
        is_over = self.control.idle.is_set() and self.history.waits  # a crash makes it idle, too
        return is_over and not (waiting or self.history.behind)

    @property
    def is_stored(self) -> bool:
        """Whether it would be the same, opened again; of gone agents it would tell anew."""
        return self.returns and not (self.settings.gone or self.history.state.scrubbing)

    @property
    def was_away(self) -> bool:
        """Whether the host was away for so long that nobody expects an answer any more."""
        latest = max((one.at for one in self.history.messages[-1:]), default=0.0)
        return wall_time() - max(self.history.state.opened, latest) >= self.resume_within

    def met(self) -> str:
        """The condition or the limit that ends the round."""
        state, room = self.history.state, self.settings.room
        if not state.floor.going:
            return ""
        if room.activation == "off":
            return OFF
        ended = self.members.exhausted(state.floor)
        return ended or (room.until.met(self.view()) if room.until else "")

    def view(self) -> RoomView:
        """The room now, as policies and conditions see it."""
        room, above, shared = self.settings.room, self.control.above, self.settings.is_shared
        history, most, turns = self.history, room.history, room.max_turns
        return view_of(
            room.name, history.state, history.messages, self.settings.members,
            most=most, turns=turns, elapsed=self.members.elapsed,
            alone=lambda people: bool(above) or not shared(people), activation=room.activation,
        )  # fmt: skip

    def speaking(self) -> tuple[Speaking, ...]:
        """The members that have the floor."""
        state, runs = self.history.state, self.members.running_members()
        waits = {
            due.name: "approval"
            if due.name not in runs and self.members.asks(due.name)
            else waits_for(runs.get(due.name))
            for due in state.floor.speaking
        }
        return tuple(Speaking(name, state.given, what) for name, what in waits.items())

    def stuck(self) -> tuple[str, ...]:
        """The members whose turn the room has given up, and the tools that do not return."""
        members, floor = self.members, self.history.state.floor.speaking
        rest = {one.name for one in self.settings.members} - {due.name for due in floor}
        found = {name: members.stuck(name) for name in sorted(rest)} if members.live() else {}
        return tuple(f"{name}: {', '.join(what)}" for name, what in found.items() if what)

    async def afford(self, speakers: Sequence[Due]) -> dict[str, str]:
        """Plan turns within the budgets; the reasons against those that these do not allow.

        ``speakers`` none: whether the room's own budget is used up. Raises ``StorageError``.
        """
        budgets, now = self.settings.room.budgets, wall_time()
        find = FindCosts(self.name, now, self.members.account)
        bounded = budgets.are_set
        costs, seen, beside = Costs(), None, self._beside() if bounded else []
        while bounded and seen != beside:  # a turn has begun: do the costs count it?
            seen, costs = beside, await self.history.store.ask(find)
            beside = self._beside()
        if not speakers:
            why = refusal(budgets, costs, ROOM, now)
            return {ROOM: why} if why else {}
        asked_by = self.history.state.floor.asked_by
        people = {one.name: [who.user for who in (*asked_by, *one.asked_by)] for one in speakers}
        over = self.members.over
        planned, refused = plan(budgets, costs, people, now, over, [one for one, _ in beside])
        self.members.planned = {name: UnderWay(one) for name, one in planned.items()}
        return refused

    def _beside(self) -> list[tuple[UnderWay, bool]]:
        """The turns of its room and threads that share its budgets, and whether they have begun."""
        turns = (one.members.planned for one in self.family() if one is not self)
        going = (one for ours in turns for one in ours.values() if not one.is_over)
        return [(one, one.is_counted) for one in going]

    def change(
        self,
        definition: Definition | None,
        standing: Standing | None,
        gone: tuple[str, ...] = (),
    ) -> None:
        """Change its definition from the next round on, and its audience at once; None: neither.

        ``gone``: members of the definition whose agents the host does not have. Nothing here can
        fail or wait.
        """
        if standing is not None:
            self.settings.admit(standing)
            self.publisher.audience_changed()
        if definition is not None:
            before = self.settings.gone
            self.settings.plan(definition, gone)
            self.announce([one for one in gone if one not in before])
        self.adopt(at_once=self.history.waits)

    def retracting(
        self, before: Standing, after: Standing
    ) -> AbstractAsyncContextManager[RoomState | None]:
        """See ``RoomHistory.writing``: what those have said who go now, and nobody has answered,
        ends. Raises ``StorageError``.
        """
        return self.history.writing(partial(self._retracted, before, after))

    async def _retracted(self, before: Standing, after: Standing) -> Change | None:
        history, mine, others = self.history, list[RoomMessage](), list[RoomMessage]()
        last = history.answered if history.unanswered() else EVERYTHING
        while found := await history.said_since(last, LATELY):
            for one in found:
                gone = all(is_gone(who, before, after) for who in one.principals)
                (mine if gone else others).append(one)
            last = found[-1].seq
        others = [one for one in others if one.seq not in history.state.skipped]
        if not mine:
            return None
        history.keep_in_memory(others[-LATELY:])
        return partial(retract, messages=mine, called=self.settings.called, last=not others)

    def announce(self, gone: Iterable[str]) -> None:
        """Tell the room of members whose agents the host does not have any more."""
        for name in gone:
            self.publisher.tell(RoomChanged(f"{name} is gone: the others go on", "", name))

    def adopt(self, *, at_once: bool = True) -> None:
        """Put a planned definition in force, if it is time, and note when members were added."""
        if at_once:
            self.settings.adopt()
        self.history.assume(self.history.joined)

    @property
    def root(self) -> Set[int]:
        """The number of the message that a thread is about; empty for a room."""
        return {1} if thread_of(self.name)[1] else set()

    async def welcome(self, names: Iterable[str]) -> dict[str, FoundSummary]:
        """Members get the floor; the summaries that those read first who were added later."""
        found: dict[str, FoundSummary] = {}
        reads = self.settings.standing.reads
        for name in names:
            when = self.history.state.joined.get(name)
            new = reads == "summary" and when is not None and not when.came
            found[name] = FoundSummary()
            if new and when:
                with self.control.choosing():  # a stop ends it
                    found[name] = await self.summary(when.agents)
            arrived = partial(arrive, name=name, newcomers=reads, messages=self.history.messages)
            self.history.assume(arrived)
        return found

    @asynccontextmanager
    async def calling(self, wish: Amendment, clocks: RoomClocks) -> AsyncGenerator[None]:
        """A block that stores an edit. One that calls somebody anew is as good as a message: it
        counts for slow mode and rate, and is refused as a message would be.
        """
        called = self.settings.called
        before = (await self.history.these((wish.number,))).get(wish.number)
        old = () if before is None else called(before.calling)
        if before is None or {*called(replace(before, text=wish.text).calling)}.issubset(old):
            yield
            return
        refused = clocks.refusal(self.settings.standing, wish.who, invited=False)
        if refused := refused or self.history.busy():
            raise refused
        with clocks.speaking(self.name, wish.who.user) as stored:
            yield
            stored(True)

    async def summary(self, upto: int) -> FoundSummary:
        """A summary of the messages up to a number, by the model of the first member.

        Made once, and again if one of them is changed. Empty: it cannot be made now.
        """
        async with self._summarising:
            try:
                for _ in range(3):  # again if a message was changed meanwhile
                    changes = self.history.state.changes
                    known, lines = await self._to_summarise(upto)
                    text = known.text
                    for part in chunks(lines):
                        text = await self.members.summarise(INSTRUCTIONS, request_of(text, part))
                        if not text:
                            return FoundSummary()
                    if known.upto < upto:
                        await self.history.store.ask(KeepSummary(self.name, upto, text, changes))
                    if changes == self.history.state.changes:
                        return replace(known, text=text)
            except (MotetError, OverBudget) as error:
                _log.warning("no summary of a room", room=self.name, error=str(error))
            return FoundSummary()

    async def _to_summarise(self, upto: int) -> tuple[FoundSummary, list[str]]:
        """The last stored summary, and the lines of messages behind it up to a number."""
        ask = self.history.store.ask
        known = await ask(FindSummary(self.name, upto))
        last, lines = known.upto, list[str]()
        while last < upto and (found := await ask(ReadSince(self.name, last))):
            shown = (one for one in found if one.seq <= upto and not one.deleted)
            lines += [line_of(one)[:CHUNK] for one in shown]
            last = found[-1].seq
        return known, lines

    def stop(self, why: str) -> RoomStop:
        """Ask all speakers to end. No agent speaks again until a person does.

        Needs neither the room's actor nor the disk; nothing is awaited.
        """
        runs = self.members.runs_to_stop()
        self.control.stop(self.history.said)
        return RoomStop(self, runs, self.members.stop(why, runs))

    def interrupt(self, why: str) -> None:
        """End the turns under way; unanswered messages and calls open the next round."""
        self.control.interrupt()
        self.members.stop(why)


@attrs.frozen
class RoomStop:
    """A stop of a room under way. ``asked``: ids of the runs that it was the first to ask."""

    room: LiveRoom
    runs: Sequence[Run]
    asked: Sequence[str]

    async def wait(self) -> None:
        """Wait until the runs have ended, and the room waits for a person."""
        for run in self.runs:
            await run.ended.wait()
        await self.room.control.idle.wait()

    def report(self) -> StopReport:
        """The state of the stop now."""
        still_running = [run.id for run in self.runs if not run.result]
        return StopReport(
            stopped=[run.id for run in self.runs if run.id in self.asked and run.result],
            already_stopping=[run.id for run in self.runs if run.id not in self.asked],
            still_running=still_running,
            held_by=held_by(still_running),
        )
