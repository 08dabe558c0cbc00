"""The SQL of rooms, and of the lists of those that a user may see. Pure.

Invariants: a page of rooms is read along indexes, and costs the same however many rooms there are;
a room in which a user is banned is in none of their pages. Rows of people are written one by one,
so that two changes at once lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from motet.protocols.error_rows import FORGET
from motet.protocols.room_copies import TELLING
from motet.protocols.room_people import PeopleChange, RoomPerson, candidates
from motet.protocols.rooms import RoomMessage
from motet.protocols.storage import Row, SqlValue, Statement, forget_streams, last_number

_PEOPLE = (
    "(SELECT json_group_array(json_object('user', user, 'role', role, 'joined', joined,"
    " 'since', since, 'muted', muted, 'event', event, 'came', json(iif(came, 'true', 'false')),"
    " 'banned', json(iif(banned, 'true', 'false'))))"
    " FROM room_people WHERE room = rooms.name)"
)
ROOM_COLUMNS: Final = f"name, owner, state, {_PEOPLE} AS people, plan, terms"
ROOM: Final = f"SELECT {ROOM_COLUMNS} FROM rooms WHERE name = ?"
ROOMS: Final = f"SELECT {ROOM_COLUMNS} FROM rooms WHERE instr(name, '/') = 0 ORDER BY name"

# The last event of a room at rest is ``room.idle``, and it comes after all messages.
UNFINISHED: Final = f"""
SELECT {ROOM_COLUMNS} FROM rooms
WHERE json_extract(state, '$.floor.going')
    OR coalesce(json_extract(state, '$.waiting'), '{{}}') <> '{{}}'
    OR (coalesce(json_extract(state, '$.dropped'), '[]') <> '[]'
        AND json_extract(state, '$.drops') > (
            SELECT coalesce(max(json_extract(data, '$.number')), 0) FROM events
            WHERE stream = 'room:' || rooms.name AND event = 'call.dropped'))
    OR (coalesce(json_extract(state, '$.notices'), '[]') <> '[]'
        AND json_extract(state, '$.noticed') > (
            SELECT coalesce(max(json_extract(data, '$.number')), 0) FROM events
            WHERE stream = 'room:' || rooms.name AND event = 'warning'))
    OR coalesce(json_extract(state, '$.untold'), '[]') <> '[]'
    OR EXISTS (
        SELECT 1 FROM room_messages WHERE room = rooms.name AND kind = 'person' AND NOT deleted
        AND seq > coalesce(json_extract(state, '$.heard'), 0)
        AND seq NOT IN (
            SELECT value FROM json_each(coalesce(json_extract(state, '$.skipped'), '[]'))))
    OR (json_extract(state, '$.floor.round') > 0 AND (
        'room.idle' <> coalesce((
            SELECT event FROM events WHERE stream = 'room:' || rooms.name
            AND (event IN ('room.turn', 'room.idle')
                 OR (event = 'message' AND json_extract(data, '$.role') = 'user'))
            ORDER BY seq DESC LIMIT 1), '')
        OR (SELECT max(seq) FROM room_messages WHERE room = rooms.name) > coalesce((
            SELECT coalesce(json_extract(data, '$.number'), json_extract(data, '$.i')) FROM events
            WHERE stream = 'room:' || rooms.name AND event = 'message'
            ORDER BY seq DESC LIMIT 1), 0)))
ORDER BY name"""

TOLD_LAST: Final = (
    "SELECT coalesce(max(json_extract(data, '$.change')), 0),"
    " coalesce(max(json_extract(data, '$.number')) FILTER (WHERE event = 'warning'), 0),"
    " coalesce(max(json_extract(data, '$.number')) FILTER (WHERE event = 'call.dropped'), 0)"
    " FROM events WHERE stream = ?1 AND event IN ('call.dropped', 'warning', 'message.edited',"
    " 'message.deleted', 'message.reaction')"
)

# Messages

_REPLIES = (
    "(SELECT coalesce(max(seq), 1) - 1 FROM room_messages AS reply"
    " WHERE reply.room = room_messages.room || '/' || room_messages.seq)"
)
_THREAD = (
    "CASE instr(room, '/') WHEN 0 THEN 0"
    " ELSE CAST(substr(room, instr(room, '/') + 1) AS INTEGER) END"
)
_MADE = {"replies": _REPLIES, "thread": _THREAD}
_COLUMNS = ", ".join(_MADE.get(name, name) for name in RoomMessage.__struct_fields__)
LAST_MESSAGES: Final = (
    f"SELECT {_COLUMNS} FROM room_messages WHERE room = ?1 AND seq < ?2"
    " AND iif(kind = 'agent', seq > ?6, seq <= ?4 AND seq > ?5)"
    " AND (?7 = '[]' OR NOT EXISTS (SELECT 1 FROM json_each(?7)"
    " WHERE instr(lower(text), lower(value)) = 0)) ORDER BY seq DESC LIMIT ?3"
)
"""``?7``: words that they have, by :func:`words_of`; case does not count for letters of ASCII."""


def words_of(query: str) -> str:
    """The words of a search, all of which a message has in any order, as a JSON array."""
    return msgspec.json.encode(query.split()).decode()


MEMORY: Final = " UNION ALL ".join(
    f"SELECT * FROM (SELECT {_COLUMNS} FROM room_messages WHERE room = ?1 AND {which}"
    f" ORDER BY seq DESC LIMIT {most})"
    for which, most in (
        ("seq <= ?2", "?3"),
        ("seq > ?2 AND kind = 'agent'", "?4"),
        ("seq > ?2 AND kind = 'person'", "?4"),
    )
)
SINCE: Final = (
    f"SELECT {_COLUMNS} FROM room_messages WHERE room = ?1 AND seq > ?2"
    " AND (kind = 'person' AND NOT deleted OR NOT ?4) ORDER BY seq LIMIT ?3"
)
THESE: Final = (
    f"SELECT {_COLUMNS} FROM room_messages WHERE room = ?1"
    " AND seq IN (SELECT value FROM json_each(?2))"
)
CHANGED: Final = f"{THESE} AND (edited > 0 OR deleted)"
OWN_CHANGED: Final = (  # of the messages that a run of a room's member has said
    "SELECT 1 FROM events JOIN room_messages AS said ON said.room = substr(stream, 6)"
    " AND said.seq = json_extract(data, '$.number') WHERE run_id = ?2 AND event = 'message'"
    " AND (stream = 'room:' || ?1 OR stream > 'room:' || ?1 || '/'"
    " AND stream < 'room:' || ?1 || '0') AND (edited > 0 OR deleted) LIMIT 1"
)
COPIED: Final = (  # in which a room below was given the line of a message, or has said it
    f"SELECT {_COLUMNS} FROM room_messages WHERE room = ?1"
    " AND (kind = 'person' AND instr(text, '[#' || ?2 || ' ') > 0"
    " OR ?5 <> '' AND kind = 'agent' AND text <> '' AND instr(?5, text) > 0"
    f" AND (length(text) >= {TELLING} OR instr(?5, text) = 1) AND EXISTS"
    " (SELECT 1 FROM rooms JOIN events ON run_id = above WHERE name = ?1"
    " AND stream = 'room:' || ?3 AND event = 'message' AND json_extract(data, '$.number') = ?4))"
)
"""``?5``: the old text of the message, if it is an agent's and withdrawn; else empty."""
MEMBER_SESSIONS: Final = "SELECT session FROM sessions WHERE owner = ?1 AND listed = 1"
CREATE: Final = (
    "INSERT INTO rooms (name, owner, state, created, updated, plan, above)"
    " VALUES (?1, ?2, '{}', ?3, ?3, ?4, ?5) ON CONFLICT (name) DO NOTHING"
)
KEEP: Final = "UPDATE rooms SET state = ?2, updated = ?3 WHERE name = ?1 RETURNING 1"
SET: Final = "UPDATE rooms SET plan = ?2, updated = ?3 WHERE name = ?1 RETURNING 1"
SAY: Final = (
    "INSERT INTO room_messages"
    " (room, seq, round, author, kind, text, at, asked_by, reply_to, reply_agent)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

# Pages

_WANTED = (
    " AND (coalesce(json_extract(terms, '$.archived'), 0) > 0) = ?3"
    " AND (?4 = '' OR"
    " instr(lower(name || ' ' || coalesce(json_extract(terms, '$.title'), '')), ?4))"
)
_BANNED = (
    " AND NOT EXISTS (SELECT 1 FROM room_people AS b"
    " WHERE b.room = rooms.name AND b.user = ?5 AND (b.banned OR b.role = 'left'))"
)
_OWNED = "SELECT name FROM rooms WHERE owner = ?5 AND name > ?1{wanted} ORDER BY name LIMIT ?2"
# CROSS JOIN: the rows of people lead, in the order of their index, and a page ends the walk.
_SHARED = (
    "SELECT room AS name FROM room_people AS p CROSS JOIN rooms ON rooms.name = p.room"
    " WHERE p.user = ?{at} AND NOT p.banned AND p.role NOT IN ('', 'left')"
    " AND p.room > ?1{wanted}{banned}"
    " ORDER BY p.room LIMIT ?2"
)
_ALL = (
    "SELECT name FROM rooms WHERE name > ?1 AND instr(name, '/') = 0{wanted} ORDER BY name LIMIT ?2"
)


def page_of(
    user: str | None, after: str, limit: int, *, archived: bool = False, query: str = ""
) -> tuple[str, tuple[SqlValue, ...]]:
    """The query for a page of the stored rooms that a user may see, by name; None: of all rooms.

    ``after``: the name of the last room of the page before; ``query``: a part of name or title.
    """
    params: tuple[SqlValue, ...] = (after, limit, int(archived), query.lower())
    if user is None:
        arms = [_ALL.format(wanted=_WANTED)]
    else:
        places = candidates(user)
        arms = [_OWNED.format(wanted=_WANTED)]
        arms += [
            _SHARED.format(at=at, wanted=_WANTED, banned=_BANNED)
            for at in range(5, 5 + len(places))
        ]
        params += places
    union = " UNION ".join(f"SELECT name FROM ({arm})" for arm in arms)
    named = f"SELECT name FROM ({union}) ORDER BY name LIMIT ?2"
    return f"SELECT {ROOM_COLUMNS} FROM rooms WHERE name IN ({named}) ORDER BY name", params


OWNED_COUNT: Final = "SELECT count(*) FROM rooms WHERE owner = ?"

_LAST = last_number("'room:' || ?1")
_PUT = (
    "INSERT INTO room_people (room, user, role, joined, since, muted, banned, came, event)"
    " SELECT name, ?2, ?3,"
    " iif(?8, (SELECT coalesce(max(seq), 0) FROM room_messages WHERE room = ?1), 0),"
    " ?4, ?5, ?6, ?7,"
    f" iif(?8, {_LAST}, 0)"
    " FROM rooms WHERE name = ?1 ON CONFLICT (room, user) DO UPDATE SET role = excluded.role,"
    " muted = excluded.muted, banned = excluded.banned, came = max(came, excluded.came)"
)
_KEEP = _PUT.partition(" DO UPDATE")[0] + (
    " DO UPDATE SET role = excluded.role WHERE role = '' AND NOT banned"
)
_COME = _PUT.partition(" DO UPDATE")[0] + (  # a mute that they have stays
    " DO UPDATE SET role = excluded.role, joined = excluded.joined, since = excluded.since,"
    " event = excluded.event, came = excluded.came WHERE role IN ('', 'left') AND NOT banned"
)
_GONE = "DELETE FROM room_people WHERE room = ? AND user = ?"
_REVOKE_OF = "DELETE FROM room_invites WHERE room = ? AND by = ?"
_OWNER = "UPDATE rooms SET owner = ?2, updated = ?3 WHERE name = ?1"
_TERMS = "UPDATE rooms SET terms = ?2, updated = ?3 WHERE name = ?1"


def _row(room: str, one: RoomPerson, now: float) -> tuple[SqlValue, ...]:
    return (
        *(room, one.user, one.role, now, one.muted, int(one.banned)),
        *(int(one.came), int(one.joined >= 0)),
    )


def put_people(room: str, people: tuple[str, ...], now: float) -> Iterator[Statement]:
    """The statements that make these users members, as far as they have no row."""
    for user in people:
        yield Statement(_KEEP, _row(room, RoomPerson(user), now))


def change_people(room: str, change: PeopleChange, now: float) -> Iterator[Statement]:
    """The statements of a decided change."""
    for user in change.gone:
        yield Statement(_GONE, (room, user))
    for one in change.put:
        yield Statement(_PUT, _row(room, one, now))
    for user in change.revoked:
        yield Statement(_REVOKE_OF, (room, user))
    if change.owner is not None:
        yield Statement(_OWNER, (room, change.owner, now))
    if change.terms is not None:
        yield Statement(_TERMS, (room, msgspec.json.encode(change.terms).decode(), now))


# Invites

ADD_INVITE: Final = (
    "INSERT INTO room_invites (hash, room, role, by, created, expires, uses)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
INVITES: Final = (
    "SELECT 'inv_' || substr(hash, 1, 12), room, role, by, created, expires, uses"
    " FROM room_invites WHERE room = ? ORDER BY created, hash"
)
REVOKE: Final = (
    "DELETE FROM room_invites WHERE room = ? AND 'inv_' || substr(hash, 1, 12) = ? RETURNING 1"
)
FIND_INVITE: Final = (
    "SELECT 'inv_' || substr(hash, 1, 12), room, role, by, created, expires, uses"
    " FROM room_invites WHERE hash = ?"
)
_USE = (
    "UPDATE room_invites SET uses = uses - 1 WHERE hash = ?1 AND room = ?2"
    " AND (expires IS NULL OR expires > ?3) AND (uses IS NULL OR uses > 0)"
)


def redeem(
    digest: str, room: str, person: RoomPerson, now: float, at: float
) -> tuple[Statement, ...]:
    """The statements by which a person comes in by an invite; none is stored if it is spent.

    ``at``: the time by the clock that its end is of.
    """
    use = Statement(_USE, (digest, room, at), changes=1)
    return (use, Statement(_COME, _row(room, person, now)))


# Rooms below runs

STEP: Final = """
ALTER TABLE rooms ADD COLUMN above TEXT;    -- the run whose call has it; NULL: it is no call's
UPDATE rooms SET above = called.parent
FROM (SELECT owner, min(parent) AS parent FROM sessions
      WHERE parent IS NOT NULL AND owner GLOB 'room:*' GROUP BY owner) AS called
WHERE called.owner = 'room:' || rooms.name AND rooms.owner = '' AND rooms.plan IS NULL;
CREATE INDEX rooms_above ON rooms (above) WHERE above IS NOT NULL;
"""

# The sessions of the runs that a session's runs have started, and so on; and the rooms of all.
_BELOW: Final = """
WITH RECURSIVE below (session) AS (
    SELECT ?1 UNION
    SELECT sessions.session FROM below JOIN runs USING (session)
    JOIN sessions ON sessions.parent = runs.run_id
)
"""
SESSIONS_BELOW: Final = f"{_BELOW} SELECT session FROM below WHERE session <> ?1"
ROOMS_BELOW: Final = (
    f"{_BELOW} SELECT DISTINCT name FROM below JOIN runs USING (session)"
    " JOIN rooms ON rooms.above = runs.run_id"
)

# Deletion

# Rows that refer to others are deleted before these.
OF_SESSION: Final = (
    "DELETE FROM steps WHERE run_id IN (SELECT run_id FROM runs WHERE session = ?)",
    "DELETE FROM idempotency WHERE run_id IN (SELECT run_id FROM runs WHERE session = ?)",
    "DELETE FROM escalations WHERE session = ?",
    "DELETE FROM approvals WHERE session = ?",
    "DELETE FROM messages WHERE session = ?",
    "DELETE FROM summaries WHERE session = ?",
    "DELETE FROM runs WHERE session = ?",
    "DELETE FROM events WHERE stream = 'session:' || ?",
    *forget_streams("stream = 'session:' || ?"),
    FORGET,
    "DELETE FROM error_sequels WHERE session = ?",
    "DELETE FROM results WHERE session = ?",
    "DELETE FROM spans WHERE run_id IN (SELECT run_id FROM traces WHERE session = ?)",
    "DELETE FROM traces WHERE session = ?",
    "DELETE FROM resumptions WHERE session = ?",
    "DELETE FROM conversations WHERE session = ?",
    "DELETE FROM sessions WHERE session = ?",
)
BY_PEOPLE: Final = (
    "DELETE FROM memories WHERE session = ?",
    # The answer of a command may quote any session of its user.
    "DELETE FROM idempotency WHERE answer IS NOT NULL"
    " AND user = (SELECT owner FROM sessions WHERE session = ?)",
)
"""What goes with a session that a person deletes, and not with one that retention does."""
DELETIONS: Final = (
    "DELETE FROM room_messages WHERE room = ?1 OR room GLOB ?1 || '/*'",  # and its threads
    "DELETE FROM room_reads WHERE room = ?1 OR room GLOB ?1 || '/*'",
    "DELETE FROM room_people WHERE room = ?1",
    "DELETE FROM room_invites WHERE room = ?1",
    "DELETE FROM room_costs WHERE room = ?1 OR room GLOB ?1 || '[#/]*'",  # and of its rounds
    "DELETE FROM room_summaries WHERE room = ?1",
    "DELETE FROM events WHERE stream = 'room:' || ?1 OR stream GLOB 'room:' || ?1 || '/*'",
    *forget_streams(
        "stream = 'room:' || ?1"
        " OR (stream > 'room:' || ?1 || '/' AND stream < 'room:' || ?1 || '0')"
    ),
    "DELETE FROM memories WHERE owner = 'room:' || ?1",
    "DELETE FROM team_task_needs WHERE user = 'room:' || ?1",
    "DELETE FROM team_tasks WHERE user = 'room:' || ?1",
    "DELETE FROM approval_grants WHERE user = 'room:' || ?1",
    "DELETE FROM idempotency WHERE user = 'room:' || ?1",
    # The answer of a command may quote the room.
    "DELETE FROM idempotency WHERE answer IS NOT NULL"
    " AND (method = 'rooms.post' OR instr(answer, ?1) > 0)",
    "DELETE FROM rooms WHERE name = ?1 OR name GLOB ?1 || '/*'",
)
"""All rows of a room but those of its members' sessions. The number of the last event stays under
a digest, so that a room of the same name never numbers its events anew."""


def deletion(room: str) -> tuple[Statement, ...]:
    return tuple(Statement(sql, (room,) if "?1" in sql else ()) for sql in DELETIONS)


def first_cell(rows: tuple[Row, ...]) -> SqlValue:
    return rows[0][0] if rows else None
