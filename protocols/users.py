"""The deletion of a user: the statements, and the order in which it is carried out. Pure.

Invariants: whatever cuts a deletion off, it can be asked for again and goes on; once it has ended,
no row has the name of the user as a name, nor a text of theirs. It ends the tokens first, so that
nothing new comes, then the sessions and rooms, then what is left in the rooms of others: their
messages are withdrawn, with all copies, and everything that names them says :data:`GONE`. A name
within a sentence of somebody else is that person's text, and stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol, TypeAlias, TypeVar

import attrs
import msgspec
from msgspec.structs import replace

from motet.protocols.errors import InputValidation, NotFound, UnknownName
from motet.protocols.messages import Asked
from motet.protocols.retention import RunStatement
from motet.protocols.room_changes import (
    COPIES,
    ERROR_TEXTS,
    HASHED,
    OF_ERRORS,
    OF_MEMBERS,
    STREAMS,
    change_errors,
)
from motet.protocols.room_copies import GONE
from motet.protocols.room_messages import ChangeMessage, FindMessages, RoomStoreRequest
from motet.protocols.room_people import PeopleChange, is_pattern
from motet.protocols.room_tables import MEMBER_SESSIONS, change_people
from motet.protocols.rooms import DeleteRoom, FindRoom, RoomState
from motet.protocols.storage import Row, Rows, Statement, Transaction

R = TypeVar("R")
PAGE: Final = 200
"""Rows that are looked at in one read."""
TRIES: Final = 5
"""Looks at a room that somebody opens again and again meanwhile."""
DELETE: Final = "delete"
TRANSFER: Final = "transfer:"


class UserDeleted(msgspec.Struct, frozen=True):
    """What a deletion has found of a user; again after an end in between: what was left.

    Attributes:
        tokens, sessions, messages: how many were deleted; messages in the rooms of others.
        rooms: their own rooms, which were deleted, or given to somebody.
    """

    user: str
    tokens: int = 0
    sessions: int = 0
    rooms: tuple[str, ...] = ()
    messages: int = 0


class AskRooms(Protocol):
    """Asks the store of rooms."""

    def __call__(self, request: Asked[RoomStoreRequest, R], /) -> Awaitable[R]: ...


Delete: TypeAlias = Callable[[str], Awaitable[object]]


@attrs.frozen
class UserHands:
    """The ways of a host to what a deletion changes.

    Attributes:
        ask: of the store of rooms.
        lock_out: close the connections whose tokens are gone.
        session, room: delete one.
        withdraw: withdraw a message by its room and number, and tell those who are there.
        quiet: a block in which a room is closed, with its threads and the sessions of its members.
    """

    read: RunStatement
    write: Callable[[Transaction], Awaitable[Rows]]
    ask: AskRooms
    lock_out: Callable[[], Awaitable[None]]
    session: Delete
    room: Delete
    withdraw: Callable[[str, int], Awaitable[None]]
    quiet: Callable[[str], AbstractAsyncContextManager[None]]


def members(room: str) -> Statement:
    """The sessions of a room's members."""
    return Statement(MEMBER_SESSIONS, (f"room:{room}",))


# In a room: ?1 its name, ?2 the user

_ROWS: Final = "({0} = ?1 OR ({0} > ?1 || '/' AND {0} < ?1 || '0'))"
_ROOM, _IN_STREAM = _ROWS.format("room"), _ROWS.replace("?1", "'room:' || ?1").format("stream")
_EVENTS: Final = f"({_IN_STREAM} OR stream IN {STREAMS})"
_TOLD: Final = "'room.changed', 'room.idle', 'call.dropped', 'run.cancelled', 'warning'"
_RUNS: Final = f"session IN {OF_MEMBERS} AND status"
_SENTENCES: Final = (
    ("events", "data", f"{_EVENTS} AND event IN ({_TOLD})", "text reason message"),
    ("rooms", "state", _ROWS.format("name"), "reason message"),
    *(("runs", one, f"{_RUNS} = 'cancelled'", "reason") for one in ("detail", "ending")),
)
"""The fields of the host's own sentences."""
_TEXTS: Final = (
    *(one for one in COPIES if one[0] != "events" and one[1] not in ("detail", "ending")),
    ("events", "data", f"{_EVENTS} AND event NOT IN ({_TOLD})"),
    *(("runs", one, f"{_RUNS} <> 'cancelled'") for one in ("detail", "ending")),
    *(("room_messages", one, _ROOM) for one in ("text", "asked_by", "reactions")),
    ("room_summaries", "text", "room = ?1"),
    ("approvals", "people", f"session IN {OF_MEMBERS}"),
)
_WORDED: Final = (*((*one, "") for one in _TEXTS), *_SENTENCES)
_NOTES: Final = (
    "UPDATE events SET data = json_set(data, '$.note', '') WHERE {events}"
    " AND event = 'approval.resolved' AND json_extract(data, '$.by') = {user}",
    "UPDATE approvals SET note = '' WHERE {sessions} AND resolved_by = {user}",
)
"""Their words to the calls that they have decided."""
_COLUMNS: Final = (
    ("room_messages", "author", _ROOM),
    ("approvals", "resolved_by", f"session IN {OF_MEMBERS}"),
    *(("escalations", one, f"session IN {OF_MEMBERS}") for one in ("resolved_by", "sender")),
)
_PLACES: Final = (
    ("room_people", "user", "room = ?1"),
    ("room_reads", "user", _ROOM),
    ("room_invites", "by", "room = ?1"),
    ("room_costs", "user", "(room = ?1 OR (room > ?1 || '#' AND room < ?1 || '0'))"),
)


def _other(column: str, own: str = "") -> tuple[str, str]:
    """A text without the user, and the condition that they are in it; ``own``: the fields of the
    host's own sentences."""
    fixed = f"user_gone({column}, ?2, '{own}')"
    return fixed, f"instr({column}, ?2) > 0 AND {column} <> {fixed}"


def _named_in(columns: tuple[tuple[str, str, str], ...], condition: str) -> list[str]:
    return [
        f"SELECT 1 FROM {table} WHERE {where} AND {condition.format(column)}"
        for table, column, where in columns
    ]


_FOUND: Final = " UNION ALL ".join(
    (
        *(
            f"SELECT 1 FROM {table} WHERE {where} AND {_other(column, own)[1]}"
            for table, column, where, own in _WORDED
        ),
        *_named_in((*_COLUMNS, *_PLACES), "{} = ?2"),
    )
)
_NAMED: Final = f"SELECT 1 FROM ({_FOUND}) LIMIT 1"
_MARKED: Final = " OR ".join(f"({_other(one)[1]})" for one in ERROR_TEXTS)


def unnamed(room: str, user: str) -> Transaction:
    """The statements after which nothing in a room names a user."""
    both = room, user
    here = f"session IN {OF_MEMBERS}"
    notes = (one.format(events=_EVENTS, sessions=here, user="?2") for one in _NOTES)
    found = [Statement(sql, both) for sql in notes]
    for table, column, where, own in _WORDED:
        fixed, needed = _other(column, own)
        also = HASHED.get((table, column), "").format(fixed)
        sql = f"UPDATE {table} SET {column} = {fixed}{also} WHERE {where} AND {needed}"
        found.append(Statement(sql, both))
    for table, column, where in _COLUMNS:
        sql = f"UPDATE {table} SET {column} = '{GONE}' WHERE {where} AND {column} = ?2"
        found.append(Statement(sql, both))
    found += [
        Statement(f"DELETE FROM {table} WHERE {where} AND {column} = ?2", both)
        for table, column, where in _PLACES
    ]
    found += change_errors(OF_ERRORS, _MARKED, both, "user_gone({}, ?1, '')", (user,))
    return tuple(found)


# Elsewhere: ?1 the user

_GONE_ROWS: Final = (
    "DELETE FROM approval_grants WHERE user = ?1",
    "DELETE FROM memories WHERE owner = ?1",
    "DELETE FROM team_task_needs WHERE user = ?1",
    "DELETE FROM team_tasks WHERE user = ?1",
    "DELETE FROM idempotency WHERE user = ?1",
    # The answer of a command may quote any user.
    "DELETE FROM idempotency WHERE answer IS NOT NULL AND instr(answer, ?1) > 0",
    "DELETE FROM room_people WHERE user = ?1",
    "DELETE FROM room_reads WHERE user = ?1",
    "DELETE FROM room_invites WHERE by = ?1",
    "DELETE FROM agent_errors WHERE seq IN (SELECT seq FROM error_records WHERE owner = ?1)",
    "DELETE FROM spans WHERE run_id IN (SELECT run_id FROM traces WHERE user = ?1"
    " AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.session = traces.session))",
    "DELETE FROM traces WHERE user = ?1"
    " AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.session = traces.session)",
)
"""Their own rows, and what a session of theirs may have left in between."""
_OF_RUNS: Final = "run_id IN (SELECT run_id FROM runs WHERE user = ?1)"
_DECIDED: Final = " UNION ".join(
    f"SELECT 'session:' || session FROM {table} WHERE resolved_by = ?1"
    for table in ("approvals", "escalations")
)
_DENIED: Final = "session IN (SELECT session FROM approvals WHERE resolved_by = ?1)"
_OF_DENIED: Final = f"run_id IN (SELECT run_id FROM runs WHERE {_DENIED})"
_ELSEWHERE: Final = (
    ("events", "data", f"stream IN ({_DECIDED})"),
    *(("messages", "body", _DENIED), ("steps", "body", _OF_DENIED), ("spans", "body", _OF_DENIED)),
    *(("messages", "body", _OF_RUNS), ("steps", "body", _OF_RUNS), ("spans", "body", _OF_RUNS)),
    *(("runs", "given", "user = ?1"), ("events", "data", _OF_RUNS)),
    *(("approvals", one, "true") for one in ("user", "resolved_by", "people")),
    *(("escalations", one, "true") for one in ("user", "resolved_by", "sender")),
    *(("approval_grants", "by", "true"), ("team_tasks", "made_by", "true")),
    *(("memories", "people", "true"), ("team_tasks", "people", "true")),
    *(("traces", "user", "true"), ("agent_errors", "user", "true"), ("runs", "user", "true")),
)
"""In sessions of others, as an admin, or as the one who has decided: the runs last."""


def _unnamed_elsewhere(user: str) -> Transaction:
    of = {"events": f"stream IN ({_DECIDED})", "sessions": "true", "user": "?1"}
    notes = (one.format(**of) for one in _NOTES)
    found = [Statement(sql, (user,)) for sql in (*_GONE_ROWS, *notes)]
    for table, column, where in _ELSEWHERE:
        if where == "true" and column != "people":
            fixed, needed = f"'{GONE}'", f"{column} = ?1"
        else:
            fixed = f"user_gone({column}, ?1, '')"
            needed = f"{where} AND instr({column}, ?1) > 0"
        found.append(Statement(f"UPDATE {table} SET {column} = {fixed} WHERE {needed}", (user,)))
    return tuple(found)


_SESSIONS: Final = f"SELECT session FROM sessions WHERE owner = ?1 LIMIT {PAGE}"
_OWNED: Final = "SELECT name FROM rooms WHERE owner = ?1 ORDER BY name"
_SAID: Final = f"""
SELECT room, seq FROM room_messages WHERE author = ?1 AND kind = 'person' AND NOT deleted
    AND (room, seq) > (?2, ?3) ORDER BY room, seq LIMIT {PAGE}"""
_SAID_HERE: Final = f"""
SELECT room, seq FROM room_messages WHERE {_ROOM} AND author = ?2 AND kind = 'person'
ORDER BY room, seq"""
_HOMES: Final = f"""
SELECT name FROM rooms WHERE instr(name, '/') = 0 AND name > ?1 ORDER BY name LIMIT {PAGE}"""
_KNOWN: Final = """
SELECT EXISTS (SELECT 1 FROM tokens WHERE user = ?1)
    OR EXISTS (SELECT 1 FROM sessions WHERE owner = ?1)
    OR EXISTS (SELECT 1 FROM rooms WHERE owner = ?1)
    OR EXISTS (SELECT 1 FROM room_people WHERE user = ?1)"""


async def delete_user(
    hands: UserHands, user: str, rooms: str | None, configured: frozenset[str], now: float
) -> UserDeleted:
    """Delete a user and all that is theirs.

    ``rooms``: ``delete`` or ``transfer:OTHER``, for the rooms that they own; ``configured``: the
    users whom the configuration names. Raises ``InputValidation`` before anything is changed, and
    ``NotFound`` if there was nothing of such a user. Cancelled, or after a kill, it has done a
    part, and goes on when it is called again.
    """
    owned = [str(name) for (name,) in await hands.read(Statement(_OWNED, (user,)))]
    heir = _heir(user, rooms, owned, configured)
    if heir and heir not in configured and not await _any(hands, _KNOWN, heir):
        raise InputValidation(f"nobody here is called {heir!r}: the rooms need an owner")
    tokens = len(await hands.read(Statement("SELECT 1 FROM tokens WHERE user = ?1", (user,))))
    await hands.write((Statement("DELETE FROM tokens WHERE user = ?1", (user,)),))
    await hands.lock_out()
    sessions = 0
    while found := await hands.read(Statement(_SESSIONS, (user,))):
        await hands.session(str(found[0][0]))
        sessions += 1
    for name in owned:
        if heir:
            change = PeopleChange(owner=heir, gone=(heir, user))
            async with hands.quiet(name):
                await hands.write(tuple(change_people(name, change, now)))
        else:
            await _delete_room(hands, name)
    messages = await _withdraw(hands, user)
    named = await _forget(hands, user)
    before = await hands.write(_unnamed_elsewhere(user))
    done = UserDeleted(user, tokens, sessions, tuple(owned), messages)
    if not (named or done != UserDeleted(user) or any(before)):
        raise NotFound(f"nothing is stored of a user {user!r}")
    return done


def _heir(user: str, rooms: str | None, owned: list[str], configured: frozenset[str]) -> str:
    """The next owner; empty: their rooms are deleted. Raises ``InputValidation``."""
    if not user.strip() or is_pattern(user) or user.startswith("room:") or user == GONE:
        raise InputValidation(f"{user!r} is no name of a user")
    if user in configured:
        raise InputValidation(
            f"{user!r} is named in the configuration (gateway.tokens, people of rooms): remove them"
            " there first"
        )
    if owned and rooms is None:
        listed = ", ".join(owned[:3]) + ", ..." * (len(owned) > 3)
        raise InputValidation(
            f"{user!r} owns {len(owned)} rooms ({listed}): say `{DELETE}` or `{TRANSFER}OTHER`"
        )
    if rooms in (None, DELETE):
        return ""
    heir = rooms.removeprefix(TRANSFER) if rooms else ""
    if not rooms or heir in (rooms, user) or not heir.strip() or is_pattern(heir):
        raise InputValidation(f"rooms are `{DELETE}` or `{TRANSFER}OTHER`, not {rooms!r}")
    return heir


async def _any(hands: UserHands, sql: str, *params: str) -> bool:
    found = await hands.read(Statement(sql, params))
    return bool(found and found[0][0])


async def _withdraw(hands: UserHands, user: str) -> int:
    """Withdraw what they have said in the rooms of others."""
    count, last = 0, ("", 0)
    while found := await hands.read(Statement(_SAID, (user, *last))):
        for room, seq in found:
            last = str(room), int(str(seq))
            with suppress(NotFound, UnknownName):  # of a program that has not opened it
                await hands.withdraw(*last)
            count += 1
    return count


async def _delete_room(hands: UserHands, room: str) -> None:
    try:
        await hands.room(room)
    except NotFound:  # of a program that has not opened it
        for (session,) in await hands.read(members(room)):
            await hands.session(str(session))
        await hands.ask(DeleteRoom(room))


async def _scrub(hands: UserHands, room: str, number: int) -> None:
    """Remove all copies of a message that is withdrawn, or has to be."""
    record = await hands.ask(FindRoom(room, 0))
    state = record.state if record else RoomState()
    for one in await hands.ask(FindMessages(room, (number,))):
        now = replace(one, author=GONE, text="", deleted=True, asked_by=(), reactions=())
        await hands.ask(ChangeMessage(room, now, state, one.text))


async def _forget(hands: UserHands, user: str) -> int:
    """Take their name out of all rooms; returns in how many it was."""
    count, last = 0, ""
    while page := await hands.read(Statement(_HOMES, (last,))):
        for (name,) in page:
            last = str(name)
            if not await _any(hands, _NAMED, last, user):
                continue
            count += 1
            for _ in range(TRIES):
                async with hands.quiet(last):
                    said: tuple[Row, ...] = await hands.read(Statement(_SAID_HERE, (last, user)))
                    for room, seq in said:
                        await _scrub(hands, str(room), int(str(seq)))
                    await hands.write(unnamed(last, user))
                if not await _any(hands, _NAMED, last, user):
                    break
    return count
