"""The files of a simulated disk: their visible content, and the content after a loss of power.

Pure: no SQLite; the caller gives the random generator. Invariant: synced bytes and synced names
survive a loss of power.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import attrs

SECTOR = 512
"""Bytes. A write to one sector may survive a power cut in part."""

MOST_DONE = 1_000
"""Synced changes of a file that wait, at most."""

Change: TypeAlias = tuple[int, bytes] | int
"""Bytes written at an offset, or the size of a truncation."""


class SyncFailed(Exception):
    """A sync failed, which is reported once; the unsynced data is lost (see ``Faults``)."""


class NoRoom(Exception):
    """The disk is full."""


class WriteFailed(Exception):
    """A write failed, in the way that ``Faults`` names."""


@attrs.define
class Faults:
    """The planned faults of the disk.

    ``room``: the size of the disk in bytes; None: unlimited. ``failing_sync``: the number of the
    sync from now that fails, 1 being the next; 0: none. As on Linux, a failed sync marks its data
    as written: it is visible as long as the power is on, and no later sync saves it. ``broken``:
    how every write of a commit fails; empty: none does.
    """

    room: int | None = None
    failing_sync: int = 0
    broken: str = ""


class Chance:
    """Decides which unsynced changes survive: none, all, or some."""

    def __init__(self, random: Random) -> None:
        # One draw from the caller's generator for all decisions, so that cases shrink well.
        self._random = Random(random.getrandbits(32))
        self._share = self._random.choice((0.0, 0.1, 0.5, 0.9, 1.0))

    def keeps(self) -> bool:
        return self._random.random() < self._share

    def part(self, size: int) -> slice:
        """The surviving bytes of a write to one sector; one write in four is torn."""
        torn = self._random.randrange(4 * size)
        if torn >= size:
            return slice(size)
        return slice(torn) if self._random.random() < 0.5 else slice(torn, size)


@attrs.define(eq=False, repr=False)
class File:
    """A file: its visible content, and the changes that are not synced, in order.

    What is synced is a content and the synced changes after it: it is only needed when the power
    is cut, and most files never see that.
    """

    seen: bytearray = attrs.field(factory=bytearray)
    _synced: bytes | bytearray = attrs.field(default=b"", alias="synced")
    pending: list[Change] = attrs.field(factory=list[Change])
    _done: list[Change] = attrs.field(factory=list[Change], init=False)

    def write(self, data: bytes, offset: int) -> None:
        _write(self.seen, data, offset)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.seen, size)
        self.pending.append(size)

    def sync(self) -> None:
        self._done += self.pending
        self.pending.clear()
        if len(self._done) > MOST_DONE:
            self._do()

    @property
    def synced(self) -> bytes | bytearray:
        """The content that a loss of power leaves."""
        if self._done:
            self._do()
        return self._synced

    def _do(self) -> None:
        synced = self._synced = bytearray(self._synced)
        for change in self._done:
            if isinstance(change, int):
                _resize(synced, change)
            else:
                _write(synced, change[1], change[0])
        self._done.clear()

    def survivor(self, chance: Chance) -> File:
        """The file after a loss of power: each sector of a change survives, is lost, or is torn."""
        left = bytearray(self.synced)
        for change in self.pending:
            if isinstance(change, int):
                if chance.keeps():
                    _resize(left, change)
            else:
                _write_some(left, change[1], change[0], chance)
        return File(left, bytearray(left))


def _write(content: bytearray, data: bytes, offset: int) -> None:
    if offset > len(content):
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _write_some(content: bytearray, data: bytes, offset: int, chance: Chance) -> None:
    """Write some sectors. Bytes beside a write are never harmed, which SQLite relies on."""
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        if chance.keeps():
            part = chance.part(end - start)
            first = start + (part.start or 0)
            _write(content, data[first : start + part.stop], offset + first)
        start = end


def _nothing() -> None:
    """The default of ``Volume.before``."""


@attrs.define(eq=False)
class Volume:
    """A directory of files, from one loss of power to the next.

    ``before`` is called before each change, which ``changes`` counts: creations, deletions,
    writes, truncations, syncs.
    """

    faults: Faults = attrs.field(factory=Faults)
    files: dict[str, File] = attrs.field(factory=dict[str, File])
    named: dict[str, File] = attrs.field(factory=dict[str, File])
    """The synced names."""
    changes: int = 0
    before: Callable[[], None] = _nothing

    def open(self, name: str, *, create: bool) -> File:
        """Raises ``FileNotFoundError``."""
        file = self.files.get(name)
        if file is None:
            if not create:
                raise FileNotFoundError(name)
            self._change()
            file = self.files[name] = File()
        return file

    def delete(self, name: str, *, synced: bool) -> None:
        """Raises ``FileNotFoundError``."""
        if name not in self.files:
            raise FileNotFoundError(name)
        self._change()
        del self.files[name]
        if synced:
            self.sync_names()

    def write(self, file: File, data: bytes, offset: int, *, may_fail: bool) -> None:
        """Raises :class:`NoRoom` or :class:`WriteFailed`; then nothing was written."""
        self._change()
        if may_fail and self.faults.broken:
            raise WriteFailed(self.faults.broken)
        room = self.faults.room if may_fail else None
        if room is not None:
            growth = max(0, offset + len(data) - len(file.seen))
            if growth and growth + sum(len(each.seen) for each in self.files.values()) > room:
                raise NoRoom
        file.write(data, offset)

    def truncate(self, file: File, size: int) -> None:
        self._change()
        file.truncate(size)

    def sync(self, file: File, *, may_fail: bool) -> None:
        """Raises :class:`SyncFailed`, never when there was nothing to write."""
        self._change()
        if self.faults.failing_sync and may_fail and file.pending:
            self.faults.failing_sync -= 1
            if not self.faults.failing_sync:
                file.pending.clear()
                raise SyncFailed
        file.sync()

    def sync_names(self) -> None:
        self.named = dict(self.files)

    def survivor(self, random: Random) -> Volume:
        """The volume after a loss of power now. Unsynced changes of names may be lost."""
        chance = Chance(random)
        left: dict[str, File] = {}
        for name in sorted(self.files.keys() | self.named.keys()):
            now, then = self.files.get(name), self.named.get(name)
            file = now if now is then or chance.keeps() else then
            if file is not None:
                left[name] = file.survivor(chance)
        return Volume(self.faults, left, dict(left))

    def _change(self) -> None:
        self.before()
        self.changes += 1
