"""Store of results too large, or too binary, for a transcript; with LRU eviction.

The rules are those of ``motet.protocols.results``; :class:`ResultStore` is the actor. Invariants:
an answered :class:`StoreResult` is on disk; once it is answered, the stored bytes are within
``max_bytes``; a session reads only its own results (G16). Source: seed 000; errors specification,
section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, TypeVar, cast

import trio

from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import TableStore
from motet.protocols.results import (
    COMPRESS_FROM,
    DropResults,
    Entry,
    Kind,
    LruIndex,
    Packed,
    Packing,
    PinResult,
    ReadResult,
    ResultInfo,
    ResultProtocol,
    StoredResult,
    StoreResult,
    pack,
    unpack,
)
from motet.protocols.room_changes import ChangedMessages
from motet.protocols.storage import Commit, Row, Statement, StorageError
from motet.protocols.texts import well_formed
from motet.runtime import Actor, MailboxSpec, handles
from motet.runtime.outside import fresh_hex, steady_time

MAX_BYTES = 256 * 1024 * 1024
LIFETIME = 3600.0
"""Seconds for which an unused result is kept, after the runs of its session have ended."""
ID_ATTEMPTS = 8
_IN_THREAD_FROM = 1024 * 1024
_TOUCH_SHARE = 60
"""A use is stored when the last stored one is older than this fraction of the lifetime."""

_COLUMNS = "id, session, tool, kind, size, sha256, packing, held, data"
_INSERT = (
    f"INSERT INTO results ({_COLUMNS}, created, used, pinned)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = f"SELECT {_COLUMNS} FROM results WHERE id = ?"
_HELD = "SELECT id, session, held, used, pinned FROM results ORDER BY used, rowid"

# A caller reads the results of its sub-agents too.
_AT_WORK = """
WITH RECURSIVE at_work (session) AS (
    SELECT session FROM runs WHERE open = 1 AND status IN ('queued', 'running', 'waiting')
    UNION SELECT sessions.session FROM sessions JOIN at_work ON sessions.parent = at_work.session)
SELECT session FROM at_work"""

T = TypeVar("T")


class ResultStore(TableStore, Actor[ResultProtocol]):
    """Stores results one after the other, and reads many at once.

    The index is loaded at the start and follows the commits. Expired rows are deleted with the next
    result that is stored.

    Args:
        hex_source: ``hex_source(n)`` gives ``2 * n`` hex digits that nobody can guess.
        max_bytes: of all results, as they are packed.
        lifetime: seconds for which an unused result of a session without a run is kept.
        compress_from: bytes.
        changed: the messages of rooms that were changed, in the database too.
    """

    mailbox: ClassVar[MailboxSpec] = MailboxSpec(capacity=64, overflow="wait")

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        clock: Callable[[], float] = steady_time,
        hex_source: Callable[[int], str] = fresh_hex,
        *,
        max_bytes: int = MAX_BYTES,
        lifetime: float = LIFETIME,
        compress_from: int = COMPRESS_FROM,
        changed: ChangedMessages | None = None,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._changed = changed or ChangedMessages()
        self._changes = 0
        self._hex = hex_source
        self._compress_from = compress_from
        self._index = LruIndex(max_bytes, lifetime)
        self._written: dict[str, float] = {}

    async def on_start(self) -> None:
        """Load the index; with a smaller ``max_bytes`` than the last host's, evict first."""
        rows = [_entry(row) for row in await self._readers.read(_HELD)]
        room, kept = self._index.max_bytes, list[Entry]()
        for entry in reversed(rows):
            if entry.held <= room:
                room -= entry.held
                kept.append(entry)
        gone = {entry.id for entry in rows} - {entry.id for entry in kept}
        if gone:
            await self._write(tuple(map(_delete, sorted(gone))))
        for entry in reversed(kept):
            self._index.add(entry)

    @handles(StoreResult)
    async def store(self, request: StoreResult) -> ResultInfo:
        content = request.content
        if request.kind != "binary" and self._changed.count:
            with suppress(UnicodeDecodeError):
                content = self._changed.corrected_text(request.user, content.decode()).encode()
        packed = await _compute(len(content), lambda: pack(content, self._compress_from))
        now = await self._look()
        if self._changes != self._changed.count:
            self._changes = self._changed.count
            for row in await self._readers.read(_HELD):
                self._index.resize(str(row[0]), int(row[2] or 0))
        going = self._index.room_for(packed.held, now)
        session = well_formed(request.session)
        entry = Entry(self._new_id(), session, packed.held, now, request.pinned)
        info = _info(entry, well_formed(request.tool), request.kind, packed)
        # One transaction, so that the limit holds at every moment.
        await self._write((*map(_delete, going), Statement(_INSERT, _row(info, packed, entry))))
        self._forget(going)
        self._index.add(entry)
        return info

    @handles(ReadResult, concurrent=16)
    async def read(self, request: ReadResult) -> StoredResult | None:
        now = await self._look()
        session = None if request.session is None else well_formed(request.session)
        entry = self._index.find(request.id, session, now)
        if entry is None:
            return None
        rows = await self._readers.read(_SELECT, (entry.id,))
        if not rows:  # evicted in the meantime
            return None
        info, packed = _stored(rows[0])
        content = await _compute(packed.size, lambda: unpack(packed))
        self._index.use(entry.id, now)
        await self._touch(entry, now)
        return StoredResult(info, content)

    @handles(PinResult)
    async def pin(self, request: PinResult) -> bool:
        entry = self._index.find(request.id, well_formed(request.session), await self._look())
        if entry is None:
            return False
        if entry.pinned != request.pinned:
            sql = "UPDATE results SET pinned = ? WHERE id = ?"
            await self._write((Statement(sql, (int(request.pinned), entry.id)),))
            self._index.pin(entry.id, request.pinned)
        return True

    @handles(DropResults)
    async def drop(self, request: DropResults) -> int:
        going = self._index.of_session(well_formed(request.session))
        if going:
            await self._write(tuple(map(_delete, going)))
            self._forget(going)
        return len(going)

    async def _look(self) -> float:
        """The time, once it is known which sessions are at work."""
        rows = await self._readers.read(_AT_WORK)
        self._index.at_work = frozenset(str(session) for (session,) in rows)
        return self._clock()

    async def _touch(self, entry: Entry, now: float) -> None:
        """Store the time of a use, but not of each use in a run."""
        if now - self._written.get(entry.id, entry.used) < self._index.lifetime / _TOUCH_SHARE:
            return
        self._written[entry.id] = now
        sql = "UPDATE results SET used = ? WHERE id = ?"
        # Reading works on a full disk: at worst the result expires sooner after a restart.
        with suppress(StorageError):
            await self._write((Statement(sql, (now, entry.id)),))

    def _forget(self, ids: list[str]) -> None:
        self._index.remove(ids)
        for result_id in ids:
            self._written.pop(result_id, None)

    def _new_id(self) -> str:
        for _ in range(ID_ATTEMPTS):
            if (made := f"res_{self._hex(8)}") not in self._index:
                return made
        raise StorageError(
            f"no free result id in {ID_ATTEMPTS} attempts: is the source of randomness working?"
        )


async def _compute(size: int, job: Callable[[], T]) -> T:
    """Run a job in a thread if the content is large; a cancellation waits for its end."""
    return await trio.to_thread.run_sync(job) if size >= _IN_THREAD_FROM else job()


def _delete(result_id: str) -> Statement:
    return Statement("DELETE FROM results WHERE id = ?", (result_id,))


def _info(entry: Entry, tool: str, kind: Kind, packed: Packed) -> ResultInfo:
    compressed = packed.packing == "zlib"
    return ResultInfo(entry.id, entry.session, tool, kind, packed.size, packed.sha256, compressed)


def _row(info: ResultInfo, packed: Packed, entry: Entry) -> Row:
    return (
        *(info.id, info.session, info.tool, info.kind, packed.size, packed.sha256),
        *(packed.packing, packed.held, packed.data, entry.used, entry.used, int(entry.pinned)),
    )


def _entry(row: Row) -> Entry:
    identity, session, held, used, pinned = row
    return Entry(str(identity), str(session), int(held or 0), float(used or 0), bool(pinned))


def _stored(row: Row) -> tuple[ResultInfo, Packed]:
    identity, session, tool, kind, size, sha256, packing, held, data = map(str, row)
    # Columns that only this module has written.
    packed = Packed(cast("Packing", packing), data, int(held), int(size), sha256)
    entry = Entry(identity, session, packed.held, 0.0)
    return _info(entry, tool, cast("Kind", kind), packed), packed
