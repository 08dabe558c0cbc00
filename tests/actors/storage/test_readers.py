"""Readers: beside the writer, never blocking Trio, interrupted when cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.protocols.storage import DatabaseClosed, StorageError
from tests.actors.storage.builders import note, open_database

FOREVER = """
WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"""


async def test_a_reader_sees_answered_transactions_and_no_open_one(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            await database.ref.ask(note("answered"))
            other = location.connect()
            other.run("BEGIN IMMEDIATE; INSERT INTO notes VALUES ('open')")
            assert await database.notes() == ["answered"]
            other.run("ROLLBACK")
            other.close()


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            with pytest.raises(StorageError, match="readonly"):
                await database.readers.read("INSERT INTO notes VALUES ('a')")


async def test_a_cancelled_query_ends_and_its_connection_is_free(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            for _ in range(3):
                async with trio.open_nursery() as nursery:
                    for _ in range(4):  # two of them run, two wait
                        nursery.start_soon(database.readers.read, FOREVER)
                    await wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            assert await database.readers.read("SELECT 1") == ((1,),)


async def test_a_query_cancelled_before_its_thread_began_ends_too(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(database.readers.read, FOREVER)
                    await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert scope.cancelled_caught


async def test_queries_run_beside_each_other(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database, trio.open_nursery() as nursery:
            nursery.start_soon(database.readers.read, FOREVER)
            await wait_all_tasks_blocked()
            assert await database.readers.read("SELECT 1") == ((1,),)
            nursery.cancel_scope.cancel()


async def test_closing_ends_the_running_queries_and_refuses_new_ones(tmp_path: Path) -> None:
    closed: list[str] = []

    async def read(readers: Readers) -> None:
        try:
            await readers.read(FOREVER)
        except DatabaseClosed as error:
            closed.append(str(error))

    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(read, database.readers)
                await wait_all_tasks_blocked()
                await database.readers.aclose()
            with pytest.raises(DatabaseClosed, match="has stopped"):
                await database.readers.read("SELECT 1")
            await database.readers.aclose()
    assert len(closed) == 3


async def test_readers_in_memory_do_not_wait() -> None:
    with Location.memory() as location:
        async with open_database(location) as database:
            async with trio.open_nursery() as nursery:
                for index in range(20):
                    nursery.start_soon(database.ref.ask, note(f"{index:02}"))
                    nursery.start_soon(database.notes)
            assert len(await database.notes()) == 20


async def test_a_point_read_sees_answered_transactions_and_fails_when_closed() -> None:
    with Location.memory() as location:
        async with open_database(location) as database:
            await database.ref.ask(note("one"))
            assert await database.readers.point("SELECT count(*) FROM notes") == ((1,),)
            await database.ref.ask(note("two"))
            assert await database.readers.point("SELECT count(*) FROM notes") == ((2,),)
            await database.readers.aclose()
            with pytest.raises(DatabaseClosed):
                await database.readers.point("SELECT 1")


async def test_a_point_read_that_meets_a_lock_leaves_the_waiting_to_a_thread(
    tmp_path: Path,
) -> None:
    with Location.directory(tmp_path) as location:
        other = Connection(str(tmp_path / "motet.db"))
        other.run("CREATE TABLE notes (text)")  # without WAL, where a writer locks readers out
        readers = Readers(location)
        other.run("BEGIN EXCLUSIVE")
        found: list[object] = []

        async def look() -> None:
            found.append(await readers.point("SELECT count(*) FROM notes"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await wait_all_tasks_blocked()
            assert found == [], "a thread waits, and this one does not"
            other.run("COMMIT")
        assert found == [((0,),)]
        other.close()
        await readers.aclose()
