"""Starts what a host needs for its traces."""

from __future__ import annotations

import os

import trio

from motet.actors.storage.readers import Readers
from motet.actors.tracing.recorder import Tracer
from motet.actors.tracing.store import TraceProtocol, TraceStore
from motet.protocols.config import TracingConfig
from motet.protocols.storage import Transact
from motet.runtime import ActorRef, System

VERBOSE = "MOTET_TRACE_VERBOSE"
_NO = ("", "0", "false", "no", "off")


async def start_tracing(
    system: System, database: ActorRef[Transact], readers: Readers, config: TracingConfig
) -> tuple[Tracer, ActorRef[TraceProtocol]]:
    """The tracer of a host and the actors behind it, the exporter first, so that it stops last."""
    wanted = os.environ.get(VERBOSE, "").strip().lower() not in _NO
    clock = trio.lowlevel.current_clock().current_time
    tracer = Tracer(verbose=config.verbose or wanted, clock=clock)
    keep, export = config.keep_days, None
    if config.otlp is not None:
        from motet.actors.tracing.export import Collector, Exporter, Outbox  # few hosts export

        collector, outbox = Collector(config.otlp, config.otlp_headers), Outbox()
        await system.start(lambda: Exporter(collector, outbox), name="exporter")
        export = outbox.put
    store = await system.start(
        lambda: TraceStore(database, readers, tracer, keep_days=keep, export=export),
        name="traces",
    )
    return tracer, store
