"""The spool: nothing that was put is lost, whatever the store and the spill file do meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any, Self

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.protocols.storage import DiskFull
from motet.runtime.spill import Spill, SpillFile, spilled
from motet.runtime.spool import Spool
from motet.runtime.spool_entries import AT_ONCE, HELD, Crowd, Entry

LIMIT = 1_000_000


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spill file is real, and so is time: try again soon."""
    monkeypatch.setattr("motet.runtime.spool.RETRY", 0.001)
    monkeypatch.setattr("motet.runtime.spool.RETRY_MOST", 0.01)


class Note(msgspec.Struct, frozen=True):
    id: str
    text: str


class Notes(Spool[str, Note]):
    """A spool of texts in front of a store in memory, which ``fails`` as it is told."""

    def __init__(
        self, spill: SpillFile[Note] | None, fails: Callable[[], bool], limit: int = LIMIT
    ) -> None:
        super().__init__(spill, lambda: 7.0, threads=False, limit=limit, deadline=60.0)
        self.fails = fails
        self.kept: dict[str, str] = {}
        self.numbers = Random(4)
        self.range = 200_000
        self.lost: list[str] = []
        self.taken: list[str] = []
        self.dropped: set[str] = set()

    def fresh_id(self, timestamp: float) -> str:
        return f"n{self.numbers.randrange(self.range)}"

    def prepared(self, entries: Sequence[Entry[str, Note]]) -> list[Note | None]:
        return [Note(entry.id, entry.item) if entry.item else None for entry in entries]

    def renamed(self, entry: Entry[str, Note]) -> Note:
        assert entry.record is not None
        return Note(entry.id, entry.record.text)

    def take(self, item: str) -> int:
        self.taken.append(item)
        return len(item)

    def drops(self, record: Note) -> bool:
        return record.text in self.dropped

    def weight(self, record: Note) -> int:
        return len(record.text)

    async def store(self, records: Sequence[Note]) -> Collection[str]:
        await trio.lowlevel.checkpoint()
        if self.fails():
            raise DiskFull("no room")
        clashes = {one.id for one in records if self.kept.get(one.id, one.text) != one.text}
        self.kept |= {one.id: one.text for one in records if one.id not in clashes}
        return clashes

    def loss(self, count: int) -> str:
        return f"lost {count}"

    def trouble(self, event: str, /, **facts: object) -> None:
        if event == "errors_lost":
            self.lost.append(str(facts))


async def put_all(spool: Notes, texts: Sequence[str]) -> list[Entry[str, Note]]:
    entries: list[Entry[str, Note]] = []

    async def put(text: str) -> None:
        entries.append(await spool.deliver(text))

    async with trio.open_nursery() as nursery:
        for text in texts:
            nursery.start_soon(put, text)
    return entries


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=15)
def test_what_was_put_is_stored_once_and_what_is_durable_is_on_disk(
    seed: int, with_file: bool
) -> None:
    """Law: at every time a durable entry is in the store or the spill file; in the end all are
    stored, under ids of their own, and the file is gone."""

    async def main(folder: Path) -> None:
        random = Random(seed)
        path, chance = folder / "spill", [random.random()]
        file = SpillFile(path, Note, random.choice([200, 100_000])) if with_file else None
        spool = Notes(file, lambda: random.random() < chance[0])
        taken = () if with_file else range(0, 200_000, 20)
        spool.kept |= {f"n{number}": "of another process" for number in taken}
        others = len(spool.kept)
        texts = [f"text {number}" for number in range(60)]
        async with trio.open_nursery() as nursery:
            await spool.open()
            nursery.start_soon(spool.run)
            entries = await put_all(spool, texts)
            for entry in entries:
                if entry.durable:
                    on_disk = spool.kept.get(entry.id) or spilled(path, Note)[entry.id].text
                    assert on_disk == entry.item
            chance[0] = 0.0
            # The file goes some steps after its last record.
            while spool.statistics().waiting or spool.statistics().spilled or path.exists():
                await trio.sleep(0.002)
            nursery.cancel_scope.cancel()
        assert sorted(v for v in spool.kept.values() if v.startswith("text")) == sorted(texts)
        assert len(spool.kept) == others + len(texts)
        assert spool.lost == []

    with TemporaryDirectory() as folder:
        trio.run(main, Path(folder))


@given(st.integers(0, 10**9))
@settings(max_examples=10)
def test_two_spools_in_front_of_one_store_keep_their_items_apart(seed: int) -> None:
    """Law: whatever ids two processes give, each item is stored once or stays in the spill file of
    its own; under the id that was shown, its process finds it and no other."""

    async def main(folder: Path) -> None:
        random = Random(seed)
        chance, kept = [random.random()], dict[str, str]()
        spools = [
            Notes(SpillFile(folder / name, Note, 100_000), lambda: random.random() < chance[0])
            for name in ("one", "other")
        ]
        shown: list[tuple[Notes, Entry[str, Note]]] = []

        async def bring(spool: Notes, text: str) -> None:
            for _ in range(random.randrange(9)):
                await trio.lowlevel.checkpoint()
            shown.append((spool, await spool.deliver(text)))

        async with trio.open_nursery() as nursery:
            for spool in spools:
                spool.kept, spool.numbers, spool.range = kept, random, 400
                await spool.open()
                nursery.start_soon(spool.run)
            async with trio.open_nursery() as crowd:
                for number in range(40):
                    crowd.start_soon(bring, random.choice(spools), f"text {number}")
            chance[0] = 0.0
            while any(one.statistics().waiting or one.statistics().spilled for one in spools):
                await trio.sleep(0.002)
            aside: list[str] = []
            for spool, entry in shown:
                assert entry.durable
                own = await spool.find(entry.id)
                aside += [own.text] if own else []
                assert (own.text if own else kept[entry.id]) == entry.item
            nursery.cancel_scope.cancel()
        assert sorted([*kept.values(), *aside]) == sorted(f"text {n}" for n in range(40))
        assert [spool.lost for spool in spools] == [[], []]

    with TemporaryDirectory() as folder:
        trio.run(main, Path(folder))


async def test_an_item_that_is_lost_is_counted_by_an_item_of_its_own(
    tmp_path: Path,
) -> None:
    works: list[bool] = []
    spool = Notes(SpillFile(tmp_path / "spill", Note, 1_000), lambda: not works, limit=1_000)
    async with trio.open_nursery() as nursery:
        await spool.open()
        nursery.start_soon(spool.run)
        entries = await put_all(spool, [f"{number:3} {'x' * 96}" for number in range(50)])
        states = [entry.state for entry in entries]
        assert set(states) == {"spilled", "held up", "lost"}
        assert spool.statistics().lost == states.count("lost") == len(spool.lost)
        works.append(True)
        while len(spool.kept) < 50 - states.count("lost") + 1:
            await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    assert f"lost {states.count('lost')}" in spool.kept.values()
    assert len(spool.kept) == 50 - states.count("lost") + 1


class OfTheWorld(BaseException):
    pass


class Choosy(Notes):
    """Cannot make a record of a text with a cross."""

    def prepared(self, entries: Sequence[Entry[str, Note]]) -> list[Note | None]:
        if any("x" in entry.item for entry in entries):
            raise OfTheWorld
        return super().prepared(entries)


async def test_an_item_of_which_no_record_can_be_made_is_lost_and_no_other() -> None:
    spool = Choosy(None, lambda: False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spool.run)
        first = await put_all(spool, ["x alone"])
        entries = await put_all(spool, ["one", "two x", "three", "x", "five"])
        while spool.statistics().waiting:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    lost = {entry.item for entry in (*first, *entries) if entry.state == "lost"}
    assert lost == {"x alone", "two x", "x"}
    assert {"one", "three", "five"} <= {*spool.kept.values()}
    assert spool.statistics().bytes == 0


async def test_a_stop_writes_what_waits_and_the_next_start_stores_it_first(tmp_path: Path) -> None:
    file = tmp_path / "spill"
    spool = Notes(SpillFile(file, Note, LIMIT), lambda: True)
    await spool.open()
    for number in range(10):
        spool.put(f"text {number}")
    await spool.finish(1.0)
    assert len(spilled(file, Note)) == 10
    assert file.stat().st_mode & 0o777 == 0o600

    after = Notes(SpillFile(file, Note, LIMIT), lambda: False)
    await after.open()
    assert sorted(after.kept.values()) == [f"text {number}" for number in range(10)]
    assert not file.exists()


async def test_tasks_that_report_again_as_soon_as_they_are_answered_share_their_commits() -> None:
    """A commit with a half of them, while the other half waits, would write all pages twice."""
    spool, sizes = Notes(None, lambda: False), list[int]()

    async def report(text: str) -> None:
        for number in range(10):
            await spool.deliver(f"{text} {number}", patient=True)

    async def store(records: Sequence[Note]) -> Collection[str]:
        sizes.append(len(records))
        return await Notes.store(spool, records)

    spool.store = store  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spool.run)
        async with trio.open_nursery() as reporters:
            for number in range(100):
                reporters.start_soon(report, f"text {number}")
        nursery.cancel_scope.cancel()
    assert len(spool.kept) == 1_000
    assert len(sizes) <= 12


async def test_so_many_items_are_taken_in_one_pass_of_the_loop() -> None:
    spool = Notes(None, lambda: False)
    async with trio.open_nursery() as nursery:
        await spool.open()
        nursery.start_soon(spool.run)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as takers:
            for number in range(5 * AT_ONCE):
                takers.start_soon(spool.deliver, str(number))
            before = 0
            while len(spool.taken) < 5 * AT_ONCE:
                await trio.lowlevel.checkpoint()
                assert len(spool.taken) - before <= 2 * AT_ONCE
                before = len(spool.taken)
        nursery.cancel_scope.cancel()


@given(st.integers(0, 10**9))
@settings(max_examples=15)
def test_what_a_cancelled_task_of_a_crowd_has_brought_is_stored(seed: int) -> None:
    """Law: whenever tasks of a crowd are cancelled, or the spool stops, each item is taken and
    stored once; one that waits for its turn counts as waiting."""

    async def main() -> None:
        random = Random(seed)
        is_full = random.random() < 0.3
        spool = Notes(None, lambda: False, limit=200 if is_full else LIMIT)
        texts = [f"text {number}" for number in range(random.randrange(10 * AT_ONCE))]
        scopes: list[trio.CancelScope] = []

        async def bring(text: str) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                if random.random() < 0.5:
                    await spool.deliver(text)
                else:
                    since = spool.now()
                    if spool.is_crowded:
                        try:
                            await spool.turn()
                        except trio.Cancelled:
                            spool.leave(text, since)
                            raise
                    await spool.deliver(text, since=since)

        async with trio.open_nursery() as host:
            await spool.open()
            host.start_soon(spool.run)
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as crowd:
                for text in texts:
                    crowd.start_soon(bring, text)
                for _ in range(random.randrange(8)):
                    await trio.lowlevel.checkpoint()
                    for scope in random.sample(scopes, len(scopes) // 3):
                        scope.cancel()
                if random.random() < 0.5 and not is_full:  # then what waits would be lost
                    host.cancel_scope.cancel()
            while spool.statistics().waiting:
                await trio.lowlevel.checkpoint()
            host.cancel_scope.cancel()
        await spool.finish(5.0)
        assert sorted(spool.kept.values()) == sorted(texts)
        assert sorted(spool.taken) == sorted(texts)

    trio.run(main)


class Watched(dict[str, tuple[int, int]]):
    """Places that note the threads in which they change."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # as dict's overloads
        self.threads.add(get_ident())
        self.update(other)
        return self

    def pop(self, *key: Any) -> Any:
        self.threads.add(get_ident())
        return super().pop(*key)


async def test_the_places_of_records_change_in_no_thread_while_the_loop_walks_them(
    tmp_path: Path,
) -> None:
    """Else the next records to store are looked for in a dictionary that grows meanwhile, which
    raises ``RuntimeError`` in the middle of the spool."""
    file = SpillFile(tmp_path / "spill", Note, LIMIT)
    places = file.places = Watched()
    spill = Spill(file, Notes(None, lambda: False).trouble)
    await spill.append(lambda: [Note(f"n{number}", "text") for number in range(20)])
    assert await spill.erase(lambda note: note.id == "n3")
    assert places.keys() == {f"n{number}" for number in range(20)} - {"n3"}
    spill.forget([*places])
    await spill.tidy()
    assert not (tmp_path / "spill").exists()
    assert places.threads == {get_ident()}


@pytest.mark.parametrize("end", ["cut", "flipped", "appended"])
def test_a_damaged_spill_file_costs_only_what_is_damaged(tmp_path: Path, end: str) -> None:
    """Law: whatever is torn, every other record is read, and nothing that was never written."""
    random = Random(end)
    notes = [Note(f"n{number}", "ö" * random.randrange(50)) for number in range(20)]
    for _ in range(60):
        path = tmp_path / "spill"
        path.unlink(missing_ok=True)
        file = SpillFile(path, Note, LIMIT)
        file.append(notes)
        file.close()
        data, at = bytearray(path.read_bytes()), random.randrange(len(path.read_bytes()))
        if end == "cut":
            del data[at:]
        elif end == "flipped":
            data[at] ^= 1 << random.randrange(8)
        else:
            data += random.randbytes(random.randrange(40))
        path.write_bytes(data)
        whole = spilled(path, Note)
        assert all(whole[one] == notes[int(one[1:])] for one in whole)
        missing = [one for one in notes if one.id not in whole]
        assert len(missing) <= {"cut": 20, "flipped": 1, "appended": 0}[end]
        again = SpillFile(path, Note, LIMIT)
        again.load()
        again.append([Note("new", "more")])
        assert again.read(["new"]) == [Note("new", "more")]
        assert spilled(path, Note).keys() == whole.keys() | {"new"}
        again.close()


def test_an_empty_spill_file_is_no_spill_file(tmp_path: Path) -> None:
    """A kill may come between its making and its first record, and a disk take no record."""
    path = tmp_path / "spill"
    path.touch()
    file = SpillFile(path, Note, LIMIT)
    file.load()
    assert not path.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("motet.runtime.spill._write_all", _takes_nothing)
        with pytest.raises(OSError, match="no space"):
            file.append([Note("n1", "text")])
    assert not path.exists()
    assert file.append([Note("n2", "text")]) == ["n2"]
    assert [*spilled(path, Note)] == ["n2"]
    file.close()


def _takes_nothing(*_: object) -> None:
    raise OSError("no space")


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("end", ["stored", "cancelled"])
async def test_the_collector_of_garbage_waits_for_a_crowd_and_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, end: str
) -> None:
    """It does not wait for a few."""
    was, seen = gc.isenabled(), list[bool]()
    spool = Notes(None, lambda: False)
    taken = spool.take

    def take(item: str) -> int:
        seen.append(gc.isenabled())
        return taken(item)

    monkeypatch.setattr(spool, "take", take)
    try:
        (gc.enable if enabled else gc.disable)()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spool.run)
            await wait_all_tasks_blocked()
            for _ in range(AT_ONCE):
                nursery.start_soon(spool.deliver, "x")
            await wait_all_tasks_blocked()
            assert seen == [enabled] * AT_ONCE
            for _ in range(10 * AT_ONCE):
                nursery.start_soon(spool.deliver, "x")
            if end == "cancelled":
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            else:
                await wait_all_tasks_blocked(0.01)
                assert gc.isenabled() == enabled
                nursery.cancel_scope.cancel()
        assert gc.isenabled() == enabled
        assert end != "stored" or not all(seen)
    finally:
        (gc.enable if was else gc.disable)()


async def test_the_collector_does_not_wait_for_a_crowd_that_waits_for_long() -> None:
    assert gc.isenabled()
    async with trio.open_nursery() as nursery:
        crowd = Crowd()

        async def come() -> None:
            await crowd.wait()

        for ends_by in ("room", "passes", "tasks"):
            for _ in range(2 * AT_ONCE):
                nursery.start_soon(come)
            await wait_all_tasks_blocked()
            assert not gc.isenabled()
            if ends_by == "passes":
                for _ in range(HELD - 1):
                    crowd.end_pass()
            crowd.end_pass(waits_long=ends_by == "room")
            assert gc.isenabled() == (ends_by != "tasks")
            crowd.wake_all()
            crowd.end_pass()
            assert gc.isenabled()


@pytest.mark.parametrize("frozen", [0, 1])
async def test_what_is_left_of_a_crowd_is_no_young_object_for_the_collector(
    frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of it is looked at in the pass in which the collector goes on. Not where the program
    has set objects apart: they stay so.
    """
    assert gc.isenabled()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    crowd = Crowd()

    async def come() -> None:
        await crowd.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(come)
        await wait_all_tasks_blocked()
        left = [[number] for number in range(100)]
        crowd.wake_all()
        crowd.end_pass()
    assert gc.isenabled()
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert [id(one) in old for one in left] == [not frozen] * 100
