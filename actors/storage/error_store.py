"""Store of whole errors, so that a model only needs to see their summaries.

Invariants: an answered :class:`StoreError` is on disk; its id and time are the spool's; a stored
error was redacted first. A store that has begun is finished even when its asker is cancelled, so
that a caller can stop waiting at once. Source: seed 000; errors specification, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import NoneType
from typing import ClassVar, TypeVar

import msgspec
import trio
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.storage.connection import in_thread
from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.storage.readers import Readers
from motet.actors.storage.rooms import room_messages
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.tables import TableStore, to_json
from motet.protocols import error_rows
from motet.protocols.error_records import SMALL, Forgotten, Given, Origin, stored_record
from motet.protocols.error_tables import INDEX_TAIL, TAIL
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
from motet.protocols.room_changes import ChangedMessages, quoted_by, room_of_user, withheld
from motet.protocols.room_tables import CHANGED, OWN_CHANGED
from motet.protocols.storage import Commit, Statement, StorageError
from motet.protocols.texts import well_formed
from motet.runtime import Actor, MailboxSpec, handles
from motet.runtime.describe import summarize
from motet.runtime.outside import foreign_code, fresh_hex, wall_time
from motet.runtime.spool import RETRY

T = TypeVar("T")


def _alone(error: StoredError) -> StoredError:
    """The error without the figures of its group, which change."""
    return replace(error, count=1, first_seen=None, last_seen=None)


def _clamped(limit: int) -> int:
    return max(1, min(limit or PAGE_LIMIT, PAGE_LIMIT))


log = logger(__name__)


# An error is looked up by its id on Trio's own thread (``Readers.point``), ten times as fast.


GIVEN_DEADLINE = 5.0
"""Seconds for an answer of a store that the host was given."""


class ErrorStore(TableStore, Actor[ErrorProtocol]):
    """Stores errors through its spool, gets and lists them; many requests at once.

    Args:
        commit: runs a transaction and returns after its COMMIT, as ``Writer.submit``.
        clock, hex_source, keep_raw: for a spool of its own.
        errors: another store; None: the database.
        spool: in front of that store, and shared with others that report errors.

    A stop stores what was reported, or leaves it in the spill file to the next host.
    """

    cleanup_budget: ClassVar[float] = 5.0
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
        spool: ErrorSpool | None = None,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._errors = errors or SqliteErrors(commit, readers)
        self._deadline = math.inf if errors is None else GIVEN_DEADLINE
        self._spool = spool or ErrorSpool(
            self._errors.store, None, clock, hex_source, keep_raw=keep_raw, deadline=self._deadline
        )

    async def on_start(self) -> None:
        self._spool.recall = self._recalled
        await self._spool.open(self._bury_first)
        self.start_soon(self._spool.run, name="spool")
        self.start_soon(self._follow_up, name="sequels")

    async def on_stop(self) -> None:
        """Store the rest; the spool's tasks have ended."""
        await self._spool.finish(self.cleanup_budget / 2)
        with trio.move_on_after(self.cleanup_budget / 4), suppress(StorageError):
            await self._bury()
            if self._spool.is_idle:
                await self._resolve_late()

    @handles(StoreError, concurrent=256, here=True, brief=True)
    async def store_error(self, request: StoreError) -> StoredError:
        origin = Origin(
            *(request.session_id, request.tool_name, request.run_id, request.call_id),
            *(request.agent, request.user, request.arguments),
        )
        given = Given(request.kind, request.short_summary)
        entry = await self._spool.report(origin, request.raw_error, given=given)
        if not entry.durable or entry.record is None:
            raise entry.problem or StorageError("the error store has stopped")
        return await _read_back(entry.record)

    @handles(GetError, concurrent=16)
    async def get_error(self, request: GetError) -> StoredError | None:
        if (waiting := await self._spool.find(request.id)) is not None:
            found: StoredError | None = await _read_back(waiting)
        else:
            of = well_formed(request.id)
            work = partial(self._errors.get, of, brief=request.brief)
            found = await self._call(work, StoredError, NoneType)
        asker = request.session_id
        if found is None or (asker is not None and well_formed(asker) != found.session_id):
            return None
        own = found.id == well_formed(request.id)
        return None if not own else found if request.grouped else _alone(found)

    @handles(ListErrors, concurrent=16)
    async def list_errors(self, request: ListErrors) -> tuple[StoredError, ...]:
        found = await self._call(partial(self._errors.page, request, None), ErrorPage)
        return tuple(map(_alone, found.errors))

    @handles(PageErrors, concurrent=16)
    async def page_errors(self, request: PageErrors) -> ErrorPage:
        which = replace(request.filter, limit=_clamped(request.filter.limit))
        return await self._call(partial(self._errors.page, which, request.cursor), ErrorPage)

    @handles(GroupErrors, concurrent=16)
    async def group_errors(self, request: GroupErrors) -> GroupPage:
        which = replace(request, limit=_clamped(request.limit))
        return await self._call(partial(self._errors.groups, which), GroupPage)

    @handles(ReadError, concurrent=16)
    async def read_error(self, request: ReadError) -> ErrorText | None:
        part = max(0, request.offset), max(1, min(request.limit, TEXT_PAGE))
        return await self._call(partial(self._errors.read, request.id, *part), ErrorText, NoneType)

    @handles(ResolveErrors, concurrent=256)
    async def resolve_errors(self, request: ResolveErrors) -> int:
        of = request.session_id, request.tool_name, self._clock(), request.later
        return await self._call(partial(self._errors.resolve, *of), int)

    @handles(ForgetErrors, concurrent=16)
    async def forget_errors(self, request: ForgetErrors) -> None:
        """Raises nothing: if it fails, it is tried again, also by the next host."""
        await self._spool.forget(request.session_id)
        try:
            await self._call(partial(self._errors.forget, request.session_id))
            is_gone = await self._bury()
        except StorageError:
            is_gone = False
        if not is_gone:
            self._spool.tell()

    # Sequels: see ``motet.protocols.error_rows``

    async def _follow_up(self) -> None:
        """Drop and resolve errors that were not stored when their session or tool did that."""
        delay = RETRY
        while True:
            try:
                is_gone = await self._bury()
                while is_gone and self._spool.is_in_use():
                    await trio.sleep(RETRY)
                if is_gone:
                    await self._resolve_late()
                while is_gone and (known := self._spool.unindexed) >= TAIL:
                    await trio.sleep(RETRY)
                    is_over = self._spool.unindexed - known < TAIL  # else a crowd goes on
                    if is_over and not (await self._write((Statement(INDEX_TAIL),)))[0]:
                        self._spool.unindexed = 0
            except StorageError:
                is_gone = False
            if is_gone:
                delay = RETRY
                await self._spool.told.receive()
            else:
                await trio.sleep(delay)
                delay = min(2 * delay, 60.0)

    async def _bury_first(self) -> None:
        """Before anything of an earlier process is stored."""
        self._spool.note_left()
        try:
            await self._bury()
        except StorageError:
            if not self._spool.is_idle:
                raise

    async def _bury(self) -> bool:
        """Drop the errors of deleted sessions; False: some are still on disk.

        A session of the same name keeps its own.
        """
        all_gone = True
        for seq, session, at in await self._readers.read(error_rows.DELETIONS):
            runs = await self._readers.read(error_rows.RUNS_OF, (session,))
            end = self._clock()
            others = float(at or 0) if runs else end
            known = frozenset(str(run) for (run,) in runs)
            is_gone = await self._spool.forget(str(session), Forgotten(end, others, known))
            if not runs:
                await self._call(partial(self._errors.forget, str(session)))
            if is_gone:
                await self._write((Statement(error_rows.END_SEQUEL, (seq,)),))
            all_gone = all_gone and is_gone
        return all_gone

    async def _resolve_late(self) -> None:
        for seq, session, tool, at, later in await self._readers.read(error_rows.SUCCESSES):
            of, moment = (str(session), str(tool)), float(at or 0)
            newer = ListErrors(*of, start=math.nextafter(moment, math.inf), resolved=False)
            page = await self._call(partial(self._errors.page, newer, None), ErrorPage)
            skipped = {*msgspec.json.decode(str(later)), *(error.id for error in page.errors)}
            await self._call(partial(self._errors.resolve, *of, moment, sorted(skipped)))
            await self._write((Statement(error_rows.END_SEQUEL, (seq,)),))

    async def _recalled(self, record: ErrorRecord) -> ErrorRecord:
        """An error of an earlier process, with the messages of rooms as they are now.

        The old text of an agent's own message is on record nowhere: then the error is withheld.
        """
        of = room_of_user(record.user), record.run_id
        if all(of) and await self._readers.read(OWN_CHANGED, of):
            return withheld(record)
        changed = ChangedMessages()
        for room, numbers in quoted_by(record).items():
            for one in room_messages(await self._readers.read(CHANGED, (room, to_json(numbers)))):
                changed.keep(record.user, one)
        return changed.corrected(record)

    async def _call(self, work: Callable[[], Awaitable[T]], *kinds: type) -> T:
        """Call the store. A given one may raise, answer anything, or hang: then it has failed."""
        with trio.move_on_after(self._deadline):
            try:
                with foreign_code:
                    answer = await work()
                    if kinds and not isinstance(answer, kinds):
                        raise TypeError(f"its answer is of the type {type(answer).__name__}")
                    return answer
            except (StorageError, InputValidation):
                raise
            except Exception as error:
                raise StorageError(f"the error store failed: {summarize(error)}") from error
        raise StorageError(f"the error store has not answered within {GIVEN_DEADLINE:g} s")


async def _read_back(record: ErrorRecord) -> StoredError:
    """A record as it will be read; that of megabytes is decoded in a thread."""
    read = partial(stored_record, record)
    return await in_thread(read) if len(record.raw_error) > SMALL else read()
