"""A spill file: records that a store does not take, kept beside it until it does.

Invariants: an appended record is on disk, with its checksum, when :meth:`SpillFile.append` returns;
a crash at any time costs no other record; the file is private, bounded, and deleted as soon as the
store has all of its records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import trio

from motet.protocols.frames import HEAD_SIZE, content_at, frames, head


class Identified(Protocol):
    """A record with an id of its own."""

    @property
    def id(self) -> str: ...


T = TypeVar("T")
R = TypeVar("R", bound=Identified)

LARGE = 262_144
"""Bytes of a part that is written by itself."""


class Trouble(Protocol):
    """Called with an event and its facts, for the log."""

    def __call__(self, event: str, /, **facts: object) -> None: ...


class SpillFile(Generic[R]):
    """A spill file, which exists only while it has records. Blocking; for one thread at a time.

    :meth:`write` and :meth:`overwrite` leave ``places`` as they are, so that a loop may walk these
    while a thread writes.

    Args:
        kind: of the records, a msgspec struct.
        limit: bytes of the file, at most.

    Attributes:
        places: the offset and length of each record that the store does not have, by its id.
        aside: of these, the ids that other items in the store have.
    """

    def __init__(self, path: Path, kind: type[R], limit: int) -> None:
        self.path = path
        self.kind = kind
        self.limit = limit
        self.end = 0
        self.places: dict[str, tuple[int, int]] = {}
        self.aside: set[str] = set()
        self._file: int | None = None

    def load(self) -> None:
        """Find the records that an earlier process has left. Raises ``OSError``."""
        data = _content(self.path)
        if not data:  # its process was killed between making and writing it
            self.path.unlink(missing_ok=True)
        for at, content in frames(data):
            with suppress(msgspec.MsgspecError):
                self.places[msgspec.msgpack.decode(content, type=self.kind).id] = (
                    at,
                    HEAD_SIZE + len(content),
                )
        # Appended behind a torn frame, so that a length that was torn hides nothing.
        self.end = len(data)

    def append(self, records: Sequence[R]) -> list[str]:
        """:meth:`write` records, and remember their places; their ids."""
        written = self.write(records)
        self.places |= written
        return [*written]

    def write(self, records: Sequence[R]) -> dict[str, tuple[int, int]]:
        """Write the records that there is room for, and sync them; their places.

        Raises ``OSError``: none of them is in the file then.
        """
        at, written, parts = self.end, dict[str, tuple[int, int]](), list[bytes]()
        for record in records:
            content = msgspec.msgpack.encode(record)
            length = HEAD_SIZE + len(content)
            if at + length > self.limit:
                continue
            written[record.id] = (at, length)
            parts += [head(content), content]
            at += length
        if written:
            file = self._opened()
            try:
                _write_all(file, parts, self.end)
                os.fsync(file)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, self.end)
                    if not self.end:
                        self.clear_if_empty()
                raise
            self.end = at
        return written

    def read(self, ids: Iterable[str]) -> list[R]:
        """Those of the records that are in the file, and whole. Raises ``OSError``."""
        found: list[R] = []
        for place in filter(None, map(self.places.get, ids)):
            # Views of it, since a record has megabytes.
            data = memoryview(os.pread(self._opened(), place[1], place[0]))
            content = content_at(data, 0)
            if content is not None:
                found.append(msgspec.msgpack.decode(content, type=self.kind))
        return found

    def overwrite(self, doomed: Callable[[R], bool]) -> list[str]:
        """Overwrite the doomed records, also those that the store has; their ids.

        Raises ``OSError``.
        """
        erased: list[str] = []
        for at, content in frames(_content(self.path)):
            with suppress(msgspec.MsgspecError):
                record = msgspec.msgpack.decode(content, type=self.kind)
                if doomed(record):
                    _write(self._opened(), bytes(HEAD_SIZE + len(content)), at)
                    erased.append(record.id)
        if erased:
            os.fsync(self._opened())
        return erased

    def clear_if_empty(self) -> None:
        """Delete a file without records. Where that fails, storing them again changes nothing."""
        if not self.places:
            self.close()
            self.path.unlink(missing_ok=True)
            self.end = 0

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _opened(self) -> int:
        if self._file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self.path, flags, 0o600)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # the name of a new file, too, survives a power cut
            finally:
                os.close(folder)
        return self._file


class Spill(Generic[R]):
    """A spill file, used by one thread at a time; without a file, it takes nothing.

    Invariant: the places of its records change in the event loop only, which walks them while a
    thread writes to the file.
    """

    def __init__(self, file: SpillFile[R] | None, trouble: Trouble) -> None:
        self._file = file
        self._trouble = trouble
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    def __len__(self) -> int:
        """Records that wait for the store."""
        return 0 if self._file is None else len(self._file.places) - len(self._file.aside)

    def __contains__(self, error_id: str) -> bool:
        return self._file is not None and error_id in self._file.places

    @property
    def is_used(self) -> bool:
        """Whether there is a file."""
        return self._file is not None and self._file.end > 0

    async def load(self) -> None:
        if self._file is not None:
            await self._run(self._file.load, "spill_file_not_read")

    async def append(self, records: Callable[[], Sequence[R]]) -> Collection[str]:
        """The ids of the records that are in the file now. ``records``: called just before."""
        file = self._file
        if file is None:
            return ()
        async with self._turn:
            done = await self._job(partial(file.write, records()), "spill_file_not_written")
            file.places |= done or {}
        return set(done or ())

    async def erase(self, doomed: Callable[[R], bool]) -> bool:
        """Overwrite the doomed records; False: some are still on disk."""
        file = self._file
        if file is None or not (file.end or file.path.exists()):
            return True

        async with self._turn:
            done = await self._job(partial(file.overwrite, doomed), "spill_file_not_written")
            self.forget(done or ())
            file.aside.difference_update(done or ())
        await self.tidy()
        return done is not None

    async def read(self, ids: Sequence[str]) -> list[R]:
        """Raises ``OSError``."""
        assert self._file is not None
        async with self._turn:
            return await trio.to_thread.run_sync(self._file.read, ids, limiter=self._thread)

    def first(self, count: int, size: int) -> list[str]:
        """The ids of the first records: so many at most, of so many bytes if there are several."""
        chosen: list[str] = []
        waiting = (one for one in self._places().items() if one[0] not in self._aside())
        for error_id, (_, length) in islice(waiting, count):
            size -= length
            if size < 0 and chosen:
                break
            chosen.append(error_id)
        return chosen

    def forget(self, ids: Iterable[str]) -> None:
        for error_id in ids:
            self._places().pop(error_id, None)

    def set_aside(self, error_id: str) -> None:
        """Keep a record here: the store has another item with its id."""
        self._aside().add(error_id)

    async def tidy(self) -> None:
        """Delete the file when all of its records are forgotten."""
        if self._file is not None and self.is_used and not self._file.places:
            await self._run(self._file.clear_if_empty, "spill_file_not_deleted")

    async def close(self) -> None:
        if self._file is not None:
            await self._run(self._file.close, "spill_file_not_closed")

    def _places(self) -> dict[str, tuple[int, int]]:
        return {} if self._file is None else self._file.places

    def _aside(self) -> set[str]:
        return set() if self._file is None else self._file.aside

    async def _run(self, job: Callable[[], T], failure: str) -> T | None:
        async with self._turn:
            return await self._job(job, failure)

    async def _job(self, job: Callable[[], T], failure: str) -> T | None:
        try:
            return await trio.to_thread.run_sync(job, limiter=self._thread)
        except OSError as error:
            self._trouble(failure, reason=error.strerror or type(error).__name__)
            return None


def spilled(path: Path, kind: type[R]) -> dict[str, R]:
    """The records of a spill file, which its owner may be writing. Raises ``OSError``."""
    found: dict[str, R] = {}
    for _, content in frames(_content(path)):
        with suppress(msgspec.MsgspecError):
            record = msgspec.msgpack.decode(content, type=kind)
            found[record.id] = record
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _write_all(file: int, parts: Sequence[bytes], at: int) -> None:
    """Small parts together, and large ones without a copy of them."""
    small = list[bytes]()
    for part in parts:
        if len(part) < LARGE:
            small.append(part)
            continue
        for piece in (b"".join(small), part):
            _write(file, piece, at)
            at += len(piece)
        small = []
    _write(file, b"".join(small), at)


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done
