"""A stored text as numbered units: lines, or the items of an array, so that it can be paged.

Laws: the units joined are the text as it is viewed, each has at most :data:`UNIT_LIMIT` bytes, so
that every byte is reached by some page; a page ends between characters and has at most ``room``
bytes; pages read one after the other give every unit once. Source: seed 000, contradiction 46.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from motet.actors.results.messages import Kind

UNIT_LIMIT = 4_096
"""A longer line or item is several units."""
DEFAULT_LIMIT = 100
_LINES: re.Pattern[str] = re.compile("[^\n]*\n|[^\n]+")


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
    lines = _items(text) if kind == "json" else _LINES.findall(text)
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
