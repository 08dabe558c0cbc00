"""SQLite connections with the types of our rows, their errors, and the threads they work in.

Blocking work runs off Trio's thread under one rule: the outcome that happened is the one reported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NoReturn, Protocol, TypeVar, cast

import apsw
import outcome
import trio

from motet.protocols.storage import (
    STREAM_DIGEST,
    ConstraintFailed,
    DatabaseClosed,
    DatabaseLocked,
    DiskFull,
    Row,
    SqlValue,
    StorageError,
    StorageUnavailable,
    stream_digest,
)

WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE

STATEMENTS = 256
"""Compiled statements that a connection keeps. A turn runs about 25, and what is written for many
turns at once must be found again after a dozen of them: with apsw's 100 it was compiled each time.
"""


class _Cursor(Protocol):
    """apsw's, which declares values as a union with Buffer that Python 3.11's typing lacks."""

    def execute(self, sql: str, params: Sequence[SqlValue], /) -> _Cursor: ...

    def executemany(self, sql: str, params: Sequence[Sequence[SqlValue]], /) -> Iterable[Row]: ...

    def fetchall(self) -> list[Row]: ...


class Connection(apsw.Connection):
    """A connection with the types of our rows. Blocking; used by one thread at a time.

    All statements share one cursor, which is possible since all rows are fetched at once: a new
    cursor costs as much as the shortest statement.
    """

    def __init__(self, filename: str, flags: int = WRITE, vfs: str | None = None) -> None:
        super().__init__(filename, flags, vfs, STATEMENTS)
        # Without it a statement whose plan could depend on its parameters is compiled each time.
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        digest: Callable[..., str] = stream_digest  # apsw gives values of any type
        self.create_scalar_function(STREAM_DIGEST, digest, 1, deterministic=True)  # pyright: ignore
        self._cursor = cast(_Cursor, self.cursor())

    def run(self, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        """Run statements to their end; all their rows. Raises ``apsw.Error``."""
        return tuple(self._cursor.execute(sql, params).fetchall())

    def run_each(self, sql: str, params: Sequence[Sequence[SqlValue]]) -> None:
        """Run one statement once for each of the parameters. Raises ``apsw.Error``."""
        for _ in self._cursor.executemany(sql, params):
            pass


def copy_image(image: bytes, target: apsw.Connection) -> None:
    """Replace all of a database by ``image``, in one transaction. Raises ``apsw.Error``."""
    source = apsw.Connection(":memory:")
    source.deserialize("main", image)  # pyright: ignore  # a Buffer: see above
    with target.backup("main", source, "main") as copy:
        copy.step()
    source.close()


def storage_error(error: Exception, where: str) -> StorageError:
    """A failure of SQLite as the exception that says what to do; the original is its cause."""
    if isinstance(error, StorageError):
        return error
    translated = _translated(error, where)
    translated.__cause__ = error
    return translated


def _translated(error: Exception, where: str) -> StorageError:
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return DatabaseLocked(
                f"another program keeps {where} locked: "
                "close it (a database browser, a backup), then try again"
            )
        case apsw.FullError():
            return DiskFull(f"no space left for {where}: nothing was stored; free some space")
        case apsw.ConstraintError():
            return ConstraintFailed(f"{error}: the transaction was rolled back")
        case apsw.ConnectionClosedError() | apsw.CursorClosedError():
            return DatabaseClosed(f"{where} is closed: its host has stopped")
        case apsw.NotADBError() | apsw.CorruptError():
            return StorageError(
                f"{where} is damaged or no SQLite database ({error}): restore a copy, save what "
                "can be read with `motet doctor --repair`, or move it away to start afresh"
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StorageUnavailable(
                f"{where} cannot be opened for this ({error}): check the owner and the "
                "permissions of the file and its directory"
            )
        case apsw.IOError() | apsw.NoMemError() | apsw.ProtocolError():
            return StorageUnavailable(f"{where}: {type(error).__name__}: {error}")
        case _:
            return StorageError(f"{where}: {type(error).__name__}: {error}")


# ``trio.to_thread.run_sync`` can either ignore a cancellation or abandon the thread. A query needs
# a third way: it is interrupted, then waited for. Nothing below returns before its job has ended,
# so that the connection is free for the next one.


T = TypeVar("T")


async def in_thread(job: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
    """Run ``job`` in one of Trio's idle threads, which never keep a process alive.

    Cancellation: ``interrupt`` is called, from Trio's thread, and when ``job`` then raises
    ``apsw.InterruptError`` the task is cancelled. A job that ends otherwise, or that has no
    ``interrupt``, delivers its outcome: what was done is never reported as cancelled (G1).
    """
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()
    cancel: Callable[[], NoReturn] | None = None

    def abort(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        nonlocal cancel
        if interrupt is not None:
            cancel = raise_cancel
            interrupt()
        return trio.lowlevel.Abort.FAILED

    def deliver(result: outcome.Outcome[T]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

    trio.lowlevel.start_thread_soon(job, deliver, "motet storage")
    try:
        value: T = await trio.lowlevel.wait_task_rescheduled(abort)
    except apsw.InterruptError:
        if cancel is not None:
            cancel()
        raise
    return value


async def inline(job: Callable[[], T], _interrupt: Callable[[], None] | None = None) -> T:
    """Run ``job`` in this task: for databases in memory.

    A job takes microseconds, and without a thread a virtual clock and a seeded schedule stay
    exact. Not a checkpoint: the message to the actor that calls it was one.
    """
    return job()


class Jobs(Protocol):
    """Runs the jobs of one connection, one at a time."""

    async def run(self, job: Callable[[], T]) -> T:
        """The job's outcome. Not cancellable."""
        ...

    def end(self) -> None:
        """Release the thread. No job runs, and none will follow."""


class InlineJobs:
    """Runs jobs in the calling task: see :func:`inline`."""

    async def run(self, job: Callable[[], T]) -> T:
        return job()

    def end(self) -> None:
        pass


class JobThread:
    """Runs jobs in a thread of its own, which never keeps a process alive.

    The end of a job is a byte in a pipe on which the job's task waits. That wakes Trio's loop once;
    ``run_sync_soon`` wakes it twice and adds a queue, and so takes twice as long.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended, self._wake = os.pipe()
        self._waiting, self._busy = trio.lowlevel.ParkingLot(), False
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def run(self, job: Callable[[], T]) -> T:
        # A lock, whose own calls would cost as much as a switch: each passes its turn on.
        if self._busy:
            with trio.CancelScope(shield=True):
                await self._waiting.park()
        self._busy = True
        try:
            return (await self._run(job)).unwrap()
        finally:
            self._busy = bool(self._waiting.unpark())

    def end(self) -> None:
        self._jobs.put(None)
        trio.lowlevel.notify_closing(self._ended)
        os.close(self._ended)

    async def _run(self, job: Callable[[], T]) -> outcome.Outcome[T]:
        results: list[outcome.Outcome[T]] = []
        # Trio notes the task as the reader before the thread wakes: that one wants the interpreter
        # lock at once, and the system call would give it up. A scope as a shield takes 30 calls.
        reading = trio.lowlevel.wait_readable(self._ended)
        reading.send(None)
        self._jobs.put(lambda: results.append(outcome.capture(job)))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        reading.close()
        os.read(self._ended, 1)
        return results[0]

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            os.write(self._wake, b"\0")
        os.close(self._wake)
