"""Files of a database that are deleted, moved or replaced under it, and files that shrink."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import motet
from motet.actors.storage.error_store import ErrorStore
from motet.actors.storage.location import DATABASE_FILE, FILES, Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.writer import Database, Writer, check
from motet.protocols.error_records import Keep
from motet.protocols.retention import give_back, prune_errors
from motet.protocols.storage import DatabaseGone, Row, Statement
from motet.runtime import open_system
from tests.actors.errors.builders import failure

INSERT = (Statement("INSERT INTO streams (stream, head) VALUES (?, 0)", ("s",)),)


@pytest.mark.parametrize("end", FILES)
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_write_after_a_file_went_is_refused_until_it_is_back(
    tmp_path: Path, end: str, how: str
) -> None:
    """Law: a transaction that was answered is in the file that the next host opens."""
    file, aside = tmp_path / f"{DATABASE_FILE}{end}", tmp_path / "aside"
    with Location.directory(tmp_path) as location:
        writer = Writer(location)
        await writer.open()
        file.rename(aside)
        if how == "replaced":
            file.write_bytes(aside.read_bytes())
        for _ in range(2):
            with pytest.raises(DatabaseGone, match="put the files back"):
                await writer.submit(INSERT)
        assert isinstance(writer.health.problem, DatabaseGone)
        aside.rename(file)
        await writer.submit(INSERT)
        assert writer.health.problem is None
        await writer.aclose()


async def test_a_host_says_that_its_files_went_and_does_not_end(tmp_path: Path) -> None:
    agent = motet.Agent("a", model="demo")
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        await host.run("a", "hello", session="s")
        (tmp_path / DATABASE_FILE).unlink()
        with pytest.raises(motet.StorageError, match="deleted, moved or replaced"):
            await host.submit("hello", agent="a", session="s")
        assert "deleted or replaced" in host.status().storage


def refuses(_path: str, _mode: int) -> bool:
    return False


async def test_a_problem_of_the_files_is_told_before_a_write_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with motet.open_host(tmp_path / "st", workspace=tmp_path / "w") as host:
        assert host.status().storage == ""
        (tmp_path / "st").rename(tmp_path / "aside")
        assert "deleted or replaced" in host.status().storage
        (tmp_path / "aside").rename(tmp_path / "st")
        assert host.status().storage == ""
        with monkeypatch.context() as full:
            full.setattr("motet.actors.storage.writer.LEAST_ROOM", 1 << 62)
            assert "full" in host.status().storage
        with monkeypatch.context() as read_only:
            read_only.setattr(os, "access", refuses)
            assert "takes no writes" in host.status().storage


async def filled(folder: Path) -> Path:
    """The file of a database whose host has stored many events, and has ended."""
    with Location.directory(folder) as location:
        writer = Writer(location)
        await writer.open()
        add = "INSERT INTO events VALUES ('s', ?, 0, 'message', NULL, ?)"
        rows = tuple((number, f"{number} " * 500) for number in range(2_000))
        await writer.submit((Statement(add, each=rows),))
        await writer.aclose()
    return folder / DATABASE_FILE


def with_holes(file: Path) -> None:
    """Zeros in place of a part that nothing reads at a start."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        for at in range(size // 2 & -4096, size // 2 + 65_536, 4096):
            opened.seek(at)
            opened.write(bytes(4096))


@pytest.mark.parametrize("how", ["holes", "half"])
async def test_a_damaged_database_is_not_served(tmp_path: Path, how: str) -> None:
    """Given damage where no start looks, when the database is opened, then it is told, with the
    ways out, and nothing is written."""
    file = await filled(tmp_path)
    with_holes(file) if how == "holes" else os.truncate(file, file.stat().st_size // 2)
    before = file.read_bytes()
    with (
        Location.directory(tmp_path) as location,
        pytest.raises(motet.StorageError, match=r"damaged.*motet doctor --repair"),
    ):
        await Writer(location).open()
    assert file.read_bytes() == before


async def test_the_look_for_damage_at_a_start_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with_holes(await filled(tmp_path))
    with Location.directory(tmp_path) as location, closing(location.connect()) as connection:
        with pytest.raises(motet.StorageError):
            check(connection, 60.0, "it")
        check(connection, -1.0, "it")
    assert "in part only" in caplog.text


async def test_the_log_gives_its_space_back_when_a_stuck_reader_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motet.actors.storage.location.LOG_LIMIT", 100_000)
    log = tmp_path / f"{DATABASE_FILE}-wal"
    add = "INSERT INTO events VALUES ('s', ?, 0, 'message', NULL, ?)"
    with Location.directory(tmp_path) as location:
        writer = Writer(location)
        await writer.open()
        with closing(location.connect(read_only=True)) as stuck:
            stuck.run("BEGIN")
            stuck.run("SELECT count(*) FROM events")
            for number in range(8):
                await writer.submit((Statement(add, (number, "x" * 1_000_000)),))
        assert log.stat().st_size > 8_000_000
        for number in range(8, 12):
            await writer.submit((Statement(add, (number, "x")),))
        assert log.stat().st_size <= 100_000
        await writer.aclose()


async def test_a_log_that_a_stuck_reader_keeps_is_told_at_each_doubling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a reader that does not end, when 1 MB after 1 MB is stored, then the log of the program
    says so at 2 MB and at each doubling, and again for the next such reader."""
    monkeypatch.setattr("motet.actors.storage.location.LOG_LIMIT", 100_000)
    monkeypatch.setattr("motet.actors.storage.writer.LONG_LOG", 2_000_000)
    monkeypatch.setattr("motet.actors.storage.writer.LOOK_EVERY", 0.0)
    add = "INSERT OR REPLACE INTO events VALUES ('s', ?, 0, 'message', NULL, ?)"
    with Location.directory(tmp_path) as location:
        writer = Writer(location)
        await writer.open()
        assert location.sizes()[0] > 0
        told = list[int]()
        for _ in range(2):
            with closing(location.connect(read_only=True)) as stuck:
                stuck.run("BEGIN")
                stuck.run("SELECT count(*) FROM events")
                for number in range(10):
                    await writer.submit((Statement(add, (number, "x" * 1_000_000)),))
            assert location.sizes()[1] > 10_000_000
            told.append(caplog.text.count("the_log_of_the_database_grows"))
            for _ in range(4):
                await writer.submit((Statement(add, (1, "x")),))
        assert told == [2, 5]
        await writer.aclose()


async def test_an_old_database_is_made_to_shrink(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as old, old:
        old.execute("CREATE TABLE t (x)")
        old.execute("INSERT INTO t VALUES (1)")
    with Location.directory(tmp_path) as location:
        writer = Writer(location)
        await writer.open()
        assert await writer.submit((Statement("PRAGMA auto_vacuum"),)) == (((2,),),)
        await writer.aclose()


async def test_pruned_errors_give_their_space_back(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        readers, writer = Readers(location), Writer(location)
        async with open_system() as system:
            await system.start(lambda: Database(location, writer), name="database")
            store = await system.start(lambda: ErrorStore(writer.submit, readers), name="errors")
            for number in range(50):
                await store.ask(failure("x " * 30_000 + str(number)))
            before = await _pages(readers)

            async def write(one: Statement) -> tuple[Row, ...]:
                return (await writer.submit((one,)))[0]

            await prune_errors(write, write, Keep(megabytes=0.1), 0.0)
            await give_back(write)
            assert await _pages(readers) < before / 5
        await readers.aclose()


async def _pages(readers: Readers) -> int:
    ((pages,),) = await readers.read("PRAGMA page_count")
    return int(pages or 0)
