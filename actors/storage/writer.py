"""The only writing connection of a database, with group commit.

Three layers: :func:`commit_group` runs many transactions in one COMMIT, in the writer's thread;
:class:`GroupCommit` collects the transactions of concurrent tasks; :class:`Writer` joins the two.
The actor :class:`Database` opens and closes the writer, and answers :class:`Transact`. The stores
of sessions and errors and the event bus call :meth:`Writer.submit` directly, since a message there
and back costs a fifth of a commit, the disk not counted.

Invariants: an answered transaction is on disk (synchronous=FULL, answered after COMMIT); a
transaction that ended with a cancellation or an error left no trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from stat import S_ISDIR
from typing import ClassVar, Generic, TypeVar

import apsw
import attrs
import msgspec
import trio

from motet.actors.errors.log import logger
from motet.actors.storage.connection import Connection, Jobs, storage_error
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.protocols.storage import (
    COMMIT_SECONDS,
    Commit,
    DatabaseClosed,
    DatabaseGone,
    DiskFull,
    ExpectationFailed,
    Histogram,
    Row,
    Rows,
    Statement,
    StorageError,
    StorageUnavailable,
    Transact,
    Transaction,
)
from motet.runtime import Actor, ActorRef, handles
from motet.runtime.outside import monotonic

log = logger(__name__)

# Many transactions, one COMMIT: blocking and without Trio.
#
# A group is first run without savepoints, since a savepoint costs as much as a short transaction
# and almost no group has a failure. When one transaction fails, all are rolled back and run again,
# each in a savepoint of its own. Nothing is reported as stored before COMMIT has returned. When
# COMMIT fails, every transaction of the group has failed, also those with an error of their own:
# the rows that caused it may be gone.


def commit_group(
    connection: Connection, group: Sequence[Transaction], where: str
) -> list[Rows | StorageError]:
    """Run and commit a group; the outcomes in the order of the transactions. Never raises."""
    try:
        _begin(connection)
        outcomes = _outcomes(connection, group, where)
        connection.run("COMMIT")
    except _GroupLost:
        # One transaction may be too large for the disk; the others must not suffer for it.
        return [commit_group(connection, [alone], where)[0] for alone in group]
    except Exception as error:
        with suppress(apsw.Error):
            if connection.in_transaction:
                connection.run("ROLLBACK")
        return [storage_error(error, where) for _ in group]
    return outcomes


class _GroupLost(Exception):
    """SQLite has rolled back the whole group, as it does when the disk is full."""


def _begin(connection: Connection) -> None:
    """Take the write lock. Another program may hold it for twice the busy timeout."""
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
    # Any error of a statement or a parameter belongs to this transaction, not to the group.
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


# Group commit without a background task: the leader/follower scheme of log-structured stores.
#
# While a commit runs, new submitters wait. When it ends, the first of them becomes the leader: it
# takes all waiting items, commits them together and wakes their tasks. So a single writer pays for
# no second task, many writers share one COMMIT, and there is no committer to start or to stop.
#
# Invariants: a withdrawn item is never committed; a taken item gets its true outcome, however often
# its task is cancelled meanwhile; at most one commit runs at a time; while items wait, there is a
# leader.


T = TypeVar("T")
R = TypeVar("R")


@attrs.frozen
class CommitStatistics:
    """Since the start: groups and the items in them. ``waiting``: items that wait now."""

    commits: int
    items: int
    waiting: int


class _Entry(msgspec.Struct, Generic[T, R], eq=False):
    item: T
    result: R | StorageError
    task: trio.lowlevel.Task | None = None
    """The parked task; None while none is."""
    taken: bool = False


class GroupCommit(Generic[T, R]):
    """Turns ``commit``, which handles many items, into :meth:`submit`, which handles one.

    ``commit`` gets the items in order of arrival and returns one result for each; an error is
    raised in the item's task. It must not be cancellable.
    """

    def __init__(self, commit: Callable[[list[T]], Awaitable[Sequence[R | StorageError]]]):
        self._commit = commit
        self._waiting: list[_Entry[T, R]] = []
        self._led = False
        self._commits = 0
        self._items = 0

    async def submit(self, item: T) -> R:
        """Commit ``item`` together with all that wait.

        Cancellation withdraws a waiting item. Once it was taken, its outcome is delivered.
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
        """Park until a leader has settled the entry, or has made it the next leader."""

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            if entry.taken:
                return trio.lowlevel.Abort.FAILED
            self._waiting.remove(entry)
            return trio.lowlevel.Abort.SUCCEEDED

        entry.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
        entry.task = None

    async def _lead(self) -> None:
        """Commit all waiting items, this task's own among them."""
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
            # The one place that settles entries, also when the commit broke off. Nothing here
            # awaits, so that no entry can arrive between the wake-ups and the choice of a leader.
            self._led = bool(self._waiting)
            for entry in (*group, *self._waiting[:1]):
                if entry.task is not None:
                    trio.lowlevel.reschedule(entry.task)


def identity(file: str) -> tuple[int, int, int] | None:
    """Device and inode of a file, and for a directory the time of its last change in nanoseconds.

    None: there is none. Blocking.
    """
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns if S_ISDIR(found.st_mode) else 0


TICK = 50_000_000
"""Nanoseconds; two changes of a directory that are closer may leave the same time."""

VACUUMED_AT_ONCE = 268_435_456
"""Bytes of an old database that are written anew at a start, in a few seconds; of a larger one,
only if a quarter of it is free."""


def make_shrinkable(connection: Connection) -> None:
    """Let a database of an older motet give back free pages, once. Blocking."""
    ((mode, size, pages, free),) = connection.run(
        "SELECT auto_vacuum, page_size, page_count, freelist_count FROM pragma_auto_vacuum,"
        " pragma_page_size, pragma_page_count, pragma_freelist_count"
    )
    total, unused = float(pages or 0), float(free or 0)
    if mode == 0 and (total * float(size or 0) <= VACUUMED_AT_ONCE or unused * 4 > total):
        with suppress(apsw.Error):  # no room for a copy, or in use: another start will do it
            connection.run("PRAGMA auto_vacuum = INCREMENTAL")
            connection.run("VACUUM")


CHECK_SECONDS, FULL_CHECK_SECONDS = 0.1, 5.0
"""Time to look for damage when a database is opened that was closed in order, and that was not."""


def check(connection: Connection, seconds: float, where: str) -> None:
    """Read the database through, for so long at most. Raises ``StorageError`` if it is damaged.

    Else the host would serve until it meets the damage, and answer from what is left. Blocking.
    """
    until = monotonic() + seconds
    connection.set_progress_handler(lambda: monotonic() > until, 100)
    try:
        ((said, *_),) = connection.run("PRAGMA quick_check(1)")
    except apsw.InterruptError:
        said = "ok"  # as far as it was read
        log.info("the database was read through in part only; `motet doctor --full` reads all")
    finally:
        connection.set_progress_handler(None)
    if said != "ok":
        raise storage_error(apsw.CorruptError(" ".join(str(said).split())), where)


Stored = TypeVar("Stored")
RETRY = 0.25
"""Seconds between two attempts of one task to store the same."""
LEAST_ROOM = 1_000_000
"""Free bytes of the disk below which a transaction may fail at any moment."""
PROBE_EVERY = 1.0
"""Seconds between two attempts to write while the storage is unavailable."""

# Takes room for two pages, so that it fails on a full disk, and leaves nothing.
_PROBE_KEY = "probe " + "." * 8_000
PROBE = (
    Statement("INSERT INTO streams (stream, head) VALUES (?, 0)", (_PROBE_KEY,)),
    Statement("DELETE FROM streams WHERE stream = ?", (_PROBE_KEY,)),
)


class StorageHealth:
    """Whether transactions can be stored, as the newest commit has shown. Touched by one thread.

    ``look``: a problem of the files that the next commit would meet.

    Attributes:
        problem: the failure of the newest commit; None: it succeeded.
        since: when the storage became unavailable, on Trio's clock; 0.0 while it works.
    """

    def __init__(self, look: Callable[[], StorageUnavailable | None] = lambda: None) -> None:
        self._look = look
        self.problem: StorageUnavailable | None = None
        self.since = 0.0
        self._working = trio.Event()
        self._failing = trio.Event()
        self._changed = trio.Event()
        self._working.set()

    def __repr__(self) -> str:
        return f"<StorageHealth {self.problem or 'works'}>"

    def report(self, outcomes: Sequence[Rows | StorageError]) -> None:
        """Note the outcomes of a commit. A failure of a single transaction says nothing."""
        failed = [one for one in outcomes if isinstance(one, StorageUnavailable)]
        if failed:
            if self.problem is None:
                self.since, self._working = trio.current_time(), trio.Event()
                self._failing.set()
                self._announce()
            self.problem = failed[0]
        elif self.problem is not None and any(isinstance(one, tuple) for one in outcomes):
            self.problem, self.since, self._failing = None, 0.0, trio.Event()
            self._working.set()
            self._announce()

    def current(self) -> StorageUnavailable | None:
        """The problem of the newest commit, or the one that the next one would meet."""
        return self.problem or self._look()

    def _announce(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait until the storage becomes unavailable, or works again."""
        await self._changed.wait()

    async def working(self) -> None:
        """Wait until a commit succeeds, if the newest has failed."""
        await self._working.wait()

    async def failing(self) -> None:
        """Wait until a commit fails."""
        await self._failing.wait()

    async def insist(self, write: Callable[[], Awaitable[Stored]]) -> Stored:
        """Repeat a write until the storage takes it. Raises all other errors of the write.

        Cancellation ends the wait; a write that is being committed is finished first.
        """
        while True:
            try:
                return await write()
            except StorageUnavailable:
                await self.retry()

    async def retry(self) -> None:
        """After a failed write: wait until another attempt is sensible."""
        await trio.sleep(RETRY)
        await self.working()


LONG_LOG = 64 << 20
"""Bytes of a write-ahead log that only a reader can have kept from being folded in."""
LOOK_EVERY = 1.0
"""Seconds between two looks at its size."""
ADVICE = "a program has read the database without an end: close it (a database browser, a backup)"


class Writer:
    """The writing connection. Any task may use it between :meth:`open` and :meth:`aclose`.

    It may be opened again. ``health``: whether its commits succeed; ``commits``: their times.
    ``prepare``: makes the tables.
    """

    def __init__(
        self, location: Location, prepare: Callable[[Connection], object] = migrate
    ) -> None:
        self.health = StorageHealth(self._problem)
        self.commits = Histogram(COMMIT_SECONDS)
        self._prepare = prepare
        self._location = location
        self._jobs: Jobs | None = None
        self._connection: Connection | None = None
        self._files: dict[str, tuple[int, int, int] | None] = {}
        self._directory, self._folder = "", identity("")
        self._look, self._told = 0.0, 0
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
        """Finish the running commit, fold the log into the database, close. Not cancellable."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            await jobs.run(self._close)
            jobs.end()

    async def submit(self, transaction: Transaction) -> Rows:
        """Run a transaction. Raises the ``StorageError`` class that says what to do.

        Cancellation withdraws a waiting transaction; of a begun one the outcome is delivered.
        """
        return await self._group.submit(transaction)

    def statistics(self) -> CommitStatistics:
        return self._group.statistics()

    async def _commit(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        jobs = self._jobs
        if jobs is None:
            return self._closed(group)
        # Always, however short ago the last one was: files that come back would bring a group
        # that was committed into them, and refused. Here, where nobody waits for the interpreter
        # lock, which each look gives up: in the thread, this one would wait for it in turn.
        problem = self._gone()
        outcomes = [problem] * len(group) if problem else await jobs.run(partial(self._work, group))
        self.health.report(outcomes)
        return outcomes

    # In the thread

    def _connect(self) -> Connection:
        *_, log_file, _ = self._location.files() or ("", "")
        # A host that ends in order folds it in, and may leave an empty one.
        was_cut_off = os.path.exists(log_file) and os.path.getsize(log_file) > 0
        connection = self._location.connect()
        try:
            if self._location.path is not None:
                seconds = FULL_CHECK_SECONDS if was_cut_off else CHECK_SECONDS
                check(connection, seconds, self._location.name)
            self._prepare(connection)
            if self._location.path is not None:
                make_shrinkable(connection)
            self._files = {file: identity(file) for file in self._location.files()}
            self._directory = os.path.dirname(next(iter(self._files), ""))
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
        begun = monotonic()
        outcomes = commit_group(connection, group, self._location.name)
        self.commits.observe((now := monotonic()) - begun)
        if now >= self._look:
            self._look = now + LOOK_EVERY
            self._watch_log()
        # Files that went meanwhile have taken the group with them.
        return [problem] * len(group) if (problem := self._gone()) else outcomes

    def _watch_log(self) -> None:
        """Tell of a log that grows, at each doubling: a long read keeps it from being folded in."""
        _, size = self._location.sizes()
        if size > max(LONG_LOG, 2 * self._told):
            self._told = size
            log.warning("the_log_of_the_database_grows", bytes=size, advice=ADVICE)
        elif size <= LONG_LOG // 2:
            self._told = 0

    def _gone(self) -> DatabaseGone | None:
        """SQLite goes on with deleted files as if nothing were, and all that it writes is lost.

        As long as nobody has added, removed or renamed a file of the directory, its own time tells
        that all are there.
        """
        if not self._files:
            return None
        folder = identity(self._directory)
        if folder is None or folder != self._folder:
            if problem := self._missing():
                return problem
            is_old = folder is not None and time.time_ns() - folder[2] > TICK
            self._folder = folder if is_old else None
        return None

    def _missing(self) -> DatabaseGone | None:
        if all(identity(file) == known for file, known in self._files.items()):
            return None
        return DatabaseGone(
            f"the files of {self._location.name} were deleted, moved or replaced: nothing is stored"
            " any more. Stop this host, put the files back (or a backup), and start it again"
        )

    def _problem(self) -> StorageUnavailable | None:
        """In any thread, without a write: a few looks of microseconds at the directory."""
        if not self._files:
            return None
        if problem := self._missing():
            return problem
        folder, name = self._directory, self._location.name
        disk = os.statvfs(folder)
        if disk.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
            return StorageUnavailable(f"the directory of {name} cannot be written")
        if disk.f_bavail * disk.f_frsize < LEAST_ROOM:
            return DiskFull(f"less than {LEAST_ROOM:,} bytes are free for {name}")
        return None

    def _closed(self, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        name = self._location.name
        return [DatabaseClosed(f"{name} is closed: its host has stopped") for _ in group]

    def _close(self) -> None:
        """Checkpoint unless a reader is in the way: answered transactions are on disk anyway."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        except apsw.Error:
            # The log stays beside the database, and the next start reads it.
            pass
        finally:
            connection.close()


GROUP_LIMIT = 256
"""Transactions in one commit, at most; more wait in the mailbox."""


class Database(Actor[Transact]):
    """Owns the writer of a database and runs :class:`Transact`; Trio never waits for SQLite.

    A failed start is a ``StorageError``; so is a failed transaction, of the class that says what
    to do. A database that another program holds is waited for, twice the busy timeout (4 s). The
    caller closes ``location`` after this actor has stopped. ``writer``: of that location, for
    stores that submit to it directly.
    """

    cleanup_budget: ClassVar[float] = 10.0

    def __init__(self, location: Location, writer: Writer | None = None) -> None:
        self._writer = writer or Writer(location)

    async def on_start(self) -> None:
        await self._writer.open()
        self.start_soon(self._probe, name="storage probe")

    async def _probe(self) -> None:
        """While the storage is unavailable, notice its return even if nobody else writes."""
        while True:
            await self._writer.health.failing()
            await trio.sleep(PROBE_EVERY)
            if self._writer.health.problem is not None:
                with suppress(StorageError):
                    await self._writer.submit(PROBE)

    async def on_stop(self) -> None:
        """Fold the log into the database. All handlers have ended by then."""
        await self._writer.aclose()

    @handles(Transact, concurrent=GROUP_LIMIT)
    async def transact(self, message: Transact) -> Rows:
        return await self._writer.submit(message.statements)

    def statistics(self) -> CommitStatistics:
        return self._writer.statistics()


def through(database: ActorRef[Transact]) -> Commit:
    """A commit function that asks the database actor, for stores without its writer."""

    async def commit(transaction: Transaction) -> Rows:
        return await database.ask(Transact(transaction))

    return commit
