"""A disk that forgets what was not synced, and SQLite on it, which keeps its promises for that."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import apsw
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import VERSION, migrate, new_database
from motet.actors.storage.writer import Writer
from motet.protocols.storage import DiskFull, SqlValue, StateInUse, Statement, StorageError
from motet.testing.disk import SimulatedDisk
from motet.testing.volume import Chance, File, Volume

Rows = dict[SqlValue, SqlValue]
Prepare = Callable[[Connection], None]

POWER_CYCLES = 4
SEEDS_TO_FIND = 60


def as_it_is(_connection: Connection) -> None:
    """No mutant."""


@attrs.define
class User:
    """Writes rows, knows what was acknowledged, and compares that with what is there."""

    disk: SimulatedDisk
    random: Random
    prepare: Prepare
    failing: float
    """How often the disk fails to sync."""
    kept: Rows = attrs.field(factory=dict[SqlValue, SqlValue])
    doubtful: Rows | None = None
    """As ``kept`` with the transaction that was not acknowledged, all of it."""

    def power_cycle(self) -> None:
        """Check what is there, then write until the power goes, at a random moment."""
        with self.disk.location() as place:
            connection = self.opened(place)
            crashes = self.disk.crashes
            self.disk.crash_at(self.random.randrange(1, 100))
            while self.disk.crashes == crashes:
                self.transact(connection, crashes)
                if self.disk.crashes == crashes and self.random.random() < 0.1:
                    connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
                if self.disk.crashes == crashes and self.random.random() < 0.1:
                    connection.close()
                    connection = self.opened(place)
            connection.close()

    def opened(self, place: Location) -> Connection:
        connection = place.connect()
        self.prepare(connection)
        connection.run("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body TEXT)")
        assert connection.run("PRAGMA integrity_check") == (("ok",),)
        found = connection.run("SELECT id, body FROM rows")
        rows: Rows = {row[0]: row[1] for row in found}
        assert rows in (self.kept, self.doubtful)
        self.kept, self.doubtful = rows, None
        return connection

    def transact(self, connection: Connection, crashes: int) -> None:
        if self.random.random() < self.failing:
            self.disk.fail_sync(self.random.randint(1, 3))
        after = dict(self.kept)
        connection.run("BEGIN IMMEDIATE")
        for _ in range(self.random.randint(1, 5)):
            key = self.random.randrange(40)
            if key in after and self.random.random() < 0.3:
                connection.run("DELETE FROM rows WHERE id = ?", (key,))
                del after[key]
            else:
                after[key] = body = f"{self.random.random()}" * self.random.choice((0, 1, 30, 500))
                connection.run("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, body))
        try:
            connection.run("COMMIT")
        except apsw.IOError:
            self.doubtful = after
            if connection.in_transaction:
                connection.run("ROLLBACK")
            return
        if self.disk.crashes == crashes:
            self.kept, self.doubtful = after, None
        else:
            self.doubtful = after


def life(seed: int, prepare: Prepare = as_it_is, failing: float = 0.0) -> None:
    """Raises AssertionError, or an error of SQLite, for a promise that was not kept."""
    random = Random(seed)
    user = User(SimulatedDisk(random, image=b""), random, prepare, failing)
    for _ in range(POWER_CYCLES):
        user.power_cycle()
    user.opened(user.disk.location()).close()


@given(st.integers(0, 2**32))
def test_acknowledged_commits_survive_any_crash_and_no_commit_survives_in_part(seed: int) -> None:
    """For all transactions and all moments of a crash, also within a commit: the database is
    sound, and holds what was acknowledged, with the transaction under way as a whole or not.
    """
    life(seed)


@given(st.integers(0, 2**32))
def test_a_commit_whose_sync_failed_is_atomic_and_harms_no_other(seed: int) -> None:
    """The same law where one commit in twenty fails, and what it had written is lost for good."""
    life(seed, failing=0.05)


def found(prepare: Prepare) -> bool:
    for seed in range(SEEDS_TO_FIND):
        try:
            life(seed, prepare)
        except (AssertionError, StorageError, apsw.Error):
            return True
    return False


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_a_database_that_does_not_sync_its_commits_is_found(level: str) -> None:
    def weaken(connection: Connection) -> None:
        connection.run(f"PRAGMA synchronous = {level}")

    assert found(weaken)


def test_a_disk_that_lies_about_syncs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(volume: Volume, _file: File, *, may_fail: bool) -> None:
        volume.before()

    monkeypatch.setattr(Volume, "sync", lie)
    assert found(as_it_is)


def test_a_disk_that_forgets_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(_volume: Volume) -> None:
        pass

    monkeypatch.setattr(Volume, "sync_names", forget)
    assert found(as_it_is)


def a_disk() -> SimulatedDisk:
    return SimulatedDisk(Random(7))


def insert(key: str) -> Statement:
    return Statement(
        "INSERT INTO idempotency (user, method, key, body_hash, run_id, ts)"
        " VALUES ('ann', 'run', ?, '', '', 0)",
        (key,),
    )


async def keys(place: Location) -> set[SqlValue]:
    readers = Readers(place)
    found = await readers.read("SELECT key FROM idempotency")
    await readers.aclose()
    return {key for (key,) in found}


async def test_writer_and_readers_of_a_host_work_on_it_as_on_a_real_one() -> None:
    disk = a_disk()
    with disk.location() as place:
        writer = Writer(place)
        await writer.open()
        await writer.submit((insert("one"),))
        assert await keys(place) == {"one"}
        connection = place.connect()
        assert connection.run("PRAGMA journal_mode") == (("wal",),)
        assert connection.run("PRAGMA synchronous") == ((2,),)
        connection.close()
        await writer.aclose()


async def test_a_crashed_host_continues_on_a_private_copy() -> None:
    disk = a_disk()
    old = disk.location()
    writer = Writer(old)
    await writer.open()
    await writer.submit((insert("before"),))
    disk.crash()
    await writer.submit((insert("after"),))
    assert await keys(old) == {"before", "after"}
    with disk.location() as new:
        assert await keys(new) == {"before"}
    await writer.aclose()
    old.close()


async def test_a_crash_within_a_commit_calls_back_at_once() -> None:
    disk, told = a_disk(), list[int]()
    with disk.location() as place:
        writer = Writer(place)
        await writer.open()
        disk.crash_at(3, then=lambda: told.append(disk.crashes))
        await writer.submit((insert("lost"),))
        await writer.aclose()
    assert told == [1]
    with disk.location() as place:
        assert await keys(place) == set()


async def test_a_full_disk_refuses_writes_until_there_is_room() -> None:
    disk = a_disk()
    with disk.location() as place:
        writer = Writer(place)
        await writer.open()
        disk.room = disk.used + 50_000
        with pytest.raises(DiskFull):
            await writer.submit((insert("x" * 60_000),))
        disk.room = None
        await writer.submit((insert("small"),))
        assert await keys(place) == {"small"}
        await writer.aclose()


async def test_a_commit_that_could_not_be_synced_raises_and_leaves_nothing() -> None:
    disk = a_disk()
    with disk.location() as place:
        writer = Writer(place)
        await writer.open()
        disk.fail_sync()
        with pytest.raises(StorageError, match="simulated disk failed"):
            await writer.submit((insert("lost"),))
        await writer.submit((insert("kept"),))
        assert await keys(place) == {"kept"}
        await writer.aclose()


def test_one_host_at_a_time_has_it_and_a_crash_frees_it() -> None:
    disk = a_disk()
    place = disk.location()
    with pytest.raises(StateInUse):
        disk.location()
    place.close()
    disk.location()
    disk.crash()
    disk.location().close()


def test_the_same_random_seed_leaves_the_same_files() -> None:
    def left(seed: int) -> bytearray:
        volume = Volume()
        file = volume.open("f", create=True)
        volume.sync_names()
        volume.write(file, bytes(range(256)) * 64, 100, may_fail=False)
        return volume.survivor(Random(seed)).files["f"].seen

    assert [left(seed) for seed in range(20)] == [left(seed) for seed in range(20)]
    assert len({bytes(left(seed)) for seed in range(20)}) > 5


@given(st.data())
def test_synced_data_is_never_harmed_by_unsynced_writes(data: st.DataObject) -> None:
    """After a loss of power each byte is the synced one, or one that was written there since."""
    file, random = File(), data.draw(st.randoms(use_true_random=False))
    file.write(random.randbytes(3_000), 0)
    file.sync()
    allowed = [{byte} for byte in file.seen] + [{0} for _ in range(3_000)]
    for _ in range(data.draw(st.integers(0, 5))):
        offset, body = random.randrange(3_000), random.randbytes(random.randrange(2_000))
        file.write(body, offset)
        for index, byte in enumerate(body, offset):
            allowed[index].add(byte)
    left = file.survivor(Chance(random)).seen
    assert len(left) >= 3_000
    assert all(byte in choices for byte, choices in zip(left, allowed, strict=False))


def test_an_image_has_every_table_already() -> None:
    disk = a_disk()
    with disk.location() as place:
        connection, before = place.connect(), disk.changes
        migrate(connection)
        assert disk.changes - before < 10
        connection.close()
    with Location.memory(new_database()) as place:
        assert place.connect().run("PRAGMA user_version") == ((VERSION,),)


def test_moments_before_the_next_one_are_refused() -> None:
    with pytest.raises(ValueError, match="next change is number 1"):
        a_disk().crash_at(0)
    with pytest.raises(ValueError, match="next sync is number 1"):
        a_disk().fail_sync(0)
