"""Store of traces: writes what the host's tracer has recorded, and reads it back.

The store takes spans from the tracer instead of receiving messages: then the end of a run costs no
message, nothing is lost in a mailbox when the host stops, and open spans are stored as well. It
writes a second after news came, so that a crash costs the last second of spans at most, and many
traces in one transaction. Invariants: a read sees all that was recorded before it; a stored text
was redacted first; a store that cannot write keeps a bounded number of traces and counts the lost
ones, and no run notices. Writing a batch twice is harmless, so that a batch with an unknown outcome
is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol

import attrs
import msgspec
import trio

from motet.actors.errors.log import logger
from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import Query, TableStore, clamped, struct, to_json, where
from motet.protocols.meters import Meters
from motet.protocols.models import Usage
from motet.protocols.sessions import RunInfo
from motet.protocols.storage import (
    Commit,
    DatabaseClosed,
    DatabaseLocked,
    DiskFull,
    Row,
    SqlValue,
    Statement,
    StorageError,
)
from motet.protocols.texts import well_formed
from motet.protocols.traces import (
    CloseTraces,
    FlushTraces,
    GetTrace,
    ListTraces,
    Span,
    SpanStatus,
    Trace,
    TraceBatch,
    TraceInfo,
    TraceProtocol,
    root_span_id,
    trace_identity,
    with_inputs,
)
from motet.runtime import Actor, ActorDead, handles
from motet.runtime.describe import summarize
from motet.runtime.outside import wall_time

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

TRACE = f"SELECT {_COLUMNS} FROM traces WHERE run_id = ?"
RUNS_BY_PREFIX = (
    "SELECT run_id FROM traces WHERE run_id >= ?1 AND run_id < ?1 || char(0x10ffff) LIMIT 2"
)
CALLED_TRACES = f"SELECT {_COLUMNS} FROM traces WHERE trace_id = ? AND parent IS NOT NULL"
OWN_SPANS = "SELECT body, status, ended FROM spans WHERE run_id = ?"
SPANS = """
SELECT body, status, ended FROM spans WHERE run_id = ?1
UNION ALL
SELECT body, spans.status, spans.ended FROM traces JOIN spans USING (run_id)
WHERE trace_id = ?2 AND traces.parent IS NOT NULL AND run_id <> ?1"""

# A span that was open when it was last written has ended since, at an unknown time.
_CLOSE_SPANS = """
UPDATE spans SET status = 'interrupted', ended = max(
    started, (SELECT seen FROM traces WHERE traces.run_id = spans.run_id))
WHERE ended IS NULL AND run_id IN (
    SELECT run_id FROM traces
    WHERE ended IS NULL AND run_id NOT IN (SELECT value FROM json_each(?)))"""
_CLOSE_TRACES = """
UPDATE traces SET ended = max(started, seen), status = coalesce(
    (SELECT status FROM runs WHERE runs.run_id = traces.run_id
     AND status NOT IN ('queued', 'running')), 'interrupted')
WHERE ended IS NULL AND run_id NOT IN (SELECT value FROM json_each(?)) RETURNING run_id"""
# A run that waited, or was interrupted, and has ended since, a moment before its host did.
_SETTLE_TRACES = """
UPDATE traces SET (status, ended) = (
    SELECT status, max(traces.ended, updated) FROM runs WHERE runs.run_id = traces.run_id)
WHERE status IN ('waiting', 'interrupted') AND run_id NOT IN (SELECT value FROM json_each(?))
  AND EXISTS (SELECT 1 FROM runs WHERE runs.run_id = traces.run_id
              AND runs.status NOT IN ('queued', 'running', 'waiting', 'interrupted'))
RETURNING run_id"""
_ADD_ROOT = f"""
INSERT INTO traces ({_COLUMNS}, seen) VALUES ({", ".join("?" * 14)})
ON CONFLICT (run_id) DO NOTHING RETURNING run_id"""

_decoder = msgspec.json.Decoder(Span)


def put_statements(batches: Sequence[TraceBatch], now: float) -> list[Statement]:
    """Write the news of traces. ``now``: the time of this state, Unix seconds."""
    traces = tuple([_values(batch.info, now) for batch in batches])
    spans = tuple([_row(batch.info.run_id, span) for batch in batches for span in batch.spans])
    statements = [Statement(_PUT_TRACE, each=traces), Statement(_PUT_SPAN, each=spans)]
    # The spans of a cancelled run that were written earlier become cancelled as well.
    stopped = [one for one in batches if one.info.status == "cancelled"]
    cancelled = tuple([(one.info.run_id,) for one in stopped if len(one.spans) < one.info.spans])
    if cancelled:
        statements.append(Statement(_CANCELLED, each=cancelled))
    return statements


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
        to_json(info.usage),
        info.errors,
        info.spans,
        info.left_out,
        now,
    )


def _row(run_id: str, span: Span) -> Row:
    body = to_json(span)
    return run_id, span.id, span.kind, span.name, span.status, span.started, span.ended, body


def close_statements(
    runs: Iterable[RunInfo], live: Iterable[str], now: float
) -> tuple[Statement, ...]:
    """Interrupt the open traces that are not live, and give each run of ``runs`` a root at least.

    A trace takes the status of its run, which may have ended a moment before the host did. That of
    a run that is still to be resumed is interrupted; it is open again as soon as the run is.
    Each statement but the first returns the ids of the runs that it closed.
    """
    besides = (to_json(list(live)),)
    roots = [_lost_root(run, now) for run in runs]
    return (
        Statement(_CLOSE_SPANS, besides),
        Statement(_CLOSE_TRACES, besides),
        Statement(_SETTLE_TRACES, besides),
        *(statement for root in roots for statement in root),
    )


def _lost_root(run: RunInfo, now: float) -> tuple[Statement, Statement]:
    """The trace of a run without written spans: only the time of its input is known.

    The span is inserted first, and changes nothing where there is one.
    """
    span = Span(
        id=root_span_id(run.run_id),
        kind="agent",
        name=run.agent,
        started=run.created,
        ended=run.created,
        status="interrupted",
    )
    info = TraceInfo(
        run_id=run.run_id,
        trace_id=trace_identity(run.run_id)[0],
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


def traces_query(request: ListTraces) -> Query:
    """Newest first. Operations outside of runs have no agent; only ``agent=""`` lists them."""
    user, session = (v and well_formed(v) for v in (request.user, request.session))
    agent = request.agent and well_formed(request.agent)
    condition, params = where(
        ("user = ?", user),
        ("session = ?", session),
        ("+agent = ?", agent),
        ("+status = ?", request.status),
        ("started >= ?", request.since),
        ("started < ?", request.until),
        ("+agent <> ?", "" if request.agent is None else None),
    )
    sql = f"SELECT {_COLUMNS} FROM traces{condition} ORDER BY started DESC, run_id DESC LIMIT ?"
    return sql, (*params, clamped(request.limit))


def trace_info(row: Row) -> TraceInfo:
    """Raises ``StorageError``."""
    try:
        return struct(row, TraceInfo, _FIELDS, json_columns={"usage": Usage})
    except msgspec.MsgspecError as error:
        raise StorageError(f"the trace of run {row[0]!r} cannot be read: {error}") from error


def trace_with_spans(info: TraceInfo, rows: Iterable[Row]) -> Trace:
    """The trace with its own spans and those of the runs that it called."""
    spans = {span.id: span for span in map(_span, rows)}
    own = trace_identity(info.run_id)[1]
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
    """The columns that are newer than the body: some statements end many spans at once."""

    status: SpanStatus
    ended: float | None


INTERVAL = 1.0
"""Seconds for which news waits for more."""
GROUP_LIMIT = 128
"""Traces in one transaction."""

log = logger(__name__)


@attrs.frozen
class TraceStatistics:
    """Written traces, and lost ones: too many waited, or they could not be written."""

    written: int
    lost: int


class TraceSource(Protocol):
    """The tracer, as the store sees it."""

    @property
    def lost(self) -> int:
        """Traces that were dropped before the store took them."""
        ...

    @property
    def live(self) -> Iterable[str]:
        """Ids of the runs whose traces are open."""
        ...

    def on_news(self, notify: Callable[[], None]) -> None:
        """Have ``notify`` called when there is news after there was none."""
        ...

    def take(self, limit: int) -> list[TraceBatch]:
        """The news of at most ``limit`` traces, the longest waiting first."""
        ...


class TraceStore(TableStore, Actor[TraceProtocol]):
    """Stores the traces of ``tracer``.

    Args:
        export: called with ended and stored traces; must not block.
        meters: count what was stored.
    """

    cleanup_budget: ClassVar[float] = 3.0

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        tracer: TraceSource,
        *,
        export: Callable[[Sequence[Trace]], None] | None = None,
        meters: Meters | None = None,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._tracer = tracer
        self._export = export
        self._meters = meters or Meters()
        self._news = trio.Event()
        self._writing = trio.Lock()
        self._group: list[TraceBatch] = []
        self._written = 0
        self._failing = False

    async def on_start(self) -> None:
        # At once: a crash of the last incarnation may have left news.
        self._tracer.on_news(self._wake)
        self._wake()
        self.start_soon(self._run, name="writer")

    async def on_stop(self) -> None:
        await self._flush()

    def statistics(self) -> TraceStatistics:
        return TraceStatistics(self._written, self._meters.lost_traces + self._tracer.lost)

    # Reading

    @handles(ListTraces, concurrent=16)
    async def list_traces(self, request: ListTraces) -> tuple[TraceInfo, ...]:
        await self._flush()
        return await list_traces(self._readers, request)

    @handles(GetTrace, concurrent=16)
    async def get_trace(self, request: GetTrace) -> Trace | None:
        await self._flush()
        return await get_trace(self._readers, request.run_id)

    @handles(FlushTraces, concurrent=16)
    async def flush(self, _request: FlushTraces) -> None:
        await self._flush()

    @handles(CloseTraces)
    async def close_statements(self, request: CloseTraces) -> int:
        """Raises nothing: a host starts without."""
        statements = close_statements(request.runs, self._tracer.live, self._clock())
        try:
            _, *closed = await self._write(statements)
        except Exception as error:
            log.warning("traces_not_closed", reason=summarize(error))
            return 0
        ended = {str(run_id): None for rows_of in closed for (run_id,) in rows_of}
        found = [await self._readers.read(TRACE, (run_id,)) for run_id in ended]
        if self._export is not None:
            self._export([await self._own(trace_info(row)) for (row,) in found])
        return len(ended)

    # Writing

    def _wake(self) -> None:
        self._news.set()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await trio.sleep(INTERVAL)
            await self._flush()

    async def _flush(self) -> None:
        """Write all news. After a cancellation or on a full disk the rest is written later."""
        async with self._writing:
            while True:
                self._group = self._group or self._tracer.take(GROUP_LIMIT)
                if not self._group:
                    return
                written = await self._store(self._group)
                if written is None:
                    self._wake()
                    return
                self._group = []
                self._meters.note(written)
                if self._export is not None:
                    self._export(await self._ended(written))

    async def _store(self, group: list[TraceBatch]) -> list[TraceBatch] | None:
        """The stored batches, redacted; None when trying again may help.

        Raises nothing: a crash of this actor would end runs, and traces must not end runs.
        """
        try:
            clean = await _with_inputs_of(group)
            statements = put_statements(clean, self._clock())
            await self._write(tuple(statements))
        except (DatabaseLocked, DiskFull, DatabaseClosed, ActorDead) as error:
            self._say_failing(error)
            return None
        except Exception as error:
            if len(group) > 1:  # only one of them may be at fault
                parts = [await self._store([batch]) for batch in group]
                return [batch for part in parts for batch in part or ()]
            self._meters.lost_traces += 1
            log.error("trace_not_stored", run_id=group[0].info.run_id, reason=summarize(error))
            return []
        self._written += len(clean)
        self._failing = False
        return clean

    def _say_failing(self, error: Exception) -> None:
        """Log the first failure, until a write succeeds."""
        if not self._failing:
            self._failing = True
            lost, why = self._meters.lost_traces, summarize(error)
            log.warning("traces_wait_to_be_stored", reason=why, lost=lost)

    async def _ended(self, group: Sequence[TraceBatch]) -> list[Trace]:
        """The ended traces of a group, each with all spans of its run."""
        ended: list[Trace] = []
        for batch in group:
            if batch.info.ended is not None:
                whole = len(batch.spans) == batch.info.spans
                trace = Trace(batch.info, batch.spans) if whole else await self._own(batch.info)
                ended.append(trace)
        return ended

    async def _own(self, info: TraceInfo) -> Trace:
        try:
            return await own_trace(self._readers, info)
        except StorageError as error:
            log.warning("trace_exported_in_part", run_id=info.run_id, reason=summarize(error))
            return Trace(info, ())


async def _with_inputs_of(batches: list[TraceBatch]) -> list[TraceBatch]:
    """The batches with redacted inputs. Redaction would block the event loop, hence a thread."""
    if any(batch.inputs for batch in batches):
        return await trio.to_thread.run_sync(
            lambda: [TraceBatch(one.info, with_inputs(one.spans, one.inputs)) for one in batches]
        )
    return batches


async def list_traces(readers: Readers, request: ListTraces) -> tuple[TraceInfo, ...]:
    """Traces without spans, newest first. Raises ``StorageError``."""
    return tuple(map(trace_info, await readers.read(*traces_query(request))))


async def get_trace(readers: Readers, run_id: str) -> Trace | None:
    """One trace with the spans of the runs that it called. Raises ``StorageError``."""
    found = await readers.read(TRACE, (run_id,))
    if not found:
        return None
    info = trace_info(found[0])
    return trace_with_spans(info, await readers.read(SPANS, (run_id, info.trace_id)))


async def own_trace(readers: Readers, info: TraceInfo) -> Trace:
    """The trace with its own spans only. Raises ``StorageError``."""
    return trace_with_spans(info, await readers.read(OWN_SPANS, (info.run_id,)))
