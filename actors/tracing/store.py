"""The trace store: writes what the host's tracer has recorded, and reads it back.

Spans come to it through the tracer, not as messages: a run's end then costs no message, nothing
is lost in a mailbox when the host stops, and spans that are still open are seen as well. It looks
a second after there was news, so that a crash costs the last second of spans at most, and writes
many traces in one transaction. Invariants: a read sees all that was recorded before it; what is
stored was redacted first; a store that cannot write keeps a bounded number of traces, counts
what it loses, and no run notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import attrs
import trio

from motet.actors.errors.retention import DAY
from motet.actors.errors.summary import summarize
from motet.actors.log import logger
from motet.actors.storage.errors import DatabaseClosed, DatabaseLocked, DiskFull, StorageError
from motet.actors.storage.readers import Readers
from motet.actors.tracing import rows
from motet.actors.tracing.recorder import Batch, Tracer
from motet.actors.tracing.texts import with_inputs
from motet.protocols.messages import Request
from motet.protocols.storage import Transact
from motet.protocols.traces import CloseTraces, GetTrace, ListTraces, Trace, TraceInfo
from motet.runtime import Actor, ActorDead, ActorRef, handles
from motet.runtime.outside import wall_time

INTERVAL = 1.0
"""Seconds that news waits for more."""
GROUP_LIMIT = 128
"""Traces in one transaction."""
PRUNE_INTERVAL = 3_600.0

log = logger(__name__)


class FlushTraces(Request[None], frozen=True, tag="traces.flush"):
    """Write all that was recorded until now, as far as the disk lets it. Raises nothing."""


TraceProtocol: TypeAlias = ListTraces | GetTrace | CloseTraces | FlushTraces


@attrs.frozen
class TraceStatistics:
    """Traces written, and those lost: too many waited, or they could not be written at all."""

    written: int
    lost: int


class TraceStore(Actor[TraceProtocol]):
    """Stores the traces of ``tracer``. Reads raise ``StorageError``.

    Args:
        keep_days: older traces are deleted, every hour; None: never.
        export: is given the traces that have ended and been stored; must not block.
        clock: Unix seconds.
    """

    cleanup_budget: ClassVar[float] = 3.0

    def __init__(
        self,
        database: ActorRef[Transact],
        readers: Readers,
        tracer: Tracer,
        *,
        keep_days: float | None = None,
        export: Callable[[Sequence[Trace]], None] | None = None,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        self._database = database
        self._readers = readers
        self._tracer = tracer
        self._keep_days = keep_days
        self._export = export
        self._clock = clock
        self._news = trio.Event()
        self._writing = trio.Lock()
        self._group: list[Batch] = []
        self._written = 0
        self._lost = 0
        self._failing = False

    async def on_start(self) -> None:
        # What a store before this one was at when it crashed is news again.
        self._tracer.notify = self._wake
        self._wake()
        self.start_soon(self._run, name="writer")
        if self._keep_days is not None:
            self.start_soon(self._retain, self._keep_days, name="retention")

    async def on_stop(self) -> None:
        await self._flush()

    def statistics(self) -> TraceStatistics:
        return TraceStatistics(self._written, self._lost + self._tracer.lost)

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
    async def close(self, request: CloseTraces) -> int:
        """Raises nothing: a host starts without."""
        statements = rows.close(request.runs, self._tracer.live, self._clock())
        try:
            _, *closed = await self._database.ask(Transact(statements))
        except Exception as error:
            log.warning("traces_not_closed", reason=summarize(error))
            return 0
        ended = {str(run_id): None for rows_of in closed for (run_id,) in rows_of}
        found = [await self._readers.read(rows.ONE, (run_id,)) for run_id in ended]
        if self._export is not None:
            self._export([await self._own(rows.info_of(row)) for (row,) in found])
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
        """Write what there is. What a cancellation or a full disk leaves is written later."""
        async with self._writing:
            while True:
                self._group = self._group or self._tracer.take(GROUP_LIMIT)
                if not self._group:
                    return
                written = await self._write(self._group)
                if written is None:
                    self._wake()
                    return
                self._group = []
                if self._export is not None:
                    self._export(await self._ended(written))

    async def _write(self, group: list[Batch]) -> list[Batch] | None:
        """Those that are on disk now, redacted; None when trying again may help.

        Raises nothing: a crash of this actor would end runs, which traces must not.
        """
        try:
            clean = await _whole(group)
            statements = rows.put(clean, self._clock())
            await self._database.ask(Transact(tuple(statements)))
        except (DatabaseLocked, DiskFull, DatabaseClosed, ActorDead) as error:
            self._say_failing(error)
            return None
        except Exception as error:
            if len(group) > 1:  # only one of them may be at fault
                parts = [await self._write([batch]) for batch in group]
                return [batch for part in parts for batch in part or ()]
            self._lost += 1
            log.error("trace_not_stored", run_id=group[0].info.run_id, reason=summarize(error))
            return []
        self._written += len(clean)
        self._failing = False
        return clean

    def _say_failing(self, error: Exception) -> None:
        """Once, until it works again."""
        if not self._failing:
            self._failing = True
            log.warning("traces_wait_to_be_stored", reason=summarize(error), lost=self._lost)

    async def _ended(self, group: Sequence[Batch]) -> list[Trace]:
        """The traces of a group that have ended, each with all the spans of its run."""
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

    # Forgetting

    async def _retain(self, days: float) -> None:
        while True:
            try:
                deleted = await self._prune(self._clock() - days * DAY)
            except Exception as error:
                log.warning("traces_not_pruned", reason=summarize(error))
            else:
                if deleted:
                    log.info("traces_pruned", count=deleted)
            await trio.sleep(PRUNE_INTERVAL)

    async def _prune(self, before: float) -> int:
        deleted = 0
        while True:
            *_, gone = await self._database.ask(Transact(rows.prune(before)))
            deleted += len(gone)
            if len(gone) < rows.PRUNED_AT_ONCE:
                return deleted


async def _whole(batches: list[Batch]) -> list[Batch]:
    """The batches with their inputs in them, which would keep the loop busy."""
    if any(batch.inputs for batch in batches):
        return await trio.to_thread.run_sync(_with_inputs, batches)
    return batches


def _with_inputs(batches: list[Batch]) -> list[Batch]:
    return [Batch(batch.info, with_inputs(batch.spans, batch.inputs)) for batch in batches]


async def list_traces(readers: Readers, request: ListTraces) -> tuple[TraceInfo, ...]:
    """Traces in short, newest first. Raises ``StorageError``."""
    return tuple(map(rows.info_of, await readers.read(*rows.search(request))))


async def get_trace(readers: Readers, run_id: str) -> Trace | None:
    """One trace, with the runs that it called. Raises ``StorageError``."""
    found = await readers.read(rows.ONE, (run_id,))
    if not found:
        return None
    info = rows.info_of(found[0])
    return rows.trace_of(info, await readers.read(rows.SPANS, (run_id, info.trace_id)))


async def own_trace(readers: Readers, info: TraceInfo) -> Trace:
    """The same without the runs that it called. Raises ``StorageError``."""
    return rows.trace_of(info, await readers.read(rows.OWN_SPANS, (info.run_id,)))
