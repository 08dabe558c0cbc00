"""The cost of durable inserts: the writer actor and one COMMIT per insert on the bare library.

Both use WAL and synchronous=FULL on the same disk, with 240 bytes a row. With one client the actor
has the extra cost of a message and a thread, while the bare library blocks the loop; with 200
clients the actor shares commits.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count as numbers
from tempfile import TemporaryDirectory

import trio

from bench.clock import Watch
from bench.rows import MOTET, RATE, Case, Row
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.actors.storage.writer import Database
from motet.protocols.storage import SqlValue, Statement, Transact
from motet.runtime import ActorRef, open_system

__all__ = ["ROWS"]

INSERT = """
INSERT INTO agent_errors (id, timestamp, session_id, tool_name, raw_error, short_summary)
VALUES (?, ?, 'session', 'tool', ?, 'summary')"""
TEXT = "x" * 200


def parameters(number: int) -> tuple[SqlValue, ...]:
    return f"err_{number}", float(number), TEXT


@asynccontextmanager
async def open_database() -> AsyncGenerator[ActorRef[Transact]]:
    with TemporaryDirectory() as folder, Location.directory(folder) as location:
        async with open_system() as system:
            yield await system.start(lambda: Database(location), name="database")


def insert_1(count: int) -> float:
    return trio.run(_insert, count, 1)


def insert_200(count: int) -> float:
    return trio.run(_insert, count // 200 * 200, 200)


async def _insert(count: int, clients: int) -> float:
    async with open_database() as database:
        number = numbers()

        async def client() -> None:
            for _ in range(count // clients):
                await database.ask(Transact((Statement(INSERT, parameters(next(number))),)))

        watch = Watch(time.perf_counter)  # a disk is waited for
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(client)
        return watch.rate(count)


def insert_bare(count: int) -> float:
    with TemporaryDirectory() as folder, Location.directory(folder) as location:
        connection = location.connect()
        migrate(connection)
        watch = Watch(time.perf_counter)  # a disk is waited for
        for number in range(count):
            connection.run(INSERT, parameters(number))
        rate = watch.rate(count)
        connection.close()
        return rate


def _row(name: str, function: str, count: int, goal: float) -> Row:
    cases = Case(MOTET, __name__, function, count), Case("apsw", __name__, "insert_bare", 2_000)
    return Row(name, RATE, cases, "apsw", goal, bounded=True)


ROWS = (
    _row("insert, 1 client", "insert_1", 2_000, 2_500),
    _row("insert, 200 clients", "insert_200", 8_000, 15_000),
)
