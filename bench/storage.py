"""What durable inserts cost: the writer actor next to one COMMIT per insert on the bare library.

Both with WAL and synchronous=FULL on the same disk, 240 bytes a row. With one client the actor
pays for a message and a thread that the bare library, which blocks the loop, does not; with 200
clients it shares commits. Run it as ``python -m bench.storage``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count as numbers
from tempfile import TemporaryDirectory

import trio

from bench.__main__ import table
from bench.kernel import Row, run
from motet.actors.storage.database import Database
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
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


async def insert_motet(count: int, clients: int) -> float:
    async with open_database() as database:
        number = numbers()

        async def client() -> None:
            for _ in range(count // clients):
                await database.ask(Transact((Statement(INSERT, parameters(next(number))),)))

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(client)
        return count / (time.perf_counter() - began)


async def insert_apsw(count: int) -> float:
    with TemporaryDirectory() as folder, Location.directory(folder) as location:
        connection = location.connect()
        migrate(connection)
        began = time.perf_counter()
        for number in range(count):
            connection.run(INSERT, parameters(number))
            await trio.lowlevel.checkpoint()
        seconds = time.perf_counter() - began
        connection.close()
        return count / seconds


ROWS = (
    Row(
        "insert, 1 client",
        "apsw, a commit each",
        partial(insert_motet, clients=1),
        insert_apsw,
        2_000,
    ),
    Row(
        "insert, 200",
        "apsw, a commit each",
        partial(insert_motet, clients=200),
        insert_apsw,
        6_000,
    ),
)


def main() -> None:
    """Measure and print."""
    sys.stdout.write(table(run(ROWS, rounds=5)) + "\n")


if __name__ == "__main__":
    main()
