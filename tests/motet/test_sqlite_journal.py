"""The journal in a SQLite file: the same laws as in memory, full disks, other programs, kills."""

from __future__ import annotations

import math
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from motet.protocols.domain_events import JournalConflict, StoredEvent
from motet.protocols.messages import Request
from motet.protocols.storage import (
    DatabaseClosed,
    DatabaseGone,
    DiskFull,
    SchemaTooNew,
    StorageError,
)
from motet.runtime import (
    ActorDead,
    DomainEvent,
    EventSourced,
    IdentityRef,
    Journal,
    MemoryJournal,
    Persistence,
    Supervision,
    handles,
    open_system,
)
from motet.sqlite_journal import SqliteJournal, open_journal
from tests.forks import started

# ---------------------------------------------------------------- the actor of all tests


class Noted(DomainEvent, frozen=True, tag="notes.noted"):
    text: str


class All(DomainEvent, frozen=True, tag="notes.all"):
    texts: list[str]


class Note(Request[int], frozen=True, tag="notes.note"):
    text: str


class Texts(Request[list[str]], frozen=True, tag="notes.texts"):
    pass


class Notes(EventSourced[Note | Texts, Noted | All]):
    persistence = Persistence(snapshot_every=7)

    def __init__(self, journal: Journal, key: str) -> None:
        super().__init__(journal, f"notes/{key}")
        self.texts: list[str] = []

    def apply(self, event: Noted | All) -> None:
        match event:
            case Noted(text):
                self.texts.append(text)
            case All(texts):
                self.texts = [*texts]

    def snapshot(self) -> All:
        return All(self.texts)

    @handles(Note)
    async def note(self, request: Note) -> int:
        return await self.persist(Noted(request.text))

    @handles(Texts)
    async def all_texts(self, _: Texts) -> list[str]:
        return self.texts


def event(number: int) -> StoredEvent:
    return StoredEvent(number, "notes.noted", 1, f'{{"type":"notes.noted","text":"{number}"}}')


# ---------------------------------------------------------------- what every journal does


async def in_memory(_: Path, check: Callable[[Journal], Awaitable[None]]) -> None:
    await check(MemoryJournal())


async def in_a_file(path: Path, check: Callable[[Journal], Awaitable[None]]) -> None:
    async with open_journal(path) as journal:
        await check(journal)


@pytest.mark.parametrize("where", [in_memory, in_a_file])
async def test_a_journal_keeps_its_protocol(
    where: Callable[[Path, Callable[[Journal], Awaitable[None]]], Awaitable[None]], tmp_path: Path
) -> None:
    async def check(journal: Journal) -> None:
        assert await journal.snapshot("a") is None
        assert [*await journal.read("a", 0, 10)] == []
        with pytest.raises(JournalConflict):
            await journal.append("a", 1, [event(2)])
        await journal.append("a", 0, [event(1), event(2)])
        for wrong in (0, 1, 3):
            with pytest.raises(JournalConflict):
                await journal.append("a", wrong, [event(wrong + 1)])
        await journal.append("a", 2, [event(3), event(4), event(5)])
        await journal.append("b", 0, [event(1)])
        assert [*await journal.read("a", 1, 2)] == [event(2), event(3)]
        # A snapshot with what is behind it; an older one changes nothing.
        await journal.keep("a", event(4), 3)
        await journal.keep("a", event(3), 5)
        assert await journal.snapshot("a") == event(4)
        assert [*await journal.read("a", 0, 10)] == [event(4), event(5)]
        # Numbers go on, also when all events were deleted.
        await journal.keep("a", event(5), 5)
        assert [*await journal.read("a", 0, 10)] == []
        with pytest.raises(JournalConflict):
            await journal.append("a", 0, [event(1)])
        await journal.append("a", 5, [event(6)])
        assert [*await journal.read("a", 0, 10)] == [event(6)]
        assert [*await journal.read("b", 0, 10)] == [event(1)]

    await where(tmp_path / "journal.db", check)


# ---------------------------------------------------------------- the file


async def _write_five(notes: IdentityRef[Note | Texts]) -> None:
    for number in range(5):
        await notes.ask(Note(f"{number}"))


async def test_writes_of_many_actors_share_commits_and_survive(tmp_path: Path) -> None:
    for turn in (1, 2):
        async with open_journal(tmp_path / "j.db") as journal, open_system() as system:
            notes = await system.registry.kind("notes", lambda key: Notes(journal, key))
            for key in range(40):
                assert len(await notes.ref(f"{key}").ask(Texts())) == (turn - 1) * 5
            before = journal.statistics().commits
            async with trio.open_nursery() as nursery:
                for key in range(40):
                    nursery.start_soon(_write_five, notes.ref(f"{key}"))
            assert journal.statistics().commits - before < 100
            assert len(await journal.streams("notes/")) == 40
            assert await journal.streams("notes_") == []
    with pytest.raises(DatabaseClosed):
        await journal.append("a", 0, [event(1)])


async def test_two_journals_of_one_file_never_both_write(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "j.db") as one, open_journal(tmp_path / "j.db") as other:
        outcomes: list[bool] = []

        async def write(journal: SqliteJournal, number: int) -> None:
            try:
                await journal.append("a", number, [event(number + 1)])
            except JournalConflict:
                outcomes.append(False)
            else:
                outcomes.append(True)

        for number in range(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, one, number)
                nursery.start_soon(write, other, number)
        assert outcomes.count(True) == outcomes.count(False) == 20
        assert len(await one.read("a", 0, 100)) == 20


async def test_on_a_full_disk_one_actor_waits_and_nothing_is_lost(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    text = "x" * 20_000
    rules = Supervision(intensity=1, period=5, jitter=0)
    async with open_journal(tmp_path / "j.db") as journal, open_system() as system:
        notes = await system.registry.kind(
            "notes", lambda key: Notes(journal, key), supervision=rules, idle_after=math.inf
        )
        await notes.ref("a").ask(Note("first"))
        await notes.ref("b").ask(Note("first"))
        connection = journal._writer._connection  # pyright: ignore[reportPrivateUsage]
        assert connection is not None
        ((pages,),) = connection.run("PRAGMA page_count")
        connection.run(f"PRAGMA max_page_count = {pages}")
        for _ in range(2):
            with pytest.raises(DiskFull):
                await notes.ref("a").ask(Note(text))
        # The first may still find it, and get the reason when it is given up.
        for says in ("DiskFull", "DiskFull.*tried again"):
            with pytest.raises(ActorDead, match=says):
                await notes.ref("a").ask(Note(text))
        assert await notes.ref("b").ask(Texts()) == ["first"]  # reading works
        connection.run("PRAGMA max_page_count = 1000000")
        await trio.sleep(5)
        assert await notes.ref("a").ask(Note(text)) == 2
        assert await notes.ref("a").ask(Texts()) == ["first", text]


async def test_files_that_are_deleted_are_noticed(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.append("a", 0, [event(1)])
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(DatabaseGone):
            await journal.append("a", 1, [event(2)])


async def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE streams (name TEXT)")
    other.commit()
    (tmp_path / "text.db").write_text("no database, but quite a long text in its place")
    with pytest.raises(StorageError, match="something else"):
        async with open_journal(tmp_path / "other.db"):
            pass
    assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("streams",)]
    with pytest.raises(StorageError, match="no SQLite database"):
        async with open_journal(tmp_path / "text.db"):
            pass
    with pytest.raises(StorageError):
        async with open_journal(tmp_path / "missing" / "j.db"):
            pass
    async with open_journal(tmp_path / "j.db"):
        pass
    newer = sqlite3.connect(tmp_path / "j.db")
    newer.execute("PRAGMA user_version = 2")
    newer.commit()
    with pytest.raises(SchemaTooNew, match="newer motet"):
        async with open_journal(tmp_path / "j.db"):
            pass


# ---------------------------------------------------------------- kill -9

VICTIM = """
import sys, trio
from motet.runtime import open_system
from motet.sqlite_journal import open_journal
from tests.motet.test_sqlite_journal import Note, Notes, Texts

async def main(path, turn):
    async with open_journal(path) as journal, open_system() as system:
        notes = await system.registry.kind("notes", lambda key: Notes(journal, key))

        async def client(key, name):
            for number in range(1_000_000):
                text = f"{turn}.{name}.{number}"
                await notes.ref(key).ask(Note(text))
                print(f"{key} {text}", flush=True)
                if number % 50 == 49:
                    await notes.ref(key).stop()

        async with trio.open_nursery() as nursery:
            for name in range(6):
                nursery.start_soon(client, "abc"[name % 3], name)

trio.run(main, *sys.argv[1:])
"""


async def _stored(path: Path) -> dict[str, list[str]]:
    async with open_journal(path) as journal, open_system() as system:
        notes = await system.registry.kind("notes", lambda key: Notes(journal, key))
        return {key: await notes.ref(key).ask(Texts()) for key in "abc"}


def _kill_often(path: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    told: dict[str, list[str]] = {key: [] for key in "abc"}
    for turn in range(kills):
        with started("-c", VICTIM, str(path), str(turn)) as victim:
            assert victim.stdout is not None
            lines = [victim.stdout.readline()]  # it is at work
            time.sleep(chance.random() * 0.15)
            victim.kill()
            lines += victim.stdout.readlines()
        for line in map(bytes.decode, lines):
            with suppress(ValueError):  # the last line may be cut
                key, text = line.removesuffix("\n").split(" ")
                if line.endswith("\n"):
                    told[key].append(text)
        stored = trio.run(_stored, path)
        for key, texts in stored.items():
            assert len({*texts}) == len(texts), f"turn {turn}: doubled"
            acknowledged = {*told[key]}
            assert acknowledged <= {*texts}, f"turn {turn}: lost"
            for life in range(turn + 1):
                for name in range(6):
                    start = f"{life}.{name}."
                    mine = [int(one.rpartition(".")[2]) for one in texts if one.startswith(start)]
                    assert mine == [*range(len(mine))], f"turn {turn}: out of order"
    assert sum(map(len, told.values())) > kills


@pytest.mark.slow
def test_a_killed_program_has_lost_and_doubled_no_acknowledged_event(tmp_path: Path) -> None:
    """Law: after ``kill -9`` at any time, each event that was acknowledged is stored, once, in the
    order of its client."""
    _kill_often(tmp_path / "j.db", kills=4, seed=1)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(50))
def test_a_thousand_kills_lose_and_double_no_acknowledged_event(tmp_path: Path, part: int) -> None:
    _kill_often(tmp_path / "j.db", kills=20, seed=100 + part)
