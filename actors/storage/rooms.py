"""Store of rooms: their messages, and the state of their rounds.

Invariant: a message and the state it leads to are stored in one transaction, so that a crash never
gives a round its used turns back.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
from msgspec.structs import replace

from motet.actors.storage.idempotency import claim_key, first_use
from motet.actors.storage.readers import Readers
from motet.actors.storage.run_access import ContextCache
from motet.actors.storage.session_runs import answer_statement, same_answer
from motet.actors.storage.tables import AT_ONCE, TableStore, storable, struct, to_json
from motet.protocols.room_changes import (
    POSTED,
    READ,
    ROOMS_BELOW,
    UNREAD,
    change,
    copies,
    open_thread,
    said_digest,
    scrub,
    untold,
)
from motet.protocols.room_copies import copy_now
from motet.protocols.room_costs import FIND as FIND_COSTS
from motet.protocols.room_costs import FIND_ROUND, costs_of
from motet.protocols.room_invites import (
    AddInvite,
    FindInvite,
    ListInvites,
    Redeem,
    RevokeInvite,
    RoomInvite,
)
from motet.protocols.room_limits import DAY, Costs, FindCosts, hour_of
from motet.protocols.room_messages import (
    ChangedCopy,
    ChangeMessage,
    FindMessages,
    OpenThread,
    RoomStoreRequest,
)
from motet.protocols.room_newcomers import (
    EVERYTHING,
    FIND_PEOPLE,
    FIND_SUMMARY,
    FindSummary,
    FoundSummary,
    KeepSummary,
    keep_summary,
    summary_of,
)
from motet.protocols.room_people import RoomPerson, RoomTerms
from motet.protocols.room_presence import (
    KNOWS,
    MOST_UNREAD,
    ROLES_OF,
    CountUnread,
    CountUnshown,
    KnowsUser,
    MarkRead,
    RolesOf,
    Unread,
)
from motet.protocols.room_reading import UNSHOWN, note_joined
from motet.protocols.room_tables import (
    ADD_INVITE,
    COPIED,
    CREATE,
    FIND_INVITE,
    INVITES,
    KEEP,
    LAST_MESSAGES,
    MEMBER_SESSIONS,
    MEMORY,
    OWNED_COUNT,
    REVOKE,
    ROOM,
    ROOMS,
    SAY,
    SET,
    SINCE,
    THESE,
    TOLD_LAST,
    UNFINISHED,
    change_people,
    deletion,
    page_of,
    put_people,
    redeem,
    words_of,
)
from motet.protocols.rooms import (
    LATELY,
    ChangePeople,
    CountRooms,
    CreateRoom,
    DeleteRoom,
    FindRoom,
    FindSaid,
    KeepState,
    ListRooms,
    PageRooms,
    Reaction,
    ReadRoom,
    ReadSince,
    RoomMessage,
    RoomPlan,
    RoomRecord,
    RoomState,
    Said,
    Say,
    ToldLast,
)
from motet.protocols.session_keys import ROOM_CHANNEL, thread_of
from motet.protocols.sessions import Principal
from motet.protocols.storage import Commit, ExpectationFailed, Row, Statement
from motet.runtime import Actor, handles

_RECORD = ("name", "owner", "state", "people", "plan", "terms")
_ENCODED = {
    "state": RoomState,
    "people": tuple[RoomPerson, ...],
    "plan": RoomPlan,
    "terms": RoomTerms,
}


def room_record(row: Row) -> RoomRecord:
    return struct(row, RoomRecord, _RECORD, json_columns=_ENCODED)


def _invite(row: Row) -> RoomInvite:
    return struct(row, RoomInvite)


def room_messages(rows: tuple[Row, ...]) -> tuple[RoomMessage, ...]:
    """The messages of rows, oldest first."""
    encoded = {"asked_by": tuple[Principal, ...], "reactions": tuple[Reaction, ...]}
    found = (struct(row, RoomMessage, json_columns=encoded, strict=False) for row in rows)
    return tuple(sorted(found, key=lambda one: one.seq))


class RoomStore(TableStore, Actor[RoomStoreRequest]):
    """Handles the requests of ``motet.protocols.rooms`` and ``room_messages``.

    ``contexts``: of the host; a change of a message changes transcripts, too.
    """

    def __init__(self, commit: Commit, readers: Readers, contexts: ContextCache) -> None:
        super().__init__(commit, readers)
        self._contexts = contexts

    @handles(FindRoom, concurrent=16)
    async def find(self, request: FindRoom) -> RoomRecord | None:
        found = await self._readers.read(ROOM, (storable(request.name),))
        if not found:
            return None
        known = room_record(found[0])
        if not request.keep:
            return known
        most = max(request.keep, LATELY)
        params = (known.name, known.state.heard, request.keep, most)
        messages = room_messages(await self._readers.read(MEMORY, params))
        return replace(known, messages=messages)

    @handles(ListRooms, concurrent=4)
    async def records(self, request: ListRooms) -> tuple[RoomRecord, ...]:
        query = UNFINISHED if request.unfinished else ROOMS
        return tuple(map(room_record, await self._readers.read(query)))

    @handles(ReadRoom, concurrent=16)
    async def read(self, request: ReadRoom) -> tuple[RoomMessage, ...]:
        before = EVERYTHING if request.before is None else request.before
        words = words_of(storable(request.query))
        params = (before, request.limit, request.heard, *request.hidden, words)
        found = await self._readers.read(LAST_MESSAGES, (storable(request.name), *params))
        return room_messages(found)

    @handles(FindSummary, concurrent=16)
    async def summary(self, request: FindSummary) -> FoundSummary:
        about = (storable(request.name), request.upto)
        found = await self._readers.read(FIND_SUMMARY, about)
        return summary_of(found, await self._readers.read(FIND_PEOPLE, about))

    @handles(KeepSummary, concurrent=4)
    async def keep_summary(self, request: KeepSummary) -> None:
        await self._write(keep_summary(request, self._clock()))

    @handles(CountUnshown, concurrent=16)
    async def unshown(self, request: CountUnshown) -> int:
        room, *cursors, shown = msgspec.structs.astuple(request)
        params = (storable(room), *cursors, to_json(shown))
        ((count,),) = await self._readers.read(UNSHOWN, params)
        return int(str(count))

    @handles(ReadSince, concurrent=16)
    async def since(self, request: ReadSince) -> tuple[RoomMessage, ...]:
        params = (storable(request.name), request.after, request.limit, request.people)
        return room_messages(await self._readers.read(SINCE, params))

    @handles(FindCosts, concurrent=16)
    async def costs(self, request: FindCosts) -> Costs:
        hour = hour_of(request.now)
        room = storable(request.room.partition("/")[0])
        params = (room, hour, hour - hour % DAY)
        name = storable(request.round)
        of_round = await self._readers.read(FIND_ROUND, (name,)) if name else ()
        return costs_of(await self._readers.read(FIND_COSTS, params), of_round)

    @handles(ToldLast, concurrent=16)
    async def told_last(self, request: ToldLast) -> tuple[int, int, int]:
        (found,) = await self._readers.read(TOLD_LAST, (storable(f"room:{request.name}"),))
        changes, notices, drops = map(int, map(str, found))
        return changes, notices, drops

    @handles(FindMessages, concurrent=16)
    async def messages(self, request: FindMessages) -> tuple[RoomMessage, ...]:
        params = (storable(request.name), to_json(request.numbers))
        return room_messages(await self._readers.read(THESE, params))

    @handles(ChangeMessage, concurrent=16)
    async def change(self, request: ChangeMessage) -> tuple[ChangedCopy, ...]:
        name, message, below = storable(request.name), request.message, list[ChangedCopy]()
        statements = [change(name, message), self._kept(name, request.state)]
        with ExitStack() as stack:
            if request.before is not None:
                statements += await self._scrubbed(name, message, request.before, stack, below)
            await self._write(tuple(statements))
        return tuple(below)

    async def _scrubbed(
        self,
        name: str,
        message: RoomMessage,
        before: str,
        changing: ExitStack,
        changed: list[ChangedCopy],
    ) -> list[Statement]:
        """The statements that remove all copies of an old text; ``changed``: of rooms below."""
        home, _ = thread_of(name)
        found = [*scrub(name, message, before), *copies(name, message)]
        for (session,) in await self._readers.read(MEMBER_SESSIONS, (f"{ROOM_CHANNEL}:{home}",)):
            changing.enter_context(self._contexts.correcting(str(session)))
        for below in [str(name) for (name,) in await self._readers.read(ROOMS_BELOW, (home,))]:
            said = before if message.kind == "agent" and message.deleted else ""
            about = (below, message.label, name, message.seq, said)
            for one in room_messages(await self._readers.read(COPIED, about)):
                copy, was = copy_now(one, message), ""
                if copy != one:
                    was = one.text
                    found += [change(below, copy), untold(below, message)]
                    changed.append(ChangedCopy(below, copy, was))
                # Also if it was changed before: turns may have quoted it since.
                found += await self._scrubbed(below, copy, was, changing, changed)
        return found

    @handles(OpenThread, concurrent=4)
    async def open_thread(self, request: OpenThread) -> None:
        await self._write(open_thread(storable(request.name), self._clock()))

    @handles(MarkRead, concurrent=16)
    async def mark_read(self, request: MarkRead) -> None:
        params = (storable(request.name), request.user, request.number)
        await self._write((Statement(READ, params),))

    @handles(CountUnread, concurrent=16)
    async def unread(self, request: CountUnread) -> dict[str, Unread]:
        params = (request.user, to_json(request.rooms), MOST_UNREAD)
        rows = await self._readers.read(UNREAD, params)
        return {str(row[0]): struct(row[1:], Unread) for row in rows}

    @handles(KnowsUser, concurrent=4)
    async def knows(self, request: KnowsUser) -> bool:
        params = (storable(request.name), storable(request.user), to_json(request.users))
        return bool((await self._readers.read(KNOWS, params))[0][0])

    @handles(RolesOf, concurrent=4)
    async def roles_of(self, request: RolesOf) -> tuple[str, ...]:
        rows = await self._readers.read(ROLES_OF, (storable(request.user), self._clock()))
        return tuple(str(role) for (role,) in rows)

    @handles(CreateRoom, concurrent=16)
    async def create(self, request: CreateRoom) -> None:
        plan = to_json(request.plan) if request.plan else None
        name, owner, now = storable(request.name), storable(request.owner), self._clock()
        people = put_people(name, tuple(map(storable, request.people)), now)
        await self._write((Statement(CREATE, (name, owner, now, plan, request.above)), *people))

    @handles(PageRooms, concurrent=16)
    async def page(self, request: PageRooms) -> tuple[RoomRecord, ...]:
        query, params = page_of(
            request.user and storable(request.user),
            storable(request.after),
            request.limit,
            archived=request.archived,
            query=storable(request.query),
        )
        return tuple(map(room_record, await self._readers.read(query, params)))

    @handles(CountRooms, concurrent=4)
    async def count(self, request: CountRooms) -> int:
        ((count,),) = await self._readers.read(OWNED_COUNT, (storable(request.owner),))
        return int(count or 0)

    @handles(ChangePeople, concurrent=4)
    async def change_people(self, request: ChangePeople) -> None:
        name, now, plan = storable(request.name), self._clock(), request.plan
        statements = [*change_people(name, request.change, now)]
        statements += [self._kept(one, state) for one, state in request.states.items()]
        set_plan = () if plan is None else (Statement(SET, (name, to_json(plan), now), expect=1),)
        noted = (note_joined(name, request.agents),) if request.agents else ()
        await self._write((*statements, *set_plan, *noted))

    @handles(AddInvite, concurrent=4)
    async def add_invite(self, request: AddInvite) -> None:
        one = request.invite
        row = (one.room, one.role, one.by, one.created, one.expires, one.uses)
        await self._write((Statement(ADD_INVITE, (request.digest, *row)),))

    @handles(ListInvites, concurrent=4)
    async def invites(self, request: ListInvites) -> tuple[RoomInvite, ...]:
        return await self._read(_invite, INVITES, (storable(request.name),))

    @handles(FindInvite, concurrent=4)
    async def find_invite(self, request: FindInvite) -> RoomInvite | None:
        return await self._read_one(_invite, FIND_INVITE, (request.digest,))

    @handles(RevokeInvite, concurrent=4)
    async def revoke_invite(self, request: RevokeInvite) -> bool:
        (rows,) = await self._write((Statement(REVOKE, (storable(request.name), request.id)),))
        return bool(rows)

    @handles(Redeem, concurrent=4)
    async def redeem(self, request: Redeem) -> bool:
        use = redeem(request.digest, request.name, request.person, self._clock(), request.now)
        return await self._succeeds(use)

    @handles(DeleteRoom, concurrent=4)
    async def delete(self, request: DeleteRoom) -> None:
        await self._write(deletion(storable(request.name)))

    @handles(KeepState, concurrent=AT_ONCE, here=True, brief=True)
    async def keep(self, request: KeepState) -> None:
        await self._write((self._kept(request.name, request.state),))

    @handles(Say, concurrent=AT_ONCE, here=True, brief=True)
    async def say(self, request: Say) -> Said:
        one, name = request.message, storable(request.name)
        text = storable(one.text)
        about = (one.author, one.kind, text, one.at, to_json(one.asked_by))
        row = (name, one.seq, one.round, *about, one.reply_to, one.reply_agent)
        stored = (Statement(SAY, row), self._kept(name, request.state))
        if request.answers is not None:
            answer = answer_statement(request.answers, self._clock())
            if await self._succeeds((answer, *stored)):
                return Said(one.seq)
            await same_answer(self._readers, request.answers)
            return Said(0, duplicate=True)
        if request.key is None:
            await self._write(stored)
            return Said(one.seq)
        digest = said_digest(name, one.author, request.given or one.text, one.reply_to)
        claim = claim_key(one.author, POSTED, request.key, digest, str(one.seq))
        try:
            await self._write((*claim, *stored))
        except ExpectationFailed:
            first = await self._first_use(name, one.author, request.key, digest)
            if first is None:
                raise
            return first
        return Said(one.seq)

    @handles(FindSaid, concurrent=16)
    async def said(self, request: FindSaid) -> Said | None:
        room, reply_to = storable(request.name), request.reply_to
        digest = said_digest(room, request.author, request.text, reply_to)
        return await self._first_use(room, request.author, request.key, digest)

    def _kept(self, name: str, state: RoomState) -> Statement:
        return Statement(KEEP, (storable(name), to_json(state), self._clock()), expect=1)

    async def _first_use(self, room: str, user: str, key: str, digest: str) -> Said | None:
        hashes = (digest, said_digest(room, user))  # the second: its text was changed since
        seq = await first_use(self._readers, user, POSTED, key, *hashes, of="message")
        return None if seq is None else Said(int(seq), duplicate=True)
