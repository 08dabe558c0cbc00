"""What the session store reads: queries as data, and rows turned back into structs.

Pure. Invariant: an unfinished run's transcript, made whole by :func:`recovered`, has one result
for each call whatever part of its journal survived (G7).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence

import attrs
import msgspec

from motet.actors.storage.events import END_STEP, event_of
from motet.actors.transcript.grammar import EndedChild, close_calls
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.events import AnyEvent
from motet.protocols.models import Usage
from motet.protocols.recovery import Given, Quarantined
from motet.protocols.sessions import (
    EndToTell,
    HistoryRow,
    ListRuns,
    ListSessions,
    RunInfo,
    SessionInfo,
)
from motet.protocols.storage import Row, SqlValue, Statement, StorageError, storable

Query = tuple[str, tuple[SqlValue, ...]]

HISTORY_LIMIT = 200
LIST_LIMIT = 1000
INTERRUPTED = "[Interrupted: the host stopped before this was answered]"

MODELS_SET = "SELECT session, model FROM sessions WHERE model IS NOT NULL"

FIND_KEY = "SELECT run_id, body_hash FROM idempotency WHERE user = ? AND method = ? AND key = ?"

# Each summary names the start that it has moved; a reset leaves none.
TRANSCRIPT = """
WITH RECURSIVE starts (at) AS (
    SELECT start_pos FROM sessions WHERE session = ?1
    UNION SELECT from_pos FROM summaries JOIN starts ON session = ?1 AND start_pos = at
)
SELECT pos, run_id, ts, body FROM messages
WHERE session = ?1 AND pos >= (SELECT min(at) FROM starts)
ORDER BY pos"""

HISTORY = """
SELECT pos, run_id, ts, body FROM messages
WHERE session = ? AND pos < ? ORDER BY pos DESC LIMIT ?"""

PAGE = """
SELECT pos, run_id, ts, body FROM messages
WHERE session = ? AND pos > ? ORDER BY pos LIMIT ?"""

STEPS = "SELECT step, body FROM steps WHERE run_id = ? AND step >= 0 ORDER BY step"

ENDS_TO_TELL = f"""
SELECT session, run_id, body FROM steps JOIN runs USING (run_id)
WHERE step = {END_STEP} ORDER BY updated, runs.rowid"""

_SESSION = """
SELECT session, agent, owner, created, updated,
       (SELECT coalesce(max(pos), 0) FROM messages WHERE messages.session = sessions.session),
       EXISTS (SELECT 1 FROM escalations
               WHERE escalations.session = sessions.session AND decision IS NULL)
FROM sessions"""
SESSION = f"{_SESSION} WHERE session = ?"

_RUN = """
SELECT run_id, session, agent, user, status, text, created, updated, usage, detail FROM runs"""
RUN = f"{_RUN} WHERE run_id = ?"
# A child comes before the run that is told of it; it is the only run of its session.
UNFINISHED = f"""
{_RUN} WHERE status IN ('queued', 'running')
ORDER BY session IN (SELECT session FROM sessions WHERE parent IS NOT NULL) DESC,
         CASE WHEN session IN (SELECT session FROM sessions WHERE parent IS NOT NULL)
         THEN -rowid END, created, rowid"""

# Those that worked beside a run. The last row of one is what it has said.
BESIDE = """
SELECT run_id, runs.agent, status, detail,
       (SELECT body FROM messages WHERE messages.session = runs.session ORDER BY pos DESC LIMIT 1)
FROM sessions JOIN runs USING (session)
WHERE parent = ? AND beside ORDER BY runs.rowid"""

_log = logging.getLogger(__name__)
_message = msgspec.json.Decoder[ChatMessage](ChatMessage)
_usage = msgspec.json.Decoder(Usage)


def history(session: str, before: int | None, limit: int) -> Query:
    end = before if before is not None else 2**62
    return HISTORY, (session, end, clamped(limit, HISTORY_LIMIT))


def sessions(request: ListSessions) -> Query:
    """A page. Sessions with the time of its last one belong to it too, or the cursor skips them."""
    where, params = matching(
        ("(? OR parent IS NULL)", int(request.children)),
        ("owner = ?", request.owner),
        ("updated < ?", request.cursor),
    )
    last = f"SELECT updated FROM sessions{where} ORDER BY updated DESC LIMIT 1 OFFSET ?"
    page = f"updated >= coalesce(({last}), -1)"
    both = f"{where} AND {page}" if where else f" WHERE {page}"
    sql = f"{_SESSION}{both} ORDER BY updated DESC, rowid DESC"
    return sql, (*params, *params, clamped(request.limit, LIST_LIMIT) - 1)


def runs(request: ListRuns) -> Query:
    where, params = matching(
        ("user = ?", request.user), ("session = ?", request.session), ("status = ?", request.status)
    )
    sql = f"{_RUN}{where} ORDER BY created DESC, rowid DESC LIMIT ?"
    return sql, (*params, clamped(request.limit, LIST_LIMIT))


def matching(*conditions: tuple[str, SqlValue]) -> Query:
    """The filters that are present, as a WHERE clause; every name in it is one of ours."""
    present = [(condition, value) for condition, value in conditions if value is not None]
    if not present:
        return "", ()
    where = " AND ".join(condition for condition, _ in present)
    return f" WHERE {where}", tuple(value for _, value in present)


def clamped(limit: int, most: int) -> int:
    return max(1, min(limit, most))


def history_row(row: Row) -> HistoryRow:
    pos, run_id, ts, body = row
    try:
        fields = {"pos": pos, "run_id": run_id, "ts": ts, "row": decode(body)}
        return msgspec.convert(fields, HistoryRow)
    except msgspec.MsgspecError as error:
        raise StorageError(f"row {pos!r} of run {run_id!r} cannot be read: {error}") from error


def session_info(row: Row) -> SessionInfo:
    fields = dict(zip(SessionInfo.__struct_fields__, row, strict=True))
    return msgspec.convert(fields, SessionInfo, strict=False)  # SQLite's truth is 0 or 1


def run_info(row: Row) -> RunInfo:
    fields: dict[str, object] = dict(zip(RunInfo.__struct_fields__, row, strict=True))
    usage = fields["usage"]
    fields["usage"] = _usage.decode(usage) if isinstance(usage, str) else usage
    return msgspec.convert(fields, RunInfo)


def end_to_tell(row: Row) -> EndToTell:
    session, run_id, body = row
    return EndToTell(str(session), str(run_id), event_of(str(body)))


CHILDREN_BESIDE = f"""
{_RUN} WHERE session IN (SELECT session FROM sessions WHERE parent = ? AND beside)
ORDER BY rowid"""


def child_ended(row: Row) -> EndedChild:
    """A child that worked beside a run, from :data:`BESIDE`."""
    run_id, agent, status, detail, body = row
    output = "" if body is None or status != "completed" else decode(body).text
    why = "" if status == "completed" else detail
    fields = {"run_id": run_id, "agent": agent, "status": status, "output": output, "detail": why}
    return msgspec.convert(fields, EndedChild)


def decode(body: SqlValue) -> ChatMessage:
    if not isinstance(body, str):
        raise msgspec.ValidationError(f"a message is JSON text, not {type(body).__name__}")
    message: ChatMessage = _message.decode(body)
    return message


def encode(row: ChatMessage) -> str:
    """The row as JSON. Half a surrogate pair, which no UTF-8 can hold, becomes a question mark."""
    try:
        return msgspec.json.encode(row).decode()
    except UnicodeEncodeError:
        return storable(json.dumps(msgspec.to_builtins(row), ensure_ascii=False))


def role(row: ChatMessage) -> str:
    return str(row.__struct_config__.tag)


def recovered(run: RunInfo, steps: Iterable[Row]) -> tuple[ChatMessage, ...]:
    """The whole transcript of a run that the host's end cut off.

    Calls without a result get one that says *unknown*. A run whose answer was journalled keeps it
    and is not told that it has none. A journalled input is what its gates made of it.
    """
    journal = list(_journal(run, steps))
    if not (journal and isinstance(journal[0], UserMessage)):
        journal.insert(0, UserMessage(run.text))
    rows = close_calls(journal, outcome="unknown")
    match rows[-1]:
        case AssistantMessage(calls=()):
            return rows
        case _:
            return (*rows, AssistantMessage(INTERRUPTED, note="interrupted"))


def _journal(run: RunInfo, steps: Iterable[Row]) -> Iterable[ChatMessage]:
    """The rows that can be read: one that cannot must not keep the others from being kept."""
    for step, body in steps:
        try:
            yield decode(body)
        except msgspec.MsgspecError as error:
            _log.error("step %s of run %s is left out: %s", step, run.run_id, error)


# What a host reads and writes of the runs that the last one left: statements and rows. Pure.
#
# Invariant: that a session is being taken up is counted on disk before anything of it is begun.


# The last sign of life of a run's session: events come at its end, too.
LEFT = """
SELECT run_id, coalesce(given, ''),
       max(runs.updated, coalesce((
           SELECT ts FROM events WHERE stream = 'session:' || runs.session
           ORDER BY seq DESC LIMIT 1), 0)),
       coalesce((SELECT tries FROM resumptions WHERE resumptions.session = runs.session), 0),
       (SELECT since FROM resumptions WHERE resumptions.session = runs.session) IS NOT NULL,
       EXISTS (SELECT 1 FROM sessions WHERE sessions.session = runs.session
               AND parent IS NOT NULL)
FROM runs WHERE status IN ('queued', 'running')"""

SLACK = 60.0
"""Seconds by which the clock may have been put back while a run went on."""


def since(session: str, created: str) -> str:
    """That an event is not from before something began: those need not be read. SQL."""
    return (
        f"seq > coalesce((SELECT seq FROM events WHERE stream = 'session:' || {session}"
        f" AND ts < {created} - {SLACK} ORDER BY seq DESC LIMIT 1), 0)"
    )


HEARD = f"""
SELECT event, coalesce(json_extract(data, '$.id'), ''), json_extract(data, '$.i'),
       json_extract(data, '$.role'), json_extract(data, '$.text')
FROM events
WHERE stream = 'session:' || ?1 AND run_id = ?2 AND {since("?1", "?3")}
  AND event IN ('input.accepted', 'run.started', 'run.resumed', 'message', 'tool.call',
                'tool.result')
ORDER BY seq"""

TRACE = "SELECT spans, started, errors FROM traces WHERE run_id = ?"

TRY = """
INSERT INTO resumptions (session, tries) VALUES (?, 1)
ON CONFLICT (session) DO UPDATE SET tries = tries + 1"""
SETTLED = "DELETE FROM resumptions WHERE session = ? AND since IS NULL"
ALL_SETTLED = "DELETE FROM resumptions WHERE since IS NULL"
PUT_ASIDE = "UPDATE resumptions SET since = ?2 WHERE session = ?1 AND since IS NULL RETURNING 1"
RELEASE = "DELETE FROM resumptions WHERE session = ? AND since IS NOT NULL RETURNING 1"
ASIDE = """
SELECT session, coalesce(owner, ''), tries, since
FROM resumptions LEFT JOIN sessions USING (session)
WHERE since IS NOT NULL ORDER BY since, session"""

FORGET_STEPS = "DELETE FROM steps WHERE run_id = ? AND step >= 0"
ADD_STEP = "INSERT INTO steps (run_id, step, body) VALUES (?, ?, ?)"

_given = msgspec.json.Decoder(Given)


@attrs.frozen
class LeftRun:
    """A run that has not ended, of a host that has.

    Attributes:
        given: None: it belonged to whoever waited for it, who is gone.
        seen: the last sign of life of its session, Unix seconds.
        tries: hosts in a row that died while they took up its session.
        aside: its session is quarantined.
        rows: its journal, without what cannot be read; then it is ``broken``.
        heard: the events that were told of it, each with the id of its call if it has one.
        spans, started, errors: of its trace.
        late: what is to be told of it before it goes on.
    """

    info: RunInfo
    given: Given | None
    seen: float
    tries: int = 0
    aside: bool = False
    rows: tuple[ChatMessage, ...] = ()
    broken: bool = False
    heard: tuple[tuple[str, str], ...] = ()
    spans: int = 0
    started: float = 0.0
    errors: int = 0
    late: tuple[AnyEvent, ...] = ()


def given_text(given: Given) -> str:
    return msgspec.json.encode(given).decode()


def never_again(row: Row) -> bool:
    """Whether it is known of a row of :data:`LEFT` that it is not taken up."""
    return not row[1]


def left_run(
    info: RunInfo,
    row: Row,
    steps: Iterable[Row] = (),
    heard: Sequence[Row] = (),
    trace: Sequence[Row] = (),
) -> LeftRun:
    """From a row of :data:`LEFT`, and what was read of it besides."""
    _, text, seen, tries, aside, is_child = row
    rows, broken = _journal_of_rows(steps)
    spans, started, errors = trace[0] if trace else (0, info.updated, 0)
    return LeftRun(
        info=info,
        given=None if is_child else _read(str(text)),
        seen=float(seen or 0),
        tries=int(tries or 0),
        aside=bool(aside),
        rows=rows,
        broken=broken,
        heard=tuple((str(row[0]), str(row[1])) for row in heard),
        spans=int(spans or 0),
        started=float(started or info.updated),
        errors=int(errors or 0),
    )


def take_up(runs: Iterable[tuple[str, Sequence[ChatMessage]]]) -> list[Statement]:
    """Let the journal of each run that has begun be these rows, without gaps."""
    statements: list[Statement] = []
    for run_id, rows in runs:
        if not rows:
            continue
        numbered = tuple((run_id, at, encode(row)) for at, row in enumerate(rows))
        statements += [Statement(FORGET_STEPS, (run_id,)), Statement(ADD_STEP, each=numbered)]
    return statements


def quarantined(row: Row) -> Quarantined:
    return msgspec.convert(
        dict(zip(Quarantined.__struct_fields__, row, strict=True)), Quarantined, strict=False
    )


def _read(text: str) -> Given | None:
    try:
        return _given.decode(text) if text else None
    except msgspec.MsgspecError:  # of a newer motet
        return None


def _journal_of_rows(steps: Iterable[Row]) -> tuple[tuple[ChatMessage, ...], bool]:
    found: list[ChatMessage] = []
    broken = False
    for _, body in steps:
        try:
            found.append(decode(body))
        except msgspec.MsgspecError:
            broken = True
    return tuple(found), broken
