"""The error channel: a failed call is stored whole and shown to the model in short.

Invariant: reporting never fails; a model is given an id only after the error is on disk, in the
store or in the spill file beside it. Source: seed 000, errors specification section 2.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import msgspec
import trio

from motet.actors.errors.capture import capture, describe
from motet.actors.errors.classify import failure_text, kind_lines
from motet.actors.errors.log import logger
from motet.actors.storage.error_spool import ErrorEntry, ErrorSpool, Report
from motet.actors.telemetry.tracer import StoreSpan, Tracer
from motet.protocols.chat import JsonObject
from motet.protocols.error_pages import detail_data
from motet.protocols.error_records import Origin
from motet.protocols.errors import ErrorProtocol, ErrorType, GetError
from motet.protocols.events import AnyEvent, ErrorStoreFailed
from motet.protocols.redaction.redact import redact, redact_text
from motet.protocols.texts import first_line, shorten
from motet.protocols.tools import unsuccessful
from motet.runtime import ActorRef
from motet.runtime.describe import EXAMPLE_ID, error_text, find_id, summarize
from motet.runtime.exceptions import serialize_error, type_name
from motet.runtime.spool_entries import Slices

DETAIL_TOOLS = frozenset({"get_error_detail", "get_error_details"})
"""The tool that shows stored errors, and its alias. Their own failures are not stored."""

log = logger(__name__)


class Reported(msgspec.Struct, frozen=True):
    """A reported failure, in short; ``error_id`` is None if it was not stored."""

    text: str
    error_id: str | None
    kind: ErrorType

    @property
    def told(self) -> str:
        """For the model: the text, the kind as it was stored, and a suggestion."""
        return self.text + kind_lines(self.kind)


@attrs.define(eq=False)
class ErrorChannel:
    """Stores failures and formats them for the model. Without a ``spool``, the text is the error.

    ``warn(run_id, event)`` publishes an event of a run; it must not block. ``stored`` counts the
    reports that are on disk, ``failures`` those that should have been.
    """

    spool: ErrorSpool | None
    warn: Callable[[str, AnyEvent], None]
    tracer: Tracer = attrs.field(factory=Tracer)
    stored: int = attrs.field(default=0, init=False)
    failures: int = attrs.field(default=0, init=False)
    _slices: Slices = attrs.field(factory=Slices, init=False)

    async def report(
        self,
        origin: Origin,
        error: object,
        code: str = "",
        detail: JsonObject | None = None,
        came: float | None = None,
    ) -> Reported:
        """Store a failed call, and format it for the model once the error is on disk.

        While nothing can be written, the model gets the error itself, and no id; the error is kept
        and stored later. ``error``: an exception, a text, an error object; anything else as JSON
        has it. ``detail`` is stored beside it. ``came``: when it came on Trio's clock, of one that
        had its turn. Raises nothing. Cancellation passes; the error is stored nevertheless.
        """
        if (spool := self.spool) is None or origin.tool_name in DETAIL_TOOLS:
            found = describe(capture(error, code, detail))
            return Reported(found.fallback, None, found.kind)
        since = None
        if came is None and spool.is_crowded:  # they wait before more is made for them
            came = trio.current_time()
            try:
                await spool.turn()
            except BaseException:
                self.leave(origin, error, code, detail, came)
                raise
        if came is not None:
            since = spool.now() + came - trio.current_time()
        trace, tool = self.tracer.of(origin.run_id), origin.tool_name
        with trace.store("store", tool=tool, call_id=origin.call_id) as span:
            entry = await spool.report(origin, error, code, detail, since=since)
            if entry.durable:
                self.stored += 1
                span.error_id = entry.id
            elif entry.state != "blank":
                span.failed("not_stored")
                self._fail(entry)
        await self._slices.go_on()
        found = entry.item.described()
        if span.error_id is None:
            return Reported(found.fallback, None, found.kind)
        return Reported(failure_text(tool, found.summary, entry.id), entry.id, found.kind)

    def leave(
        self, origin: Origin, error: object, code: str, detail: JsonObject | None, came: float
    ) -> None:
        """Have an error stored whose call was cancelled while it waited for its turn."""
        if self.spool is not None and origin.tool_name not in DETAIL_TOOLS:
            since = self.spool.now() + came - trio.current_time()
            self.spool.leave(Report(origin, (error, code, detail, None)), since)

    def _fail(self, entry: ErrorEntry) -> None:
        origin, error = entry.item.origin, entry.problem or "unknown"
        why = summarize(redact_text(error_text(error)))
        self.failures += 1
        of = {"session": origin.session_id, "run_id": origin.run_id, "tool": origin.tool_name}
        log.warning("error_store_failed", exc_info=None, **of, reason=why, state=entry.state)
        try:
            self.warn(origin.run_id, ErrorStoreFailed(first_line(origin.tool_name), why))
        except Exception as worse:
            told = redact(serialize_error(worse))
            log.error("error_store_failed_event_lost", run_id=origin.run_id, error=told)


# The answer of the tool ``get_error_detail``.

INVALID_INPUT = "INVALID_INPUT"
DATABASE_ERROR = "DATABASE_ERROR"
_WITHOUT_TIME: Final = re.compile(r"[ \"'`]*err_\d{8}_[0-9a-f]{6}(?![0-9a-z_])")
"""The short form of an id, which some documents show: no error has it."""


async def error_detail(
    store: ActorRef[ErrorProtocol],
    session: str,
    error_id: object,
    span: StoreSpan | None = None,
    is_related: Callable[[str], Awaitable[bool]] | None = None,
) -> JsonObject:
    """``{"success": True, "data": …}`` or ``{"success": False, "error": {"code", "message"}}``.

    A foreign session's error is "not found", like an unknown one (G16), unless ``is_related`` says
    that the session is one of a sub-agent or of a caller. The id may still have the decoration that
    it was shown with. Raises nothing; cancellation passes. ``span`` gets the error's id and tool;
    it fails when the store does, not when there is no such error.
    """
    if not isinstance(error_id, str):
        given = "null" if error_id is None else type_name(error_id)
        return unsuccessful(INVALID_INPUT, f"error_id must be a string, not {given}")
    if not (shown := shorten(first_line(error_id), 100)):
        return unsuccessful(INVALID_INPUT, "error_id must be a string that is not blank")
    found = find_id(error_id)
    if found is None and not _WITHOUT_TIME.match(error_id):
        return unsuccessful(INVALID_INPUT, f"{shown} is no error id: those are like {EXAMPLE_ID}")
    try:
        stored = await store.ask(GetError(found, session)) if found else None
        if stored is None and found and is_related is not None:
            other = await store.ask(GetError(found))
            stored = other if other and await is_related(other.session_id) else None
    except Exception as error:
        if span is not None:
            span.failed(DATABASE_ERROR)
        return unsuccessful(DATABASE_ERROR, f"the error store cannot be read: {summarize(error)}")
    if stored is None:
        return unsuccessful("ERROR_NOT_FOUND", f"no error {found or shown} in this session")
    if span is not None:
        span.error_id, span.tool = stored.id, stored.tool_name
    return {"success": True, "data": detail_data(stored)}
