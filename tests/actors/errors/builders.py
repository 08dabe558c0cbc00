"""Builders for tests of the error channel: a store on a real database, requests, warnings."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs

from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.storage.error_store import ErrorStore
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.writer import Database, Writer
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.protocols.errors import ErrorProtocol, StoreError
from motet.protocols.events import AnyEvent
from motet.protocols.storage import Rows, Transaction
from motet.runtime import ActorRef, System, open_system


@attrs.define
class Opened:
    """A running store and the system it runs in."""

    system: System
    store: ActorRef[ErrorProtocol]
    readers: Readers
    spool: ErrorSpool
    errors: SqliteErrors


@asynccontextmanager
async def open_store(
    location: Location,
    clock: Callable[[], float] = time.time,
    hex_source: Callable[[int], str] = secrets.token_hex,
    keep_raw: bool = False,
) -> AsyncGenerator[Opened]:
    readers, writer = Readers(location), Writer(location)
    errors = SqliteErrors(writer.submit, readers)
    spool = ErrorSpool(errors.store, None, clock, hex_source, keep_raw=keep_raw)
    async with open_system() as system:
        await system.start(lambda: Database(location, writer), name="database")
        store = await system.start(
            lambda: ErrorStore(writer.submit, readers, clock, spool=spool), name="errors"
        )
        try:
            yield Opened(system, store, readers, spool, errors)
        finally:
            await readers.aclose()


class FakeWriter:
    """Writes every error it is given, unless ``script(n)`` of the n-th transaction raises."""

    def __init__(self, script: Callable[[int], object]) -> None:
        self.script = script
        self.asked = 0

    async def submit(self, transaction: Transaction) -> Rows:
        self.asked += 1
        self.script(self.asked - 1)
        return ((),) * len(transaction)


@attrs.define
class Warnings:
    """What a channel warned of."""

    events: list[tuple[str, AnyEvent]] = attrs.field(factory=list[tuple[str, AnyEvent]])

    def channel(self, spool: ErrorSpool | None) -> ErrorChannel:
        return ErrorChannel(spool, lambda run_id, event: self.events.append((run_id, event)))


def failure(message: str = "boom", session: str = "s1", tool: str = "t") -> StoreError:
    return StoreError(session, tool, {"message": message}, message)
