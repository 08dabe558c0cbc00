"""Builders for tests that need a database: one in a directory, one in memory, its rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs

from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.writer import Database, Writer
from motet.protocols.storage import Row, SqlValue, Statement, Transact
from motet.runtime import ActorRef, System, open_system


@attrs.frozen
class Opened:
    """A running database. ``actor`` is there for its statistics only."""

    system: System
    ref: ActorRef[Transact]
    actor: Database
    readers: Readers
    writer: Writer

    async def execute(self, sql: str, *params: SqlValue) -> tuple[Row, ...]:
        (rows,) = await self.ref.ask(Transact((Statement(sql, params),)))
        return rows

    async def notes(self) -> list[SqlValue]:
        return [text for (text,) in await self.readers.read("SELECT text FROM notes ORDER BY text")]


def note(text: str) -> Transact:
    return Transact((Statement("INSERT INTO notes (text) VALUES (?)", (text,)),))


@asynccontextmanager
async def open_database(
    location: Location, *, check_messages: bool = True
) -> AsyncGenerator[Opened]:
    """A database with a table ``notes (text UNIQUE)`` beside the tables of the schema."""
    async with open_system(check_messages=check_messages) as system:
        actors, writer = list[Database](), Writer(location)

        def build() -> Database:
            actors.append(Database(location, writer))
            return actors[-1]

        ref = await system.start(build, name="database")
        readers = Readers(location)
        opened = Opened(system, ref, actors[0], readers, writer)
        await opened.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT UNIQUE)")
        try:
            yield opened
        finally:
            await readers.aclose()
