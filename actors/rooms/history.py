"""The history of a room: its messages and the state of its round, on disk and in memory.

Invariants: one task writes at a time, so that no change is lost to another; memory is never behind
the disk. A message of a person is refused if it cannot be stored. A change by the room itself is
tried until it is stored or the room is stopped; then memory has it until the storage takes it.
However many messages wait for an answer, memory has the last of them only, and all their calls.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import trio
from attrs import evolve
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.rooms.publisher import RoomPublisher
from motet.actors.rooms.state import RoomControl, RoomSettings
from motet.protocols import room_reading as reading
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.escalations import AnswerEscalation
from motet.protocols.events import MessageAdded, Role, RoomIdle, Warned
from motet.protocols.room_calls import collect, counted, not_here, read_also, skip, to_tell
from motet.protocols.room_clocks import RoomClocks
from motet.protocols.room_copies import fixed_text
from motet.protocols.room_messages import (
    Amendment,
    ChangeMessage,
    Draft,
    FindMessages,
    RoomStoreRequest,
    after_change,
    amended,
    read_by_all,
)
from motet.protocols.room_presence import CountUnshown
from motet.protocols.rooms import (
    LATELY,
    STOPPED,
    FindRoom,
    FindSaid,
    KeepState,
    ReadRoom,
    ReadSince,
    RoomMessage,
    RoomState,
    Said,
    Say,
    ToldLast,
)
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import Principal, SessionBusy
from motet.protocols.storage import StorageError
from motet.runtime import ActorRef
from motet.runtime.outside import age_of, wall_time

Change: TypeAlias = Callable[[RoomState], RoomState]
People: TypeAlias = Collection[Principal]

ATTEMPT = 5.0
"""Seconds for one attempt to write, also while the host closes."""

_log = logger("motet.rooms")


class RoomHistory:
    """The history of one room. It stays when the room's actor is restarted or passivated.

    Attributes:
        state: where the round stands; changed by :meth:`record` and :meth:`assume` only.
        messages: those that a member may still be shown, oldest first; of those of people that
            wait for an answer, the last ones.
        said, touched: number of a person's last message; Trio's time when something happened last.
        behind: the storage did not take the state; ``lags`` is called when that happens.
    """

    def __init__(
        self,
        settings: RoomSettings,
        control: RoomControl,
        store: ActorRef[RoomStoreRequest],
        publisher: RoomPublisher,
        clocks: RoomClocks,
        lags: Callable[[], None],
        corrects: Callable[[RoomMessage, str, str], None],
    ) -> None:
        self.state = self._disk = RoomState()
        self.behind, self._lags = False, lags
        self.messages: list[RoomMessage] = []
        self.said, self.touched = 0, trio.current_time()
        self._corrects = corrects
        self._settings = settings
        self._control = control
        self.store = store
        self._publisher = publisher
        self._clocks = clocks
        self._writing, self._loaded = trio.Lock(), False
        self._assumed: list[Change] = []  # since the write under way has begun
        self._cut = 0  # the last message that waits, or did, and was dropped from memory
        self._told = [-1, -1, -1]  # the last that were published, as in ``counted``; -1: unknown

    async def load(self) -> None:
        """Read the stored state, for every life of the room's actor."""
        async with self._writing:  # a turn that outlives an actor may be reading back
            await self._load()
            await self._scrub()

    async def _load(self) -> None:
        found = await self.store.ask(FindRoom(self._settings.name, self._settings.room.history))
        assert found is not None
        self.messages = list(found.messages)
        self._told = [*map(min, self._told, counted(found.state))]  # the others were never stored
        self._disk, state = found.state, self.state if self.behind else found.state
        waiting = [one for one in self.messages if one.kind == "person"]
        for one in waiting if not self._loaded else ():
            self._clocks.note(self._settings.name, one.author, age_of(one.at))
        self.said = max(self.said, state.heard, *(one.seq for one in waiting))
        waiting = [one for one in waiting if one.seq > state.heard]
        if len(waiting) >= max(LATELY, self._settings.room.history):
            self._cut = waiting[0].seq - 1
        for one in waiting:
            if one.seq > state.collected:  # an earlier version has stored it
                state = collect(state, one, self._settings.called(one.calling))
        self._set(self.joined(state))
        self._loaded = True
        self._trim()

    @asynccontextmanager
    async def writing(
        self, change: Callable[[], Awaitable[Change | None]]
    ) -> AsyncGenerator[RoomState | None]:
        """A block that stores the changed state in a transaction of its own; None: nothing is
        changed. Nobody else writes meanwhile."""
        async with self._writing:
            if not self._loaded:
                await self._load()
            made = await change()
            state = self._begin(made) if made else None
            yield state
            if state is not None:
                self._stored(state)
                await self._tell()

    def joined(self, state: RoomState) -> RoomState:
        """The state with the members as they are now."""
        names = [one.name for one in self._settings.expected]
        return reading.join(state, names, self._settings.standing.reads, self.last)

    @property
    def last(self) -> int:
        """Number of the last message."""
        return self.messages[-1].seq if self.messages else 0

    @property
    def answered(self) -> int:
        """The messages of people up to this number open no round any more."""
        return max(self.state.heard, self._control.cleared)

    @property
    def cleared(self) -> bool:
        """Whether a stop has cleared messages, and the stored state does not say so yet."""
        return self._control.cleared > self.state.heard

    @property
    def waits(self) -> bool:
        """Whether the room waits for a person: the round is over, and no other is to be opened."""
        return not self.state.floor.going and not self.unanswered()

    def unanswered(self) -> tuple[RoomMessage, ...]:
        """The messages of people since the last round was opened, or the room was stopped."""
        answered, skipped = self.answered, self.state.skipped
        late = [one for one in self.messages if one.seq > answered and one.kind == "person"]
        return tuple([one for one in late if not one.deleted and one.seq not in skipped])

    async def next_unanswered(self) -> RoomMessage | None:
        """The first message that waits for an answer; None: there is none, or a stop has come."""
        mark, first = self._control.mark(), next(iter(self.unanswered()), None)
        if first is None or self._cut <= self.answered:
            return first
        for pause in reading.pauses():
            try:
                found = await self.said_since(self.answered, 1 + len(self.state.skipped))
                first = next(one for one in found if one.seq not in self.state.skipped)
            except Exception as error:
                _log.error("a message cannot be read", room=self._settings.name, error=str(error))
                await self._control.wait_interrupted(pause)
                if not self._control.overtaken(mark):
                    continue
            if self._control.overtaken(mark):
                return None
            if first.seq <= self._cut:
                self.keep_in_memory((first,))
            return first
        raise AssertionError("pauses never end")

    def keep_in_memory(self, found: Iterable[RoomMessage]) -> None:
        """Messages that wait for an answer, and were dropped from memory."""
        known = {one.seq for one in self.messages}
        for one in found:
            if one.seq not in known:
                insort(self.messages, one, key=lambda each: each.seq)

    async def said_since(self, after: int, limit: int) -> tuple[RoomMessage, ...]:
        """The first messages of people behind number ``after``, also those not in memory."""
        return await self.store.ask(ReadSince(self._settings.name, after, limit, people=True))

    async def post(
        self,
        who: Principal,
        draft: Draft,
        key: str | None,
        answers: AnswerEscalation | None = None,
        invited: bool = False,
        clears: int | None = None,
    ) -> Said:
        """Store a message of a person, with its calls, and the answer to an escalation that it is.

        ``clears``: the stops of the room when it was sent; one that has come since counts for it.
        Raises ``InputValidation`` for a reply to no message, ``SessionBusy`` (mode ``reject``),
        ``KeyConflict``, ``StorageError``, and as :func:`refusal`: last, for who was just removed.
        """
        async with self._writing:
            if draft.reply_to:
                about = await self._said(draft.reply_to)
                draft = evolve(draft, reply_agent=about.author * (about.kind == "agent"))
            refused = self._clocks.refusal(self._settings.standing, who, invited=invited)
            refused = refused or self.busy()
            if refused is not None:
                same = (draft.author, draft.text, key, draft.reply_to) if key else None
                find = FindSaid(self._settings.name, *same) if same else None
                said = await self.store.ask(find) if find else None
                if said is None:
                    raise refused
                return said
            given = draft.text
            for fix in above.carried.fixes if (above := self._control.above) else ():
                draft = evolve(draft, text=fixed_text(fix, draft.text))  # changed since it was read
            # Shielded: a caller that is cancelled meanwhile could not tell whether it is on disk.
            with trio.CancelScope(shield=True):
                sent, control = self._control.clears if clears is None else clears, self._control
                # Others may wait that were sent after the stop, and the round may be theirs.
                going = self.state.floor.going and not control.stopping
                skips = sent != control.clears and bool(going or self.unanswered())
                state = self._begin(lambda state: state)
                with self._clocks.speaking(self._settings.name, draft.author) as stored:
                    said = await self._say(state, draft, key, answers, skips=skips, given=given)
                    stored(not said.duplicate)
                if not said.duplicate:
                    if sent != control.clears and not skips:
                        control.clear(said.seq)
                    await self._tell()
                    await self._publish(self.messages[-1])
                return said
        raise AssertionError("nobody cancels this scope")

    async def amend(
        self,
        wish: Amendment,
        reads: Callable[[], bool],
        correct: Callable[[RoomMessage, str, str], None],
    ) -> RoomMessage:
        """Change a message, on disk and wherever it was read, and publish that.

        ``reads``: whether there are turns that are not over; ``correct``: has them read it anew.
        Raises ``NotFound``, ``InputValidation``, ``StorageError``: then nothing is changed.
        """
        called, room = self._settings.called, self._settings.room
        async with self._writing:
            before = (await self.these((wish.number,))).get(wish.number)
            if before is None:
                raise NotFound(f"no message {wish.number} in room {room.name!r}")
            after = amended(wish, before, wall_time())
            if after is None:
                return before
            if before.thread and before.seq == 1 and after.text != before.text:
                raise NotFound(f"change message {before.thread} in its room, not in its thread")
            is_text = after.text != before.text
            old, new = (called(one.calling) if is_text else () for one in (before, after))
            settled = await self._publisher.settled(ATTEMPT * is_text)  # or its event came later
            state = after_change(
                self._begin(lambda now: now),
                wish,
                before,
                gone=[name for name in old if name not in new],
                new=[name for name in new if name not in old],
                members=[one.name for one in self._settings.members if is_text or room.reactions],
                settled=settled,
            )
            left = [one for one in self.unanswered() if one.seq != after.seq]
            if after.deleted and not left and self._cut <= self.answered:
                state = replace(state, heard=max(state.heard, self.said))
            # Until the storage takes it, turns read the old text, and rows on their way have it.
            # So may a turn that has the floor and no run yet: the floor is on disk, its run is not.
            if working := is_text and (bool(state.floor.speaking) or reads()):
                state = replace(state, scrubbing=(*state.scrubbing, after.seq))
            change = ChangeMessage(room.name, after, state, before.text if is_text else None)
            with trio.CancelScope(shield=True):
                below = await self.store.ask(change)
                if is_text:
                    correct(after, before.text, room.name)
                for copy in below:
                    correct(copy.message, copy.before, copy.room)
                self.messages[:] = [after if one.seq == after.seq else one for one in self.messages]
                self._stored(state)
                if working or (is_text and reads()):  # or one has resumed meanwhile
                    await self._scrub(change)
                await self._tell()
            return after
        raise AssertionError("nobody cancels this scope")

    async def _scrub(self, *changes: ChangeMessage) -> None:
        """Remove the copies of old texts that turns have stored meanwhile; ``changes`` none: those
        that are left. What the storage does not take now is done later.
        """
        left, name = self.state.scrubbing, self._settings.name
        try:
            if left and not changes:
                found = (await self.these(left)).values()
                changes = tuple(ChangeMessage(name, one, self.state, "") for one in found)
            if changes:  # what turns have told meanwhile is to be found
                with trio.move_on_after(ATTEMPT):
                    await self._publisher.settled()
            for change in changes:
                left = tuple(one for one in left if one != change.message.seq)
                state = self._begin(partial(replace, scrubbing=left))
                # A run of the last host may have been resumed with the old rows, or is meanwhile.
                self._corrects(change.message, "", name)
                await self.store.ask(replace(change, state=state))
                self._corrects(change.message, "", name)
                self._stored(state)
        except StorageError as error:
            _log.error("copies of old texts are left for now", room=name, error=str(error))
            self.behind = True
            self._lags()

    def follow(self, message: RoomMessage) -> None:
        """The message that this thread is about is another one now; it is on disk."""
        first = replace(message, seq=1, thread=message.seq, reactions=())
        if not message.deleted:
            self.assume(partial(read_by_all, people=message.principals))
        self.messages[:] = [first if one.seq == 1 else one for one in self.messages]

    async def said_now(self) -> tuple[RoomMessage, ...]:
        """Those in memory, when what is on its way is stored."""
        async with self._writing:
            return tuple(self.messages)

    async def these(self, numbers: Collection[int]) -> dict[int, RoomMessage]:
        """The messages with these numbers that there are. Raises ``StorageError``."""
        found = {one.seq: one for one in self.messages if one.seq in numbers}
        if missing := tuple(one for one in numbers if one not in found):
            more = await self.store.ask(FindMessages(self._settings.name, missing))
            found |= {one.seq: one for one in more}
        return found

    async def changed(self, numbers: Collection[int]) -> dict[int, RoomMessage]:
        """As :meth:`these`; without the storage, those in memory."""
        try:
            return await self.these(numbers)
        except StorageError as error:
            _log.error("messages cannot be read", room=self._settings.name, error=str(error))
            return {one.seq: one for one in self.messages if one.seq in numbers}

    async def unshown(self, found: int | CountUnshown) -> int | None:
        """How many messages of others a member is not shown; None: that cannot be read now."""
        try:
            return found if isinstance(found, int) else await self.store.ask(found)
        except StorageError as error:
            _log.error("messages cannot be counted", room=self._settings.name, error=str(error))
            return None

    async def read_back(
        self, name: str, before: int | None, limit: int, answer: Callable[[People], None]
    ) -> str:
        """Earlier messages, for a turn of a member; ``answer`` has its run answer their people.

        From now on the turn answers their people, on disk too. Raises ``StorageError``,
        ``InputValidation``.
        """
        async with self._writing:  # or a change that is on its way would not reach what it reads
            if not reading.has_turn(self.state, name):
                raise InputValidation("You do not have the floor, so there is nothing to read.")
            hidden = reading.hidden_from(self.state, name, self._settings.hidden)
            page = ReadRoom(self._settings.name, before, limit, self.state.heard, hidden)
            shown, text = reading.page_of(await self.store.ask(page), min(hidden))
            answer(people := reading.people_of(shown))
            await self._read_also(name, people)
            return text

    async def hear(self, name: str, people: People) -> None:
        """A turn of a member reads words of people that are no message. Raises as the storage."""
        async with self._writing:
            await self._read_also(name, people)

    async def _read_also(self, name: str, people: People) -> None:
        state = self._begin(lambda state: read_also(state, name, people))
        if state != self.state:
            await self.store.ask(KeepState(self._settings.name, state))
            self._stored(state)

    async def _said(self, number: int) -> RoomMessage:
        if 0 < number <= self.last:
            return (await self.these((number,)))[number]
        raise InputValidation(f"reply_to: the room has no message {number}")

    def busy(self) -> SessionBusy | None:
        """The reason why no message is taken now."""
        room = self._settings.room
        return reading.busy(room.name, room.mode, self.state, waits=bool(self.unanswered()))

    async def record(
        self, change: Change, draft: Draft | None = None, *, patient: bool = True
    ) -> None:
        """Store a change of the state, with a message if there is one.

        Tried until it is on disk or a stop comes; once, if it is not to be ``patient``. Cancelled
        only between two attempts. The change holds in memory in any case, unless cancelled.
        """
        mark = self._control.mark()
        for pause in reading.pauses():
            problem = await self._attempt(change, draft)
            if not problem:
                return
            _log.error("a room could not be stored", room=self._settings.name, error=problem)
            if pause == reading.PAUSE:
                await self.warn("messages of this room cannot be stored; motet keeps trying")
            if self._control.overtaken(mark) or not patient:
                break
            await self._control.wait_interrupted(pause)
        self.assume(change)
        self.behind = True
        self._lags()
        if draft is not None:
            await self.warn(f"a message of {draft.author} is lost: it could not be stored")

    async def catch_up(self) -> None:
        """Store what the storage did not take, if it takes it now."""
        if self.behind and await self._attempt(lambda state: state, None):
            self._lags()
        elif self.state.scrubbing:
            async with self._writing:
                await self._scrub()

    def assume(self, change: Change) -> None:
        """Change the state in memory; the next write takes it to disk."""
        self._assumed.append(change)
        self._set(change(self.state))

    async def end(self, change: Change, reason: str, *, patient: bool) -> None:
        """Store that a round is over, and publish it."""
        await self.record(change, patient=patient)
        await self._publisher.publish(RoomIdle(reason))

    async def republish(self) -> None:
        """Publish the events of stored changes that a killed host has not published."""
        # Posts wait for the lock: a new message would make the end of the last round look
        # unpublished, and a second ``room.idle`` would follow it as if the next round were over.
        async with self._writing:
            floor, unanswered = self.state.floor, self.unanswered()
            name = self._settings.name
            try:
                published, is_idle = await self._publisher.last_published()
                if min(self._told) < 0:
                    known = any(to_tell(self._disk))
                    self._told[:] = await self.store.ask(ToldLast(name)) if known else (0, 0, 0)
                # The first message of a thread is one of its room, and was told there.
                first = int(thread_of(name)[1] > 0)
                last = self.state.heard if published is None else max(published, first)
                missing = await self._untold(last)
            except StorageError as error:
                _log.error("the stored messages cannot be read", room=name, error=str(error))
                return
            await self._tell()
            if floor.reason and not (floor.going or unanswered) and (missing or not is_idle):
                await self._publisher.publish(RoomIdle(floor.reason))

    async def _untold(self, last: int) -> bool:
        """Publish the messages behind number ``last``; whether there are any."""
        first = last
        while found := await self.store.ask(ReadSince(self._settings.name, last)):
            for one in found:
                await self._publish(one)
            last = found[-1].seq
        return last > first

    async def _tell(self) -> None:
        """Publish what is on disk of changes, notices and dropped calls: others have no final
        number. Not before it is known which of them were."""
        for kind, events in enumerate(to_tell(self._disk)):
            for number, event in events:
                if 0 <= self._told[kind] < number:
                    self._told[kind] = number
                    await self._publisher.publish(event)

    async def told(self) -> tuple[int, int]:
        """The numbers up to which the events of notices and of dropped calls are on disk."""
        _, notices, drops = self._told
        if self.state.dropped or self.state.notices:
            with trio.move_on_after(ATTEMPT):
                return (notices, drops) if await self._publisher.settled() else (0, 0)
        return 0, 0

    async def warn(self, message: str) -> None:
        await self._publisher.publish(Warned("room", message))

    async def _attempt(self, change: Change, draft: Draft | None) -> str:
        """Try once; the problem, or nothing if it is on disk."""
        problem = f"the disk has not answered within {ATTEMPT:g} s"
        with trio.CancelScope(shield=True, deadline=trio.current_time() + ATTEMPT):
            async with self._writing:
                state = self._begin(change)
                try:
                    if draft is not None:
                        await self._say(state, draft, None)
                    else:
                        await self.store.ask(KeepState(self._settings.name, state))
                        self._stored(state)
                except Exception as error:
                    return str(error) or type(error).__name__
                problem = ""
                if draft is not None:
                    await self._publish(self.messages[-1], draft.run_id)
                await self._tell()
        return problem

    async def _say(
        self,
        state: RoomState,
        draft: Draft,
        key: str | None,
        answers: AnswerEscalation | None = None,
        *,
        skips: bool = False,
        given: str = "",
    ) -> Said:
        message = RoomMessage(
            self.last + 1,
            draft.author,
            draft.kind,
            draft.text,
            state.floor.round + (draft.kind == "person"),
            wall_time(),
            draft.asked_by,
            thread=thread_of(self._settings.name)[1],
            reply_to=draft.reply_to,
            reply_agent=draft.reply_agent,
        )
        if draft.kind == "person":
            who = self._settings.called(message.calling)
            state = skip(state, message, who, STOPPED) if skips else collect(state, message, who)
        said = await self.store.ask(Say(self._settings.name, message, state, key, answers, given))
        if not said.duplicate:
            self.messages.append(message)
            if draft.kind == "person":
                self.said = message.seq
            self._stored(state)
            self._trim()
        return said

    async def _publish(self, message: RoomMessage, run_id: str | None = None) -> None:
        role: Role = "user" if message.kind == "person" else "assistant"
        home, number = thread_of(self._settings.name)
        if number:
            self._publisher.replied(home, number, message.seq - 1)
        about = message.reply_to
        added = MessageAdded(role, message.author, message.text, number=message.seq, reply_to=about)
        await self._publisher.publish(added, run_id)
        authors = [one.author for one in self.messages if one.kind == "person"]
        if nobody := self._settings.strangers(message.calling, authors):
            await self.warn(not_here(nobody, self._settings.expected))

    def _begin(self, change: Change) -> RoomState:
        """The state to write."""
        self._assumed.clear()
        return change(self.state)

    def _stored(self, state: RoomState) -> None:
        """A state is on disk. What was assumed meanwhile holds, too."""
        self._disk, self.behind = state, self.behind and bool(self._assumed)
        for change in self._assumed:
            state = change(state)
        self._set(state)

    def _set(self, state: RoomState) -> None:
        self.state = state
        self.touched = trio.current_time()

    def _trim(self) -> None:
        """Drop the messages from memory that no member will be shown, and the first that wait."""
        most, heard, round = self._settings.room.history, self.answered, self.state.floor.round
        if len(self.messages) > most:
            waiting = self.unanswered()
            self.messages[:], cut = reading.kept(self.messages, waiting, most, heard, round)
            self._cut = max(self._cut, cut)
