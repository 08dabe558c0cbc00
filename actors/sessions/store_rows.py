"""What the session store reads: queries as data, and rows turned back into structs.

Pure. Invariant: an unfinished run's transcript, made whole by :func:`recovered`, has one result
for each call whatever part of its journal survived (G7).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import msgspec

from motet.actors.agent.transcript import close_calls
from motet.actors.children.news import Ended
from motet.actors.events.rows import END_STEP, event_of
from motet.actors.storage.errors import StorageError
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.models import Usage
from motet.protocols.sessions import (
    EndToTell,
    HistoryRow,
    ListRuns,
    ListSessions,
    RunInfo,
    SessionInfo,
)
from motet.protocols.storage import Row, SqlValue, storable

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


def child_ended(row: Row) -> Ended:
    """A child that worked beside a run, from :data:`BESIDE`."""
    run_id, agent, status, detail, body = row
    output = "" if body is None or status != "completed" else decode(body).text
    why = "" if status == "completed" else detail
    fields = {"run_id": run_id, "agent": agent, "status": status, "output": output, "detail": why}
    return msgspec.convert(fields, Ended)


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
