# ruff: noqa: ARG002  (SQLite passes more arguments than needed)
"""A disk in memory that loses data that was not synced when its power is cut.

SQLite runs on it as on a real disk: the same journal, the same PRAGMAs, the host's own writer and
readers. So a loss in a test is a loss that a user would have.

It supports WAL, although a rollback journal would be simpler for a VFS in Python: hosts run in WAL
mode, and a defect in that, such as a weaker ``synchronous``, must show. WAL needs shared memory
between the connections, which such a VFS cannot offer. SQLite's own ``unix-excl`` has it on the
heap, for the connections of one process to one file, and also its locks: each volume keeps an empty
file only for these.

    disk = SimulatedDisk(Random(seed))
    async with grow(disk.location(), ...): ...
    disk.crash()
    async with grow(disk.location(), ...): ...   # opens the surviving data
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import apsw

from motet.actors.storage.location import DATABASE_FILE, Location
from motet.actors.storage.schema import new_database
from motet.protocols.storage import StateInUse
from motet.testing.volume import SECTOR, Faults, File, NoRoom, SyncFailed, Volume, WriteFailed

__all__ = ["SimulatedDisk"]

_BASE = "unix-excl"
_DATABASE = f"/{DATABASE_FILE}"
_WITH_NEW_NAME = (
    apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
)
"""Files whose first sync also syncs the directory, as in SQLite on Unix."""

_numbers = count(1)


class SimulatedDisk:
    """The disk of a simulated host. For one thread; no operation blocks.

    ``random`` decides what survives a crash, by one draw for each crash. ``image`` is the initial
    database, by default that of :func:`formatted`; empty: the host makes a new one.

    Synced data survives a crash. Each sector of another write survives, is lost, or survives in
    part; files that were created, cut or deleted may be as before. Open connections continue on a
    private copy, so that a crashed host notices nothing.
    """

    def __init__(self, random: Random, *, image: bytes | None = None) -> None:
        self._random = random
        self._faults = Faults()
        volume = Volume(self._faults)
        image = new_database() if image is None else image
        if image:
            content = _in_wal_mode(image)
            volume.files[_DATABASE] = File(bytearray(content), bytearray(content))
            volume.sync_names()
        self._other: apsw.Connection | None = None
        self._power_on(volume)
        self.crashes = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.changes} changes since {self.crashes} crashes>"

    @property
    def changes(self) -> int:
        """Changes since the power came on: writes, syncs, truncations, creations, deletions."""
        return self._volume.changes

    @property
    def room(self) -> int | None:
        """The size of the disk in bytes, beyond which a commit fails; None: unlimited."""
        return self._faults.room

    @room.setter
    def room(self, size: int | None) -> None:
        self._faults.room = size

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(len(file.seen) for file in self._volume.files.values())

    @property
    def locked(self) -> bool:
        """Whether another program holds the write lock of the database; set it to take the lock.

        It waits for no running transaction: set it where the host pauses. A crash ends it.
        """
        return self._other is not None

    @locked.setter
    def locked(self, wanted: bool) -> None:
        if wanted == self.locked:
            return
        if self._other is not None:
            self._other.close()
            self._other = None
        else:
            other = apsw.Connection(_DATABASE, vfs=self._system.name)
            try:
                other.execute("BEGIN IMMEDIATE")  # pyright: ignore[reportUnknownMemberType]
            except apsw.Error:
                other.close()
                raise
            self._other = other

    @property
    def broken(self) -> str:
        """The way in which every write fails: ``io``, ``readonly``, or empty: none does."""
        return self._faults.broken

    @broken.setter
    def broken(self, way: str) -> None:
        if way not in ("", "io", "readonly"):
            raise ValueError(f"a disk fails as 'io' or 'readonly', not as {way!r}")
        self._faults.broken = way

    def location(self) -> Location:
        """The location of a host's state on this disk, for one host at a time.

        Raises ``StateInUse`` while another host has it open: close that host, or crash.
        """
        volume, system = self._volume, self._system
        if system.in_use:
            raise StateInUse(Path(f"{self!r}"), os.getpid())
        system.in_use = True
        assert volume is system.volume
        return Location.simulated(system.name, _DATABASE, system.release)

    def crash(self) -> None:
        """Cut the power and restore it at once, at any point of the host's work."""
        dead = self._volume
        dead.before = _nothing
        self.locked = False
        self.crashes += 1
        self._power_on(dead.survivor(self._random))

    def crash_at(self, change: int | None, then: Callable[[], None] | None = None) -> None:
        """Crash before the ``change``-th change from now, 1 being the next; None: never.

        So a crash can fall inside a commit, where a host never pauses. ``then`` is called at once;
        the host continues to its next checkpoint, on a private copy.
        """
        volume, left = self._volume, count(1)
        if change is None:
            volume.before = _nothing
            return
        if change < 1:
            raise ValueError(f"the next change is number 1, there is no number {change}")

        def tick() -> None:
            if next(left) == change:
                self.crash()
                if then is not None:
                    then()

        volume.before = tick

    def fail_sync(self, nth: int = 1) -> None:
        """Make the ``nth`` sync of a commit from now fail once, 1 being the next.

        Its data is then lost for good, as on Linux: it is visible until the power goes, but no
        later successful sync saves it.
        """
        if nth < 1:
            raise ValueError(f"the next sync is number 1, there is no number {nth}")
        self._faults.failing_sync = nth

    def _power_on(self, volume: Volume) -> None:
        self._volume = volume
        self._system = _System(volume)


def _in_wal_mode(image: bytes) -> bytes:
    """Set the file format's versions for readers and writers; 2 is WAL."""
    return image[:18] + b"\2\2" + image[20:]


def _nothing() -> None:
    """A disk without power counts no changes."""


class _System(apsw.VFS):
    """A volume as a VFS of SQLite; registered as long as it is referenced."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.in_use = False
        self.name = f"motet-disk-{next(_numbers)}"
        super().__init__(self.name, _BASE)
        descriptor, self._locks = tempfile.mkstemp(prefix="motet-disk-")
        os.close(descriptor)
        weakref.finalize(self, Path(self._locks).unlink, missing_ok=True)

    def release(self) -> None:
        self.in_use = False

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
            return _Database(self.volume, file, self._locks)
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
        self._volume = volume
        self._file = file
        self._first_sync = first_sync

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

    def xFileControl(self, op: int, ptr: int) -> bool:
        return apsw.VFSFile.xFileControl(self, op, ptr)

    def xClose(self) -> None:
        apsw.VFSFile.xClose(self)


class _IOFailed(apsw.IOError):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.extendedresult = code
