"""Builders for tests of events: a bus on a real database, records, a sink that remembers."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Never

import attrs

from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.writer import Database
from motet.actors.telemetry.event_bus import EventBus, Publisher, Subscribers
from motet.actors.telemetry.subscription import EventJournal
from motet.protocols.events import AnyEvent, EventRecord, MessageAdded, TextDelta
from motet.protocols.storage import Row, Rows, Transact, Transaction
from motet.runtime import ActorRef, System, handles, open_system

STREAM = "session:user:alice"


class FaultyDatabase(Database):
    """A real database that fails or waits first, when ``before`` does; counts transactions."""

    def __init__(self, location: Location, opened: Opened) -> None:
        super().__init__(location)
        self._opened = opened

    @handles(Transact, concurrent=8)
    async def transact(self, message: Transact) -> tuple[tuple[Row, ...], ...]:
        self._opened.transactions += 1
        self._opened.before()
        return await super().transact(message)


@attrs.define
class Opened:
    """A running bus. ``before`` is called before each transaction and may raise."""

    readers: Readers
    subscribers: Subscribers
    journal: EventJournal
    before: Callable[[], None] = lambda: None
    transactions: int = 0
    _bus: ActorRef[Never] | None = None
    _database: ActorRef[Transact] | None = None

    @property
    def bus(self) -> ActorRef[Never]:
        assert self._bus is not None
        return self._bus

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.subscribers)

    async def start(self, system: System, location: Location) -> None:
        database = await system.start(lambda: FaultyDatabase(location, self), name="database")
        self._database = database

        async def transact(transaction: Transaction) -> Rows:
            return await database.ask(Transact(transaction))

        self._bus = await system.start(lambda: EventBus(transact, self.subscribers), name="events")

    async def publish(self, *events: AnyEvent, stream: str = STREAM) -> None:
        for event in events:
            await self.publisher.emit(stream, event, "run_1")

    async def stop_database(self) -> None:
        assert self._database is not None
        await self._database.stop()

    def listen(self, stream: str = STREAM) -> list[EventRecord]:
        """A list that the stream's records are appended to."""
        seen: list[EventRecord] = []
        self.subscribers.attach(stream, seen.append)
        return seen


@asynccontextmanager
async def open_bus(location: Location, capacity: int = 10_000) -> AsyncGenerator[Opened]:
    clock = itertools.count(1_000.0).__next__
    readers, subscribers = Readers(location), Subscribers(clock, capacity)
    opened = Opened(readers, subscribers, EventJournal(readers, subscribers))
    async with open_system() as system:
        await opened.start(system, location)
        try:
            yield opened
        finally:
            await opened.bus.stop()
            await readers.aclose()


def text(n: int) -> MessageAdded:
    return MessageAdded("user", "alice", f"text {n}", n)


def delta(at: int = 0, words: str = "x", i: int = 0) -> TextDelta:
    return TextDelta(i, at, words)


def record(event: AnyEvent, seq: int | None = None, stream: str = STREAM) -> EventRecord:
    return EventRecord(stream, event, 1.0, seq, "run_1")


def numbers(records: list[EventRecord]) -> list[int]:
    return [each.seq for each in records if each.seq is not None]
