"""Raw errors of megabytes: their text is in parts, each of which is made when it is written."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import run

import pytest
from msgspec.structs import replace

from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.writer import Writer
from motet.protocols.error_rows import DELETE_ROWS, PART, part_statements
from motet.protocols.errors import ListErrors
from motet.protocols.long_texts import ERROR_LIMIT
from motet.protocols.storage import DiskFull, Statement
from motet.testing.errors import record
from tests.motet.command import ROOT

LARGE = replace(record(1), raw_error=f'{{"message":"{"no such thing" * (PART // 8)}"}}')


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[tuple[SqliteErrors, Writer, Readers]]:
    with Location.directory(folder) as location:
        readers, writer = Readers(location), Writer(location)
        await writer.open()
        yield SqliteErrors(writer.submit, readers), writer, readers
        await readers.aclose()
        await writer.aclose()


async def test_it_is_stored_once_and_listed_by_its_size(tmp_path: Path) -> None:
    async with opened(tmp_path) as (errors, _, readers):
        for batch in ([record(0), LARGE], [LARGE], [record(0), LARGE]):
            assert not await errors.store(batch)
        listed, small = (await errors.page(ListErrors(), None)).errors
        assert listed.raw_error == {"omitted_bytes": len(LARGE.raw_error)}
        assert small.raw_error == {"message": "boom 0"}
        parts = await readers.read("SELECT part, length(text) FROM error_parts ORDER BY part")
        assert parts == ((0, PART), (1, len(LARGE.raw_error) - PART))


async def test_another_error_with_its_id_keeps_its_own_text(tmp_path: Path) -> None:
    async with opened(tmp_path) as (errors, _, readers):
        await errors.store([record(1)])
        assert await errors.store([replace(LARGE, session_id="another")]) == {LARGE.id}
        assert await readers.read("SELECT * FROM error_parts") == ()
        found = await errors.get(LARGE.id)
        assert found is not None
        assert found.raw_error == {"message": "boom 1"}


async def test_its_parts_go_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (errors, writer, readers):
        await errors.store([LARGE, replace(LARGE, id=record(2).id, session_id="kept")])
        await errors.forget(LARGE.session_id)
        assert await readers.read("SELECT DISTINCT seq FROM error_parts") == ((2,),)
        await writer.submit((Statement(DELETE_ROWS, ("[2]",)),))
        assert await readers.read("SELECT * FROM error_parts") == ()


async def test_a_full_disk_leaves_nothing_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (errors, writer, readers):
        ((pages,),) = await readers.read("PRAGMA page_count")
        await writer.submit((Statement(f"PRAGMA max_page_count = {int(pages or 0) + 30}"),))
        with pytest.raises(DiskFull):
            await errors.store([LARGE])
        assert await errors.get(LARGE.id) is None
        assert await readers.read("SELECT * FROM error_parts") == ()
        assert not await errors.store([record(1)])


def test_parts_are_a_sequence() -> None:
    """A group that failed is run again, and asks for them again."""
    (statement,) = part_statements([record(0), LARGE])
    parts = statement.each
    assert len(parts) == 2
    assert [*parts] == [*parts] == [parts[0], parts[1]] == [parts[-2], parts[-1]] == [*parts[0:2]]
    assert "".join(str(text) for _, text, *_ in parts) == LARGE.raw_error
    with pytest.raises(IndexError):
        parts[len(parts)]


async def test_every_part_of_its_text_is_read(tmp_path: Path) -> None:
    """Law: a page of any place and length is that part of the whole, for every kind of text."""
    source = random.Random(7)
    for number, letter in enumerate("aé試\U0001f600"):
        size = source.choice((PART + 1, 2 * PART, 2 * PART + 7))
        text = "".join(source.choices("ab" + letter, k=size - 14))
        made = replace(record(number), raw_error=f'{{"message":"{text}"}}')
        async with opened(tmp_path / str(number)) as (errors, _, _):
            await errors.store([made])
            found = await errors.get(made.id)
            assert found is not None
            assert found.raw_error == {"message": text}
            for _ in range(20):
                at = source.choice((source.randrange(size + 9), PART * source.randrange(3)))
                limit = source.choice((1, 9, PART, source.randrange(1, 2 * size)))
                part = await errors.read(made.id, at, limit)
                assert part is not None
                assert (part.text, part.size) == (made.raw_error[at : at + limit], size)


MEMORY = """
import gc, sys, trio, motet.runtime.spool
from motet.cli.serve import give_blocks_back
from motet.protocols.error_records import Origin

def kilobytes(name):  # the resource usage of a process begins with that of its parent
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

async def main(folder):
    # Not into the spill file, however slow the disk is.
    motet.runtime.spool.PATIENCE = motet.runtime.spool.STUCK = 90.0
    give_blocks_back()
    async with motet.open_host(folder) as host:
        channel = host._parts.services.errors
        await channel.report(Origin("s", "t"), "boom")
        for text, times in (("no such thing\\n", 1_000_000), ("\u00e9", 100_000_000)):
            error = ValueError(text * times)
            gc.collect()
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the most that it has taken is counted anew
            before = kilobytes("VmRSS")
            told = await channel.report(Origin("s", "t"), error)
            most = kilobytes("VmHWM")
            (found, *_) = await host.errors()
            stored = found.raw_error["omitted_bytes"]
            print((most - before) * 1024, stored, found.id == told.error_id)

trio.run(main, sys.argv[1])
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="there is no /proc here")
def test_a_server_takes_twice_the_bound_of_an_error_at_most(tmp_path: Path) -> None:
    """Law: of megabytes, from their report to COMMIT, beside the error itself, which others have.

    Also of an error after another one, when the C library has learnt to keep large blocks.
    """
    program = [sys.executable, "-c", MEMORY, str(tmp_path)]
    ended = run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = ended.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        taken, stored, told = line.split()
        assert told == "True"
        assert int(stored) > ERROR_LIMIT
        assert int(taken) < 2 * ERROR_LIMIT
