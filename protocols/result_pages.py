"""Stored results as a model reads them: in pages of units. Pure.

A unit is a line, or an item of a JSON array. Laws: the units joined are the text; each has at most
:data:`UNIT_LIMIT` bytes, so that every byte is on some page; pages read one after the other give
every unit once; a page as the model reads it has at most :data:`PAGE_LIMIT` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.results import Kind, StoredResult
from motet.protocols.room_copies import going_on
from motet.protocols.tools import unsuccessful

INVALID_OFFSET = "INVALID_OFFSET"
INVALID_LIMIT = "INVALID_LIMIT"
NOT_TEXT = "NOT_TEXT"

UNIT_LIMIT = 4_096
"""Bytes; a longer line or item is split into several units."""
DEFAULT_LIMIT = 100
PAGE_LIMIT = 16_384
"""Bytes of UTF-8."""
HEADER_ROOM = 384
_RESULT_ID = re.compile(r"(?<![0-9A-Za-z_])res_[0-9a-f]{16}(?![0-9A-Za-z_])")


class InvalidOffset(ValueError):
    """The page would begin before the first unit or after the end."""


class InvalidLimit(ValueError):
    """A page has at least one unit."""


class Page(msgspec.Struct, frozen=True):
    """``returned`` units from ``offset`` on, of ``total``."""

    text: str
    offset: int
    returned: int
    total: int

    @property
    def next_offset(self) -> int:
        return self.offset + self.returned

    @property
    def has_more(self) -> bool:
        return self.next_offset < self.total


def is_array(text: str) -> bool:
    """Whether the text is a JSON array."""
    if text.lstrip()[:1] != "[":
        return False
    try:
        msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def units(text: str, kind: Kind) -> list[str]:
    """The units of a text: of an array, one line of JSON per item."""
    lines = _items(text) if kind == "json" else _lines(text)
    return [piece for line in lines for piece in _pieces(line)]


def page(
    units: Sequence[str], offset: int = 0, limit: int | None = None, room: int = UNIT_LIMIT
) -> Page:
    """At most ``limit`` units (None: 100) and ``room`` bytes.

    With room for any unit, at least :data:`UNIT_LIMIT`, only the page at the end, which is an
    offset too, is empty. Raises ``InvalidOffset``, ``InvalidLimit``.
    """
    total, limit = len(units), DEFAULT_LIMIT if limit is None else limit
    if not 0 <= offset <= total:
        raise InvalidOffset(f"offset must be from 0 to {total}, not {offset}")
    if limit < 1:
        raise InvalidLimit(f"limit must be at least 1, not {limit}")
    end = offset
    while end < min(offset + limit, total):
        room -= len(units[end].encode())
        if room < 0:
            break
        end += 1
    return Page("".join(units[offset:end]), offset, end - offset, total)


def _lines(text: str) -> Iterator[str]:
    *whole, rest = text.split("\n")
    for line in whole:
        yield f"{line}\n"
    if rest:
        yield rest


def _items(text: str) -> Iterator[str]:
    for item in msgspec.json.decode(text, type=list[msgspec.Raw]):
        yield f"{msgspec.json.format(bytes(item), indent=-1).decode()}\n"


def _pieces(line: str) -> Iterator[str]:
    """The line in pieces of at most :data:`UNIT_LIMIT` bytes, cut between characters."""
    data = line.encode()
    if len(data) <= UNIT_LIMIT:
        yield line
        return
    start = 0
    while start < len(data):
        end = min(start + UNIT_LIMIT, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        yield data[start:end].decode()
        start = end


def find_result_id(text: str) -> str | None:
    """The first id in a text: models copy it with its label, quotes or Markdown escapes."""
    found = _RESULT_ID.search(text.replace("\\_", "_"))
    return found.group() if found else None


def page_of(stored: StoredResult, offset: int, limit: int | None) -> JsonObject:
    """One page of a result: items of an array, one a line, or lines of a text."""
    info = stored.info
    if info.kind == "binary":
        about = f"{info.id} is binary: {info.size} bytes, sha256 {info.sha256}"
        return unsuccessful(NOT_TEXT, f"{about}; it cannot be shown as text")
    try:
        pieces = units(stored.content.decode(), info.kind)
        mark = _mark(pieces, offset, info.kind)
        found = page(pieces, offset, limit, PAGE_LIMIT - HEADER_ROOM - len(mark.encode()))
    except InvalidOffset as error:
        return unsuccessful(INVALID_OFFSET, str(error))
    except InvalidLimit as error:
        return unsuccessful(INVALID_LIMIT, str(error))
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
    if mark:
        data["goes_on"] = mark
    return {"success": True, "data": data}


def _mark(pieces: Sequence[str], offset: int, kind: Kind) -> str:
    """Names the message of a room within which the page begins, so that it is corrected with it."""
    if not 0 < offset <= len(pieces):
        return ""
    begin = 0
    if kind == "json":  # a message ends with its item
        begin = next((at for at in range(offset, 0, -1) if pieces[at - 1].endswith("\n")), 0)
    text = "".join(pieces[begin : offset + 1])
    return going_on(text, sum(map(len, pieces[begin:offset])))


def page_text(data: JsonObject) -> str:
    """A page as the model reads it: its place, a note on how to read on, and the text."""
    offset, count = _number(data, "offset"), _number(data, "returned_count")
    end = offset + count
    where = f"{data['unit']} {offset} to {end - 1}" if count else f"no {data['unit']} from {offset}"
    more = f'; go on with get_tool_result("{data["result_id"]}", offset={end})'
    mark = f"{data['goes_on']}\n" if "goes_on" in data else ""
    return (
        f"[Result {data['result_id']}: {where} of {data['total_count']}"
        f"{more if data['has_more'] else ''}]\n{mark}{data['text']}"
    )


def _number(data: JsonObject, key: str) -> int:
    value = data[key]
    assert isinstance(value, int)
    return value
