"""Queries of stored rooms, and their rows as structs: for the store, and for reading beside it."""

from __future__ import annotations

import msgspec

from motet.protocols.rooms import RoomMessage, RoomPlan, RoomRecord, RoomState
from motet.protocols.storage import Row

ROOM = "SELECT name, owner, state, people, plan FROM rooms WHERE name = ?"
ROOMS = "SELECT name, owner, state, people, plan FROM rooms ORDER BY name"
# What is told last of a room is that its round is over, and that is told behind all messages.
UNFINISHED = """
SELECT name, owner, state, people, plan FROM rooms
WHERE json_extract(state, '$.floor.going')
    OR coalesce(json_extract(state, '$.waiting'), '{}') <> '{}'
    OR EXISTS (
        SELECT 1 FROM room_messages WHERE room = rooms.name AND kind = 'person'
        AND seq > coalesce(json_extract(state, '$.heard'), 0))
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
_COLUMNS = "seq, author, kind, text, round, at"
LAST = (
    f"SELECT {_COLUMNS} FROM room_messages WHERE room = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"
)
SINCE = f"SELECT {_COLUMNS} FROM room_messages WHERE room = ? AND seq >= ? ORDER BY seq DESC"
ALL = 1 << 62


def record(row: Row) -> RoomRecord:
    name, owner, state, people, plan = row
    return RoomRecord(
        str(name),
        str(owner),
        msgspec.json.decode(str(state), type=RoomState),
        people=msgspec.json.decode(str(people), type=tuple[str, ...]),
        plan=msgspec.json.decode(str(plan), type=RoomPlan) if plan is not None else None,
    )


def messages(rows: tuple[Row, ...]) -> tuple[RoomMessage, ...]:
    """Rows that come newest first, oldest first."""
    names = _COLUMNS.split(", ")
    found = [msgspec.convert(dict(zip(names, row, strict=True)), RoomMessage) for row in rows]
    return tuple(reversed(found))
