"""The result store on a real SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.actors.storage.location import Location
from motet.actors.storage.results import ResultDamaged, ResultsFull, ResultTooLarge
from motet.protocols.results import DropResults, PinResult, ReadResult, ResultInfo
from motet.protocols.storage import StorageError
from tests.actors.tools.builders import Clock, noise, open_results


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    with Location.directory(tmp_path) as location:
        yield location


async def test_what_was_stored_is_read_back_also_compressed_and_binary(location: Location) -> None:
    contents = [b"", b"text \0 \xc3\xa9", noise(70_000), b"abc" * 500_000, noise(2_000_000)]
    async with open_results(location) as opened:
        infos = [await opened.put(content) for content in contents]
        for info, content in zip(infos, contents, strict=True):
            stored = await opened.store.ask(ReadResult(info.id, "s"))
            assert stored is not None
            assert (stored.info, stored.content) == (info, content)
    assert [info.compressed for info in infos] == [False, False, False, True, False]


async def test_a_foreign_session_finds_nothing_whatever_it_asks(location: Location) -> None:
    async with open_results(location) as opened:
        info = await opened.put("mine", session="alice")
        assert await opened.store.ask(ReadResult(info.id, "bob")) is None
        assert not await opened.store.ask(PinResult(info.id, "bob"))
        assert await opened.store.ask(DropResults("bob")) == 0
        assert await opened.store.ask(ReadResult(info.id, "alice")) is not None


async def test_results_survive_a_restart_with_their_order_pins_and_lives(
    location: Location,
) -> None:
    clock = Clock()
    async with open_results(location, clock, max_bytes=900) as opened:
        a, b, c = [await opened.put(noise(225, n)) for n in range(3)]
        assert await opened.store.ask(PinResult(a.id, "s"))
        clock.now += 1800
        assert await opened.store.ask(ReadResult(b.id, "s"))
    async with open_results(location, clock, max_bytes=900) as opened:
        await opened.put(noise(225))
        assert await opened.store.ask(ReadResult(c.id, "s")) is None, "the least recently used"
        assert await opened.store.ask(ReadResult(a.id, "s"))
        clock.now += 3000
        assert await opened.store.ask(ReadResult(b.id, "s")), "its life was prolonged"


async def test_room_is_made_on_disk_too_and_never_by_what_is_pinned(location: Location) -> None:
    async with open_results(location, max_bytes=900) as opened:
        ids = [(await opened.put("x" * 300, pinned=n == 0)).id for n in range(3)]
        last = await opened.put("y" * 300)
        assert await opened.ids_on_disk() == {ids[0], ids[2], last.id}
        for result_id in (ids[2], last.id):
            await opened.store.ask(PinResult(result_id, "s"))
        with pytest.raises(ResultsFull):
            await opened.put("z" * 300)
        with pytest.raises(ResultTooLarge):
            await opened.put("z" * 901)
        assert await opened.store.ask(PinResult(last.id, "s", pinned=False))
        await opened.put("z" * 300)
        assert await opened.store.ask(ReadResult(last.id, "s")) is None


async def test_an_unused_result_ends_and_leaves_the_disk_with_the_next_one(
    location: Location,
) -> None:
    clock = Clock()
    async with open_results(location, clock, lifetime=1) as opened:
        old = await opened.put("old")
        clock.now += 1
        assert await opened.store.ask(ReadResult(old.id, "s")) is None
        new = await opened.put("new")
        assert await opened.ids_on_disk() == {new.id}


async def test_a_changed_row_is_refused(location: Location) -> None:
    async with open_results(location, compress_from=10) as opened:
        plain, squeezed = await opened.put("short"), await opened.put("long " * 100)
        await opened.execute("UPDATE results SET data = 'shirt' WHERE id = ?", plain.id)
        await opened.execute("UPDATE results SET data = substr(data, 5) WHERE id = ?", squeezed.id)
        for info in (plain, squeezed):
            with pytest.raises(ResultDamaged):
                await opened.store.ask(ReadResult(info.id, "s"))


async def test_a_failed_store_makes_no_room(location: Location) -> None:
    async with open_results(location, max_bytes=900) as opened:
        kept = await opened.put("x" * 600)
        await opened.execute(
            "CREATE TRIGGER t BEFORE INSERT ON results BEGIN SELECT raise(ABORT, 'no'); END"
        )
        with pytest.raises(StorageError):
            await opened.put("y" * 600)
        assert await opened.store.ask(ReadResult(kept.id, "s"))
        await opened.execute("DROP TRIGGER t")
        await opened.put("y" * 600)
        assert await opened.store.ask(ReadResult(kept.id, "s")) is None


async def test_a_reset_session_leaves_nothing(location: Location) -> None:
    async with open_results(location) as opened:
        await opened.put("a", session="gone", pinned=True)
        kept = await opened.put("b", session="kept")
        assert await opened.store.ask(DropResults("gone")) == 1
        assert await opened.ids_on_disk() == {kept.id}


async def test_ids_that_repeat_are_refused_and_not_tried_for_ever(location: Location) -> None:
    async with open_results(location, hex_source=lambda n: "0" * (2 * n)) as opened:
        await opened.put("a")
        with pytest.raises(StorageError, match="randomness"):
            await opened.put("b")


async def test_a_smaller_store_keeps_the_newest(location: Location) -> None:
    clock = Clock()
    async with open_results(location, clock) as opened:
        infos: list[ResultInfo] = []
        for _ in range(3):
            infos.append(await opened.put("x" * 300))
            clock.now += 1
    async with open_results(location, clock, max_bytes=600) as opened:
        assert await opened.ids_on_disk() == {infos[1].id, infos[2].id}
