"""The writer actor on a real file: commits shared, failures alone, cancellation told truly."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage import location as location_module
from motet.actors.storage.location import Location
from motet.actors.storage.writer import Database
from motet.protocols.storage import (
    ConstraintFailed,
    DatabaseLocked,
    DiskFull,
    SchemaTooNew,
    Statement,
    StorageError,
    Transact,
)
from motet.runtime import StartFailed, open_system
from tests.actors.storage.builders import Opened, note, open_database


async def test_a_crowd_shares_commits_and_each_gets_its_answer(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            before = database.actor.statistics()
            async with trio.open_nursery() as nursery:
                for index in range(100):
                    nursery.start_soon(database.ref.ask, note(f"{index:03}"))
            after = database.actor.statistics()
            assert await database.notes() == [f"{index:03}" for index in range(100)]
    assert after.items - before.items == 100
    assert after.commits - before.commits < 20


async def test_one_that_fails_in_a_crowd_fails_alone(tmp_path: Path) -> None:
    refused: list[str] = []

    async def write(database: Opened, text: str) -> None:
        try:
            await database.ref.ask(note(text))
        except ConstraintFailed:
            refused.append(text)

    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            async with trio.open_nursery() as nursery:
                for index in range(20):
                    nursery.start_soon(write, database, f"{index // 2:02}")
            assert await database.notes() == [f"{index:02}" for index in range(10)]
    assert sorted(refused) == [f"{index:02}" for index in range(10)]


async def test_acknowledged_writes_survive_a_restart_of_the_host(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with Location.directory(tmp_path) as location:
            async with open_database(location) as database:
                await database.ref.ask(note(text))
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            assert await database.notes() == ["first", "second"]
    assert not (tmp_path / "motet.db-wal").exists()


async def test_a_full_disk_is_reported_and_the_writer_survives(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            await database.execute("PRAGMA max_page_count = 60")
            with pytest.raises(DiskFull, match="free some space"):
                await database.ref.ask(note("x" * 400_000))
            await database.execute("PRAGMA max_page_count = 100000")
            await database.ref.ask(note("there is room again"))
            assert await database.notes() == ["there is room again"]


async def test_a_lock_of_another_program_is_waited_for_while_trio_runs(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            other = location.connect()
            other.run("BEGIN IMMEDIATE")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(database.ref.ask, note("patient"))
                await wait_all_tasks_blocked()
                other.run("COMMIT")
            other.close()
            assert await database.notes() == ["patient"]


async def test_a_lock_that_stays_is_an_error_of_that_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location_module, "BUSY_TIMEOUT", 0.01)
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            other = location.connect()
            other.run("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseLocked):
                await database.ref.ask(note("refused"))
            other.run("COMMIT")
            other.close()
            await database.ref.ask(note("accepted"))
            assert await database.notes() == ["accepted"]


async def test_a_commit_under_way_is_not_reported_as_cancelled(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            other = location.connect()
            other.run("BEGIN IMMEDIATE")
            answered = False

            async def write(scope: trio.CancelScope) -> None:
                nonlocal answered
                with scope:
                    await database.ref.ask(note("kept"))
                    answered = True

            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, scope)
                await wait_all_tasks_blocked()
                scope.cancel()
                await wait_all_tasks_blocked()
                other.run("COMMIT")
            other.close()
            assert answered
            assert await database.notes() == ["kept"]


@pytest.mark.parametrize("where", ["directory", "memory"])
async def test_cancelled_at_any_step_a_row_is_there_exactly_if_its_asker_was_answered(
    tmp_path: Path, where: str
) -> None:
    """Sweep: five askers, one of them cancelled after k steps, for all k until it is too late."""
    answered: list[str] = []

    async def write(database: Opened, text: str, scope: trio.CancelScope) -> None:
        with scope:
            await database.ref.ask(note(text))
            answered.append(text)

    with Location.directory(tmp_path) if where == "directory" else Location.memory() as location:
        async with open_database(location) as database:
            for steps in range(25):
                for victim in range(5):
                    scopes = [trio.CancelScope() for _ in range(5)]
                    async with trio.open_nursery() as nursery:
                        for index, scope in enumerate(scopes):
                            text = f"{steps:02}-{victim}-{index}"
                            nursery.start_soon(write, database, text, scope)
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                        scopes[victim].cancel()
            assert await database.notes() == sorted(answered)
    assert 500 <= len(answered) <= 625


async def test_a_database_of_the_future_fails_the_start_and_says_why(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        connection = location.connect()
        connection.run("PRAGMA user_version = 1000")
        connection.close()
        async with open_system() as system:
            with pytest.raises(StartFailed) as failure:
                await system.start(lambda: Database(location), name="database")
    assert "newer" in str(failure.value) or isinstance(failure.value.__cause__, SchemaTooNew)


async def test_memory_keeps_its_rows_while_another_writer_takes_over() -> None:
    with Location.memory() as location:
        async with open_database(location) as database:
            await database.ref.ask(note("kept"))
        async with open_database(location) as database:
            assert await database.notes() == ["kept"]


async def test_hosts_in_memory_have_nothing_in_common() -> None:
    with Location.memory() as one, Location.memory() as other:
        async with open_database(one) as first, open_database(other) as second:
            await first.ref.ask(note("mine"))
            assert await first.notes() == ["mine"]
            assert await second.notes() == []


async def test_no_thread_keeps_the_process_alive(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_database(location) as database:
            await database.ref.ask(note("a"))
            await database.notes()
            others = [t for t in threading.enumerate() if t is not threading.main_thread()]
            assert others
            assert all(thread.daemon for thread in others)


async def test_memory_needs_no_thread() -> None:
    threads: set[str] = set()
    with Location.memory() as location:

        def remember() -> int:
            threads.add(threading.current_thread().name)
            return 1

        assert await location.run(remember) == 1
    assert threads == {threading.main_thread().name}


async def test_the_actor_survives_a_bad_transaction() -> None:
    with Location.memory() as location:
        async with open_database(location) as database:
            with pytest.raises(StorageError, match="no such table"):
                await database.ref.ask(Transact((Statement("DELETE FROM nowhere"),)))
            await database.ref.ask(note("still here"))
