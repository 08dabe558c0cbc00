"""Files of a database that are deleted, moved or replaced under it, and files that shrink."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import motet
from motet.actors.storage.error_store import ErrorRetention, ErrorStore, PruneErrors
from motet.actors.storage.location import DATABASE_FILE, FILES, Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.writer import Database, Writer, through
from motet.protocols.error_records import Keep
from motet.protocols.storage import DatabaseGone, Statement
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
            database = await system.start(lambda: Database(location, writer), name="database")
            store = await system.start(lambda: ErrorStore(writer.submit, readers), name="errors")
            for number in range(50):
                await store.ask(failure("x " * 30_000 + str(number)))
            before = await _pages(readers)
            retention = await system.start(
                lambda: ErrorRetention(through(database), readers, Keep(megabytes=0.1)),
                name="retention",
            )
            await retention.ask(PruneErrors())
            assert await _pages(readers) < before / 5
        await readers.aclose()


async def _pages(readers: Readers) -> int:
    ((pages,),) = await readers.read("PRAGMA page_count")
    return int(pages or 0)
