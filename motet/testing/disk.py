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
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from pathlib import Path
from random import Random

import apsw

from motet.actors.storage.location import Location
from motet.actors.storage.schema import new_database
from motet.protocols.storage import StateInUse
from motet.testing.disk_files import DATABASE, System, plugged, unplugged
from motet.testing.volume import Faults, File, Volume

__all__ = ["SimulatedDisk"]


class SimulatedDisk:
    """The disk of a simulated host. For one thread; no operation blocks.

    ``random`` decides what survives a crash, by one draw for each crash. ``image`` is the initial
    database, by default that of a new host; empty: the host makes a new one. ``kept``: all parts of
    a host share one connection, which serves the next disk after :meth:`unplug`.

    Synced data survives a crash. Each sector of another write survives, is lost, or survives in
    part; files that were created, cut or deleted may be as before. Open connections continue on a
    private copy, so that a crashed host notices nothing.
    """

    def __init__(self, random: Random, *, image: bytes | None = None, kept: bool = False) -> None:
        self._random = random
        self._kept = kept and image is None
        self._faults = Faults()
        volume = Volume(self._faults)
        image = new_database() if image is None else image
        if image:
            content = _in_wal_mode(image)
            volume.files[DATABASE] = File(bytearray(content), content)
            volume.sync_names()
        self._other: apsw.Connection | None = None
        self._volume = volume
        self._system: System | None = plugged(volume, kept=self._kept)
        self._dead: list[System] = []
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
    def vfs(self) -> str:
        """The name of its VFS, for a connection of a test: SQLite's files are as on a real disk."""
        return self._connected().name

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
            other = apsw.Connection(DATABASE, vfs=self.vfs)
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
        system = self._connected()
        if system.in_use:
            raise StateInUse(Path(f"{self!r}"), os.getpid())
        system.in_use = True
        assert self._volume is system.volume
        return Location.simulated(
            system.name, DATABASE, system.release, system.lend if self._kept else None
        )

    def crash(self) -> None:
        """Cut the power and restore it at once, at any point of the host's work."""
        dead = self._volume
        dead.before = _nothing
        self.locked = False
        self._take_off()
        self.crashes += 1
        self._volume = dead.survivor(self._random)

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

    def clear(self) -> None:
        """Release what the hosts have used that a crash has ended, once they are dismantled."""
        if self._kept:
            for system in self._dead:
                unplugged(system)
        self._dead.clear()

    def unplug(self) -> None:
        """Release the connection of the last host, which has ended, for another world.

        What is on the disk stays there, for another host as well.
        """
        self.locked = False
        self._take_off()
        self.clear()

    def _connected(self) -> System:
        if self._system is None:
            self._system = plugged(self._volume, kept=self._kept)
        return self._system

    def _take_off(self) -> None:
        if self._system is not None:
            self._dead.append(self._system)
            self._system = None


@lru_cache(maxsize=2)
def _in_wal_mode(image: bytes) -> bytes:
    """Set the file format's versions for readers and writers; 2 is WAL."""
    return image[:18] + b"\2\2" + image[20:]


def _nothing() -> None:
    """A disk without power counts no changes."""
