"""Builders for tests of results: a store on a real database, a clock to turn."""

from __future__ import annotations

import random
import secrets
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs

from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.results import LIFETIME, MAX_BYTES, ResultStore
from motet.actors.storage.writer import Database, through
from motet.protocols.results import COMPRESS_FROM, Kind, ResultInfo, ResultProtocol, StoreResult
from motet.protocols.storage import Row, SqlValue, Statement, Transact
from motet.runtime import ActorRef, open_system


@attrs.define
class Opened:
    """A running result store. ``now``: its clock, in Unix seconds."""

    store: ActorRef[ResultProtocol]
    database: ActorRef[Transact]
    readers: Readers

    async def put(
        self, content: bytes | str, session: str = "s", kind: Kind = "text", pinned: bool = False
    ) -> ResultInfo:
        data = content.encode() if isinstance(content, str) else content
        return await self.store.ask(StoreResult(session, "t", kind, data, pinned))

    async def execute(self, sql: str, *params: SqlValue) -> tuple[Row, ...]:
        (rows,) = await self.database.ask(Transact((Statement(sql, params),)))
        return rows

    async def ids_on_disk(self) -> set[str]:
        return {str(row[0]) for row in await self.readers.read("SELECT id FROM results")}


@attrs.define
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_results(
    location: Location,
    clock: Callable[[], float] | None = None,
    hex_source: Callable[[int], str] = secrets.token_hex,
    *,
    max_bytes: int = MAX_BYTES,
    lifetime: float = LIFETIME,
    compress_from: int = COMPRESS_FROM,
) -> AsyncGenerator[Opened]:
    readers = Readers(location)
    async with open_system(check_messages=True) as system:
        database = await system.start(lambda: Database(location), name="database")
        store = await system.start(
            lambda: ResultStore(
                through(database),
                readers,
                clock or Clock(),
                hex_source,
                max_bytes=max_bytes,
                lifetime=lifetime,
                compress_from=compress_from,
            ),
            name="results",
        )
        try:
            yield Opened(store, database, readers)
        finally:
            await readers.aclose()


def noise(size: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size)


def encoded(size: int, seed: int = 7) -> str:
    return b64encode(noise(size, seed)).decode()
