"""The spool in front of the error store: captures an error at once, and describes it in a thread.

See :class:`motet.runtime.spool.Spool`. Ids have the form ``err_YYYYMMDD_HHMMSS_<6 hex>``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias

import attrs
import msgspec
import trio

from motet.actors.errors.capture import Captured, Description, Given, capture, describe, whole_error
from motet.actors.errors.describe import new_id, summarize
from motet.actors.errors.log import logger
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import bounded_arguments
from motet.protocols.errors import ErrorRecord, Resolved, ResolveErrors
from motet.protocols.fingerprints import fingerprint
from motet.protocols.storage import StorageError
from motet.protocols.texts import well_formed
from motet.runtime.outside import foreign_code, fresh_hex, wall_time
from motet.runtime.spill import SpillFile
from motet.runtime.spool import FULL, Entry, Spool

StoreBatch: TypeAlias = Callable[[Sequence[ErrorRecord]], Awaitable[Collection[str]]]
"""As :meth:`motet.protocols.errors.Errors.store`."""
SPOOL_LIMIT = 32_000_000
"""Bytes of errors in memory."""
SUCCESSES: Final = 4_096
"""Successes of tools that wait for the store of their errors."""
SPILL_FILE: Final = "errors.spill"
LOSSES: Final = "error_store"
"""The name in place of a tool's in records of lost errors."""

log = logger(__name__)


class Origin(NamedTuple):
    """The call that failed. ``arguments``: as the model wrote them."""

    session_id: str
    tool_name: str
    run_id: str = ""
    call_id: str = ""
    agent: str = ""
    user: str = ""
    arguments: str = ""


@attrs.define(eq=False)
class Report:
    """A reported error. ``captured``: None, as soon as it is described."""

    origin: Origin
    captured: Captured | None
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
        self._successes, self.successes = trio.open_memory_channel[ResolveErrors](SUCCESSES)
        self.failing: set[str] = set()
        self._forgotten: dict[str, float] = {}
        self._used = False  # since it was known to be idle
        self._store = store
        self._hex = hex_source
        self._keep_raw = keep_raw

    async def report(
        self,
        origin: Origin,
        error: object,
        code: str = "",
        detail: JsonObject | None = None,
        given: Given | None = None,
    ) -> ErrorEntry:
        """Take an error; its entry is settled when it is durable, or known not to be soon.

        Raises nothing. Cancellation passes; the error is stored nevertheless. With a description
        (``given``), a store that is slow, and does not fail, is waited for.
        """
        try:
            await self.enter()
        finally:
            self._used = True
            captured = capture(error, code, detail, given)
            report = Report(origin, captured)
            size = captured.size + len(origin.arguments)
            entry = self.put(report, size, patient=given is not None)
        return entry

    @property
    def is_idle(self) -> bool:
        found = self.statistics()
        return not found.waiting and not found.spilled

    async def open(self) -> None:
        await super().open()
        self._is_in_use()

    def _is_in_use(self) -> bool:
        self._used = not self.is_idle
        return self._used

    def may_be_open(self, session: str) -> bool:
        """Whether a session may have errors to resolve, if ``failing`` says so of older ones."""
        waiting = self._used and self._is_in_use()
        return waiting or session in self.failing or not self._is_database

    def resolve(self, session: str, tools: Resolved) -> None:
        """Tools have succeeded in a run, whose end is stored: in the database, their errors are
        resolved. Those that are not in it yet, and those of another store, are told to
        ``successes``.
        """
        if self._is_database and not (self._used and self._is_in_use()):
            return
        for tool, later in tools.items():
            try:
                self._successes.send_nowait(ResolveErrors(session, tool, later))
            except trio.WouldBlock:
                log.warning("errors_not_resolved", session=session, tool=tool, exc_info=None)

    def forget(self, session: str) -> None:
        """The session was deleted: its errors that wait are not stored."""
        self.failing.discard(session)
        if self.is_idle:
            self._forgotten.clear()
        else:
            self._forgotten[session] = self._clock()

    # The parts of a spool

    def fresh_id(self, timestamp: float) -> str:
        return new_id(timestamp, self._hex)

    def prepared(self, entries: Sequence[ErrorEntry]) -> list[ErrorRecord | None]:
        return [self._record(entry) for entry in entries]

    def renamed(self, entry: ErrorEntry) -> ErrorRecord:
        assert entry.record is not None
        return msgspec.structs.replace(entry.record, id=entry.id)

    def restored(self, record: ErrorRecord) -> ErrorEntry:
        origin = Origin(record.session_id, record.tool_name)
        return Entry(record.id, Report(origin, None), record.timestamp, 0, record)

    def weight(self, record: ErrorRecord) -> int:
        return len(record.raw_error) + len(record.arguments) + 1_000

    async def store(self, records: Sequence[ErrorRecord]) -> Collection[str]:
        if self._forgotten:
            known, never = self._forgotten, -inf
            records = [r for r in records if r.timestamp > known.get(r.session_id, never)]
            if not records:
                return ()
        self.failing.update(record.session_id for record in records)
        try:
            with foreign_code:
                return await self._store(records)
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"the error store failed: {summarize(error)}") from error

    def loss(self, count: int) -> tuple[Report, int]:
        captured = capture({"message": f"{count} errors were lost: {FULL}", "lost": count})
        return Report(Origin("", LOSSES), captured), captured.size

    def trouble(self, event: str, /, **facts: object) -> None:
        if event == "errors_lost":
            log.error(event, exc_info=None, **facts)
        else:
            log.warning(event, exc_info=None, **facts)

    def _record(self, entry: ErrorEntry) -> ErrorRecord | None:
        report, captured = entry.item, entry.item.captured
        if captured is None:  # prepared before, for a task that was cancelled
            return entry.record
        found = report.description = describe(captured, keep_raw=self._keep_raw)
        if found.blank:
            return None
        where, arguments = report.origin, ""
        tool, raw = well_formed(where.tool_name), JsonObject(message=found.summary)
        try:
            raw = whole_error(captured, found.code, keep_raw=self._keep_raw)
            if where.arguments:
                shown = bounded_arguments(where.arguments, keep_raw=self._keep_raw)
                arguments = msgspec.json.encode(shown).decode()
        except Exception as error:
            log.error("error_not_described", id=entry.id, reason=type(error).__name__)
        group = fingerprint(tool, found.kind, raw)
        del captured
        report.captured, encoded = None, msgspec.json.encode(raw)
        del raw  # each may have megabytes
        made = entry.record = ErrorRecord(
            *(entry.id, entry.timestamp, well_formed(where.session_id), tool),
            *(encoded.decode(), found.summary, found.kind),
            *(well_formed(where.run_id), well_formed(where.call_id)),
            *(well_formed(where.agent), well_formed(where.user)),
            arguments,
            group,
        )
        return made
