# ruff: noqa: ARG002  (SQLite passes more arguments than needed)
"""The files of a volume as SQLite sees them, and the connections to them.

A connection costs a fifth of a short world: SQLite reads the schema, compiles each statement, and
forgets both with the connection. So a connection that has come to rest is kept, and the volume of
another world is put under it: for SQLite that is a file that another program has replaced between
two transactions, which it notices by the change counter.

Invariant: what a connection keeps is its schema and statements, which SQLite checks against the
schema's version in the file. It keeps no page, no lock and no log.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path

import apsw

from motet.actors.storage.connection import Connection
from motet.actors.storage.location import DATABASE_FILE, Make
from motet.testing.volume import SECTOR, File, NoRoom, SyncFailed, Volume, WriteFailed

__all__ = ["DATABASE", "System", "plugged", "unplugged"]

_BASE = "unix-excl"
DATABASE = f"/{DATABASE_FILE}"
_WITH_NEW_NAME = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)
"""Files whose first sync also syncs the directory, as in SQLite on Unix."""

_numbers = count(1)


class Lent(Connection):
    """The connection of all parts of a host; it is closed when each of them has closed it.

    All share it, since nothing runs beside a statement in a simulated world, and no transaction
    stays open between two: the readers see what a connection of their own would show them.
    """

    holders = 0

    def close(self, force: bool = False) -> None:
        self.holders -= 1

    def set_progress_handler(self, *_args: object, **_options: object) -> None:
        """Nothing interrupts a statement here, and the handler of one holder is not another's."""

    def end(self) -> None:
        super().close()


class System(apsw.VFS):
    """A volume as a VFS of SQLite; registered as long as it is referenced.

    ``location`` may be opened by one host at a time, which ``in_use`` tells.
    """

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.in_use = False
        self.process = os.getpid()
        self.name = f"motet-disk-{next(_numbers)}"
        self._connection: Lent | None = None
        self._at_exit: weakref.finalize[[], System] | None = None  # closes it
        self._opened: _Database | None = None
        self._database: _Database | None = None  # of the connection
        super().__init__(self.name, _BASE)
        descriptor, self._locks = tempfile.mkstemp(prefix="motet-disk-")
        os.close(descriptor)
        weakref.finalize(self, Path(self._locks).unlink, missing_ok=True)

    def release(self) -> None:
        self.in_use = False

    def lend(self, make: Make, prepare: Callable[[Connection], None]) -> Connection:
        """The connection to the volume; see :class:`Lent`."""
        if self._connection is None:
            made = make(Lent)
            assert isinstance(made, Lent)
            self._connection = made
            self._database = self._opened
            # SQLite would close it later, without the files that are then gone.
            self._at_exit = weakref.finalize(self, made.end)
        if not self._connection.holders:
            prepare(self._connection)
        self._connection.holders += 1
        return self._connection

    def unplug(self) -> bool:
        """Take the volume off when nobody uses it any more; whether another may follow it.

        SQLite ends the log: what is in it goes to the database, and the file may be replaced.
        """
        connection = self._connection
        if connection is None or self.in_use or connection.holders:
            return False
        try:
            left = connection.run("PRAGMA journal_mode = MEMORY") == (("memory",),)
            connection.run("PRAGMA shrink_memory")
        except apsw.Error:
            left = False
        if not left or self._database is None:
            self.end()
            return False
        return True

    def end(self) -> None:
        """Close the connection, and its file of locks."""
        if self._connection is not None and self._at_exit is not None:
            # It refers to the connection, and that to this object, which would never be freed.
            self._at_exit.detach()
            self._connection.end()
            self._connection = None

    def plug(self, volume: Volume) -> None:
        """Put another volume under the connection."""
        assert self._database is not None
        self.volume = volume
        self._database.put(volume, volume.open(DATABASE, create=False))

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        wanted, flags[1] = flags[0], flags[0]
        if name is None:
            return _Journal(Volume(), File(), first_sync=False)  # a private temporary file
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        made = path not in self.volume.files
        try:
            file = self.volume.open(path, create=bool(wanted & apsw.SQLITE_OPEN_CREATE))
        except FileNotFoundError:
            raise apsw.CantOpenError(f"there is no file {path}") from None
        if wanted & apsw.SQLITE_OPEN_MAIN_DB:
            self._opened = _Database(self.volume, file, self._locks)
            return self._opened
        return _Journal(self.volume, file, first_sync=made and bool(wanted & _WITH_NEW_NAME))

    def xDelete(self, filename: str, syncdir: bool) -> None:
        try:
            self.volume.delete(filename, synced=syncdir)
        except FileNotFoundError:
            raise _IOFailed(apsw.SQLITE_IOERR_DELETE_NOENT, "no such file") from None

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self.volume.files

    def xFullPathname(self, name: str) -> str:
        return name

    def xSleep(self, microseconds: int) -> int:
        """Return at once: no other thread could release a lock meanwhile."""
        return microseconds


class _Journal(apsw.VFSFile):
    """A file of one connection, or one that is locked through another file."""

    _may_fail = True

    def __init__(self, volume: Volume, file: File, *, first_sync: bool) -> None:
        # Not initialised as a VFSFile, since it inherits from no other VFS.
        self.put(volume, file)
        self._first_sync = first_sync

    def put(self, volume: Volume, file: File) -> None:
        """Be this file from now on."""
        self._volume, self._file = volume, file

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._file.seen[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        try:
            self._volume.write(self._file, data, offset, may_fail=self._may_fail)
        except NoRoom:
            raise apsw.FullError("the simulated disk is full") from None
        except WriteFailed as failed:
            if str(failed) == "readonly":
                raise apsw.ReadOnlyError("the simulated disk is read-only") from None
            raise _IOFailed(apsw.SQLITE_IOERR_WRITE, "the simulated disk failed") from None

    def xTruncate(self, newsize: int) -> None:
        self._volume.truncate(self._file, newsize)

    def xSync(self, flags: int) -> None:
        try:
            self._volume.sync(self._file, may_fail=self._may_fail)
        except SyncFailed:
            raise _IOFailed(apsw.SQLITE_IOERR_FSYNC, "the simulated disk failed") from None
        if self._first_sync:
            self._volume.sync_names()
            self._first_sync = False

    def xFileSize(self) -> int:
        return len(self._file.seen)

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xClose(self) -> None:
        pass


class _Database(_Journal):
    """The database file, shared by connections: the base VFS has its locks and WAL index."""

    # Only checkpoints write it. SQLite ignores their failures, but apsw would raise them after the
    # statement, here a commit that succeeded.
    _may_fail = False

    def __init__(self, volume: Volume, file: File, locks: str) -> None:
        super().__init__(volume, file, first_sync=False)
        wanted = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
        apsw.VFSFile.__init__(self, _BASE, locks, [wanted, 0])

    # Without a function of ours between them: SQLite calls these more often than all others.
    xFileControl = apsw.VFSFile.xFileControl
    xClose = apsw.VFSFile.xClose


class _IOFailed(apsw.IOError):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.extendedresult = code


_resting: list[System] = []
MOST_RESTING = 2
"""One for a world, and one for what a crash in it leaves."""


def plugged(volume: Volume, *, kept: bool) -> System:
    """A system with this volume; ``kept``: with a connection of an earlier world, if there is one.

    Only for a volume with the tables of all hosts.
    """
    for system in _resting if kept else ():
        if system.process == os.getpid():  # a forked process leaves alone what it has inherited
            _resting.remove(system)
            system.plug(volume)
            return system
    return System(volume)


def end_resting() -> None:
    """End the kept connections, with their files; for a process that is about to fork."""
    for system in _resting:
        system.end()
    _resting.clear()


def unplugged(system: System) -> None:
    """Keep the connection of a system whose volume is not needed any more."""
    if system.unplug():
        if len(_resting) < MOST_RESTING:
            _resting.append(system)
        else:
            system.end()
