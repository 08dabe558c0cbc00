"""The actor that keeps whole errors, so that a model need only see their summaries.

Invariants: an answered :class:`StoreError` is on disk; its id and time are the store's own; what
is stored was redacted first. A store that was begun is finished even when its asker is
cancelled, so that a caller can stop waiting at once: then there is a row whose id nobody knows,
never an id without a row. Source: seed 000 and the errors specification, section 2.

One task writes all that has come together in one transaction, which it hands to the database's
writer itself. An error so large that the loop would stand still for it is made ready in a thread.
An error is looked up by its id on Trio's own thread, since that takes a tenth of the way to
another thread and back (``Readers.point``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeAlias, cast

import attrs
import msgspec
import trio

from motet.actors.errors.clip import clipped
from motet.actors.errors.ids import new_id
from motet.actors.errors.raw import plain
from motet.actors.errors.redact import is_large, redact, redact_text
from motet.actors.errors.rows import SELECT, SELECT_SMALL, insert, list_query, stored
from motet.actors.errors.summary import summarize
from motet.actors.errors.text import well_formed
from motet.actors.storage.errors import DatabaseClosed, DatabaseLocked, StorageError
from motet.actors.storage.readers import Readers
from motet.actors.storage.transactions import Rows, Transaction
from motet.protocols.chat import JsonObject
from motet.protocols.errors import GetError, ListErrors, StoredError, StoreError
from motet.protocols.storage import Row
from motet.runtime import Actor, MailboxSpec, handles
from motet.runtime.outside import fresh_hex, wall_time

ErrorProtocol: TypeAlias = StoreError | GetError | ListErrors

ID_ATTEMPTS = 8
UNDER_WAY_LIMIT = 1_024
GROUP_LIMIT = 256
"""Errors in one transaction, at most."""


class StoreBusy(StorageError):
    """Too many errors wait to be written: the database has come to a halt, or nearly."""


@attrs.define(eq=False)
class _Write:
    """A store under way and its one outcome. Every attempt gives ``error`` another id."""

    request: StoreError
    now: float
    error: StoredError | None = None
    raw: str = ""
    attempts: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)
    outcome: StoredError | Exception = attrs.field(
        factory=lambda: DatabaseClosed("the error store stopped before it had an answer")
    )


class ErrorStore(Actor[ErrorProtocol]):
    """Stores, gets and lists errors; many requests at once.

    Args:
        transact: runs a transaction and returns after its COMMIT, as ``Writer.submit``.
        clock: Unix seconds.
        hex_source: ``hex_source(n)`` gives ``2 * n`` hex digits nobody can guess.
        keep_raw: store without redaction.

    Requests raise ``StorageError``; a locked database is retried once. A stop writes what was
    begun.
    """

    mailbox: ClassVar[MailboxSpec] = MailboxSpec(capacity=1024, overflow="wait")

    def __init__(
        self,
        transact: Callable[[Transaction], Awaitable[Rows]],
        readers: Readers,
        clock: Callable[[], float] = wall_time,
        hex_source: Callable[[int], str] = fresh_hex,
        *,
        keep_raw: bool = False,
    ) -> None:
        self._transact = transact
        self._readers = readers
        self._clock = clock
        self._hex = hex_source
        self._keep_raw = keep_raw
        self._under_way = 0
        self._waiting: deque[_Write] = deque()
        self._group: list[_Write] = []
        self._arrived = trio.Event()

    async def on_start(self) -> None:
        self.start_soon(self._run, name="writer")

    async def on_stop(self) -> None:
        """Write what is left; the task that does it has ended."""
        await self._drain()

    @handles(StoreError, concurrent=256)
    async def store_error(self, request: StoreError) -> StoredError:
        if self._under_way >= UNDER_WAY_LIMIT:
            raise StoreBusy(f"{self._under_way} errors wait to be written: is the disk stuck?")
        write = _Write(request, self._clock())
        self._under_way += 1
        if is_large(request.raw_error):
            # A task of the actor, not of the request: it outlives a cancelled asker.
            self.start_soon(self._prepare_in_thread, write, name="large error")
        else:
            self._prepare(write)
            self._put(write)
        await write.ended.wait()
        if isinstance(write.outcome, Exception):
            raise write.outcome
        return write.outcome

    @handles(GetError)
    async def get_error(self, request: GetError) -> StoredError | None:
        key = (well_formed(request.id),)
        rows = await self._readers.point(SELECT_SMALL, key) or await self._readers.read(SELECT, key)
        found = stored(rows[0]) if rows else None
        if found is None or request.session_id is None:
            return found
        return found if found.session_id == well_formed(request.session_id) else None

    @handles(ListErrors, concurrent=16)
    async def list_errors(self, request: ListErrors) -> tuple[StoredError, ...]:
        sql, params = list_query(request)
        return tuple(stored(row) for row in await self._readers.read(sql, params))

    # Making ready

    async def _prepare_in_thread(self, write: _Write) -> None:
        await trio.to_thread.run_sync(self._prepare, write)
        self._put(write)

    def _prepare(self, write: _Write) -> None:
        """The row to write, still without an id; what goes wrong is the outcome."""
        try:
            write.error = self._prepared(write.request, write.now)
            write.raw = msgspec.json.encode(write.error.raw_error).decode()
        except Exception as error:
            write.outcome = error
            write.error = None

    def _prepared(self, request: StoreError, now: float) -> StoredError:
        raw = cast("JsonObject", clipped(plain(request.raw_error)))
        summary = request.short_summary
        if not self._keep_raw:
            raw, summary = cast("JsonObject", redact(raw)), redact_text(summary)
        return StoredError(
            id="",
            timestamp=round(now, 6),
            session_id=well_formed(request.session_id),
            tool_name=well_formed(request.tool_name),
            raw_error=raw,
            short_summary=summarize(summary),
            kind=request.kind,
        )

    def _put(self, write: _Write) -> None:
        if write.error is None:
            self._settle(write, write.outcome)
            return
        self._waiting.append(write)
        self._arrived.set()

    # Writing

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            await self._drain()

    async def _drain(self) -> None:
        """Write all that waits. What a cancellation interrupts stays for the next call."""
        while self._group or self._waiting:
            while self._waiting and len(self._group) < GROUP_LIMIT:
                self._group.append(self._waiting.popleft())
            await self._write(self._group)
            self._group = [write for write in self._group if not write.ended.is_set()]

    async def _write(self, group: Sequence[_Write]) -> None:
        """Settle the writes whose rows are on disk now, and those that failed."""
        named = {error.id: write for write in group if (error := self._named(write))}
        try:
            rows = await self._inserted(list(named.values()))
        except StorageError as error:
            if len(group) == 1 or isinstance(error, DatabaseLocked | DatabaseClosed):
                self._fail(group, error)
            else:  # only one of them may be too large for the disk
                for write in group:
                    await self._write([write])
        except Exception as error:
            self._fail(group, error)
        else:
            for (made,) in rows:
                write = named[str(made)]
                assert write.error is not None
                self._settle(write, write.error)

    async def _inserted(self, group: list[_Write]) -> Sequence[Row]:
        """The ids that were written, each in a row of its own."""
        errors = [(write.error, write.raw) for write in group if write.error is not None]
        if not errors:
            return ()
        transaction = (insert(errors),)
        try:
            (rows,) = await self._transact(transaction)
        except DatabaseLocked:
            (rows,) = await self._transact(transaction)
        return rows

    def _named(self, write: _Write) -> StoredError | None:
        """The error with a new id; None, and the write has failed, after too many clashes."""
        assert write.error is not None
        if write.attempts == ID_ATTEMPTS:
            problem = f"no free error id in {ID_ATTEMPTS} attempts"
            self._settle(write, StorageError(f"{problem}: is the source of randomness working?"))
            return None
        write.attempts += 1
        made = new_id(write.error.timestamp, self._hex)
        write.error = msgspec.structs.replace(write.error, id=made)
        return write.error

    def _fail(self, group: Sequence[_Write], error: Exception) -> None:
        for write in group:
            if not write.ended.is_set():
                self._settle(write, error)

    def _settle(self, write: _Write, outcome: StoredError | Exception) -> None:
        """The one place where a write ends."""
        self._under_way -= 1
        write.outcome = outcome
        write.ended.set()
