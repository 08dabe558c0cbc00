"""The statements that change what was said in a room: the message, and all that members have read.

A transaction of them leaves no copy of the old text in the tables: not in the room's messages and
events, nor in the transcripts, inputs, journals, events, traces, summaries, memories, errors,
results, approvals, escalations and tasks of the sessions that act for the room. ``room_text`` and
``room_said`` are functions of the writing connection (:data:`FUNCTIONS`), so that no row can come
between the reading and the writing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from motet.protocols.approval_tables import STATE_STEP
from motet.protocols.approvals import hash_of
from motet.protocols.error_rows import OF_SESSION, PART
from motet.protocols.errors import ErrorRecord
from motet.protocols.results import repacked
from motet.protocols.room_calls import NOBODY, read_also
from motet.protocols.room_copies import (
    WITHDRAWN,
    corrected_json,
    items_of,
    previews_json,
    without_called,
    without_items,
    without_said,
    without_user,
)
from motet.protocols.room_messages import line_of, read_by_all
from motet.protocols.room_newcomers import outdated
from motet.protocols.room_reading import joined_json
from motet.protocols.rooms import RoomMessage, RoomState
from motet.protocols.session_keys import thread_of
from motet.protocols.sessions import Principal
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


def _in_result(*given: str | int) -> str:
    *packed, label, line = given
    return repacked(*packed, fix=lambda text: corrected_json(text, str(label), str(line)))


def _asked_also(state: str, people: str) -> str:
    """A stored state whose ``asked_by`` has these people, too."""
    before = msgspec.json.decode(state)
    asked = before.get("asked_by", [])
    added = [one for one in msgspec.json.decode(people) if one not in asked]
    return msgspec.json.encode(before | {"asked_by": [*asked, *added]}).decode()


def _heard(state: str, member: str, who: str) -> str:
    """The state of a room in a turn of whose member the words of somebody are read."""
    after = msgspec.json.decode(state, type=RoomState)
    return msgspec.json.encode(read_also(after, member, [_person(who)])).decode()


def _root_changed(state: str, people: str) -> str:
    """The state of a thread whose turns under way read the new words in its first message."""
    after = msgspec.json.decode(state, type=RoomState)
    return msgspec.json.encode(read_by_all(after, _people(people))).decode()


_people: Final = msgspec.json.Decoder(tuple[Principal, ...]).decode
_person: Final = msgspec.json.Decoder(Principal).decode
FUNCTIONS: Final[dict[str, tuple[Callable[..., str], int]]] = {
    "room_text": (corrected_json, 3),
    "room_preview": (previews_json, 3),
    "room_said": (without_said, 2),
    "room_called": (without_called, 3),
    "room_items": (items_of, 3),
    "room_without": (without_items, 2),
    "room_joined": (joined_json, 3),
    "room_result": (_in_result, 7),
    "room_hash": (hash_of, 1),
    "room_asked": (_asked_also, 2),
    "room_heard": (_heard, 3),
    "room_root": (_root_changed, 2),
    "user_gone": (without_user, 3),
}
"""Functions of SQL, by name, with how many arguments they take."""

_CHANGE: Final = (
    "UPDATE room_messages SET text = ?3, edited = ?4, deleted = ?5, reactions = ?6, asked_by = ?7"
    " WHERE room = ?1 AND seq = ?2 RETURNING 1"
)
OF_MEMBERS: Final = "(SELECT session FROM sessions WHERE owner = 'room:' || ?1 AND listed = 1)"
_RUNS: Final = f"(SELECT run_id FROM runs WHERE session IN {OF_MEMBERS})"
_TRACED: Final = f"(SELECT run_id FROM traces WHERE session IN {OF_MEMBERS})"
STREAMS: Final = OF_MEMBERS.replace("SELECT session", "SELECT 'session:' || session")
_STREAMS_OF_ROOM: Final = (  # and of its threads, whatever signs its name has
    "(stream = 'room:' || ?1 OR stream > 'room:' || ?1 || '/' AND stream < 'room:' || ?1 || '0')"
)
_IN_ROOM: Final = (
    "event IN ('tool.call', 'tool.result', 'tool.progress', 'activity', 'approval.requested',"
    f" 'child.started') AND {_STREAMS_OF_ROOM}"
)
_OF_MEMBER: Final = (  # by its name, too: a kill may leave the event and not the session
    f"(json_extract(data, '$.session') IN {OF_MEMBERS}"
    " OR instr(json_extract(data, '$.session') || '/', ':room:group:' || ?1 || '/') > 0)"
)
_OWN_TURNS: Final = (  # a turn of a room below shows the lines of that one
    f"(event <> 'child.started' OR {_OF_MEMBER})"
)
COPIES: Final = (
    ("messages", "body", f"session IN {OF_MEMBERS}"),
    ("runs", "text", f"session IN {OF_MEMBERS}"),
    ("runs", "given", f"session IN {OF_MEMBERS}"),
    ("runs", "detail", f"session IN {OF_MEMBERS}"),
    ("runs", "ending", f"session IN {OF_MEMBERS}"),
    ("steps", "body", f"run_id IN {_RUNS}"),
    ("events", "data", f"stream IN {STREAMS} AND {_OWN_TURNS}"),
    ("events", "data", f"{_IN_ROOM} AND {_OWN_TURNS}"),
    ("spans", "body", f"run_id IN {_TRACED}"),
    ("summaries", "text", f"session IN {OF_MEMBERS}"),
    ("memories", "text", f"session IN {OF_MEMBERS}"),
    *(("approvals", one, f"session IN {OF_MEMBERS}") for one in ("args", "proposed", "reason")),
    *(("escalations", one, f"session IN {OF_MEMBERS}") for one in ("reason", "history")),
    *(("team_tasks", one, "user = 'room:' || ?1") for one in ("title", "details", "result")),
)
"""The columns that may hold the line of a message, as a member has read it."""
_NOTICES: Final = (
    ("events", "data", "stream = 'room:' || ?2 AND event = 'warning'"),
    ("events", "data", f"stream IN {STREAMS} AND event IN ('input.accepted', 'message')"),
    ("events", "data", _IN_ROOM),
    *(one for one in COPIES if one[0] in ("messages", "steps", "runs", "spans")),
)
"""Those that may hold a notice that nobody has a name which a message calls. The members that are
told of it, behind the first ones, are those that have said it.
"""
_PREVIEWS: Final = ("spans", "summaries", "escalations")
HASHED: Final = {("approvals", "args"): ", args_hash = room_hash({})"}
_OWN: Final = (
    ("messages", "body", "run_id = {run}"),
    ("steps", "body", "run_id = {run}"),
    ("events", "data", "stream IN " + STREAMS.replace("?1", "?4") + " AND run_id = {run}"),
    ("events", "data", _IN_ROOM.replace("?1", "?4") + " AND run_id = {run}"),
    ("spans", "body", "run_id = {run}"),
    ("runs", "detail", "run_id = {run}"),
    ("runs", "ending", "run_id = {run}"),
    *(("approvals", one, "run_id = {run}") for one in ("args", "proposed", "reason")),
    *(("escalations", one, "run_id = {run}") for one in ("reason", "history")),
)
"""Those that may hold the text of an agent's message, as its model has written it."""
_ASKED: Final = (
    f"UPDATE steps SET body = room_asked(body, ?3) WHERE step = {STATE_STEP}"
    f" AND run_id IN {_RUNS} AND EXISTS (SELECT 1 FROM runs WHERE runs.run_id = steps.run_id"
    " AND (instr(text, '[#' || ?2 || ' ') > 0"
    " OR EXISTS (SELECT 1 FROM messages WHERE messages.session = runs.session"
    " AND instr(body, '[#' || ?2 || ' ') > 0)"
    " OR EXISTS (SELECT 1 FROM steps AS row WHERE row.run_id = runs.run_id"
    " AND instr(row.body, '[#' || ?2 || ' ') > 0)))"
)
"""The state of a suspended run, which reads the message when it is resumed."""
OF_ERRORS: Final = OF_SESSION.replace("session = ?1", f"session IN {OF_MEMBERS}")
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
    reactions, people = _json(message.reactions), _json(message.asked_by)
    about = (message.text, message.edited, int(message.deleted), reactions, people)
    return Statement(_CHANGE, (room, message.seq, *about), expect=1)


POSTED: Final = "rooms.post"
"""The method of the idempotency keys of messages."""


def said_digest(room: str, author: str, text: str = "", reply_to: int = 0) -> str:
    """The fingerprint that tells a resend from another message under the same key.

    Without a text: of a message whose text was changed since. By the hash of a short one, it could
    be found.
    """
    said = (room, author, text, *([reply_to] if reply_to else ()))
    return sha256(msgspec.msgpack.encode(said)).hexdigest()


_UNHASHED: Final = (
    "UPDATE idempotency SET body_hash = ?4"
    f" WHERE user = ?1 AND method = '{POSTED}' AND run_id = ?2 AND body_hash = ?3"
)


def scrub(room: str, message: RoomMessage, before: str) -> Iterator[Statement]:
    """Put the text of the message in place of the old one, wherever that was stored or told.

    ``before``: the old text; empty: not known, since this is done again after a crash.
    """
    home, _ = thread_of(room)
    params: tuple[SqlValue, ...] = (home, message.label, line_of(message))
    if not message.deleted:
        yield Statement(_ASKED, (home, message.label, _json(message.principals)))
    for table, column, where in COPIES:
        function = "room_preview" if table in _PREVIEWS else "room_text"
        fixed = f"{function}({column}, ?2, ?3)"
        also = HASHED.get((table, column), "").format(fixed)
        yield Statement(
            f"UPDATE {table} SET {column} = {fixed}{also}"
            f" WHERE {where} AND instr({column}, '[#' || ?2 || ' ') > 0",
            params,
        )
    if before:
        who, said = message.author, (before, message.reply_to)
        hashes = said_digest(room, who, *said), said_digest(room, who)
        yield Statement(_UNHASHED, (who, str(message.seq), *hashes))
        yield Statement(_LISTED, (home, room, message.seq, before, message.text))
        notices = _NOTICES if message.kind == "agent" else _NOTICES[:1]
        for table, column, where in notices if "@" in before else ():
            yield Statement(
                f"UPDATE {table} SET {column} = room_called({column}, ?3, ?4)"
                f" WHERE {where} AND instr({column}, '{NOBODY} @') > 0",
                (home, room, before, message.text),
            )
    yield Statement(_RESULTS, params)
    marked = " OR ".join(f"instr({one}, '[#' || ?2 || ' ') > 0" for one in ERROR_TEXTS)
    yield from change_errors(OF_ERRORS, marked, params[:2], "room_preview({}, ?1, ?2)", params[1:])
    yield from _large_errors(OF_ERRORS, "room_preview({}, ?2, ?3)", params)
    if message.kind == "agent" and before:
        own = OF_SESSION.replace("session = ?1", f"run_id = {_RUN}")
        yield from change_errors(own, "1", (room, message.seq), "room_said({}, ?1)", (before,))
        yield from _large_errors(own, "room_said({}, ?3)", (room, message.seq, before))
        for table, column, where in _OWN:
            fixed = f"room_said({column}, ?3)"
            also = HASHED.get((table, column), "").format(fixed)
            is_text = f"{column} IS NOT NULL AND ?4 <> ''"
            yield Statement(
                f"UPDATE {table} SET {column} = {fixed}{also}"
                f" WHERE {where.format(run=_RUN)} AND {is_text}",
                (room, message.seq, before, home),
            )
    yield from _answers(home, message, before)
    yield Statement(_SHOWN, params)  # the turns of a room below, where they were shown
    yield Statement(_TOLD, (room, message.seq, message.text))
    yield from outdated(room, message.seq, message.label)


_LISTED: Final = (
    "WITH found AS MATERIALIZED (SELECT session AS whose, start_pos AS at, (SELECT"
    " json_group_array(value) FROM json_each(room_items(text, ?4, ?5)) WHERE NOT EXISTS"
    " (SELECT 1 FROM room_messages AS said WHERE (said.room = ?1 OR said.room > ?1 || '/'"
    " AND said.room < ?1 || '0') AND NOT (said.room = ?2 AND said.seq = ?3)"
    " AND NOT (said.room = ?2 || '/' || ?3 AND said.seq = 1)"
    " AND instr(said.text, value) > 0)) AS items"
    f" FROM summaries WHERE session IN {OF_MEMBERS})"
    " UPDATE summaries SET text = room_without(text, items) FROM found"
    " WHERE session = whose AND start_pos = at AND items <> '[]'"
)
"""The tasks and names that a summary lists have no head. Those of other messages, too, stay."""
_NOTES: Final = (
    f"FROM escalations WHERE session IN {OF_MEMBERS} AND trim(note) <> ''"
    " AND instr(?2, trim(note)) > 0 AND (resolved_by = ?3 OR ?3 = '(deleted)')"
)
_ANSWERED: Final = (
    "UPDATE events SET data = json_set(data, '$.note', ?4) WHERE event = 'escalation.resolved'"
    f" AND (stream IN {STREAMS} OR {_STREAMS_OF_ROOM})"
    f" AND json_extract(data, '$.escalation') IN (SELECT id {_NOTES})",
    f"UPDATE escalations SET note = ?4 WHERE id IN (SELECT id {_NOTES})",
)


def _answers(home: str, message: RoomMessage, before: str) -> Iterator[Statement]:
    """Change the note of an escalation, and the events that told it, if a message has answered it.

    Such a message calls the escalated member, and has the note in it.
    """
    if message.kind == "person" and before.startswith("@"):
        note = WITHDRAWN if message.deleted else _CALL.sub("", message.text, 1)
        for sql in _ANSWERED:
            yield Statement(sql, (home, before, message.author, note))


_CALL: Final = re.compile(r"@\S+\s+")
ERROR_TEXTS: Final = ("raw_error", "short_summary", "arguments")
_SHIFT: Final = -(1 << 62)
_IS_ASIDE: Final = f"seq < {_SHIFT // 2}"
_ASIDE: Final = f"(SELECT {_SHIFT} - seq FROM error_records WHERE {_IS_ASIDE})"


def change_errors(
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
    sets = (f"{one} = iif({one} IS NULL, NULL, {text.format(one)})" for one in ERROR_TEXTS)
    yield Statement(f"UPDATE agent_errors SET {', '.join(sets)} WHERE seq IN {_ASIDE}", values)
    yield Statement(
        "UPDATE error_records SET resolved = aside.resolved FROM error_records AS aside"
        f" WHERE aside.{_IS_ASIDE} AND error_records.seq = {_SHIFT} - aside.seq"
        " AND aside.resolved IS NOT NULL"
    )
    yield Statement(f"DELETE FROM error_records WHERE {_IS_ASIDE}")


_RESULTS: Final = (
    "WITH fixed AS MATERIALIZED (SELECT id AS of,"
    " room_result(packing, data, held, size, sha256, ?2, ?3) AS one FROM results"
    f" WHERE kind <> 'binary' AND session IN {OF_MEMBERS}"
    " AND (packing <> 'text' OR instr(data, '[#' || ?2 || ' ') > 0))"
    " UPDATE results SET packing = one ->> 0, data = one ->> 1, held = one ->> 2, size = one ->> 3,"
    " sha256 = one ->> 4 FROM fixed WHERE id = of AND one <> ''"
)
_WHOLE: Final = "(SELECT group_concat(text, '') FROM (SELECT text FROM error_parts AS p{} {}))"
_WHOLES: Final = "SELECT seq FROM error_parts WHERE part = -1"


def _large_errors(seqs: str, text: str, values: tuple[SqlValue, ...]) -> Iterator[Statement]:
    """Change the texts of raw errors that are stored in parts.

    Part -1 is the whole of it meanwhile: a line may go on in the next part, and another line is
    longer or shorter.
    """
    whole = _WHOLE.format("", "WHERE p.seq = one.seq ORDER BY part")
    yield Statement(
        "INSERT INTO error_parts (seq, part, text) SELECT seq, -1, fixed FROM"
        f" (SELECT seq, whole, {text.format('whole')} AS fixed FROM"
        f" (SELECT seq, {whole} AS whole FROM error_parts AS one"
        f" WHERE part = 0 AND seq IN ({seqs}))) WHERE fixed <> whole",
        values,
    )
    yield Statement(f"DELETE FROM error_parts WHERE part >= 0 AND seq IN ({_WHOLES})")
    yield Statement(
        "WITH RECURSIVE cut (seq, part, text, rest) AS (SELECT seq, 0, substr(text, 1, ?1),"
        " substr(text, ?1 + 1) FROM error_parts WHERE part = -1 UNION ALL SELECT seq, part + 1,"
        " substr(rest, 1, ?1), substr(rest, ?1 + 1) FROM cut WHERE rest <> '')"
        " INSERT INTO error_parts (seq, part, text) SELECT seq, part, text FROM cut ORDER BY part",
        (PART,),
    )
    yield Statement("DELETE FROM error_parts WHERE part = -1")


class ChangedMessages:
    """The messages that were changed last, at most :data:`MOST_CHANGED`, as they are now.

    A turn that goes on may store a result, a task or the failure of a call that was given the old
    text, when what was stored before is corrected.

    Attributes:
        count: of all changes so far.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}
        self._said: dict[tuple[str, str, str], None] = {}
        self.count = 0

    def keep(self, user: str, message: RoomMessage, before: str = "") -> None:
        """``user``: as whom the members of the room act; ``before``: the old text."""
        self.count += 1
        self._lines[user, message.label] = line_of(message)
        if message.kind == "agent" and before:
            self._said[user, message.author, before] = None
        if len(self._lines) > MOST_CHANGED:
            del self._lines[next(iter(self._lines))]
        if len(self._said) > MOST_CHANGED:
            del self._said[next(iter(self._said))]

    def corrected_text(self, user: str, text: str) -> str:
        """A text, or all texts in JSON, with the lines of messages as they are now."""
        for (whose, label), line in self._lines.items():
            if whose == user:
                text = previews_json(text, label, line)
        return text

    def corrected(self, record: ErrorRecord) -> ErrorRecord:
        """The error with the messages as they are now."""
        if not self.count:
            return record
        of, whose = record.user, (record.user, record.agent)
        own = [said for user, agent, said in self._said if (user, agent) == whose]

        def now(text: str) -> str:
            text = self.corrected_text(of, text)
            for said in own:
                text = without_said(text, said)
            return text

        raw, short, given = now(record.raw_error), now(record.short_summary), now(record.arguments)
        if (raw, short, given) == (record.raw_error, record.short_summary, record.arguments):
            return record
        return replace(record, raw_error=raw, short_summary=short, arguments=given)


MOST_CHANGED: Final = 1_000


def room_of_user(user: str) -> str:
    """The room whose members act as this user; empty: it is none."""
    return user.removeprefix("room:") if user.startswith("room:") else ""


def quoted_by(record: ErrorRecord) -> dict[str, list[int]]:
    """The messages that an error may quote: their numbers, by the room or thread they are in."""
    home, found = room_of_user(record.user), dict[str, list[int]]()
    for text in (record.raw_error, record.short_summary, record.arguments):
        for label in QUOTED_LABEL.findall(text) if home else ():
            number, _, reply = label.partition(".")
            room, seq = (f"{home}/{number}", int(reply) + 1) if reply else (home, int(number))
            found.setdefault(room, []).append(seq)
    return found


QUOTED_LABEL: Final = re.compile(r"\[#(\d{1,15}(?:\.\d{1,15})?) ")


def withheld(record: ErrorRecord) -> ErrorRecord:
    """An error that may quote a text that was withdrawn, and is nowhere known any more."""
    raw = msgspec.json.encode({"message": WITHDRAWN}).decode()
    return replace(record, raw_error=raw, short_summary=WITHDRAWN, arguments="")


def copies(room: str, message: RoomMessage) -> Iterator[Statement]:
    """Store the message as it is now where it is the first one of its thread, too."""
    thread, people = f"{room}/{message.seq}", _json(message.asked_by)
    text = "UPDATE room_messages SET text = ?2, edited = ?3, deleted = ?4, asked_by = ?5"
    about = (thread, message.text, message.edited, int(message.deleted), people)
    yield Statement(f"{text} WHERE room = ?1 AND seq = 1", about)
    if not message.deleted:
        turns = "UPDATE rooms SET state = room_root(state, ?2) WHERE name = ?1"
        yield Statement(turns, (thread, _json(message.principals)))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


ROOMS_BELOW: Final = (
    "SELECT rooms.name FROM sessions JOIN runs USING (session)"
    " JOIN rooms ON rooms.above = runs.run_id WHERE sessions.owner = 'room:' || ?1 AND listed = 1"
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
    f" AND {_OF_MEMBER}"
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
