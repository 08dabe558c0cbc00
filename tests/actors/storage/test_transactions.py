"""One COMMIT for many: each transaction whole, each failure its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import Location
from motet.actors.storage.writer import commit_group
from motet.protocols.storage import (
    ConstraintFailed,
    DatabaseClosed,
    DatabaseLocked,
    DiskFull,
    ExpectationFailed,
    SqlValue,
    Statement,
    StorageError,
    Transaction,
)

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
def test_what_sqlite_cannot_take_fails_alone(writer: Connection, statement: Statement) -> None:
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
