"""The people of a host's rooms and their rights: read, changed and told in one place.

Invariants: a decision is made on the people that are on disk, while no other is made, and holds
from the step in which it is stored: then streams of those who were removed end, and their messages
that are not stored yet are refused. Messages of theirs that wait for an answer end in the same
transaction, so that no kill leaves them to be answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio
from msgspec.structs import replace

from motet.actors.rooms.definition import acts_as, thread_room
from motet.actors.rooms.live import LiveRoom
from motet.actors.rooms.opening import OpenRoom, RoomParts, known_room, open_room, run_below
from motet.actors.rooms.publisher import room_stream
from motet.actors.rooms.state import Definition
from motet.actors.rooms.table import no_room
from motet.actors.runs.run import Run
from motet.actors.sessions.children import FromRoom, Hear, InRoom
from motet.protocols.errors import InputValidation, NotFound, TooMany
from motet.protocols.events import AnyEvent
from motet.protocols.room_config import in_thread, standing_of
from motet.protocols.room_invites import Redeem
from motet.protocols.room_messages import FindMessages
from motet.protocols.room_newcomers import Agents
from motet.protocols.room_people import PeopleChange, Standing, refusal
from motet.protocols.room_reading import MOST, number_of
from motet.protocols.rooms import (
    ChangePeople,
    CountRooms,
    CreateRoom,
    FindRoom,
    RoomPlan,
    RoomRecord,
)
from motet.protocols.session_keys import member_at, thread_of
from motet.protocols.sessions import Principal
from motet.protocols.storage import StorageError
from motet.protocols.tools import ToolRetry
from motet.runtime.outside import wall_time

SETTLED = 0.5
"""Seconds to wait for the journal of events; it is late only while the storage is."""


@attrs.frozen(eq=False)
class RoomAccess:
    """The one way to the people of rooms, for all calls about rooms."""

    parts: RoomParts

    async def standing(self, room: str) -> tuple[RoomRecord | None, Standing]:
        """Who may do what in a room, as it is stored. Raises ``NotFound``."""
        home, number = thread_of(room)
        if number:
            record, standing = await self.standing(home)
            return record, in_thread(standing, room)
        record = await self.parts.store.ask(FindRoom(room, 0))
        definition = known_room(self.parts, room, record)
        if definition is None:
            raise no_room(room)
        owner, live = record.owner if record else "", self.parts.table.rooms.get(room)
        if live is not None:  # the room of a call has an owner as long as the call lasts
            owner = owner or live.settings.standing.owner
        # Of an open room, a reload may have changed whom its definition names.
        of = live.settings.standing if live else None
        named, newcomers = (
            (of.configured, of.newcomers) if of else (definition.people, definition.newcomers)
        )
        return record, standing_of(room, owner, named, record, newcomers)

    async def reader(self, room: str, who: Principal) -> Standing:
        """Raises ``NotFound`` for a room that the principal may not see."""
        _, standing = await self.standing(room)
        standing.demand(who, "read")
        return standing

    async def speaker(self, room: str, who: Principal) -> None:
        """Raises as a message would be refused, but for slow mode."""
        standing = await self.reader(room, who)
        now, muted = wall_time(), self.parts.table.clocks.muted(standing, who)
        if problem := refusal(standing, who, invited=True, now=now, muted=muted):
            raise problem

    async def is_begun(self, room: str) -> bool:
        """False: it is a thread without a message, which opens with the first one, and for nothing
        that is refused.
        """
        return not thread_of(room)[1] or bool(await self.parts.store.ask(FindMessages(room, (1,))))

    async def to_speak(self, room: str, who: Principal) -> OpenRoom:
        """The open room, for somebody who may speak in it, and changes what was said there."""
        await self.speaker(room, who)
        return await self.to_change(room, who)

    async def to_change(self, room: str, who: Principal) -> OpenRoom:
        """The open room, to change what was said there."""
        if not await self.is_begun(room):
            raise NotFound(f"nothing was said in {room!r} yet")
        return await open_room(self.parts, room, who)

    async def arrive(self, room: str, who: Principal) -> None:
        """Note the first visit of a newcomer, before anything is read or said."""
        if (await self.standing(room))[1].arrival(who) is not None:
            async with self.parts.table.changing:
                record, standing = await self.standing(room)
                if change := standing.arrival(who):
                    await self.known(record, standing)
                    await self.change_people(room, change)

    async def hear(self, run_id: str, session: str, who: Principal) -> tuple[str, ...]:
        """Words of somebody are to enter a run: it, those that wait for it, and the turns of rooms
        that these are, on disk too, answer this person from now on. Returns the ids of the runs.
        """
        table = self.parts.services.table
        runs = table.with_callers(run) if (run := table.runs.get(run_id)) is not None else []
        heard = {run_id: session} | {one.id: one.session for one in runs}
        await hear(self.parts, runs, heard.values(), (who,))
        return tuple(heard)

    async def check_cap(self, principal: Principal, owner: str) -> None:
        """Raises ``TooMany`` if a principal gives a room to somebody who has all they may have."""
        most = self.parts.config().gateway.rooms_per_user
        if principal.role != "admin" and await self.parts.store.ask(CountRooms(owner)) >= most:
            who = "you have" if owner == principal.user else f"{owner!r} has"
            raise TooMany(f"{who} {most} rooms, which are the limit: delete one")

    async def known(self, record: RoomRecord | None, standing: Standing) -> None:
        """Store a room that is known by its definition only."""
        if record is None:
            await self.parts.store.ask(CreateRoom(standing.room, standing.owner))

    async def change_people(
        self,
        room: str,
        change: PeopleChange,
        plan: RoomPlan | None = None,
        definition: Definition | None = None,
    ) -> Standing:
        """Store a decided change; it holds, and is told, in the step in which it is stored.

        ``plan``: another definition of the room, too, which is ``definition``.
        """
        # Rooms that the last host has left unfinished have messages that may wait.
        await self.parts.table.reopened.wait()
        return await self._stored(room, ChangePeople(room, change, plan), definition)

    async def redeem(self, request: Redeem) -> None:
        """Let somebody in. Raises ``NotFound`` for an invite that is spent."""
        await self._stored(request.name, request, None)

    async def _stored(
        self, room: str, request: ChangePeople | Redeem, definition: Definition | None
    ) -> Standing:
        parts, live = self.parts, self.parts.table.rooms.get(room)
        # A newcomer is not shown the events so far, which get their numbers first.
        with trio.move_on_after(SETTLED):
            await parts.journal.settle()
        # Shielded: what is on disk takes effect.
        with trio.CancelScope(shield=True):
            rooms = (*filter(None, (live,)), *parts.table.threads(room))
            async with AsyncExitStack() as stack:
                if isinstance(request, ChangePeople):
                    record, before = await self.standing(room)
                    after = before.after(request.change)
                    if definition or request.change.terms:
                        now = known_room(parts, room, record)
                        both = (now, definition[0] if definition else now)
                        names = tuple(tuple(m.name for m in one.members) for one in both if one)
                        request = replace(request, agents=Agents(names, after.reads))
                    held = [one.retracting(before, after) for one in rooms]
                    left = [await stack.enter_async_context(one) for one in held]
                    states = {one.name: new for one, new in zip(rooms, left, strict=True) if new}
                    request = replace(request, states=states)
                if await parts.store.ask(request) is False:
                    raise NotFound("this invite is used up, over or revoked: ask for another one")
                _, standing = await self.standing(room)
                parts.table.clocks.decided(standing)
                parts.table.decisions += 1
                live = parts.table.rooms.get(room)  # also one that was opened meanwhile
                for one in (*filter(None, (live,)), *parts.table.threads(room)):
                    new = definition
                    if definition and one is not live:
                        new = thread_room(definition[0], one.name), definition[1]
                    one.change(new, in_thread(standing, one.name))
            if live is None:
                parts.journal.access_changed(room_stream(room))
            return standing
        raise AssertionError("nobody cancels this scope")

    def show(self, room: str, event: AnyEvent) -> None:
        """Tell the room without waiting: an event that is of no use later."""
        self.parts.publisher.put(room_stream(room), event, None)

    async def tell(self, room: str, event: AnyEvent) -> None:
        await self.parts.publisher.emit(room_stream(room), event)


# What runs do with rooms


def for_runs(parts: RoomParts) -> tuple[InRoom, FromRoom, Hear]:
    """What runs do with rooms."""
    return partial(run_below, parts), partial(read_back, parts), partial(remind, parts)


def member_of(parts: RoomParts, session: str) -> tuple[LiveRoom | None, str]:
    """The open room whose member a session is, and the member's name."""
    room, name = member_at(session) or ("", "")
    live = parts.table.rooms.get(room)
    return (live, name) if live and session == live.members.session(name) else (None, "")


async def hear(
    parts: RoomParts, runs: Sequence[Run], sessions: Iterable[str], people: Collection[Principal]
) -> None:
    """Words of people are to enter these runs: from now on they answer them, and so do the turns
    of rooms in these sessions, on disk too.
    """
    for run in runs:
        for who in people:
            run.ask_also(who)
    for session in sessions:
        live, name = member_of(parts, session)
        if live is not None:
            await live.history.hear(name, people)


async def remind(parts: RoomParts, run: Run, people: Collection[Principal]) -> None:
    """A run is about to read what was written for these people. Raises ``ToolRetry``."""
    runs = parts.services.table.with_callers(run)
    _check_waits(parts, runs, people)
    try:
        await hear(parts, runs, [one.session for one in runs], people)
    except StorageError as error:
        raise ToolRetry(str(error)) from error


def _check_waits(parts: RoomParts, runs: Sequence[Run], people: Collection[Principal]) -> None:
    # The state that such a call has stored has the people so far, for whoever resumes the run.
    for run in runs:
        step = parts.services.pending_approvals.steps.get(run.id)
        if step is not None and step.waits and not {*people}.issubset(run.input.asked_by):
            raise ToolRetry("Another call of yours waits for a person: read when that is decided.")


async def read_back(parts: RoomParts, run: Run, before: str | int, limit: int) -> str:
    """A page of what was said in the room whose member a run is. Raises ``ToolRetry``."""

    def answer(people: Collection[Principal]) -> None:
        _check_waits(parts, (run,), people)
        for who in people:
            run.ask_also(who)

    live, name = member_of(parts, run.session)
    if live is None or run.input.principal != acts_as(live.name):
        raise ToolRetry("No group chat is open whose member you are, so there is nothing to read.")
    try:
        number = number_of(before, thread_of(live.name)[1])
        most = max(1, min(limit, MOST))
        return await live.history.read_back(name, number, most, answer)
    except (InputValidation, StorageError) as error:
        raise ToolRetry(str(error)) from error
