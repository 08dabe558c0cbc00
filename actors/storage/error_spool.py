"""The spool in front of the error store: captures an error at once, and describes it in a thread.

See :class:`motet.runtime.spool.Spool`. Ids have the form ``err_YYYYMMDD_HHMMSS_<6 hex>``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias

import attrs
import msgspec

from motet.actors.errors.capture import (
    Captured,
    Description,
    Given,
    capture,
    describe,
    whole_error,
)
from motet.actors.errors.describe import new_id, summarize
from motet.actors.errors.log import logger
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import bounded_arguments
from motet.protocols.errors import ErrorRecord
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

    The others are those of :class:`~motet.runtime.spool.Spool`.
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
    ) -> None:
        super().__init__(spill, clock, threads=threads, limit=limit, deadline=deadline)
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
            captured = capture(error, code, detail, given)
            report = Report(origin, captured)
            entry = self.put(report, captured.size, patient=given is not None)
        return entry

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
        made = entry.record = ErrorRecord(
            *(entry.id, entry.timestamp, well_formed(where.session_id), tool),
            *(msgspec.json.encode(raw).decode(), found.summary, found.kind),
            *(well_formed(where.run_id), well_formed(where.call_id)),
            *(well_formed(where.agent), well_formed(where.user)),
            arguments,
            fingerprint(tool, found.kind, raw),
        )
        report.captured = None
        return made
