"""The spool in front of the error store: captures an error at once, and describes it in a thread.

See :class:`motet.runtime.spool.Spool`. Ids have the form ``err_YYYYMMDD_HHMMSS_<6 hex>``.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, TypeAlias

import attrs
import msgspec
import trio

from motet.actors.errors.capture import (
    Captured,
    Description,
    Made,
    Shared,
    capture,
    describe,
    whole_error,
)
from motet.actors.errors.log import logger
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import (
    PARSED,
    Forgotten,
    Given,
    Origin,
    bounded_arguments,
    looked_through,
)
from motet.protocols.error_rows import ADD_SEQUEL
from motet.protocols.error_tables import TAIL
from motet.protocols.errors import ErrorRecord, Resolved
from motet.protocols.fingerprints import fingerprint
from motet.protocols.redaction.redact import state_of_rules
from motet.protocols.room_changes import ChangedMessages
from motet.protocols.storage import Statement, StorageError
from motet.protocols.texts import well_formed
from motet.runtime.describe import Known, new_id, summarize
from motet.runtime.exceptions import likeness
from motet.runtime.outside import foreign_code, foreign_text, fresh_hex, wall_time
from motet.runtime.spill import SpillFile
from motet.runtime.spool import FULL, Spool
from motet.runtime.spool_entries import Entry

StoreBatch: TypeAlias = Callable[[Sequence[ErrorRecord]], Awaitable[Collection[str]]]
"""As :meth:`motet.protocols.errors.Errors.store`."""
Recall: TypeAlias = Callable[[ErrorRecord], Awaitable[ErrorRecord]]
SPOOL_LIMIT = 32_000_000
"""Bytes of errors in memory."""
SPILL_FILE: Final = "errors.spill"
LOSSES: Final = "error_store"
"""The name in place of a tool's in records of lost errors."""

log = logger(__name__)


@attrs.define(eq=False)
class Report:
    """A reported error. ``captured``: None, as soon as it is described.

    ``given``: the error itself with its code, detail and description, until it is captured.
    ``length``: of the arguments, of which only the beginning is kept then.
    """

    origin: Origin
    given: tuple[object, str, JsonObject | None, Given | None] | None = None
    captured: Captured | None = None
    length: int = 0
    description: Description | None = None

    def described(self) -> Description:
        """The error in a few words; of one that was not taken, only its beginning is read."""
        if self.description is None:
            assert self.captured is not None
            self.description = describe(self.captured)
        return self.description


ErrorEntry: TypeAlias = Entry[Report, ErrorRecord]


class ErrorSpool(Spool[Report, ErrorRecord]):
    """Takes errors at any time, and stores them while :meth:`run` runs.

    Args:
        store: stores a batch.
        hex_source: ``hex_source(n)`` gives ``2 * n`` hex digits that nobody can guess.
        keep_raw: store without redaction.
        is_database: the store is the database, where the end of a run resolves its errors.

    The others are those of :class:`~motet.runtime.spool.Spool`. ``failing``: the sessions of
    which this process has begun to store errors, and those that are known to have older ones.
    ``recall``: corrects errors that an earlier process has left, whose changes it has seen.
    """

    def __init__(
        self,
        store: StoreBatch,
        spill: SpillFile[ErrorRecord] | None = None,
        clock: Callable[[], float] = wall_time,
        hex_source: Callable[[int], str] = fresh_hex,
        *,
        keep_raw: bool = False,
        threads: bool = True,
        limit: int = SPOOL_LIMIT,
        deadline: float = inf,
        is_database: bool = True,
    ) -> None:
        super().__init__(spill, clock, threads=threads, limit=limit, deadline=deadline)
        self._is_database = is_database
        self._tell, self.told = trio.open_memory_channel[None](1)
        self.failing: set[str] = set()
        self._forgotten: dict[str, Forgotten] = {}
        self.changed = ChangedMessages()
        self.recall: Recall | None = None
        self._left: frozenset[str] = frozenset()
        self._used = True  # since it was known to be idle
        self.unindexed = TAIL  # errors that may be in no index yet
        self._store = store
        self._hex = hex_source
        self._keep_raw = keep_raw
        self._known: Known[Made] = Known()

    def report(
        self,
        origin: Origin,
        error: object,
        code: str = "",
        detail: JsonObject | None = None,
        given: Given | None = None,
        since: float | None = None,
    ) -> Awaitable[ErrorEntry]:
        """Take an error, and wait until it is durable, or known not to be soon.

        Raises nothing. Cancellation passes; the error is stored nevertheless. With a description
        (``given``), a store that is slow, and does not fail, is waited for. ``since``: its turn.
        """
        self._used = True
        report = Report(origin, (error, code, detail, given))
        return self.deliver(report, patient=given is not None, since=since)

    @property
    def is_idle(self) -> bool:
        found = self.statistics()
        return not found.waiting and not found.spilled

    def is_in_use(self) -> bool:
        self._used = not self.is_idle
        return self._used

    def may_be_open(self, session: str) -> bool:
        """Whether a session may have errors to resolve, if ``failing`` says so of older ones."""
        waiting = self._used and self.is_in_use()
        return waiting or session in self.failing or not self._is_database

    def sequels(self, session: str, tools: Resolved | None, now: float) -> tuple[Statement, ...]:
        """For the transaction in which tools have succeeded; None: that deletes the session.

        Errors that are in the database are resolved by that transaction itself.
        """
        if tools is None:
            return (Statement(ADD_SEQUEL, (well_formed(session), None, now, "[]")),)
        if self._is_database and not (self._used and self.is_in_use()):
            return ()
        rows = [
            (well_formed(session), well_formed(tool), now, msgspec.json.encode(later).decode())
            for tool, later in tools.items()
        ]
        return (Statement(ADD_SEQUEL, each=tuple(rows)),)

    def tell(self) -> None:
        """Sequels may have been stored, or many errors."""
        with suppress(trio.WouldBlock):
            self._tell.send_nowait(None)

    async def forget(self, session: str, which: Forgotten | None = None) -> bool:
        """The session was deleted: its errors that wait are dropped; False: some are on disk."""
        now = self._clock()
        if which is None:
            self.failing.discard(session)
        if self.is_idle:
            self._forgotten.clear()
        self._forgotten[well_formed(session)] = which or Forgotten(now, now)
        return await self.purge()

    async def find(self, identity: str) -> ErrorRecord | None:
        found = await super().find(identity)
        return found and (await self._as_now([found]))[0]

    def note_left(self) -> None:
        """The spill file was read."""
        self._left = frozenset(self._spill.first(sys.maxsize, sys.maxsize))

    async def _as_now(self, records: Sequence[ErrorRecord]) -> list[ErrorRecord]:
        """The errors with the messages of rooms as they are now. Raises ``StorageError``."""
        if self.recall and any(record.id in self._left for record in records):
            records = [
                await self.recall(record) if record.id in self._left else record
                for record in records
            ]
        return [*map(self.changed.corrected, records)]

    # The parts of a spool

    def fresh_id(self, timestamp: float) -> str:
        return new_id(timestamp, self._hex)

    def take(self, item: Report) -> int:
        given, item.given = item.given, None
        if given is not None:
            item.captured = capture(*given)
            item.length = len(item.origin.arguments)
            if item.length > PARSED:  # the rest is not kept alive
                item.origin = item.origin._replace(arguments=item.origin.arguments[:PARSED])
        assert item.captured is not None
        return item.captured.size + len(item.origin.arguments)

    def drops(self, record: ErrorRecord) -> bool:
        known = self._forgotten.get(record.session_id)
        return known is not None and known.covers(record)

    def prepared(self, entries: Sequence[ErrorEntry]) -> list[ErrorRecord | None]:
        # Equal errors come in bursts, and again and again. What the redaction has left of one is
        # kept until its rules change; with its stacks, so that the code in its likeness is alive.
        known, state = self._known, state_of_rules()
        if known.state is not state or known.is_full:
            known = self._known = Known[Made](state)
        taken = [(one.raw, one.text) for entry in entries if (one := entry.item.captured)]
        looked = looked_through(taken if taken[1:] else ())
        batch, shared = dict[Hashable, Made](), Shared(*looked, known)
        return [self._record(entry, batch, shared) for entry in entries]

    def renamed(self, entry: ErrorEntry) -> ErrorRecord:
        assert entry.record is not None
        return msgspec.structs.replace(entry.record, id=entry.id)

    def weight(self, record: ErrorRecord) -> int:
        return len(record.raw_error) + len(record.arguments) + 1_000

    async def store(self, records: Sequence[ErrorRecord]) -> Collection[str]:
        if self._forgotten:
            records = [record for record in records if not self.drops(record)]
            if not records:
                return ()
        records = await self._as_now(records)
        self.failing.update(record.session_id for record in records)
        try:
            with foreign_code:  # also around its answer, which may be anything
                taken = await self._store(records)
                clashes = {*taken}.intersection(one.id for one in records) if taken else ()
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"the error store failed: {summarize(error)}") from error
        self.unindexed += len(records)
        if self.unindexed - len(records) < TAIL <= self.unindexed:
            self.tell()
        return clashes

    def loss(self, count: int) -> Report:
        told = {"message": f"{count} errors were lost: {FULL}", "lost": count}
        return Report(Origin("", LOSSES), (told, "", None, None))

    def trouble(self, event: str, /, **facts: object) -> None:
        (log.error if event == "errors_lost" else log.warning)(event, exc_info=None, **facts)

    def _record(
        self, entry: ErrorEntry, batch: dict[Hashable, Made], shared: Shared
    ) -> ErrorRecord | None:
        report, captured = entry.item, entry.item.captured
        if captured is None:  # prepared before, for a task that was cancelled
            return entry.record
        where, tool, arguments = report.origin, well_formed(report.origin.tool_name), ""
        if captured.long:
            found, raw, mark = self._described(entry.id, captured, tool, shared)
        else:
            like: Hashable = object()
            with suppress(Exception), foreign_text:
                like = likeness(captured.raw, tool, captured.code, captured.text, captured.clues)
            if like not in batch:
                kept = len(batch) < 8 and captured.size <= Known.LARGEST and not self._keep_raw
                key, known = shared.known.key(like) if kept else None, shared.known.values
                new = known.get(key) or self._described(entry.id, captured, tool, shared)
                batch[like] = new
                if key is not None and not new[0].blank:
                    known[key] = new
            found, raw, mark = batch[like]
        report.description = found
        if found.blank:
            return None
        try:
            if where.arguments:
                shown = bounded_arguments(where.arguments, report.length, keep_raw=self._keep_raw)
                arguments = msgspec.json.encode(shown).decode()
        except Exception as error:
            log.error("error_not_described", id=entry.id, reason=type(error).__name__)
        report.captured = None
        run, call, agent, user = map(well_formed, where[2:6])
        entry.record = ErrorRecord(
            *(entry.id, entry.timestamp, well_formed(where.session_id), tool),
            *(raw, found.summary, found.kind),
            *(run, call, agent, user, arguments, mark),
        )
        return entry.record

    def _described(self, of: str, captured: Captured, tool: str, shared: Shared) -> Made:
        found = describe(captured, keep_raw=self._keep_raw, shared=shared)
        if found.blank:
            return found, "", ""
        raw, heads = "", JsonObject(message=found.summary)
        try:
            with foreign_text:  # the loader of a module may be asked for its lines
                raw, heads = whole_error(
                    captured, found.code, keep_raw=self._keep_raw, shared=shared
                )
        except Exception as error:
            self._known = Known[Made]()  # the places of its code may not be alive
            log.error("error_not_described", id=of, reason=type(error).__name__)
        raw = raw or msgspec.json.encode(heads).decode()
        return found, raw, fingerprint(tool, found.kind, heads, shared.templates)
