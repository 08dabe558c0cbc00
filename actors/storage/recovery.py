"""Runs that the last host left unfinished: queries, repaired transcripts, counted attempts. Pure.

Invariants: the transcript of an interrupted run has one result for each call, whatever part of its
journal survived (G7); an attempt to resume a session is counted on disk before it begins, so that
a session that kills its host is quarantined in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import attrs
import msgspec

from motet.actors.storage.tables import (
    Query,
    clamped,
    decode_message,
    encode_message,
    struct,
    where,
)
from motet.actors.transcript.grammar import EndedChild, close_calls
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.events import AnyEvent
from motet.protocols.models import Usage
from motet.protocols.recovery import InputOptions, Quarantined
from motet.protocols.sessions import ListRuns, RunInfo
from motet.protocols.storage import Row, Statement

INTERRUPTED = "[Interrupted: the host stopped before this was answered]"

RUNS = """
SELECT run_id, session, agent, user, status, text, created, updated, usage, detail FROM runs"""

RUN = f"{RUNS} WHERE run_id = ?"

# A child comes before the run that awaits its result; it is the only run of its session.
UNFINISHED = f"""
{RUNS} WHERE open = 1 AND status IN ('queued', 'running')
ORDER BY session IN (SELECT session FROM sessions WHERE parent IS NOT NULL) DESC,
         CASE WHEN session IN (SELECT session FROM sessions WHERE parent IS NOT NULL)
         THEN -rowid END, rowid"""

STEPS = "SELECT step, body FROM steps WHERE run_id = ? AND step >= 0 ORDER BY step"

# The children that a run did not wait for. The last row of a child is its answer.
BACKGROUND_CHILDREN = """
SELECT run_id, runs.agent, status, detail,
       (SELECT body FROM messages WHERE messages.session = runs.session ORDER BY pos DESC LIMIT 1)
FROM sessions JOIN runs USING (session)
WHERE parent = ? AND beside ORDER BY runs.rowid"""

# With the last sign of life of the run's session, which may be an event.
RESUMPTIONS = """
SELECT run_id, iif(json_extract(given, '$.waited'), '', coalesce(given, '')),
       max(runs.updated, coalesce((
           SELECT ts FROM events WHERE stream = 'session:' || runs.session
           ORDER BY seq DESC LIMIT 1), 0)),
       coalesce((SELECT tries FROM resumptions WHERE resumptions.session = runs.session), 0),
       (SELECT since FROM resumptions WHERE resumptions.session = runs.session) IS NOT NULL,
       EXISTS (SELECT 1 FROM sessions WHERE sessions.session = runs.session
               AND parent IS NOT NULL)
FROM runs WHERE open = 1 AND status IN ('queued', 'running') ORDER BY +rowid"""


_TURN = "SELECT min(rowid) FROM runs WHERE session = ? AND json_extract(given, '$.turn') = ?"


def runs_query(request: ListRuns) -> Query:
    condition, params = where(
        ("user = ?", request.user), ("session = ?", request.session), ("status = ?", request.status)
    )
    order = "created DESC, rowid"
    if request.turn:
        condition, order = f"{condition} AND rowid >= ({_TURN})", "rowid"
        params = *params, request.session, request.turn
    most = clamped(request.limit)
    if params and request.session is None:  # see ``OPEN_RUNS`` in ``host_tables``
        found = f"SELECT rowid FROM runs{condition} AND open"
        settled = f"{found} IS NULL ORDER BY {order} DESC LIMIT ?"
        condition = f" WHERE rowid IN (SELECT * FROM ({settled}) UNION ALL {found} = 1)"
        params = *params, most, *params
    return f"{RUNS}{condition} ORDER BY {order} DESC LIMIT ?", (*params, most)


def since(run: str) -> str:
    """SQL: skip the events from before a run began, without reading them.

    Not by their times, since the clock may have been put back. Older motets have stored no number.
    """
    return f"seq > coalesce((SELECT after FROM runs WHERE runs.run_id = {run}), 0)"


PUBLISHED = f"""
SELECT event, coalesce(json_extract(data, '$.id'), ''), json_extract(data, '$.i'),
       json_extract(data, '$.role'), json_extract(data, '$.text')
FROM events
WHERE stream = 'session:' || ?1 AND run_id = ?2 AND {since("?2")}
  AND event IN ('input.accepted', 'run.started', 'run.waiting', 'run.resumed', 'message',
                'tool.call', 'tool.result')
ORDER BY seq"""

TRACE = "SELECT spans, started, errors FROM traces WHERE run_id = ?"

TRY = """
INSERT INTO resumptions (session, tries) VALUES (?, 1)
ON CONFLICT (session) DO UPDATE SET tries = tries + 1"""
SETTLED = "DELETE FROM resumptions WHERE session = ? AND since IS NULL"
ALL_SETTLED = "DELETE FROM resumptions WHERE since IS NULL"
QUARANTINE = "UPDATE resumptions SET since = ?2 WHERE session = ?1 AND since IS NULL RETURNING 1"
RELEASE = "DELETE FROM resumptions WHERE session = ? AND since IS NOT NULL RETURNING 1"
QUARANTINED = """
SELECT session, coalesce(owner, ''), tries, since
FROM resumptions LEFT JOIN sessions USING (session)
WHERE since IS NOT NULL ORDER BY since, session"""

_FORGET_STEPS = "DELETE FROM steps WHERE run_id = ? AND step >= 0"
_ADD_STEP = "INSERT INTO steps (run_id, step, body) VALUES (?, ?, ?)"

OPTIONS = "SELECT given FROM runs WHERE run_id = ?"

_given = msgspec.json.Decoder(InputOptions)
_log = logging.getLogger(__name__)


@attrs.frozen
class UnfinishedRun:
    """An unfinished run of a host that has ended.

    Attributes:
        given: how to resume it; None: it belonged to a caller that is gone.
        seen: the last sign of life of its session, Unix seconds.
        tries: hosts in a row that died while they resumed its session.
        quarantined: its session is.
        rows: its journal, without what cannot be read; then it is ``broken``.
        published: the names of its published events, each with the id of its call, if any.
        spans, started, errors: of its trace.
        unpublished: the events to publish before it goes on.
    """

    info: RunInfo
    given: InputOptions | None
    seen: float
    tries: int = 0
    quarantined: bool = False
    rows: tuple[ChatMessage, ...] = ()
    broken: bool = False
    published: tuple[tuple[str, str], ...] = ()
    spans: int = 0
    started: float = 0.0
    errors: int = 0
    unpublished: tuple[AnyEvent, ...] = ()


_STORED = RunInfo.__struct_fields__[:-1]


def run_info(row: Row) -> RunInfo:
    return struct(row, RunInfo, _STORED, json_columns={"usage": Usage})


def input_options(rows: Sequence[Row]) -> InputOptions | None:
    """From :data:`OPTIONS`; None: the input is of a version that did not store them."""
    return _given.decode(str(rows[0][0])) if rows and rows[0][0] else None


def unfinished_run(
    info: RunInfo,
    row: Row,
    steps: Iterable[Row] = (),
    heard: Sequence[Row] = (),
    trace: Sequence[Row] = (),
) -> UnfinishedRun:
    """From a row of :data:`RESUMPTIONS`, and from the run's journal, events and trace."""
    _, text, seen, tries, aside, is_child = row
    given: InputOptions | None = None
    if text and not is_child:
        try:
            given = _given.decode(str(text))
        except msgspec.MsgspecError:  # of a newer motet
            given = None
    rows: list[ChatMessage] = []
    broken = False
    for _, body in steps:
        try:
            rows.append(decode_message(body))
        except msgspec.MsgspecError:
            broken = True
    spans, started, errors = trace[0] if trace else (0, info.updated, 0)
    return UnfinishedRun(
        info=info,
        given=given,
        seen=float(seen or 0),
        tries=int(tries or 0),
        quarantined=bool(aside),
        rows=tuple(rows),
        broken=broken,
        published=tuple((str(row[0]), str(row[1])) for row in heard),
        spans=int(spans or 0),
        started=float(started or info.updated),
        errors=int(errors or 0),
    )


def replace_journals(runs: Iterable[tuple[str, Sequence[ChatMessage]]]) -> list[Statement]:
    """Make these rows the journal of each run that has begun. A result keeps the place of its call:
    that of another call would take its place.
    """
    statements: list[Statement] = []
    for run_id, rows in runs:
        if not rows:
            continue
        numbered = tuple((run_id, at, encode_message(row)) for at, row in _placed(rows))
        statements += [Statement(_FORGET_STEPS, (run_id,)), Statement(_ADD_STEP, each=numbered)]
    return statements


def _placed(rows: Sequence[ChatMessage]) -> Iterator[tuple[int, ChatMessage]]:
    """The rows with their places; only the last calls may lack results."""
    calls, at = dict[str, int](), 0
    for row in rows:
        if isinstance(row, ToolMessage):
            yield calls[row.call_id], row
            continue
        yield at, row
        own = row.calls if isinstance(row, AssistantMessage) else ()
        calls = {call.id: place for place, call in enumerate(own, at + 1)}
        at += 1 + len(own)


def quarantined(row: Row) -> Quarantined:
    return struct(row, Quarantined, strict=False)


def child_ended(row: Row) -> EndedChild:
    """A row of :data:`BACKGROUND_CHILDREN`."""
    run_id, agent, status, detail, body = row
    output = "" if body is None or status != "completed" else decode_message(body).text
    why = "" if status == "completed" else detail
    fields = {"run_id": run_id, "agent": agent, "status": status, "output": output, "detail": why}
    return msgspec.convert(fields, EndedChild)


def interrupted_rows(run: RunInfo, steps: Iterable[Row]) -> tuple[ChatMessage, ...]:
    """The whole transcript of a run that the end of its host interrupted.

    Calls without a result get the result *unknown*. A run whose answer was journalled keeps it, and
    gets no row about a missing answer. A journalled input is what the gates made of it.
    """
    journal: list[ChatMessage] = []
    for step, body in steps:
        try:
            journal.append(decode_message(body))
        except msgspec.MsgspecError as error:
            # One unreadable row must not cost the others.
            _log.error("step %s of run %s is left out: %s", step, run.run_id, error)
    if not (journal and isinstance(journal[0], UserMessage)):
        journal.insert(0, UserMessage(run.text))
    rows = close_calls(journal, outcome="unknown")
    match rows[-1]:
        case AssistantMessage(calls=()):
            return rows
        case _:
            return (*rows, AssistantMessage(INTERRUPTED, note="interrupted"))
