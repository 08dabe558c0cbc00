"""One room at work: it opens rounds, gives the floor, and has its members speak.

Guarantees: a message is acknowledged only when it is on disk (G15); only a person's message opens a
round; what it has used stays used after a restart; a stop ends every speaker and waits for it (G1),
also while the room's actor or the disk is stuck. The program's errors end the round, not the room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.rooms.definition import Room
from motet.actors.rooms.history import ATTEMPT, Change
from motet.actors.rooms.live import LiveRoom
from motet.actors.rooms.member import MOST_ENTERED, STUCK, Given, Steering
from motet.protocols import room_floor as floor
from motet.protocols.models import Usage
from motet.protocols.room_calls import AWAY, CUT_OFF, noted, read_also, unknown_names
from motet.protocols.room_limits import UnderWay
from motet.protocols.room_messages import (
    Amend,
    Draft,
    Post,
    RoomMessages,
    asked_also,
    draft_of,
    is_recalled,
    news_lines,
    read_before,
    still_owes,
    whose,
    without_head,
    without_news,
)
from motet.protocols.room_newcomers import summary_line
from motet.protocols.room_reading import unshown, unshown_lines
from motet.protocols.room_speakers import NoChoice, only_members
from motet.protocols.room_turns import (
    TOO_LONG,
    Batch,
    Turn,
    at_limit,
    is_pass,
    render_for_member,
    usage_between,
)
from motet.protocols.rooms import (
    FAILED,
    INTERRUPTED,
    STOPPED,
    Due,
    RoomMessage,
    RoomState,
    RoomView,
    Said,
    Waiting,
)
from motet.protocols.sessions import FINAL
from motet.runtime import Actor, handles
from motet.runtime.outside import age_of, foreign_code, wall_time

_log = logger("motet.rooms")


class RoomActor(Actor[RoomMessages]):
    """The actor of one open room. One task of its own makes the moves of its rounds.

    Other tasks of it take turns, wait for suspended runs, and store what people say. They change
    the round by its transitions only, which the history stores one at a time.
    """

    cleanup_budget = 10.0

    def __init__(self, live: LiveRoom) -> None:
        self._live = live
        self._settings = live.settings
        self._control = live.control
        self._history = live.history
        self._members = live.members
        self._publisher = live.publisher
        self._steering = Steering(live.members, live.name)
        self._batch = Batch()
        self._driving = False
        self._recovered = False

    @property
    def _room(self) -> Room:
        """Its definition now; between two rounds it may change."""
        return self._settings.room

    @property
    def _state(self) -> RoomState:
        return self._history.state

    async def on_start(self) -> None:
        """Resume from the stored state, also after a crash of an earlier life of this actor."""
        await self._history.load()
        # Before any turn ends: a newer message would hide that an older one is not published.
        await self._history.republish()
        self._members.begin_round(self._room.limits, self._state, age_of(self._state.opened))
        for name, waits in self._state.waiting.items():
            began = trio.current_time() - age_of(waits.since)
            self.start_soon(self._await_detached, name, waits, began)
        self._drive_soon()

    async def on_stop(self) -> None:
        self._control.idle.set()  # waiters must not outlive the actor

    @handles(Post, concurrent=64)
    async def post(self, one: Post) -> Said:
        draft = draft_of(one.author, one.text, one.asked_by, one.reply_to)
        words = one.author, draft, one.key, one.answers, one.invited
        said = await self._history.post(*words, one.clears)
        if not said.duplicate:
            going = self._state.floor.going and one.clears == self._control.clears
            if going and not (self._state.held and self._room.mode == "steer"):
                self._post_to_speakers(one, said.seq)
            self._drive_soon()
        return said

    @handles(Amend, concurrent=8)
    async def amend(self, request: Amend) -> RoomMessage:
        def correct(message: RoomMessage, before: str, room: str) -> None:
            if room == self._live.name:
                self._steering.correct(message)
            self._members.correct(message, before, room)

        found = await self._history.amend(request.wish, self._members.reads, correct)
        self._drive_soon()
        return found

    def _post_to_speakers(self, post: Post, number: int) -> None:
        """A person says something while agents speak."""
        if self._room.mode == "interrupt":
            self._live.interrupt(f"{post.author.user} has spoken")
        elif self._room.mode == "steer":
            speaking = {turn.name for turn in self._state.floor.speaking}
            people = [one for one in self._history.messages if one.kind == "person"]
            before = max((one.seq for one in people if one.seq < number), default=0)
            message = next((one for one in people if one.seq == number), None)
            if message and speaking.issuperset(self._settings.called(message.calling)):
                # Before its words can enter: later turns of the round answer them as well.
                self._history.assume(partial(floor.ask_also, who=post.author))
                if self._steering.add(message, before):
                    self.start_soon(self._steering.run, self._history)

    # Moves

    def _drive_soon(self) -> None:
        if not self._driving:
            self._driving = True
            self._control.busy()
            self.start_soon(self._drive)

    async def _drive(self) -> None:
        """Make moves until the room waits for a person."""
        try:
            while await self._safely(self._move if self._recovered else self._recover):
                pass
        finally:
            self._driving = False
            # While its speakers wait for an approval a room is not idle, though it makes no moves:
            # a stop has to wait for their runs, and the round goes on when they have ended.
            if not self._state.held:
                self._control.idle.set()

    async def _safely(self, move: Callable[[], Awaitable[bool]]) -> bool:
        """Make a move. One that fails, by an error of the program's policies, ends its round."""
        try:
            with foreign_code:
                return await move()
        except Exception as error:
            _log.error("a round has failed", room=self._room.name, exc_info=error)
            await self._history.warn(f"the round has failed: {type(error).__name__}; see the log")
            await self._end(FAILED)
            return bool(self._history.unanswered())

    async def _move(self) -> bool:
        """Make the next move; False: there is none.

        Stops come first, then the end of the host, then people, then agents.
        """
        control, history = self._control, self._history
        if control.stopping or history.cleared:
            # A stop that comes while this is stored ends the next round, and the calls kept for it.
            mark, kept = control.mark(), control.stopped and self._state.floor.due
            if self._state.floor.going or history.cleared or kept:
                await self._end(STOPPED)
            control.carried_out(mark)
            return True
        if control.ends:
            return False
        if (history.unanswered() or is_recalled(self._state)) and not self._must_follow:
            await self._open()
            return True
        history.assume(floor.take_unread)
        rules, state = self._room.rules, self._state
        possible, deep = self._possible(state)
        if possible is not state and not state.floor.speaking:
            await (self._end(deep) if deep else history.record(lambda now: self._possible(now)[0]))
            return True
        self._members.planned = {}  # also of turns that were not taken
        match floor.next_move(state.floor, rules, met=self._live.met(), waiting=state.waiting):
            case floor.Over(reason):
                await self._end(reason)
            case floor.Choose():
                return await self._choose()
            case floor.Give(speakers):
                mark, refused = control.mark(), await self._live.afford(speakers)
                why = floor.refusal(speakers, refused)
                if refused and not why:
                    await history.record(partial(floor.refuse, refused=refused))
                    why = floor.refusal((), refused) if floor.is_empty(self._state.floor) else ""
                if why:
                    await self._end(why)
                elif not refused:
                    await self._give(speakers, mark)
            case floor.Wait():
                return False
        return True

    def _possible(self, state: RoomState) -> tuple[RoomState, str]:
        members = [one.name for one in self._settings.members]
        return floor.drop_impossible(state, self._room.rules, members)

    @property
    def _must_follow(self) -> bool:
        """Whether new messages wait for the end of the round. They never wait for an approval."""
        going = self._state.floor.going and not self._state.held
        return self._room.mode == "followup" and going

    # Recovery

    async def _recover(self) -> bool:
        """Go on where the last host, or the last life of this actor, was cut off."""
        self._recovered = True
        history = self._history
        unanswered = history.unanswered()
        if not (self._state.floor.going or unanswered):
            return True
        cut = [turn.name for turn in self._state.floor.speaking if not self._state.holds(turn.name)]
        expected, old = await self._find_runs(cut), self._live.was_away
        if old and (unanswered or not (expected or self._state.held)):
            await self._end(INTERRUPTED, AWAY)
        elif cut:
            await self._repeat([name for name in cut if not self._state.holds(name)])
        return True

    async def _find_runs(self, cut: Sequence[str]) -> bool:
        """Await the runs of turns that were cut off; whether one goes on, or waits for a person.

        A run may have completed before its message was stored in the room, or this host resumes it:
        in both cases its message is this turn's, and another turn would say it twice.
        """
        expected, members = False, self._members
        due = [turn for turn in self._state.floor.speaking if turn.name in cut]
        refused = await self._live.afford(due) if due else {}
        for one in due:
            name, told = one.name, floor.told_turn(one, self._room.max_turns)
            run = await members.detached.run_since(members.session(name), self._state)
            if run is not None and one.turn and not await self._publisher.has_told(told):
                await self._publisher.publish(told)
            going = run is not None and (run.status == "completed" or run.status not in FINAL)
            again = not (going or self._live.was_away or name in refused)
            if run and (going or (again and await members.repeats(name, run, self._state))):
                expected = expected or run.status != "completed"
                planned = members.planned if again else {}
                turn = Turn(run.run_id, planned=planned.get(name, UnderWay()).planned)
                await self._suspend(name, turn, await self._shown_when_cut([name]))
            elif run is not None:
                members.add_detached(run.usage)
        return expected

    async def _shown_when_cut(self, names: Sequence[str]) -> Change:
        """Note what members have read in turns that were cut off: the messages that were there when
        they got the floor, and those that have entered their runs.
        """
        given, history = self._state, self._history
        agents = floor.last_when_given(given, history.messages)
        later = await history.said_since(agents, MOST_ENTERED) if agents else ()
        said = [one.seq for one in later if given.turn or one.at > given.given]
        said.insert(0, min([given.heard, *(number - 1 for number in said[:1])]))
        read = {name: said[: 1 + await self._members.entered(name, given)][-1] for name in names}
        return partial(floor.shown_when_cut, agents=agents, read=read)

    async def _repeat(self, cut: Sequence[str]) -> None:
        """Give members that were cut off another turn, unless it could have effects twice."""
        again = [name for name in cut if await self._members.may_repeat(name, self._state)]
        lost = [name for name in cut if name not in again]
        notices = [f"{name} {CUT_OFF}" for name in lost]
        shown = await self._shown_when_cut(lost)

        def change(state: RoomState) -> RoomState:
            after = noted(floor.recover_round(shown(state), again), *notices)
            return replace(after, usage=self._members.usage)

        await self._history.record(change)

    # Rounds

    async def _open(self) -> None:
        """Open a round for all unanswered messages, or for the first of them."""
        self._live.adopt()
        history = self._history
        only: tuple[str, ...] | None = None
        new, heard = history.unanswered(), history.said
        if self._room.mode == "followup":
            first = await history.next_unanswered()
            if first is None and not is_recalled(self._state):
                return
            calls = [one.name for one in self._state.calls]
            new = (first,) if first else ()
            only = self._settings.called(first.calling if first else "", calls)
            heard = first.seq if first else self._state.heard
        told = await history.told()
        asked_by = [who for one in new for who in one.principals]
        await history.record(
            lambda state: floor.open_round(
                state, heard=heard, now=wall_time(), asked_by=asked_by, only=only, told=told
            )
        )
        self._members.begin_round(self._room.limits, self._state)

    async def _choose(self) -> bool:
        """Have the policy name the next speakers; False: the round waits for those who are due."""
        mark, used_up = self._control.mark(), await self._live.afford(())  # to choose may cost, too
        if used_up and not self._control.overtaken(mark):
            await self._end(used_up[""])
            return True
        view, names = self._live.view(), tuple[str, ...]()
        seconds = self._room.turn_timeout
        with self._control.choosing(seconds) as scope:
            names = await self._picked(view, partial(self._control.overtaken, mark))
        if scope.cancelled_caught and not self._control.overtaken(mark):
            await self._history.warn(f"nobody was chosen within {seconds:g} s")
        names = tuple(name for name in names if name not in self._state.waiting)
        if self._control.overtaken(mark):
            return True
        if not (reason := floor.no_choice(self._state.floor, names, view.free)):
            self._history.assume(partial(floor.choose, names=names))
        elif self._state.floor.due:
            return not self._state.held
        else:
            await self._end(reason)
        return True

    async def _picked(self, view: RoomView, too_late: Callable[[], bool]) -> tuple[str, ...]:
        ask = partial(self._members.ask_model, too_late)
        if view.activation == "mention":
            return ()
        try:
            with foreign_code:
                return only_members(await self._room.speakers.pick(view, ask), view)
        except NoChoice as error:
            await self._history.warn(str(error))
        except Exception as error:
            _log.error("nobody could be chosen", room=self._room.name, exc_info=error)
            await self._history.warn(f"nobody could be chosen: {type(error).__name__}; see the log")
        return ()

    async def _give(self, speakers: tuple[Due, ...], mark: int) -> None:
        """Give the floor, and wait for the turns. They are counted on disk before they begin."""
        self._members.begin_batch()
        first = await self._live.welcome(one.name for one in speakers)
        if self._control.overtaken(mark):
            return
        news = {due.name: self._state.news.get(due.name, ()) for due in speakers}
        changes = self._state.changes
        numbers = {one.number for some in news.values() for one in some}
        changed = await self._history.changed(numbers | self._live.root)
        heard = self._state.heard
        state, messages = self._state, tuple(self._history.messages)
        told = {name: read_before(state, name, some, changed) for name, some in news.items()}
        shown: dict[str, Sequence[RoomMessage]] = {}

        def give(now: RoomState) -> RoomState:
            # Until now a turn of an earlier round may have ended, and called one of them.
            nonlocal state, messages
            state, messages, most = now, tuple(self._history.messages), self._room.history
            shown.update({name: floor.unread(now, messages, name, most) for name in news})
            due = [one for one in now.floor.due if one.name in news]
            if not due:  # each call of theirs was withdrawn
                return now
            also = {one.name: whose(now, one.name, changes, first) for one in due}
            due = [asked_also(one, told[one.name], changed, also[one.name]) for one in due]
            last = messages[-1].seq if messages else 0
            time = wall_time()
            return floor.give_floor(now, due, now=time, shown=shown, last=last, changed=changes)

        self._steering.begin_batch(heard)
        await self._history.record(give)
        if not self._state.floor.speaking:
            return
        said = [one.author for one in messages if one.kind == "person" and one.seq <= heard]
        last, sender = messages[-1].seq if messages else 0, said[-1] if said else ""
        batch = self._batch = Batch(mark, last, heard, sender, {*news}, changes=changes)
        before: trio.Event | None = None
        turns: list[Given] = []
        for due in self._state.floor.speaking:
            if self._control.overtaken(batch.mark):
                break
            await self._publisher.publish(floor.told_turn(due, self._room.max_turns))
            batch.announced.add(due.name)
            notice = unknown_names(due.name, state, messages, self._settings)
            lines = summary_line(first[due.name].text) + news_lines(told[due.name], changed)
            cut = unshown(state, messages, self._room.name, due.name, shown[due.name])
            lines += unshown_lines(await self._history.unshown(cut))
            text = render_for_member(shown[due.name], notice, lines)
            turn = Given(due, text, batch, before)
            before = turn.done
            turns.append(turn)
            self.start_soon(self._take_turn, turn)
        for turn in turns:
            await self._await_turn(turn)
        for error in (one for turn in turns for one in turn.failed):
            raise error

    async def _await_turn(self, given: Given) -> None:
        """Wait until a turn is over. If it was to be, and a thread of its does not return, the room
        goes on without it.
        """
        name, stuck = given.due.name, list[str]()
        while not given.done.is_set():
            with trio.move_on_after(STUCK):
                await given.done.wait()
            before, stuck = stuck, self._members.stuck(name)
            if before and stuck and not given.done.is_set():
                if not self._control.overtaken(given.batch.mark):
                    problem = f"{TOO_LONG}, and does not end: {', '.join(stuck)} does not return"
                    note = self._shown(name, given.batch)
                    await self._end_turn(name, Turn(problem=problem), note)
                given.done.set()
                self._publisher.works(name, on=False)

    async def _take_turn(self, given: Given) -> None:
        name, batch = given.due.name, given.batch
        too_late = partial(self._control.overtaken, batch.mark)
        end_forwarding = self._publisher.forward(self._members.session(name))
        try:
            self._publisher.works(name, on=True)
            turn = await self._members.take_turn(
                name, given.text, batch.sender, given.due.asked_by, too_late, self._state.turn
            )
            if is_pass(without_head(turn.text, name)):
                # Only its event tells of it, so that has to be on disk before the state says that
                # it is over. The next host tells it of turns that have the floor on disk.
                with trio.move_on_after(ATTEMPT):
                    await self._publisher.settled()
            if given.done.is_set():
                return  # the room has gone on without it
            if turn.run_id:
                batch.untold.discard(name)
            if given.before is not None and not given.before.is_set():
                await given.before.wait()
            # A turn that was cut off stays on the floor: the end of the round, or the next host,
            # deals with it. One that has answered in spite of that is heard.
            cut_off = too_late() or self._control.ends
            if turn.suspended:
                await self._suspend(name, turn, self._shown(name, batch))
            elif not (cut_off and turn.problem):
                note: Change = self._shown(name, batch) if turn.run_id else lambda state: state
                await self._end_turn(name, turn, note)
        except Exception as error:
            given.failed.append(error)
        finally:
            end_forwarding()
            self._publisher.works(name, on=False)
            given.done.set()

    def _shown(self, name: str, batch: Batch) -> Change:
        """Note the messages that a member has read in its turn."""
        people = self._steering.entered(name)

        def note(state: RoomState) -> RoomState:
            heard = self._steering.heard(state.heard)
            state = without_news(state, name, batch.changes)
            return floor.shown_in_turn(state, name, agents=batch.shown, people=people, heard=heard)

        return note

    async def _end_turn(self, name: str, turn: Turn, note: Change, *, late: bool = False) -> None:
        """Store the result of a turn. ``late``: its member may not have the floor any more."""
        text, notices = without_head(turn.text, name), list[str]()
        if turn.problem:
            notices.append(f"{name} has not answered: {turn.problem}")
        silent = is_pass(text)
        called = [] if silent else list(self._settings.called(text))
        if turn.floor_to in (member.name for member in self._settings.members):
            called.insert(0, turn.floor_to)
        elif turn.floor_to:
            notices.append(f"{name} has given the floor to {turn.floor_to!r}, who is not here")

        asked_by = floor.asked_by(self._state, name, late=late)
        draft = None if silent else Draft(name, text, run_id=turn.run_id, asked_by=asked_by)

        def change(state: RoomState) -> RoomState:
            has_floor, number = not late or state.holds(name), self._history.last + 1
            state = noted(note(state), *notices)
            if turn.problem:
                state = still_owes(state, name, asked_by)
            if has_floor:
                end = partial(floor.end_turn, silent=silent, called=called, tools=turn.tools)
                state = end(state, name, number=number, again=turn.again)
            else:
                state = floor.call_late(state, name, called, asked_by, number)
            return replace(state, usage=self._members.usage)

        await self._history.record(change, draft)

    async def _end(self, reason: str, *notices: str) -> None:
        """End the round. One that was cut off leaves its messages unanswered, and calls that have
        come to no turn wait for the next after an interrupt; else they are dropped."""
        history, batch, control = self._history, self._batch, self._control

        def change(state: RoomState) -> RoomState:
            # Asked when it is stored: a stop that came meanwhile drops the calls of what it clears.
            cleared = history.said if reason in (FAILED, INTERRUPTED) else control.cleared
            keep = reason == STOPPED and not (control.stopped or history.cleared)
            speaking = [turn.name for turn in state.floor.speaking]
            told = [name for name in speaking if name not in batch.untold]
            unheard = {one for one in speaking if one not in batch.announced | {*state.waiting}}
            shown = floor.shown_at_least(state, told, agents=batch.shown, people=batch.heard)
            for name in told:
                shown = without_news(shown, name, batch.changes)
                shown = still_owes(shown, name, floor.asked_by(state, name))
            possible = self._possible(noted(shown, *notices))[0]
            heard = cleared if history.unanswered() else max(cleared, history.said)
            after = floor.end_round(possible, reason, heard=heard, unheard=unheard, keep=keep)
            return replace(after, usage=self._members.usage)

        await history.end(change, reason, patient=reason not in (STOPPED, FAILED))

    # Turns that outlive their task

    async def _suspend(self, name: str, turn: Turn, note: Change) -> None:
        """Store that a turn waits for a person; the floor stays its own until people speak again.

        Its usage is the part that the round has paid for.
        """
        began, round = trio.current_time(), self._state.floor.round
        waits = Waiting(turn.run_id, round, wall_time(), turn.usage, planned=turn.planned)
        await self._history.record(lambda state: floor.suspend_turn(note(state), name, waits))
        self.start_soon(self._await_detached, name, self._state.waiting[name], began)

    async def _await_detached(self, name: str, waits: Waiting, began: float) -> None:
        """Wait until such a turn is over, and let the round go on, if it is still the same."""
        mark, members = self._control.mark(), self._members
        session = members.session(name)
        end_forwarding = self._publisher.forward(session)
        try:
            stopped = partial(self._control.overtaken, mark)
            turn = await members.outcome(name, waits, stopped, again=not self._live.was_away)
        finally:
            end_forwarding()
        if turn.repeated and turn.problem == "interrupted" and self._control.ends:
            return  # cut off once more: it waits for the next host
        seconds, holds, due = 0.0, self._state.holds(name), self._state.floor.due
        due_too = self._state.held and any(one.name == name for one in due)
        if not turn.repeated and (holds or due_too):  # else the round has paid, and its time counts
            used = usage_between(waits.counted, turn.usage) if holds else Usage()
            seconds = members.add_detached(used, began)
        turn = at_limit(turn, waits.planned, members.over if holds else {})
        self._history.assume(partial(read_also, name=name, people=turn.asked_by))
        note = partial(floor.settle_turn, name=name, seconds=seconds, problem=turn.problem)
        if turn.problem and self._control.overtaken(mark):
            await self._history.record(note, patient=False)
        else:
            await self._end_turn(name, turn, note, late=True)
        if self._state.floor.going:
            self._drive_soon()
