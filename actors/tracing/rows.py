"""Traces as rows: what is written, what is read, and rows turned back into structs. Pure.

Writing a batch twice is harmless, so that one whose outcome is not known is written again. The
columns ``status`` and ``ended`` of a span are newer than its body: some ends are told for many
spans at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from motet.actors.errors.text import well_formed
from motet.actors.storage.errors import StorageError
from motet.actors.tracing.recorder import Batch, identity, root_id
from motet.protocols.models import Usage
from motet.protocols.sessions import RunInfo
from motet.protocols.storage import Row, SqlValue, Statement
from motet.protocols.traces import ListTraces, Span, SpanStatus, Trace, TraceInfo

Query = tuple[str, tuple[SqlValue, ...]]

LIST_LIMIT = 1_000
PRUNED_AT_ONCE = 500

_COLUMNS = (
    "run_id, trace_id, parent, session, agent, user, status, started, ended, usage, errors,"
    " spans, left_out"
)
_FIELDS = _COLUMNS.split(", ")
_PUT_TRACE = f"""
INSERT INTO traces ({_COLUMNS}, seen) VALUES ({", ".join("?" * 14)})
ON CONFLICT (run_id) DO UPDATE SET
    status = excluded.status, ended = excluded.ended, usage = excluded.usage,
    errors = excluded.errors, spans = excluded.spans, left_out = excluded.left_out,
    seen = excluded.seen"""
_PUT_SPAN = """
INSERT INTO spans (run_id, id, kind, name, status, started, ended, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, id) DO UPDATE SET
    status = excluded.status, ended = excluded.ended, body = excluded.body"""
_CANCELLED = "UPDATE spans SET status = 'cancelled' WHERE run_id = ? AND status <> 'cancelled'"

ONE = f"SELECT {_COLUMNS} FROM traces WHERE run_id = ?"
BY_PREFIX = "SELECT run_id FROM traces WHERE run_id >= ?1 AND run_id < ?1 || char(0x10ffff) LIMIT 2"
BELOW = f"SELECT {_COLUMNS} FROM traces WHERE trace_id = ? AND parent IS NOT NULL"
OWN_SPANS = "SELECT body, status, ended FROM spans WHERE run_id = ?"
SPANS = """
SELECT body, status, ended FROM spans WHERE run_id = ?1
UNION ALL
SELECT body, spans.status, spans.ended FROM traces JOIN spans USING (run_id)
WHERE trace_id = ?2 AND traces.parent IS NOT NULL AND run_id <> ?1"""

# What was open when it was last seen has ended since, nobody knows when.
_CLOSE_SPANS = """
UPDATE spans SET status = 'interrupted', ended = max(
    started, (SELECT seen FROM traces WHERE traces.run_id = spans.run_id))
WHERE ended IS NULL AND run_id IN (
    SELECT run_id FROM traces
    WHERE ended IS NULL AND run_id NOT IN (SELECT value FROM json_each(?)))"""
_CLOSE_TRACES = """
UPDATE traces SET ended = max(started, seen), status = coalesce(
    (SELECT status FROM runs WHERE runs.run_id = traces.run_id), 'interrupted')
WHERE ended IS NULL AND run_id NOT IN (SELECT value FROM json_each(?)) RETURNING run_id"""
_ADD_ROOT = f"""
INSERT INTO traces ({_COLUMNS}, seen) VALUES ({", ".join("?" * 14)})
ON CONFLICT (run_id) DO NOTHING RETURNING run_id"""

_PAST = f"""
SELECT run_id FROM traces WHERE started < ? AND ended IS NOT NULL
ORDER BY started LIMIT {PRUNED_AT_ONCE}"""
_PRUNE = (
    f"DELETE FROM spans WHERE run_id IN ({_PAST})",
    f"DELETE FROM traces WHERE run_id IN ({_PAST}) RETURNING 1",
)

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Span)


def put(batches: Sequence[Batch], now: float) -> list[Statement]:
    """Write what is new of traces. ``now``: Unix seconds, when it was known to be so."""
    traces = tuple([_values(batch.info, now) for batch in batches])
    spans = tuple([_row(batch.info.run_id, span) for batch in batches for span in batch.spans])
    statements = [Statement(_PUT_TRACE, each=traces), Statement(_PUT_SPAN, each=spans)]
    # Those written before are cancelled as well: the run was.
    cancelled = tuple([(batch.info.run_id,) for batch in batches if _has_cut_more(batch)])
    if cancelled:
        statements.append(Statement(_CANCELLED, each=cancelled))
    return statements


def _has_cut_more(batch: Batch) -> bool:
    return batch.info.status == "cancelled" and len(batch.spans) < batch.info.spans


def _values(info: TraceInfo, now: float) -> tuple[SqlValue, ...]:
    return (
        info.run_id,
        info.trace_id,
        info.parent,
        well_formed(info.session),
        info.agent,
        well_formed(info.user),
        info.status,
        info.started,
        info.ended,
        _encode(info.usage).decode(),
        info.errors,
        info.spans,
        info.left_out,
        now,
    )


def _row(run_id: str, span: Span) -> Row:
    body = _encode(span).decode()
    return run_id, span.id, span.kind, span.name, span.status, span.started, span.ended, body


def close(runs: Iterable[RunInfo], live: Iterable[str], now: float) -> tuple[Statement, ...]:
    """End as interrupted what is open and not live; the last host's ``runs`` get a root at least.

    A trace takes the status of its run, which may have ended a moment before the host did.
    Each statement but the first returns the ids of the runs that it closed.
    """
    besides = (msgspec.json.encode(list(live)).decode(),)
    roots = [_lost_root(run, now) for run in runs]
    return (
        Statement(_CLOSE_SPANS, besides),
        Statement(_CLOSE_TRACES, besides),
        *(statement for root in roots for statement in root),
    )


def _lost_root(run: RunInfo, now: float) -> tuple[Statement, Statement]:
    """The trace of a run of which nothing was written: all that is known is when it was accepted.

    The span goes in first, and changes nothing where there is one.
    """
    span = Span(
        id=root_id(run.run_id),
        kind="agent",
        name=run.agent,
        started=run.created,
        ended=run.created,
        status="interrupted",
    )
    info = TraceInfo(
        run_id=run.run_id,
        trace_id=identity(run.run_id)[0],
        session=run.session,
        agent=run.agent,
        user=run.user,
        status="interrupted",
        started=run.created,
        ended=run.created,
        spans=1,
    )
    insert = _PUT_SPAN.partition(" DO UPDATE")[0] + " DO NOTHING"
    return Statement(insert, _row(run.run_id, span)), Statement(_ADD_ROOT, _values(info, now))


def prune(before: float) -> tuple[Statement, ...]:
    """Delete some of the traces that began before; a row of the last statement for each."""
    return tuple(Statement(sql, (before,)) for sql in _PRUNE)


def search(request: ListTraces) -> Query:
    """Newest first; operations outside of runs only for who asks for those without an agent."""
    filters: tuple[tuple[str, SqlValue], ...] = (
        ("user = ?", request.user),
        ("session = ?", request.session),
        ("+agent = ?", request.agent),
        ("+status = ?", request.status),
        ("started >= ?", request.since),
        ("started < ?", request.until),
    )
    used = [(sql, value) for sql, value in filters if value is not None]
    runs = ["+agent <> ''"] if request.agent is None else []
    conditions = [*runs, *(sql for sql, _ in used)]
    where = f" WHERE {' AND '.join(conditions)}"
    values = [well_formed(value) if isinstance(value, str) else value for _, value in used]
    sql = f"SELECT {_COLUMNS} FROM traces{where} ORDER BY started DESC, run_id DESC LIMIT ?"
    return sql, (*values, max(1, min(request.limit, LIST_LIMIT)))


def info_of(row: Row) -> TraceInfo:
    """The trace that a row of its columns tells of. Raises ``StorageError``."""
    fields: dict[str, object] = dict(zip(_FIELDS, row, strict=True))
    try:
        fields["usage"] = msgspec.json.decode(str(fields["usage"]), type=Usage)
        return msgspec.convert(fields, TraceInfo)
    except msgspec.MsgspecError as error:
        raise StorageError(f"the trace of run {row[0]!r} cannot be read: {error}") from error


def trace_of(info: TraceInfo, rows: Iterable[Row]) -> Trace:
    """The trace with its spans: its own, and those of the runs that it called."""
    spans = {span.id: span for span in map(_span, rows)}
    own = identity(info.run_id)[1]
    below: dict[str, bool] = {}

    def is_below(span: Span) -> bool:
        path = [span]
        while (at := path[-1]).id not in below:
            if at.id.startswith(own) or at.parent not in spans:
                below[at.id] = at.id.startswith(own)
            else:
                path.append(spans[at.parent])
        below.update({each.id: below[path[-1].id] for each in path})
        return below[span.id]

    kept = [span for span in spans.values() if is_below(span)]
    return Trace(info, tuple(sorted(kept, key=lambda span: (span.started, span.id))))


def _span(row: Row) -> Span:
    body, status, ended = row
    try:
        span = _decoder.decode(str(body))
        changes = msgspec.convert({"status": status, "ended": ended}, _End)
    except msgspec.MsgspecError as error:
        raise StorageError(f"a span cannot be read: {error}") from error
    return msgspec.structs.replace(span, status=changes.status, ended=changes.ended)


class _End(msgspec.Struct, frozen=True):
    """The columns that are newer than the body."""

    status: SpanStatus
    ended: float | None
