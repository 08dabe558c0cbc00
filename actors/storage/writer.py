"""The only writing connection of a place: what waits for it is committed all at once.

Invariants: a transaction that was answered is on disk (synchronous=FULL, answered after COMMIT);
one whose asker was told of a cancellation or an error left no trace. The actor ``Database`` opens
and closes it, and is how most reach it; the stores of sessions and errors and the event bus submit
what they have without an ask, since a message to and fro is a fifth of what a commit takes beside
the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Generic, TypeVar

import apsw
import attrs
import trio

from motet.actors.storage.connection import Connection, Jobs, storage_error
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.protocols.storage import (
    Commit,
    DatabaseClosed,
    ExpectationFailed,
    Row,
    Rows,
    StorageError,
    Transact,
    Transaction,
)
from motet.runtime import Actor, ActorRef, handles

# Many transactions, one COMMIT. Blocking and without Trio: it runs in the writer's thread.
#
# A group is run as if nothing in it failed, as is almost always so. When one of several fails,
# all are rolled back and run again, each with a savepoint inside the group's, so that it can be
# rolled back alone: a savepoint costs as much as a short transaction, and a crowd would pay it
# for nothing. Invariants: nothing is reported as stored before COMMIT returned; when the COMMIT
# fails, every transaction of the group failed, those included that had failed before: they may
# have failed on rows that no longer exist.


def commit_group(
    connection: Connection, group: Sequence[Transaction], where: str
) -> list[Rows | StorageError]:
    """Run and commit a group; the outcome of each transaction at its index. Never raises."""
    try:
        _begin(connection)
        outcomes = _outcomes(connection, group, where)
        connection.run("COMMIT")
    except _GroupLost:
        # Only one of them may be too large for the disk: each gets a commit of its own.
        return [commit_group(connection, [alone], where)[0] for alone in group]
    except Exception as error:
        _roll_back(connection)
        return [storage_error(error, where) for _ in group]
    return outcomes


class _GroupLost(Exception):
    """SQLite rolled back the whole group, as it does for instance when the disk is full."""


def _begin(connection: Connection) -> None:
    """Take the write lock: twice the busy timeout is what another program may hold it."""
    try:
        connection.run("BEGIN IMMEDIATE")
    except apsw.BusyError:
        connection.run("BEGIN IMMEDIATE")


def _outcomes(
    connection: Connection, group: Sequence[Transaction], where: str
) -> list[Rows | StorageError]:
    try:
        return [_execute(connection, transaction) for transaction in group]
    except Exception:
        if len(group) == 1:
            raise
    if connection.in_transaction:
        connection.run("ROLLBACK")
    _begin(connection)
    return [_attempt(connection, transaction, where) for transaction in group]


def _attempt(connection: Connection, transaction: Transaction, where: str) -> Rows | StorageError:
    connection.run("SAVEPOINT member")
    try:
        rows = _execute(connection, transaction)
    # Whatever a parameter or a statement does wrong is that transaction's, not the group's.
    except Exception as error:
        if not connection.in_transaction:
            raise _GroupLost from error
        connection.run("ROLLBACK TO member")
        connection.run("RELEASE member")
        return storage_error(error, where)
    connection.run("RELEASE member")
    return rows


def _execute(connection: Connection, transaction: Transaction) -> Rows:
    rows: list[tuple[Row, ...]] = []
    for index, statement in enumerate(transaction):
        if statement.each:
            connection.run_each(statement.sql, statement.each)
            rows.append(())
            continue
        found = connection.run(statement.sql, statement.params)
        if statement.expect is not None and len(found) != statement.expect:
            raise ExpectationFailed(index, statement.expect, len(found), sql=statement.sql)
        if statement.changes is not None and (changed := connection.changes()) != statement.changes:
            raise ExpectationFailed(index, statement.changes, changed, "changed", statement.sql)
        rows.append(found)
    return tuple(rows)


def _roll_back(connection: Connection) -> None:
    with suppress(apsw.Error):
        if connection.in_transaction:
            connection.run("ROLLBACK")


# Group commit without a committer: whoever comes first works for all who wait.
#
# While one commit runs, those who arrive wait. When it ends, the first of them leads: it takes all
# that wait, commits them together and wakes each. A lone writer so pays for no second task, and a
# crowd shares one COMMIT; there is nothing to start, stop or lose. (Log-structured stores know this
# as the leader/follower scheme of the write queue.)
#
# Invariants: an item that was withdrawn is never committed; one that was taken gets its true
# outcome, however often its task is cancelled meanwhile; at most one commit runs at a time; while
# items wait, there is a leader.


T = TypeVar("T")
R = TypeVar("R")


@attrs.frozen
class CommitStatistics:
    """What a writer did since it started: groups, the items in them; how many items wait."""

    commits: int
    items: int
    waiting: int


@attrs.define(eq=False)
class _Entry(Generic[T, R]):
    item: T
    result: R | StorageError
    task: trio.lowlevel.Task | None = None
    """Who waits for it; None while nobody is parked."""
    taken: bool = False


class GroupCommit(Generic[T, R]):
    """Turns ``commit``, which handles many items, into :meth:`submit`, which handles one.

    ``commit`` gets the items in order of arrival and returns one result each, an error being one
    to raise. It must refuse to be cancelled.
    """

    def __init__(self, commit: Callable[[list[T]], Awaitable[Sequence[R | StorageError]]]):
        self._commit = commit
        self._waiting: list[_Entry[T, R]] = []
        self._led = False
        self._commits = 0
        self._items = 0

    async def submit(self, item: T) -> R:
        """Have ``item`` committed with all that wait.

        Cancellation: withdraws an item that waits. Once it was taken, its outcome is delivered.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        entry: _Entry[T, R] = _Entry(item, StorageError("the commit broke off: outcome unknown"))
        self._waiting.append(entry)
        if self._led:
            await self._settled_or_chosen(entry)
        if not entry.taken:
            await self._lead()
        if isinstance(entry.result, StorageError):
            raise entry.result
        return entry.result

    def statistics(self) -> CommitStatistics:
        return CommitStatistics(self._commits, self._items, len(self._waiting))

    async def _settled_or_chosen(self, entry: _Entry[T, R]) -> None:
        """Park until a leader has settled the entry, or has left the lead to it."""

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            if entry.taken:
                return trio.lowlevel.Abort.FAILED
            self._waiting.remove(entry)
            return trio.lowlevel.Abort.SUCCEEDED

        entry.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
        entry.task = None

    async def _lead(self) -> None:
        """Commit all that wait, this task's own item among them."""
        self._led = True
        group, self._waiting = self._waiting, []
        for entry in group:
            entry.taken = True
        self._commits += 1
        self._items += len(group)
        try:
            results = await self._commit([entry.item for entry in group])
            for entry, result in zip(group, results, strict=True):
                entry.result = result
        finally:
            # The one place where entries are settled. Nothing here awaits.
            for entry in group:
                _wake(entry)
            self._led = bool(self._waiting)
            if self._led:
                _wake(self._waiting[0])


def _wake(entry: _Entry[T, R]) -> None:
    if entry.task is not None:
        trio.lowlevel.reschedule(entry.task)


class Writer:
    """Usable from any task between :meth:`open` and :meth:`aclose`; may be opened again."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._jobs: Jobs | None = None
        self._connection: Connection | None = None
        self._group = GroupCommit[Transaction, Rows](self._commit)

    async def open(self) -> None:
        """Bring the database to the newest version. Raises ``StorageError``."""
        jobs = self._location.jobs()
        try:
            self._connection = await jobs.run(self._connect)
        except BaseException:
            jobs.end()
            raise
        self._jobs = jobs

    async def aclose(self) -> None:
        """End what is under way and fold the log into the database. Is not cancelled half-way."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            await jobs.run(self._close)
            jobs.end()

    async def submit(self, transaction: Transaction) -> Rows:
        """Run a transaction. Raises a ``StorageError``, of the class that says what to do.

        Cancellation: withdraws what waits; of what has begun, the outcome is delivered.
        """
        return await self._group.submit(transaction)

    def statistics(self) -> CommitStatistics:
        return self._group.statistics()

    async def _commit(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        jobs = self._jobs
        return self._closed(group) if jobs is None else await jobs.run(partial(self._work, group))

    # In the thread

    def _connect(self) -> Connection:
        connection = self._location.connect()
        try:
            migrate(connection)
        except apsw.Error as error:
            connection.close()
            raise storage_error(error, self._location.name) from error
        except StorageError:
            connection.close()
            raise
        return connection

    def _work(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        connection = self._connection
        if connection is None:
            return self._closed(group)
        return commit_group(connection, group, self._location.name)

    def _closed(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        name = self._location.name
        return [DatabaseClosed(f"{name} is closed: its host has stopped") for _ in group]

    def _close(self) -> None:
        """Checkpoint if no reader is in the way: what was answered is on disk anyway."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        except apsw.Error:
            # The log stays beside the database and is read at the next start.
            pass
        finally:
            connection.close()


# The actor that owns the only writer of the database: it commits what waits, all at once.
#
# The invariants are those of ``Writer``, which it opens and closes; Trio never waits for SQLite.


GROUP_LIMIT = 256
"""Transactions in one commit, at most; more wait in the mailbox."""


class Database(Actor[Transact]):
    """Runs :class:`Transact`. The place is the caller's to close, after this has stopped.

    A failed start is a ``StorageError``; so is a failed transaction, of the class that says what
    to do. A database that another program holds is waited for, twice the busy timeout (4 s).
    ``writer``: of that place, for those who submit to it beside this actor.
    """

    cleanup_budget: ClassVar[float] = 10.0

    def __init__(self, location: Location, writer: Writer | None = None) -> None:
        self._writer = writer or Writer(location)

    async def on_start(self) -> None:
        await self._writer.open()

    async def on_stop(self) -> None:
        """All handlers have ended. The log is folded into the database."""
        await self._writer.aclose()

    @handles(Transact, concurrent=GROUP_LIMIT)
    async def transact(self, message: Transact) -> Rows:
        return await self._writer.submit(message.statements)

    def statistics(self) -> CommitStatistics:
        return self._writer.statistics()


def through(database: ActorRef[Transact]) -> Commit:
    """Commits by asking the database actor, for stores that are not given its writer."""

    async def commit(transaction: Transaction) -> Rows:
        return await database.ask(Transact(transaction))

    return commit
