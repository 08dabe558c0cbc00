"""``get_tool_result``, the tool that reads a stored result page by page.

Laws: a page as the model reads it has at most :data:`PAGE_LIMIT` bytes; another session's result is
"not found", like an unknown or expired one (G16); binary is described, never shown.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import msgspec

from motet.actors.errors.describe import first_line, shorten, summarize, type_name
from motet.actors.tools.context import Context
from motet.actors.tools.results import INLINE_LIMIT, InvalidLimit, InvalidOffset, page, units
from motet.actors.tools.tool import Tool, ToolRetry, tool
from motet.protocols.chat import JsonObject
from motet.protocols.results import ReadResult, ResultProtocol, StoredResult
from motet.runtime import ActorRef

INVALID_INPUT = "INVALID_INPUT"
INVALID_OFFSET = "INVALID_OFFSET"
INVALID_LIMIT = "INVALID_LIMIT"
RESULT_NOT_FOUND = "RESULT_NOT_FOUND"
NOT_TEXT = "NOT_TEXT"
DATABASE_ERROR = "DATABASE_ERROR"

PAGE_LIMIT = INLINE_LIMIT
HEADER_ROOM = 384
_SHOWN = 100
_ID = re.compile(r"(?<![0-9A-Za-z_])res_[0-9a-f]{16}(?![0-9A-Za-z_])")


Pages: TypeAlias = Callable[[str, object, object, object], Awaitable[JsonObject]]
"""``pages(session, result_id, offset, limit)``: ``success`` with ``data``, or with ``error``."""

_DESCRIPTION = (
    "Get more of a large tool result, by the Result ID that its first part names. offset and "
    "limit count lines, or the items of an array; a page is at most 16 KB. Only results of this "
    "session are found, for one hour after their last use."
)


def tool_result_tools(pages: Pages) -> list[Tool]:
    """``get_tool_result``, for results of the caller's session.

    An answer without success fails the call, and is not stored as an error.
    """

    async def get_tool_result(
        ctx: Context[object], result_id: str, offset: int = 0, limit: int | None = None
    ) -> str:
        answer = await pages(ctx.session, result_id, offset, limit)
        if answer.get("success") is not True:
            raise ToolRetry(msgspec.json.encode(answer).decode())
        return page_text(cast(JsonObject, answer["data"]))

    return [tool(get_tool_result, description=_DESCRIPTION, max_output=PAGE_LIMIT)]


async def result_page(
    store: ActorRef[ResultProtocol],
    session: str,
    result_id: object,
    offset: object = 0,
    limit: object = None,
) -> JsonObject:
    """``{"success": True, "data": …}`` or ``{"success": False, "error": {"code", "message"}}``.

    The id may have text around it, such as its label. Raises nothing but a cancellation.
    """
    wrong = _wrong_type(result_id, offset, limit)
    if wrong or not isinstance(result_id, str) or not isinstance(offset, int):
        return failure(INVALID_INPUT, wrong)
    found = find_result_id(result_id)
    try:
        stored = await store.ask(ReadResult(found, session)) if found else None
    except Exception as error:
        return failure(DATABASE_ERROR, f"the result cannot be read: {summarize(error)}")
    if stored is None:
        shown = found or shorten(first_line(result_id), _SHOWN)
        return failure(RESULT_NOT_FOUND, f"no result {shown} in this session: run its call again")
    return page_of(stored, offset, limit if isinstance(limit, int) else None)


def find_result_id(text: str) -> str | None:
    """The first id in a text: models copy it with its label, quotes or Markdown escapes."""
    found = _ID.search(text.replace("\\_", "_"))
    return found.group() if found else None


def page_of(stored: StoredResult, offset: int, limit: int | None) -> JsonObject:
    """One page of a result: items of an array, one a line, or lines of a text."""
    info = stored.info
    if info.kind == "binary":
        about = f"{info.id} is binary: {info.size} bytes, sha256 {info.sha256}"
        return failure(NOT_TEXT, f"{about}; it cannot be shown as text")
    try:
        pieces = units(stored.content.decode(), info.kind)
        found = page(pieces, offset, limit, PAGE_LIMIT - HEADER_ROOM)
    except InvalidOffset as error:
        return failure(INVALID_OFFSET, str(error))
    except InvalidLimit as error:
        return failure(INVALID_LIMIT, str(error))
    data: JsonObject = {
        "result_id": info.id,
        "unit": "items" if info.kind == "json" else "lines",
        "size_bytes": info.size,
        "offset": found.offset,
        "returned_count": found.returned,
        "total_count": found.total,
        "has_more": found.has_more,
        "text": found.text,
    }
    return {"success": True, "data": data}


def page_text(data: JsonObject) -> str:
    """A page as the model reads it: its place, a note on how to read on, and the text."""
    offset, count = _number(data, "offset"), _number(data, "returned_count")
    end = offset + count
    where = f"{data['unit']} {offset} to {end - 1}" if count else f"no {data['unit']} from {offset}"
    more = f'; go on with get_tool_result("{data["result_id"]}", offset={end})'
    return (
        f"[Result {data['result_id']}: {where} of {data['total_count']}"
        f"{more if data['has_more'] else ''}]\n{data['text']}"
    )


def failure(code: str, message: str) -> JsonObject:
    return {"success": False, "error": {"code": code, "message": message}}


def _number(data: JsonObject, key: str) -> int:
    value = data[key]
    assert isinstance(value, int)
    return value


def _wrong_type(result_id: object, offset: object, limit: object) -> str:
    if not isinstance(result_id, str) or not result_id.strip():
        return f"result_id must be a string that is not blank, not {_given(result_id)}"
    for name, value in (("offset", offset), ("limit", limit)):
        optional = name == "limit" and value is None
        if not optional and (not isinstance(value, int) or isinstance(value, bool)):
            return f"{name} must be a whole number, not {_given(value)}"
    return ""


def _given(value: object) -> str:
    return "null" if value is None else type_name(value)
