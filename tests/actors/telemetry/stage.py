"""Builders for tests of traces: a tracer on a clock of the test, calls, answers, spans by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import attrs

from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.traces import TraceStatistics, TraceStore
from motet.actors.storage.writer import Database, through
from motet.actors.telemetry.tracer import RunTrace, Tracer
from motet.protocols.chat import Call, Outcome
from motet.protocols.models import ModelResponse, Usage
from motet.protocols.storage import Row, SqlValue, Statement, Transact
from motet.protocols.tools import CallResult
from motet.protocols.traces import FlushTraces, GetTrace, Span, Trace, TraceProtocol, with_inputs
from motet.runtime import ActorRef, System, open_system

START = 1_800_000_000.0


@attrs.define
class Clock:
    """Seconds that pass when a test says so."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at


def tracer(clock: Clock | None = None, *, verbose: bool = False) -> Tracer:
    return Tracer(verbose=verbose, clock=clock or Clock(), wall=lambda: START)


def begun(traces: Tracer, run_id: str = "run_1", session: str = "s") -> RunTrace:
    return traces.begin(run_id, session=session, agent="helper", user="alice")


def call(call_id: str = "c0", name: str = "look") -> Call:
    return Call(call_id, name, '{"at": 1}')


def result(
    call_id: str = "c0", text: str = "fine", outcome: Outcome = "done", kind: str = ""
) -> CallResult:
    return CallResult(call_id, "look", text, outcome, kind)


def answer(text: str = "hello", tokens: tuple[int, int] = (10, 5)) -> ModelResponse:
    return ModelResponse(text, usage=Usage(*tokens, cost=0.25))


def taken(traces: Tracer) -> list[Span]:
    batches = traces.take(1_000)
    return [span for batch in batches for span in with_inputs(batch.spans, batch.inputs)]


def named(spans: Iterable[Span], name: str) -> Span:
    (found,) = (span for span in spans if span.name == name)
    return found


@attrs.define
class Opened:
    """A running store and what is around it."""

    system: System
    database: ActorRef[Transact]
    ref: ActorRef[TraceProtocol]
    store: TraceStore
    readers: Readers
    tracer: Tracer
    exported: list[Trace]

    async def execute(self, sql: str, *params: SqlValue) -> tuple[Row, ...]:
        (rows,) = await self.database.ask(Transact((Statement(sql, params),)))
        return rows

    async def trace(self, run_id: str = "run_1") -> Trace:
        found = await self.ref.ask(GetTrace(run_id))
        assert found is not None
        return found

    async def flush(self) -> TraceStatistics:
        await self.ref.ask(FlushTraces())
        return self.store.statistics()


@asynccontextmanager
async def open_traces(location: Location, traces: Tracer | None = None) -> AsyncGenerator[Opened]:
    traces = traces or tracer()
    readers, exported, stores = Readers(location), list[Trace](), list[TraceStore]()

    async with open_system() as system:
        database = await system.start(lambda: Database(location), name="database")

        def made() -> TraceStore:
            stores.append(
                TraceStore(
                    through(database),
                    readers,
                    traces,
                    export=exported.extend,
                    clock=lambda: START + 60,
                )
            )
            return stores[-1]

        ref = await system.start(made, name="traces")
        try:
            yield Opened(system, database, ref, stores[-1], readers, traces, exported)
        finally:
            await ref.stop()
            await readers.aclose()
