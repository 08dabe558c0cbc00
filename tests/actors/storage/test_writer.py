"""The one writer of a place: what it does before, between and after it is open."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.location import Location
from motet.actors.storage.writer import Writer
from motet.protocols.storage import DatabaseClosed, SchemaTooNew, Statement

ONE = (Statement("SELECT 1"),)


@pytest.mark.parametrize("where", ["directory", "memory"])
async def test_a_writer_is_closed_until_it_is_opened_and_may_be_opened_again(
    tmp_path: Path, where: str
) -> None:
    with Location.directory(tmp_path) if where == "directory" else Location.memory() as location:
        writer = Writer(location)
        for _ in range(2):
            with pytest.raises(DatabaseClosed):
                await writer.submit(ONE)
            await writer.open()
            assert await writer.submit(ONE) == (((1,),),)
            await writer.aclose()
        await writer.aclose()


async def test_a_database_that_cannot_be_opened_leaves_the_writer_closed(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        connection = location.connect()
        connection.run("PRAGMA user_version = 1000000")
        connection.close()
        writer = Writer(location)
        with pytest.raises(SchemaTooNew):
            await writer.open()
        with pytest.raises(DatabaseClosed):
            await writer.submit(ONE)
        await writer.aclose()


async def test_closing_waits_for_the_commit_that_is_under_way(tmp_path: Path) -> None:
    """And what still waits then is told that there is no database any more."""
    outcomes: list[str] = []

    async def write(writer: Writer, text: str) -> None:
        try:
            await writer.submit((Statement("INSERT INTO notes VALUES (?)", (text,)),))
        except DatabaseClosed:
            outcomes.append(f"{text} refused")
        else:
            outcomes.append(f"{text} stored")

    with Location.directory(tmp_path) as location:
        writer = Writer(location)
        await writer.open()
        await writer.submit((Statement("CREATE TABLE notes (text TEXT)"),))
        other = location.connect()
        other.run("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, writer, "first")
            await wait_all_tasks_blocked()
            nursery.start_soon(write, writer, "second")
            nursery.start_soon(writer.aclose)
            await wait_all_tasks_blocked()
            other.run("COMMIT")
        other.close()
        await writer.open()
        (rows,) = await writer.submit((Statement("SELECT text FROM notes"),))
        await writer.aclose()
    assert sorted(outcomes) == ["first stored", "second refused"]
    assert rows == (("first",),)
