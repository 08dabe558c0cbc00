"""The result store: its actor, its LRU index, and the packing of contents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.storage.location import Location
from motet.protocols.results import (
    DropResults,
    Entry,
    LruIndex,
    PinResult,
    ReadResult,
    ResultDamaged,
    ResultInfo,
    ResultsFull,
    ResultTooLarge,
    checksum,
    pack,
    unpack,
)
from motet.protocols.storage import Statement, StorageError, Transact
from tests.actors.tools.builders import Clock, noise, open_results


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    with Location.directory(tmp_path) as location:
        yield location


async def test_stored_results_are_read_back_also_compressed_and_binary(location: Location) -> None:
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


async def test_eviction_also_frees_the_disk_and_spares_pinned_results(location: Location) -> None:
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


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
async def test_no_result_ends_before_the_run_of_its_session_or_of_its_caller(
    location: Location, status: str
) -> None:
    clock = Clock()
    async with open_results(location, clock, lifetime=1) as opened:
        await opened.database.ask(Transact((*_session("s"), *_session("child", "s"))))
        columns = "(run_id, session, agent, user, status, text, created, updated, open)"
        run = f"INSERT INTO runs {columns} VALUES ('r', 's', 'a', 'u', ?, '', 0, 0, 1)"
        await opened.database.ask(Transact((Statement(run, (status,)),)))
        mine, childs = await opened.put("mine"), await opened.put("its", session="child")
        other = await opened.put("other", session="t")
        clock.now += 100
        for info, found in ((mine, True), (childs, True), (other, False)):
            stored = await opened.store.ask(ReadResult(info.id, info.session))
            assert (stored is not None) == found
        clock.now += 100
        new = await opened.put("new", session="t")
        assert await opened.ids_on_disk() == {mine.id, childs.id, new.id}
        ended = Statement("UPDATE runs SET status = 'completed'")
        await opened.database.ask(Transact((ended,)))
        assert await opened.store.ask(ReadResult(mine.id, "s")) is None


def _session(key: str, parent: str | None = None) -> tuple[Statement, ...]:
    columns = "(session, agent, owner, created, updated, parent)"
    sql = f"INSERT INTO sessions {columns} VALUES (?, 'a', 'u', 0, 0, ?)"
    return (Statement(sql, (key, parent)),)


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


# The order in which results make room for others.

LIFE = 100.0


def filled(*entries: str, max_bytes: int = 900) -> LruIndex:
    """A ledger with 300 bytes under each name; a name with ``!`` is pinned."""
    ledger = LruIndex(max_bytes, LIFE)
    for name in entries:
        ledger.add(Entry(name.rstrip("!"), "s", 300, 0.0, name.endswith("!")))
    return ledger


def test_the_least_recently_used_goes_first() -> None:
    ledger = filled("a", "b", "c")
    assert ledger.room_for(300, 1) == ["a"]
    ledger.use("a", 1)
    assert ledger.room_for(300, 2) == ["b"]
    assert ledger.room_for(301, 2) == ["b", "c"]


def test_pinned_ones_stay_and_when_all_are_nothing_fits() -> None:
    assert filled("a!", "b", "c").room_for(300, 1) == ["b"]
    with pytest.raises(ResultsFull):
        filled("a!", "b!", "c!").room_for(300, 1)
    with pytest.raises(ResultTooLarge):
        filled(max_bytes=100).room_for(300, 1)


def test_a_result_ends_with_its_life_and_a_use_prolongs_it() -> None:
    ledger = filled("a", "b!")
    assert ledger.find("a", "s", LIFE - 1)
    ledger.use("a", LIFE - 1)
    assert ledger.find("a", "s", LIFE + 1)
    assert ledger.find("b", "s", LIFE) is None
    assert ledger.room_for(0, LIFE) == ["b"]


def test_a_foreign_session_finds_nothing() -> None:
    assert filled("a").find("a", "other", 1) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "use", "pin", "unpin", "tick"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_it_agrees_with_a_list_in_order_of_use(ops: list[tuple[str, int]]) -> None:
    """Law: bounded; least recently used first; pinned ones only when expired; none needlessly."""
    ledger, model, now = LruIndex(1_000, 10), list[Entry](), 0.0
    for number, (op, n) in enumerate(ops):
        match op:
            case "tick":
                now += n
            case "put":
                size = n * 60
                try:
                    going = ledger.room_for(size, now)
                except ResultsFull:
                    alive = [e for e in model if now - e.used < 10 and e.pinned]
                    assert sum(e.held for e in alive) + size > 1_000
                    continue
                kept = [e for e in model if now - e.used < 10]
                while sum(e.held for e in kept) + size > 1_000:
                    kept.remove(next(e for e in kept if not e.pinned))
                assert set(going) == {e.id for e in model} - {e.id for e in kept}
                ledger.remove(going)
                entry = Entry(str(number), "s", size, now)
                ledger.add(entry)
                model = [*kept, entry]
            case _ if model:
                old = model[n % len(model)]
                if op == "use":
                    ledger.use(old.id, now)
                    model.remove(old)
                    model.append(Entry(old.id, "s", old.held, now, old.pinned))
                else:
                    ledger.pin(old.id, op == "pin")
                    new = Entry(old.id, "s", old.held, old.used, op == "pin")
                    model[model.index(old)] = new
            case _:
                pass
        assert ledger.held == sum(e.held for e in model) <= 1_000
        assert len(ledger) == len(model)


# Packed results come back, or are refused.


def test_large_content_is_compressed_where_that_is_smaller() -> None:
    text = pack(b"abcdefghijklmnop" * 1000, compress_from=100)
    assert (text.packing, text.size) == ("zlib", 16_000)
    assert text.held < 1_000
    assert text.sha256 == "3a82018c96f7a64c1f59e99ea57c8bdbbe7f8025551f642d7c316dcfc229c4f9"
    assert pack(b"abcdefghijklmnop" * 1000).packing == "text"
    assert pack(noise(10_000), compress_from=100).packing == "base64"


@given(st.binary(max_size=300), st.sampled_from([0, 100]))
def test_packing_loses_nothing(content: bytes, compress_from: int) -> None:
    """Law: unpack(pack(x)) == x, and ``held`` is the size of what is kept."""
    packed = pack(content, compress_from)
    assert unpack(packed) == content
    assert packed.held == len(packed.data.encode())
    assert packed.sha256 == checksum(content)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_any_changed_character_is_noticed(content: bytes, data: st.DataObject) -> None:
    """Law: a packed content that was changed is refused, compressed or not."""
    packed = pack(content, data.draw(st.sampled_from([0, 10_000])))
    at = data.draw(st.integers(0, len(packed.data) - 1))
    other = data.draw(st.sampled_from("Az0é"))
    damaged = packed.data[:at] + other + packed.data[at + 1 :]
    if damaged == packed.data:
        return
    with suppress(ResultDamaged):
        assert unpack(replace(packed, data=damaged)) == content  # bits that base64 ignores
    with pytest.raises(ResultDamaged):
        unpack(replace(packed, sha256="0" * 64))
