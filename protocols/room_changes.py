"""The statements that change what was said in a room: the message, and all that members have read.

A transaction of them leaves no copy of the old text in the tables: not in the room's messages and
events, nor in the transcripts, inputs, journals, events, traces, summaries, memories and errors of
the sessions that act for the room. ``room_text`` and ``room_said`` are functions of the writing
connection (:data:`FUNCTIONS`), so that no row can come between the reading and the writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from motet.protocols.error_rows import OF_SESSION
from motet.protocols.errors import ErrorRecord
from motet.protocols.room_copies import corrected_json, previews_json, without_said
from motet.protocols.room_messages import line_of
from motet.protocols.room_newcomers import outdated
from motet.protocols.room_reading import joined_json
from motet.protocols.rooms import RoomMessage
from motet.protocols.session_keys import thread_of
from motet.protocols.storage import SqlValue, Statement

STEP: Final = """
ALTER TABLE room_messages ADD COLUMN edited REAL NOT NULL DEFAULT 0;    -- 0: as it was said
ALTER TABLE room_messages ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE room_messages ADD COLUMN reactions TEXT NOT NULL DEFAULT '[]';  -- as JSON

CREATE TABLE room_reads (                   -- how far a user has read a room
    room TEXT NOT NULL,
    user TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (user, room)
) WITHOUT ROWID;

CREATE TRIGGER memories_changed AFTER UPDATE OF text ON memories BEGIN
    INSERT INTO memories_text (memories_text, rowid, text) VALUES ('delete', old.seq, old.text);
    INSERT INTO memories_text (rowid, text) VALUES (new.seq, new.text);
END;
"""

REPLIES: Final = """
ALTER TABLE room_messages ADD COLUMN reply_to INTEGER NOT NULL DEFAULT 0;   -- its seq; 0: no reply
ALTER TABLE room_messages ADD COLUMN reply_agent TEXT NOT NULL DEFAULT '';  -- who has said that one
"""

FUNCTIONS: Final[dict[str, tuple[Callable[..., str], int]]] = {
    "room_text": (corrected_json, 3),
    "room_preview": (previews_json, 3),
    "room_said": (without_said, 2),
    "room_joined": (joined_json, 3),
}
"""Functions of SQL, by name, with how many arguments they take."""

_CHANGE: Final = (
    "UPDATE room_messages SET text = ?3, edited = ?4, deleted = ?5, reactions = ?6, asked_by = ?7"
    " WHERE room = ?1 AND seq = ?2 RETURNING 1"
)
_SESSIONS: Final = "(SELECT session FROM sessions WHERE owner = 'room:' || ?1)"
_RUNS: Final = f"(SELECT run_id FROM runs WHERE session IN {_SESSIONS})"
_TRACED: Final = f"(SELECT run_id FROM traces WHERE session IN {_SESSIONS})"
_STREAMS: Final = "(SELECT 'session:' || session FROM sessions WHERE owner = 'room:' || ?1)"
_IN_ROOM: Final = (  # a room's stream and those of its threads, whatever signs its name has
    "event IN ('tool.call', 'tool.result', 'child.started') AND (stream = 'room:' || ?1"
    " OR stream > 'room:' || ?1 || '/' AND stream < 'room:' || ?1 || '0')"
)
_OWN_TURNS: Final = (  # a turn of a room below shows the lines of that one
    f"(event <> 'child.started' OR json_extract(data, '$.session') IN {_SESSIONS})"
)
_COPIES: Final = (
    ("messages", "body", f"session IN {_SESSIONS}"),
    ("runs", "text", f"session IN {_SESSIONS}"),
    ("runs", "given", f"session IN {_SESSIONS}"),
    ("steps", "body", f"run_id IN {_RUNS}"),
    ("events", "data", f"stream IN {_STREAMS} AND {_OWN_TURNS}"),
    ("events", "data", f"{_IN_ROOM} AND {_OWN_TURNS}"),
    ("spans", "body", f"run_id IN {_TRACED}"),
    ("summaries", "text", f"session IN {_SESSIONS}"),
    ("memories", "text", f"session IN {_SESSIONS}"),
)
"""The columns that may hold the line of a message, as a member has read it."""
_PREVIEWS: Final = ("spans", "summaries")
_OWN: Final = (
    ("messages", "body", "run_id = {run}"),
    ("steps", "body", "run_id = {run}"),
    ("events", "data", "stream IN " + _STREAMS.replace("?1", "?4") + " AND run_id = {run}"),
    ("spans", "body", "run_id = {run}"),
)
"""Those that may hold the text of an agent's message, as its model has written it."""
_ERRORS: Final = OF_SESSION.replace("session = ?1", f"session IN {_SESSIONS}")
_RUN: Final = (
    "(SELECT run_id FROM events WHERE stream = 'room:' || ?1 AND event = 'message'"
    " AND json_extract(data, '$.number') = ?2)"
)
_TOLD: Final = (
    "UPDATE events SET data = json_set(data, '$.text', ?3) WHERE stream = 'room:' || ?1"
    " AND event IN ('message', 'message.edited') AND json_extract(data, '$.number') = ?2"
)


def change(room: str, message: RoomMessage) -> Statement:
    """Store a message as it is now."""
    reactions, people = (
        msgspec.json.encode(one).decode() for one in (message.reactions, message.asked_by)
    )
    about = (message.text, message.edited, int(message.deleted), reactions, people)
    return Statement(_CHANGE, (room, message.seq, *about), expect=1)


def scrub(room: str, message: RoomMessage, before: str) -> Iterator[Statement]:
    """Put the text of the message in place of the old one, wherever that was stored or told.

    ``before``: the old text; empty: not known, since this is done again after a crash.
    """
    home, _ = thread_of(room)
    params: tuple[SqlValue, ...] = (home, message.label, line_of(message))
    for table, column, where in _COPIES:
        function = "room_preview" if table in _PREVIEWS else "room_text"
        yield Statement(
            f"UPDATE {table} SET {column} = {function}({column}, ?2, ?3)"
            f" WHERE {where} AND instr({column}, '[#' || ?2 || ' ') > 0",
            params,
        )
    marked = " OR ".join(f"instr({one}, '[#' || ?2 || ' ') > 0" for one in _ERROR_TEXTS)
    yield from _errors(_ERRORS, marked, params[:2], "room_preview({}, ?1, ?2)", params[1:])
    if message.kind == "agent" and before:
        own = OF_SESSION.replace("session = ?1", f"run_id = {_RUN}")
        yield from _errors(own, "1", (room, message.seq), "room_said({}, ?1)", (before,))
        for table, column, where in _OWN:
            yield Statement(
                f"UPDATE {table} SET {column} = room_said({column}, ?3)"
                f" WHERE {where.format(run=_RUN)} AND ?4 <> ''",
                (room, message.seq, before, home),
            )
    yield Statement(_SHOWN, params)  # the turns of a room below, where they were shown
    yield Statement(_TOLD, (room, message.seq, message.text))
    yield outdated(room, message.seq)


_ERROR_TEXTS: Final = ("raw_error", "short_summary", "arguments")
_SHIFT: Final = -(1 << 62)
_IS_ASIDE: Final = f"seq < {_SHIFT // 2}"
_ASIDE: Final = f"(SELECT {_SHIFT} - seq FROM error_records WHERE {_IS_ASIDE})"


def _errors(
    seqs: str, condition: str, given: tuple[SqlValue, ...], text: str, values: tuple[SqlValue, ...]
) -> Iterator[Statement]:
    """Change the texts of errors, which may quote a message or the call that was given one.

    Triggers derive what lists show from a changed error, but when it was resolved is kept there
    alone: the derived row is put aside, under a number of its own, until the new one has its time.
    Its group counts both meanwhile, and so keeps the time of its first error.
    """
    yield Statement(
        f"UPDATE error_records SET seq = {_SHIFT} - seq WHERE seq IN ({seqs}) AND EXISTS"
        f" (SELECT 1 FROM agent_errors AS a WHERE a.seq = error_records.seq AND ({condition}))",
        given,
    )
    sets = (f"{one} = iif({one} IS NULL, NULL, {text.format(one)})" for one in _ERROR_TEXTS)
    yield Statement(f"UPDATE agent_errors SET {', '.join(sets)} WHERE seq IN {_ASIDE}", values)
    yield Statement(
        "UPDATE error_records SET resolved = aside.resolved FROM error_records AS aside"
        f" WHERE aside.{_IS_ASIDE} AND error_records.seq = {_SHIFT} - aside.seq"
        " AND aside.resolved IS NOT NULL"
    )
    yield Statement(f"DELETE FROM error_records WHERE {_IS_ASIDE}")


class ChangedMessages:
    """The messages that were changed last, at most :data:`MOST_CHANGED`, as they are now.

    A turn that goes on may report the failure of a call that was given the old text, when the
    errors that were stored before are corrected.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}

    def keep(self, user: str, message: RoomMessage) -> None:
        """``user``: as whom the members of the room act."""
        self._lines[user, message.label] = line_of(message)
        if len(self._lines) > MOST_CHANGED:
            del self._lines[next(iter(self._lines))]

    def corrected(self, record: ErrorRecord) -> ErrorRecord:
        """The error with the messages as they are now."""
        for (user, label), line in self._lines.items():
            if user == record.user:
                texts = (record.raw_error, record.short_summary, record.arguments)
                raw, short, given = (previews_json(text, label, line) for text in texts)
                record = replace(record, raw_error=raw, short_summary=short, arguments=given)
        return record


MOST_CHANGED: Final = 1_000


def copies(room: str, message: RoomMessage) -> Statement:
    """Store the message as it is now where it is the first one of its thread, too."""
    text = "UPDATE room_messages SET text = ?2, edited = ?3, deleted = ?4 WHERE room = ?1"
    about = (f"{room}/{message.seq}", message.text, message.edited, int(message.deleted))
    return Statement(f"{text} AND seq = 1", about)


ROOMS_BELOW: Final = (
    "SELECT rooms.name FROM sessions JOIN runs USING (session)"
    " JOIN rooms ON rooms.above = runs.run_id WHERE sessions.owner = 'room:' || ?1"
)
"""The rooms that have answered calls of a room's members."""
_ABOVE: Final = (
    "FROM rooms JOIN runs ON runs.run_id = rooms.above JOIN sessions AS above USING (session)"
    " WHERE rooms.name = ?1"
)
_SHOWN: Final = (
    "UPDATE events SET data = room_text(data, ?2, ?3) WHERE event = 'child.started' AND stream IN"
    f" (SELECT 'session:' || above.session {_ABOVE} UNION SELECT above.owner {_ABOVE} UNION"
    f" SELECT stream FROM streams, (SELECT above.owner AS room {_ABOVE}) WHERE stream > room || '/'"
    " AND stream < room || '0') AND instr(data, '[#' || ?2 || ' ') > 0"
    f" AND json_extract(data, '$.session') IN {_SESSIONS}"
)


_EDITED: Final = (
    "UPDATE rooms SET state = room_text(state, ?2, ?3)"
    " WHERE name = ?1 AND instr(state, '[#' || ?2 || ' ') > 0"
)


def untold(below: str, message: RoomMessage) -> Statement:
    """Put a message as it is now in the changes of its copies that a room has not told yet."""
    return Statement(_EDITED, (below, message.label, line_of(message)))


_THREAD: Final = (
    "INSERT INTO rooms (name, owner, state, created, updated)"
    """ VALUES (?1, '', '{"heard":1,"collected":1}', ?2, ?2) ON CONFLICT (name) DO NOTHING"""
)
_FIRST: Final = (
    "INSERT INTO room_messages (room, seq, round, author, kind, text, at, asked_by, edited)"
    " SELECT ?1, 1, 0, author, kind, text, at, asked_by, edited FROM room_messages"
    " WHERE room = ?2 AND seq = ?3 AND NOT deleted ON CONFLICT (room, seq) DO NOTHING"
)


def open_thread(name: str, now: float) -> tuple[Statement, ...]:
    """Store a thread with a copy of the message that it is about, if there is none."""
    home, number = thread_of(name)
    return (Statement(_THREAD, (name, now)), Statement(_FIRST, (name, home, number)))


READ: Final = (
    "INSERT INTO room_reads (room, user, seq)"
    " SELECT ?1, ?2, min(?3, coalesce(max(seq), 0)) FROM room_messages WHERE room = ?1"
    " ON CONFLICT (user, room) DO UPDATE SET seq = excluded.seq WHERE excluded.seq > seq"
)
UNREAD: Final = """
SELECT one.key, coalesce(mark.seq, 0), (
    SELECT count(*) FROM (
        SELECT 1 FROM room_messages AS said
        WHERE said.room = one.key AND said.seq > max(coalesce(mark.seq, 0), one.value)
        AND said.author <> ?1 AND NOT said.deleted LIMIT ?3))
FROM json_each(?2) AS one
LEFT JOIN room_reads AS mark ON mark.user = ?1 AND mark.room = one.key"""
"""For a user, the read marks of rooms and how many messages of others are behind them; ``?2``: for
each room, the number up to which messages are hidden from the user.
"""
