"""What ``get_error_detail`` answers: a stored error whole, or why there is none to show.

A foreign session's error is "not found", as an unknown one is (G16).
"""

from __future__ import annotations

from datetime import UTC, datetime

from motet.actors.errors.ids import find_id
from motet.actors.errors.store import ErrorProtocol
from motet.actors.errors.summary import summarize
from motet.actors.errors.text import first_line, shorten, type_name
from motet.actors.tracing.spans import OpenSpan
from motet.protocols.chat import JsonObject
from motet.protocols.errors import GetError, StoredError
from motet.runtime import ActorRef

INVALID_INPUT = "INVALID_INPUT"
ERROR_NOT_FOUND = "ERROR_NOT_FOUND"
DATABASE_ERROR = "DATABASE_ERROR"
_SHOWN = 100


async def error_detail(
    store: ActorRef[ErrorProtocol], session: str, error_id: object, span: OpenSpan | None = None
) -> JsonObject:
    """``{"success": True, "data": …}`` or ``{"success": False, "error": {"code", "message"}}``.

    The id may stand in the decoration it was shown with. Raises nothing; cancellation passes.
    ``span`` is told what was looked up; it fails when the store does, not when there is nothing.
    """
    if not isinstance(error_id, str):
        given = "null" if error_id is None else type_name(error_id)
        return _failure(INVALID_INPUT, f"error_id must be a string, not {given}")
    if not (shown := shorten(first_line(error_id), _SHOWN)):
        return _failure(INVALID_INPUT, "error_id must be a string that is not blank")
    found = find_id(error_id)
    try:
        stored = await store.ask(GetError(found, session)) if found else None
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
