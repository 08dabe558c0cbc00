"""The writer: groups of transactions in one commit, and tasks that share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.writer import CommitStatistics, GroupCommit, Writer, commit_group
from motet.protocols.storage import (
    ConstraintFailed,
    DatabaseClosed,
    DatabaseLocked,
    DiskFull,
    ExpectationFailed,
    SchemaTooNew,
    SqlValue,
    Statement,
    StorageError,
    Transaction,
)

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


# One COMMIT for many: each transaction whole, each failure its own.

ADD = "INSERT INTO notes (text) VALUES (?)"


def add(*texts: SqlValue) -> Transaction:
    return tuple(Statement(ADD, (text,)) for text in texts)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Location]:
    with Location.directory(tmp_path) as location:
        yield location


@pytest.fixture
def writer(place: Location) -> Iterator[Connection]:
    connection = place.connect()
    connection.run("CREATE TABLE notes (text UNIQUE NOT NULL)")
    yield connection
    connection.close()


def notes(connection: Connection) -> list[SqlValue]:
    return [text for (text,) in connection.run("SELECT text FROM notes ORDER BY rowid")]


def failed(connection: Connection, transaction: Transaction) -> StorageError:
    (outcome,) = commit_group(connection, [transaction], "here")
    assert isinstance(outcome, StorageError)
    return outcome


def test_the_rows_of_each_statement_come_back_in_order(writer: Connection) -> None:
    both = (*add("a"), Statement("SELECT text, 1, 2.5, NULL FROM notes"))
    assert commit_group(writer, [both, add("b")], "here") == [
        ((), (("a", 1, 2.5, None),)),
        ((),),
    ]


def test_a_statement_can_be_run_for_each_of_many_parameters(writer: Connection) -> None:
    many = Statement(ADD, each=(("a",), ("b",), ("c",)))
    assert commit_group(writer, [(many, *add("d"))], "here") == [((), ())]
    assert notes(writer) == ["a", "b", "c", "d"]
    failed(writer, (Statement(ADD, each=(("e",), ("a",))),))
    assert notes(writer) == ["a", "b", "c", "d"]


def test_a_transaction_that_fails_takes_nothing_else_with_it(writer: Connection) -> None:
    first, second, third = commit_group(writer, [add("a"), add("b", "a"), add("c")], "here")
    assert (first, third) == (((),), ((),))
    assert isinstance(second, ConstraintFailed)
    assert notes(writer) == ["a", "c"]


def test_a_write_can_say_how_many_rows_it_must_change(writer: Connection) -> None:
    both = "UPDATE notes SET text = text || '!'"
    assert commit_group(writer, [(*add("a", "b"), Statement(both, changes=2))], "here") == [
        ((), (), ())
    ]
    taken = Statement(ADD + " ON CONFLICT DO NOTHING", ("a!",), changes=1)
    error = failed(writer, (*add("c"), taken))
    assert isinstance(error, ExpectationFailed)
    assert (error.index, error.expected, error.got) == (1, 1, 0)
    assert str(error).startswith("statement 1 changed 0 rows, not 1")
    assert notes(writer) == ["a!", "b!"]


def test_an_expectation_that_fails_is_named_and_rolled_back(writer: Connection) -> None:
    error = failed(writer, (*add("a"), Statement("SELECT 1 UNION SELECT 2", expect=1)))
    assert isinstance(error, ExpectationFailed)
    assert (error.index, error.expected, error.got) == (1, 1, 2)
    assert notes(writer) == []


@pytest.mark.parametrize(
    "statement",
    [
        Statement("INSERT INTO nowhere VALUES (1)"),
        Statement(ADD),
        Statement(ADD, ("half a pair: \ud800",)),
        Statement(ADD, (2**70,)),
    ],
)
def test_a_bad_parameter_fails_only_its_own_transaction(
    writer: Connection, statement: Statement
) -> None:
    bad, good = commit_group(writer, [(statement,), add("a")], "here")
    assert isinstance(bad, StorageError)
    assert "here" in str(bad)
    assert good == ((),)
    assert notes(writer) == ["a"]


def test_a_commit_that_fails_is_the_outcome_of_the_whole_group(writer: Connection) -> None:
    writer.run("CREATE TABLE child (text REFERENCES notes (text) DEFERRABLE INITIALLY DEFERRED)")
    orphan = (Statement("INSERT INTO child VALUES ('nobody')"),)
    outcomes = commit_group(writer, [add("a"), orphan, add("a")], "here")
    assert all(isinstance(outcome, ConstraintFailed) for outcome in outcomes)
    assert notes(writer) == []
    assert not writer.in_transaction


def test_a_full_disk_refuses_the_large_and_keeps_the_small(writer: Connection) -> None:
    writer.run("PRAGMA max_page_count = 12")
    small, large, last = commit_group(writer, [add("a"), add("x" * 100_000), add("b")], "here")
    assert isinstance(large, DiskFull)
    assert (small, last) == (((),), ((),))
    assert notes(writer) == ["a", "b"]


def test_a_lost_group_is_run_again_one_by_one(writer: Connection) -> None:
    # A trigger is SQLite's own way to roll back everything, as a full disk may do.
    writer.run(
        "CREATE TRIGGER lose BEFORE INSERT ON notes WHEN new.text = 'bad' "
        "BEGIN SELECT raise(ROLLBACK, 'lost'); END"
    )
    outcomes = commit_group(writer, [add("a"), add("bad"), add("b")], "here")
    assert [isinstance(outcome, ConstraintFailed) for outcome in outcomes] == [False, True, False]
    assert notes(writer) == ["a", "b"]


def test_a_database_that_stays_locked_says_so(place: Location, writer: Connection) -> None:
    writer.set_busy_timeout(1)
    other = place.connect()
    other.run("BEGIN IMMEDIATE")
    error = failed(writer, add("a"))
    assert isinstance(error, DatabaseLocked)
    assert "another program" in str(error)
    other.run("COMMIT")
    other.close()
    assert commit_group(writer, [add("a")], "here") == [((),)]


def test_a_closed_connection_says_that_the_host_has_stopped(writer: Connection) -> None:
    writer.close()
    assert isinstance(failed(writer, add("a")), DatabaseClosed)


# Group commit, without SQLite: who leads, who waits, and what a cancellation does to each.


@attrs.define
class Disk:
    """Commits when told to, as a disk does: not when it is asked, and deaf to cancellation."""

    groups: list[list[str]] = attrs.field(factory=list[list[str]])
    gate: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(0))
    failure: Exception | None = None

    async def commit(self, group: list[str]) -> Sequence[str | StorageError]:
        with trio.CancelScope(shield=True):
            await self.gate.acquire()
        if self.failure is not None:
            raise self.failure
        self.groups.append(group)
        return [StorageError(item) if item.startswith("bad") else item.upper() for item in group]

    @property
    def stored(self) -> list[str]:
        return [item for group in self.groups for item in group]


@attrs.define
class Asker:
    outcome: str = "waiting"
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def submit(self, group: GroupCommit[str, str], item: str) -> None:
        with self.scope:
            try:
                self.outcome = await group.submit(item)
            except trio.Cancelled:
                self.outcome = "cancelled"
                raise
            except Exception as error:
                self.outcome = f"{type(error).__name__}: {error}"


async def ask(nursery: trio.Nursery, group: GroupCommit[str, str], *items: str) -> list[Asker]:
    askers: list[Asker] = []
    for item in items:
        askers.append(Asker())
        nursery.start_soon(askers[-1].submit, group, item)
        await wait_all_tasks_blocked()
    return askers


async def test_submitters_during_a_commit_share_the_next_one() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c", "d")
        assert group.statistics() == CommitStatistics(commits=1, items=1, waiting=3)
        disk.gate.release()
        disk.gate.release()
    assert disk.groups == [["a"], ["b", "c", "d"]]
    assert [asker.outcome for asker in askers] == ["A", "B", "C", "D"]
    assert group.statistics() == CommitStatistics(commits=2, items=4, waiting=0)


async def test_one_that_waits_is_withdrawn_by_its_cancellation() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c")
        askers[1].scope.cancel()
        await wait_all_tasks_blocked()
        assert askers[1].outcome == "cancelled"
        disk.gate.release()
        disk.gate.release()
    assert disk.groups == [["a"], ["c"]]


async def test_one_that_was_taken_gets_its_outcome_however_often_it_is_cancelled() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "bad c")
        disk.gate.release()
        await wait_all_tasks_blocked()
        for asker in askers:
            asker.scope.cancel()
        await wait_all_tasks_blocked()
        assert [asker.outcome for asker in askers] == ["A", "waiting", "waiting"]
        disk.gate.release()
    assert [asker.outcome for asker in askers] == ["A", "B", "StorageError: bad c"]


async def test_the_chosen_leader_leads_although_it_is_cancelled_at_that_moment() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c")
        disk.gate.release()
        disk.gate.release()
        # The first asker settles and chooses the second before this scope is looked at.
        await trio.lowlevel.checkpoint()
        askers[1].scope.cancel()
    assert askers[0].outcome == "A"
    assert askers[2].outcome == "C"
    assert (askers[1].outcome == "B") == ("b" in disk.stored)


async def test_a_broken_commit_leaves_no_submitter_waiting() -> None:
    disk = Disk()
    group = GroupCommit(disk.commit)
    async with trio.open_nursery() as nursery:
        askers = await ask(nursery, group, "a", "b", "c")
        disk.gate.release()
        await wait_all_tasks_blocked()
        disk.failure = RuntimeError("no thread")
        disk.gate.release()
    assert [asker.outcome for asker in askers] == [
        "A",
        "RuntimeError: no thread",
        "StorageError: the commit broke off: outcome unknown",
    ]


async def test_an_asker_that_is_cancelled_already_writes_nothing() -> None:
    disk = Disk()
    with trio.CancelScope() as scope:
        scope.cancel()
        await GroupCommit(disk.commit).submit("a")
        pytest.fail("a cancelled asker was answered")
    assert disk.groups == []


STEP = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 0)),
    st.tuples(st.just("cancel"), st.integers(0, 11)),
    st.tuples(st.just("commit"), st.integers(0, 0)),
    st.tuples(st.just("step"), st.integers(0, 0)),
)


@given(st.lists(STEP, max_size=24))
def test_an_item_is_stored_exactly_if_its_asker_was_answered(steps: list[tuple[str, int]]) -> None:
    """Law: for every order of asking, cancelling and committing, stored <=> answered, once each."""
    disk = Disk()
    group = GroupCommit(disk.commit)
    askers: list[Asker] = []

    async def world() -> None:
        async with trio.open_nursery() as nursery:
            for kind, index in steps:
                if kind == "ask":
                    askers.append(Asker())
                    nursery.start_soon(askers[-1].submit, group, f"i{len(askers) - 1}")
                elif kind == "cancel" and index < len(askers):
                    askers[index].scope.cancel()
                elif kind == "commit":
                    disk.gate.release()
                else:
                    await trio.lowlevel.checkpoint()
            for _ in askers:
                disk.gate.release()

    trio.run(world)
    answered = [f"i{i}" for i, asker in enumerate(askers) if asker.outcome == f"I{i}"]
    assert sorted(disk.stored) == sorted(answered)
    assert {asker.outcome for asker in askers} <= {"cancelled", *(f"I{i}" for i in range(24))}
