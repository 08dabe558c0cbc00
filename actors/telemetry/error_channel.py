"""The error channel: a failed call is stored whole and shown to the model in short.

Invariant: reporting never fails and never takes longer than the store's deadline; a model is
given an id only after the error is on disk. Source: seed 000, errors specification section 2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import attrs
import msgspec
import trio

from motet.actors.errors.classify import (
    FALLBACK_LIMIT,
    classify,
    failure_text,
    fallback_text,
    kind_lines,
)
from motet.actors.errors.describe import (
    error_code,
    error_text,
    find_id,
    first_line,
    serialize_error,
    shorten,
    summarize,
    type_name,
)
from motet.actors.errors.log import logger
from motet.actors.telemetry.tracer import StoreSpan, Tracer
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ErrorProtocol, ErrorType, GetError, StoredError, StoreError
from motet.protocols.events import AnyEvent, ErrorStoreFailed
from motet.protocols.redaction.redact import redact, redact_text, redacted_head
from motet.runtime import ActorRef
from motet.runtime.outside import foreign_code

STORE_DEADLINE = 0.25
"""Seconds a run waits for the store."""
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
    """Stores failures and formats them for the model. Without a ``store``, the text is the error.

    ``warn(run_id, event)`` publishes an event of a run; it must not block. ``stored`` counts the
    reports that reached the store, ``failures`` those that should have.
    """

    store: ActorRef[ErrorProtocol] | None
    warn: Callable[[str, AnyEvent], None]
    tracer: Tracer = attrs.field(factory=Tracer)
    stored: int = attrs.field(default=0, init=False)
    failures: int = attrs.field(default=0, init=False)

    async def report(
        self,
        *,
        session: str,
        run_id: str,
        tool: str,
        error: object,
        code: str = "",
        call_id: str = "",
        detail: JsonObject | None = None,
    ) -> Reported:
        """Store a failed call, within 250 ms, and format it for the model.

        ``error``: an exception, a text, an error object; anything else as JSON has it. ``detail``
        is stored beside it. Raises nothing. Cancellation passes; the error may have been stored
        then.
        """
        found = _described(error, code, detail)
        room = FALLBACK_LIMIT - len(kind_lines(found.kind))
        short = fallback_text(found.text, found.code, found.left_out, room)
        failure = Reported(short, None, found.kind)
        if self.store is None or tool in DETAIL_TOOLS or found.blank:
            return failure
        summary = summarize(found.text, found.code)
        request = StoreError(session, tool, found.raw, summary, found.kind)
        error_id = await self._stored(self.store, request, run_id, call_id)
        if error_id is None:
            return failure
        return Reported(failure_text(tool, summary, error_id), error_id, found.kind)

    async def _stored(
        self, store: ActorRef[ErrorProtocol], request: StoreError, run_id: str, call_id: str
    ) -> str | None:
        """The id of the stored error, or None after a warning that says why."""
        trace = self.tracer.of(run_id)
        with trace.store("store", tool=request.tool_name, call_id=call_id) as span:
            why = f"no answer within {STORE_DEADLINE * 1000:.0f} ms"
            with trio.move_on_after(STORE_DEADLINE):
                try:
                    span.error_id = (await store.ask(request)).id
                except Exception as error:
                    why = summarize(redact_text(error_text(error)))
                else:
                    self.stored += 1
                    return span.error_id
            span.failed("not_stored")
            self._fail(request, run_id, why)
            return None

    def _fail(self, request: StoreError, run_id: str, why: str) -> None:
        self.failures += 1
        log.warning(
            "error_store_failed",
            session=request.session_id,
            run_id=run_id,
            tool=request.tool_name,
            reason=why,
        )
        try:
            self.warn(run_id, ErrorStoreFailed(first_line(request.tool_name), why))
        except Exception as error:
            log.error(
                "error_store_failed_event_lost", run_id=run_id, error=redact(serialize_error(error))
            )


class _Description(msgspec.Struct, frozen=True):
    """The parts of an error. ``raw`` is the whole error.

    ``text`` is redacted; of a huge one it is the beginning, and ``left_out`` counts the rest.
    """

    text: str
    left_out: int
    code: str
    kind: ErrorType
    raw: JsonObject

    @property
    def blank(self) -> bool:
        """Whether the error has neither text nor code, so that storing it is useless."""
        return not first_line(self.text) and not self.code


def _described(error: object, code: str, detail: JsonObject | None) -> _Description:
    try:
        with foreign_code:
            code = first_line(code or error_code(error))
            text, left_out = redacted_head(error_text(error))
            return _Description(
                text, left_out, code, classify(error, code), serialize_error(error, code, detail)
            )
    except Exception:  # an error object may be unreadable on purpose
        name = type_name(error)
        log.warning("error_not_readable", type=name)
        return _Description(name, 0, "", "unknown", {"message": name})


# The answer of the tool ``get_error_detail``.

INVALID_INPUT = "INVALID_INPUT"
ERROR_NOT_FOUND = "ERROR_NOT_FOUND"
DATABASE_ERROR = "DATABASE_ERROR"
_SHOWN = 100


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
        return _failure(INVALID_INPUT, f"error_id must be a string, not {given}")
    if not (shown := shorten(first_line(error_id), _SHOWN)):
        return _failure(INVALID_INPUT, "error_id must be a string that is not blank")
    found = find_id(error_id)
    try:
        stored = await store.ask(GetError(found, session)) if found else None
        if stored is None and found and is_related is not None:
            other = await store.ask(GetError(found))
            stored = other if other and await is_related(other.session_id) else None
    except Exception as error:
        if span is not None:
            span.failed(DATABASE_ERROR)
        return _failure(DATABASE_ERROR, f"the error store cannot be read: {summarize(error)}")
    if stored is None:
        return _failure(ERROR_NOT_FOUND, f"no error {found or shown} in this session")
    if span is not None:
        span.error_id, span.tool = stored.id, stored.tool_name
    return {"success": True, "data": detail_data(stored)}


def detail_data(error: StoredError) -> JsonObject:
    """A stored error as the model sees it; the time is RFC 3339 in UTC."""
    return {
        "error_id": error.id,
        "timestamp": rfc3339(error.timestamp),
        "tool_name": error.tool_name,
        "short_summary": error.short_summary,
        "raw_error": error.raw_error,
    }


def rfc3339(seconds: float) -> str:
    """Unix seconds as ``2024-11-21T23:03:34.123456Z``."""
    when = datetime.fromtimestamp(seconds, UTC)
    return f"{when.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _failure(code: str, message: str) -> JsonObject:
    return {"success": False, "error": {"code": code, "message": message}}
