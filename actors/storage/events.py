"""Rows of the event journal. Pure.

Invariants: the database assigns the numbers of each stream in the transaction that stores the
events, so that they are contiguous and never reused, whatever fails; every event can be stored; a
stored row that cannot be decoded is read as a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import TypeAlias, get_args

import msgspec

from motet.protocols.events import (
    AnyEvent,
    ErrorStoreFailed,
    EventRecord,
    InputDropped,
    InputEnd,
    RunCancelled,
    RunEscalated,
    RunFailed,
    RunRefused,
    RunRetrying,
    Warned,
    event_name,
)
from motet.protocols.redaction.redact import redact_text
from motet.protocols.storage import Row, SqlValue, Statement, Transact, last_number
from motet.protocols.texts import well_formed
from motet.runtime.exceptions import to_json_types

_COUNT = (
    f"INSERT INTO streams (stream, head) VALUES (?1, {last_number('?1')} + ?2)"
    " ON CONFLICT (stream) DO UPDATE SET head = head + ?2"
)
_HEAD = "SELECT head FROM streams WHERE stream = ?"
AT_ONCE = 8
"""Events in one statement. Five in one statement cost as much as two in one each."""
# The session of a stream. A subquery of the same statement, so that rows and owner fit together: a
# session is deleted with its events, and its name may have another owner then (G16).
# As bytes, since SQLite counts the characters of a text up to its first NUL only.
_NAME = "CAST(substr(CAST(?1 AS BLOB), 9) AS TEXT)"
_SESSION = f"FROM sessions WHERE session = {_NAME} AND ?1 GLOB 'session:*'"
READ_EVENTS = (
    f"SELECT stream, seq, ts, run_id, data, (SELECT owner {_SESSION}) FROM events"
    " WHERE stream = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"
)
READ_HEAD = (
    f"SELECT {last_number('?1')},"
    " (SELECT min(seq) FROM events WHERE stream = ?1),"
    f" (SELECT owner {_SESSION}), (SELECT generation {_SESSION})"
)
# An event counts as of a session only while its run is there: run ids are never used twice.
OF_SESSION = (
    f"SELECT (SELECT head FROM streams WHERE stream = ?1) {_SESSION} AND owner = ?2 AND (?3 IS NULL"
    f" OR EXISTS (SELECT 1 FROM runs WHERE run_id = ?3 AND session = {_NAME}))"
)
NEAR = 1_000
# The event of an input that is farther from the head is asked for only by a late resend.
READ_INPUT = (
    "SELECT max(seq) FROM events WHERE stream = ?1 AND run_id = ?2 AND event = 'input.accepted'"
    f" AND seq > (SELECT head - {NEAR} FROM streams WHERE stream = ?1)"
)
# A terminal event is published again after a crash as long as its run is open. With it, run and
# session enter the indexes of lists: many at once, while their own transactions write few pages.
# Comparisons, since for a list SQLite would build a table; subqueries, since ``UPDATE FROM`` does.
_ENDED = (
    "run_id = ?1 AND +open = 1"
    " AND status <> 'queued' AND status <> 'running' AND status <> 'waiting'"
)
_USED = "(SELECT iif(status = 'steered', created, updated) FROM runs WHERE run_id = ?1)"
_LIST_SESSION = (
    f"UPDATE sessions SET listed = 1, updated = max(updated, {_USED})"
    f" WHERE session = (SELECT session FROM runs WHERE {_ENDED})"
)
_CLOSE_RUN = f"UPDATE runs SET open = NULL, ending = NULL WHERE {_ENDED}"
SETTLE = (_LIST_SESSION, _CLOSE_RUN)
QUOTING: frozenset[type] = frozenset(
    {Warned, ErrorStoreFailed, RunFailed, RunRetrying}
    | {RunCancelled, RunEscalated, RunRefused, InputDropped}
)
"""Events whose text may quote the value that failed."""
_ENDS: frozenset[type] = frozenset(get_args(InputEnd))
_decoder = msgspec.json.Decoder[AnyEvent](AnyEvent)
_encoder = msgspec.json.Encoder()


def without_secrets(event: AnyEvent) -> AnyEvent:
    """The event with its message redacted, if it is one of :data:`QUOTING`."""
    match event:
        case Warned() | ErrorStoreFailed() | RunFailed():
            return msgspec.structs.replace(event, message=redact_text(event.message))
        case RunRetrying() | RunCancelled() | RunEscalated() | RunRefused() | InputDropped():
            return msgspec.structs.replace(event, reason=redact_text(event.reason))
        case _:
            return event


def storable(record: EventRecord) -> tuple[EventRecord, str]:
    """The record and its event as JSON, without values that JSON or UTF-8 cannot hold."""
    try:
        return record, _encoder.encode(record.event).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return _cleaned(record)


def _cleaned(record: EventRecord) -> tuple[EventRecord, str]:
    text = _plain_text(record.event)
    run_id = None if record.run_id is None else well_formed(record.run_id)
    event = _decoder.decode(text)
    stream = well_formed(record.stream)
    return EventRecord(stream, event, record.ts, record.seq, run_id, record.owner), text


def text_of(event: InputEnd) -> str:
    """The event of a run's end as JSON, kept until it is in the journal."""
    cleaned = without_secrets(event)
    try:
        return _encoder.encode(cleaned).decode()
    except ValueError:  # half a surrogate pair
        return _plain_text(cleaned)


def event_of(text: str) -> AnyEvent:
    """The inverse of :func:`text_of`. An event of a newer motet becomes a warning."""
    try:
        event: AnyEvent = _decoder.decode(text)
        return event
    except msgspec.DecodeError as error:
        return Warned("events", f"an event is not in a form this motet can read: {error}")


def _plain_text(event: AnyEvent) -> str:
    fields = {name: to_json_types(getattr(event, name)) for name in event.__struct_fields__}
    return _encoder.encode({"event": event_name(event), **fields}).decode()


def append_events(records: Sequence[tuple[EventRecord, str]]) -> Transact:
    """One transaction that numbers and stores the records, each with its text.

    It also settles the runs whose terminal events are among the records. A
    statement :data:`OF_SESSION` fails when a record is of a session that was deleted meanwhile;
    else it has the head of the stream, so that such a stream needs no statement for it.
    """
    streams, known = _by_stream(records), proofs(records)
    statements = [Statement(_COUNT, (stream, len(items))) for stream, items in streams]
    statements += [Statement(_HEAD, (one,), expect=1) for one in _without(known, streams)]
    for stream, items in streams:
        for left in range(len(items), 0, -AT_ONCE):
            first = len(items) - left
            statements.append(_stored(stream, left - 1, items[first : first + AT_ONCE]))
    ended = tuple(
        (record.run_id,)
        for record, _ in records
        if type(record.event) in _ENDS and record.run_id is not None
    )
    if ended:
        statements += [Statement(sql, each=ended) for sql in SETTLE]
    statements += [Statement(OF_SESSION, one, expect=1) for one in known]
    return Transact(tuple(statements))


Proof: TypeAlias = tuple[str, str, str | None]


def proof_of(record: EventRecord) -> Proof | None:
    """The parameters of :data:`OF_SESSION` for a record; None: it is of no user's session."""
    if record.owner is None:
        return None
    # Injected rows and summaries have ids too, and no row among the runs.
    run_id = record.run_id if record.run_id and record.run_id.startswith("run_") else None
    return record.stream, record.owner, run_id


def proofs(records: Sequence[tuple[EventRecord, str]]) -> tuple[Proof, ...]:
    """The different proofs of the records."""
    different = {(record.stream, record.owner, record.run_id): record for record, _ in records}
    found = dict.fromkeys(map(proof_of, different.values()))
    return tuple([one for one in found if one is not None])


def _stored(stream: str, behind: int, items: Sequence[tuple[EventRecord, str]]) -> Statement:
    """``behind``: how many events of the stream come after the first item."""
    values: list[SqlValue] = [stream]
    for n, (record, text) in enumerate(items):
        values += (behind - n, record.ts, record.event.__struct_config__.tag, record.run_id, text)
    return Statement(_append(len(items)), tuple(values))


@lru_cache
def _append(size: int) -> str:
    values = ", ".join(["(?, ?, ?, ?, ?)"] * size)
    return (
        "INSERT INTO events (stream, seq, ts, event, run_id, data) SELECT ?1,"
        " (SELECT head FROM streams WHERE stream = ?1) - column1, column2, column3, column4,"
        f" column5 FROM (VALUES {values})"
    )


def numbered_records(
    records: Sequence[tuple[EventRecord, str]], answer: Sequence[Sequence[Row]]
) -> list[EventRecord]:
    """The records with the numbers that the transaction of :func:`append_events` gave them."""
    numbers: dict[str, count[int]] = {}
    streams, known = _by_stream(records), proofs(records)
    heads = dict(zip(_without(known, streams), answer[len(streams) :], strict=False))
    heads |= {one[0]: rows for one, rows in zip(reversed(known), reversed(answer), strict=False)}
    for stream, items in streams:
        ((head,),) = heads[stream]
        assert isinstance(head, int)
        numbers[stream] = count(head - len(items) + 1)
    return [
        EventRecord(one.stream, one.event, one.ts, next(numbers[one.stream]), one.run_id, one.owner)
        for one, _ in records
    ]


def record_of(row: Row) -> EventRecord:
    """A stored row as a record. An event of a newer motet becomes a warning in its place."""
    stream, seq, ts, run_id, data, *owner = row
    return EventRecord(
        stream=str(stream),
        event=event_of(str(data)),
        ts=float(ts or 0),
        seq=int(seq or 0),
        run_id=None if run_id is None else str(run_id),
        owner=None if not owner or owner[0] is None else str(owner[0]),
    )


def _without(
    known: Sequence[Proof], streams: Sequence[tuple[str, list[tuple[EventRecord, str]]]]
) -> list[str]:
    """The streams of which no record has a proof."""
    proved = {one[0] for one in known}
    return [stream for stream, _ in streams if stream not in proved]


def _by_stream(
    records: Sequence[tuple[EventRecord, str]],
) -> list[tuple[str, list[tuple[EventRecord, str]]]]:
    """The records of each stream, in their order."""
    streams: dict[str, list[tuple[EventRecord, str]]] = {}
    for item in records:
        streams.setdefault(item[0].stream, []).append(item)
    return list(streams.items())
