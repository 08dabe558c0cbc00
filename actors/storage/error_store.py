"""Store of whole errors, so that a model only needs to see their summaries.

Two actors over the table ``agent_errors``: :class:`ErrorStore` writes and reads, and
:class:`ErrorRetention` deletes by age and size. Invariants: an answered :class:`StoreError` is on
disk; its id and time are the store's own; a stored error was redacted first. A store that has begun
is finished even when its asker is cancelled, so that a caller can stop waiting at once: the result
may be a row whose id nobody knows, but never an id without a row. Source: seed 000; errors
specification, section 2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import ClassVar, Protocol, TypeVar, cast

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.describe import new_id, summarize, to_json_types
from motet.actors.errors.log import logger
from motet.actors.storage.readers import Readers
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.tables import DAY, TableStore
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import bounded_arguments
from motet.protocols.error_rows import Query, errors_condition
from motet.protocols.errors import (
    PAGE_LIMIT,
    TEXT_PAGE,
    ErrorPage,
    ErrorProtocol,
    ErrorRecord,
    Errors,
    ErrorText,
    ForgetErrors,
    GetError,
    GroupErrors,
    GroupPage,
    InputValidation,
    ListErrors,
    PageErrors,
    ReadError,
    ResolveErrors,
    StoredError,
    StoreError,
)
from motet.protocols.fingerprints import fingerprint
from motet.protocols.messages import Request
from motet.protocols.redaction.redact import is_large, redact, redact_text, truncate_texts
from motet.protocols.storage import (
    Commit,
    DatabaseClosed,
    DatabaseLocked,
    Row,
    Statement,
    StorageError,
)
from motet.protocols.texts import well_formed
from motet.runtime import Actor, MailboxSpec, handles
from motet.runtime.outside import foreign_code, fresh_hex, wall_time

T = TypeVar("T")


def _alone(error: StoredError) -> StoredError:
    """The error without the figures of its group, which change."""
    return replace(error, count=1, first_seen=None, last_seen=None)


def _clamped(limit: int) -> int:
    return max(1, min(limit or PAGE_LIMIT, PAGE_LIMIT))


def _record(error: StoredError, raw: str) -> ErrorRecord:
    return ErrorRecord(
        *(error.id, error.timestamp, error.session_id, error.tool_name),
        *(raw, error.short_summary, error.kind),
        *(error.run_id, error.call_id, error.agent, error.user),
        "" if error.arguments is None else msgspec.json.encode(error.arguments).decode(),
        error.fingerprint,
    )


# Retention, by age and by size. Invariants: the oldest errors are deleted first; at most
# :data:`BATCH` rows in one transaction, which bounds the wait of other writers; without a limit
# nothing is deleted. New rows use the freed pages; the file itself does not shrink.


BATCH = 1_000
INTERVAL = 3_600.0
"""Seconds between two prunings."""
MEGABYTE = 1_000_000

_SIZE = "bytes + octet_length(summary) + 400"
"""Bytes of a row and of its index entries, approximately."""
SIZE = f"SELECT coalesce(sum({_SIZE}), 0) FROM error_records"
_OLDEST = f"SELECT seq, {_SIZE} FROM error_records ORDER BY timestamp, seq LIMIT {BATCH}"
_OLDEST_UNTIL = "DELETE FROM agent_errors WHERE seq IN (SELECT value FROM json_each(?)) RETURNING 1"

log = logger(__name__)


class PruneErrors(Request[int], frozen=True, tag="errors.prune"):
    """Delete the errors beyond the limits now; answers how many."""


@attrs.frozen
class Keep:
    """The limits: errors of the last ``days``, and of these ``megabytes``. None: no limit."""

    days: float | None = None
    megabytes: float | None = None

    def __bool__(self) -> bool:
        return self.days is not None or self.megabytes is not None


class RunStatement(Protocol):
    """Runs one statement in a transaction of its own, and returns its rows."""

    async def __call__(self, statement: Statement) -> tuple[Row, ...]: ...


def delete_batch(request: ListErrors) -> Statement:
    """Delete up to a batch of the errors that match, the oldest first; a row for each."""
    condition, params = errors_condition(request)
    chosen = f"SELECT seq FROM error_records r{condition} ORDER BY timestamp, seq LIMIT {BATCH}"
    sql = f"DELETE FROM agent_errors WHERE seq IN ({chosen}) RETURNING 1"
    return Statement(sql, params)


def count_query(request: ListErrors) -> Query:
    """The query that counts the errors that match."""
    condition, params = errors_condition(request)
    return f"SELECT count(*) FROM error_records r{condition}", params


async def prune_matching(write: RunStatement, request: ListErrors) -> int:
    """Delete all matching errors, in batches; returns their number. A cancel leaves the rest."""
    deleted = 0
    while True:
        gone = len(await write(delete_batch(request)))
        deleted += gone
        if gone < BATCH:
            return deleted


async def prune_to_size(read: RunStatement, write: RunStatement, limit: float) -> int:
    """Delete the oldest errors until the others take at most ``limit`` bytes."""
    ((size,),) = await read(Statement(SIZE))
    excess = float(size or 0) - limit
    deleted = 0
    while excess > 0:
        going: list[int] = []
        for seq, taken in await read(Statement(_OLDEST)):
            if excess <= 0:
                break
            going.append(int(seq or 0))
            excess -= float(taken or 0)
        if not going:
            break
        deleted += len(await write(Statement(_OLDEST_UNTIL, (str(going),))))
    return deleted


class ErrorRetention(TableStore, Actor[PruneErrors]):
    """Prunes at its start and then every hour. A failure is logged, and tried again in an hour."""

    cleanup_budget: ClassVar[float] = 2.0

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        keep: Keep,
        clock: Callable[[], float] = wall_time,
        interval: float = INTERVAL,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._keep = keep
        self._interval = interval

    async def on_start(self) -> None:
        self.start_soon(self._run, name="retention")

    @handles(PruneErrors)
    async def prune(self, _request: PruneErrors) -> int:
        """A cancellation between two batches leaves the rest. Raises ``StorageError``."""
        deleted = 0
        if self._keep.days is not None:
            past = self._clock() - self._keep.days * DAY
            deleted += await prune_matching(self._change, ListErrors(end=past))
        if self._keep.megabytes is not None:
            deleted += await prune_to_size(
                self._query, self._change, self._keep.megabytes * MEGABYTE
            )
        return deleted

    async def _run(self) -> None:
        while True:
            try:
                deleted = await self.prune(PruneErrors())
            except Exception as error:
                log.warning("errors_not_pruned", reason=summarize(error))
            else:
                log.info("errors_pruned", count=deleted)
            await trio.sleep(self._interval)

    async def _query(self, statement: Statement) -> tuple[Row, ...]:
        return await self._readers.read(statement.sql, statement.params)

    async def _change(self, statement: Statement) -> tuple[Row, ...]:
        (rows,) = await self._write((statement,))
        return rows


# The store. One task writes all waiting errors in one transaction. A large error is prepared in a
# thread, since redacting it would block the event loop. An error is looked up by its id on Trio's
# own thread (``Readers.point``), ten times as fast as through another thread.


ID_ATTEMPTS = 8
UNDER_WAY_LIMIT = 1_024
GIVEN_DEADLINE = 5.0
"""Seconds for an answer of a store that the host was given."""
GROUP_LIMIT = 256
"""Errors in one transaction, at most."""


class StoreBusy(StorageError):
    """Too many errors wait to be written: the database has come to a standstill, or nearly."""


@attrs.define(eq=False)
class _Write:
    """A request and its one outcome. Every attempt gives ``error`` another id."""

    request: StoreError
    now: float
    error: StoredError | None = None
    raw: str = ""
    attempts: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)
    outcome: StoredError | Exception = attrs.field(
        factory=lambda: DatabaseClosed("the error store stopped before it had an answer")
    )


class ErrorStore(TableStore, Actor[ErrorProtocol]):
    """Stores, gets and lists errors; many requests at once.

    Args:
        transact: runs a transaction and returns after its COMMIT, as ``Writer.submit``.
        clock: Unix seconds.
        hex_source: ``hex_source(n)`` gives ``2 * n`` hex digits that nobody can guess.
        keep_raw: store without redaction.
        errors: another store; None: the database.

    A write is retried once while the database is locked. A stop writes what has begun.
    """

    mailbox: ClassVar[MailboxSpec] = MailboxSpec(capacity=1024, overflow="wait")

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        clock: Callable[[], float] = wall_time,
        hex_source: Callable[[int], str] = fresh_hex,
        *,
        keep_raw: bool = False,
        errors: Errors | None = None,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._errors = errors or SqliteErrors(commit, readers)
        self._deadline = math.inf if errors is None else GIVEN_DEADLINE
        self._hex = hex_source
        self._keep_raw = keep_raw
        self._under_way = 0
        self._waiting: deque[_Write] = deque()
        self._group: list[_Write] = []
        self._arrived = trio.Event()

    async def on_start(self) -> None:
        self.start_soon(self._run, name="writer")

    async def on_stop(self) -> None:
        """Write the rest; the writing task has ended."""
        await self._drain()

    @handles(StoreError, concurrent=256)
    async def store_error(self, request: StoreError) -> StoredError:
        if self._under_way >= UNDER_WAY_LIMIT:
            raise StoreBusy(f"{self._under_way} errors wait to be written: is the disk stuck?")
        write = _Write(request, self._clock())
        self._under_way += 1
        if is_large(request.raw_error) or is_large(request.arguments or {}):
            # A task of the actor, not of the request: it outlives a cancelled asker.
            self.start_soon(self._prepare_in_thread, write, name="large error")
        else:
            self._prepare(write)
            self._put(write)
        await write.ended.wait()
        if isinstance(write.outcome, Exception):
            raise write.outcome
        return write.outcome

    @handles(GetError, concurrent=16)
    async def get_error(self, request: GetError) -> StoredError | None:
        found = await self._call(partial(self._errors.get, well_formed(request.id)))
        asker = request.session_id
        if found is None or (asker is not None and well_formed(asker) != found.session_id):
            return None
        return found if request.grouped else _alone(found)

    @handles(ListErrors, concurrent=16)
    async def list_errors(self, request: ListErrors) -> tuple[StoredError, ...]:
        found = await self._call(partial(self._errors.page, request, None))
        return tuple(map(_alone, found.errors))

    @handles(PageErrors, concurrent=16)
    async def page_errors(self, request: PageErrors) -> ErrorPage:
        which = replace(request.filter, limit=_clamped(request.filter.limit))
        return await self._call(partial(self._errors.page, which, request.cursor))

    @handles(GroupErrors, concurrent=16)
    async def group_errors(self, request: GroupErrors) -> GroupPage:
        which = replace(request, limit=_clamped(request.limit))
        return await self._call(partial(self._errors.groups, which))

    @handles(ReadError, concurrent=16)
    async def read_error(self, request: ReadError) -> ErrorText | None:
        offset, limit = max(0, request.offset), max(1, min(request.limit, TEXT_PAGE))
        return await self._call(partial(self._errors.read, request.id, offset, limit))

    @handles(ResolveErrors, concurrent=256)
    async def resolve_errors(self, request: ResolveErrors) -> int:
        of = request.session_id, request.tool_name
        return await self._call(partial(self._errors.resolve, *of, self._clock()))

    @handles(ForgetErrors, concurrent=16)
    async def forget_errors(self, request: ForgetErrors) -> None:
        await self._call(partial(self._errors.forget, request.session_id))

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call the store. A given one may raise anything, and hang: then the storage has failed."""
        with trio.move_on_after(self._deadline):
            try:
                with foreign_code:
                    return await work()
            except (StorageError, InputValidation):
                raise
            except Exception as error:
                raise StorageError(f"the error store failed: {summarize(error)}") from error
        raise StoreBusy(f"the error store has not answered within {GIVEN_DEADLINE:g} s")

    # Preparing

    async def _prepare_in_thread(self, write: _Write) -> None:
        await trio.to_thread.run_sync(self._prepare, write)
        self._put(write)

    def _prepare(self, write: _Write) -> None:
        """Build the row, still without an id. A failure becomes the outcome."""
        try:
            write.error = self._prepared(write.request, write.now)
            write.raw = msgspec.json.encode(write.error.raw_error).decode()
        except Exception as error:
            write.outcome = error
            write.error = None

    def _prepared(self, request: StoreError, now: float) -> StoredError:
        raw = cast("JsonObject", truncate_texts(to_json_types(request.raw_error)))
        summary = request.short_summary
        if not self._keep_raw:
            raw, summary = cast("JsonObject", redact(raw)), redact_text(summary)
        tool = well_formed(request.tool_name)
        args = cast("JsonObject | None", to_json_types(request.arguments))
        return StoredError(
            id="",
            timestamp=round(now, 6),
            session_id=well_formed(request.session_id),
            tool_name=tool,
            raw_error=raw,
            short_summary=summarize(summary),
            kind=request.kind,
            arguments=args and bounded_arguments(args, keep_raw=self._keep_raw),
            run_id=well_formed(request.run_id),
            call_id=well_formed(request.call_id),
            agent=well_formed(request.agent),
            user=well_formed(request.user),
            fingerprint=fingerprint(tool, request.kind, raw),
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
        """Write all waiting errors. After a cancellation the next call goes on."""
        while self._group or self._waiting:
            while self._waiting and len(self._group) < GROUP_LIMIT:
                self._group.append(self._waiting.popleft())
            await self._store(self._group)
            self._group = [write for write in self._group if not write.ended.is_set()]

    async def _store(self, group: Sequence[_Write]) -> None:
        """Settle the writes whose rows are on disk now, and those that failed."""
        named = {error.id: write for write in group if (error := self._named(write))}
        try:
            clashes = await self._inserted(list(named.values()))
        except StorageError as error:
            if len(group) == 1 or isinstance(error, DatabaseLocked | DatabaseClosed | StoreBusy):
                self._fail(group, error)
            else:  # one error may be too large for the disk; the others must not suffer for it
                for write in group:
                    await self._store([write])
        except Exception as error:
            self._fail(group, error)
        else:
            for made in named.keys() - set(clashes):
                write = named[made]
                assert write.error is not None
                self._settle(write, write.error)

    async def _inserted(self, group: list[_Write]) -> Collection[str]:
        """Insert the errors; the ids that other errors have."""
        records = [_record(write.error, write.raw) for write in group if write.error is not None]
        if not records:
            return set()
        try:
            return await self._call(partial(self._errors.store, records))
        except DatabaseLocked:
            return await self._call(partial(self._errors.store, records))

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
        """Give a write its outcome; the only place that does."""
        self._under_way -= 1
        write.outcome = outcome
        write.ended.set()
