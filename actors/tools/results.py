"""The rule for results: the part that enters the transcript, and the part that is stored.

Laws: the text for the model has at most :data:`INLINE_LIMIT` bytes, no NUL and no binary; other
text within the limit is unchanged; an id is shown only after its content is on disk; a store that
fails costs the rest of the result, never the run.

A stored text is read in pages of units: lines, or the items of an array. The units joined are the
text; each has at most :data:`UNIT_LIMIT` bytes, so that every byte is on some page; pages read one
after the other give every unit once.

Binary is bytes, a ``data:`` URI, a typed block of base64 as MCP and model providers send it, or a
run of base64 that is too long and too mixed to be text. A note replaces it; other text is
unchanged; the time is linear in the text.

Sources: errors specification, section 3; seed 000, contradiction 46.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, cast
from urllib.parse import unquote

import attrs
import msgspec
import trio

from motet.actors.errors.classify import result_text
from motet.actors.tools.arguments import plain
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject
from motet.protocols.redaction.redact import redact_text
from motet.protocols.results import (
    Kind,
    ReadResult,
    ResultProtocol,
    StoredResult,
    StoreResult,
    checksum,
)
from motet.protocols.texts import first_line, shorten, well_formed
from motet.protocols.tools import ToolRetry
from motet.runtime import ActorRef
from motet.runtime.describe import error_text, summarize
from motet.runtime.exceptions import type_name
from motet.runtime.outside import foreign_code

INLINE_LIMIT = 16_384
"""Bytes of UTF-8."""
HEAD_LIMIT = 4_096
STORE_DEADLINE = 5.0
"""Seconds that a result waits for the store."""
BINARIES_STORED = 16
"""Binary parts of one result that are stored; further ones are noted without an id."""
_NOTE_ROOM = 512
UNIT_LIMIT = 4_096
"""Bytes; a longer line or item is split into several units."""
DEFAULT_LIMIT = 100
_LINES: re.Pattern[str] = re.compile("[^\n]*\n|[^\n]+")

Note: TypeAlias = Callable[[bytes], str]
"""Makes the text that replaces these bytes."""

RUN_LENGTH = 256
"""Shorter runs of base64 stay: hashes, keys and tokens look like them."""
_LINE = 60
"""The shortest line of wrapped base64."""
_DEPTH = 64

# A run has no character of its alphabet before it: that keeps the search linear.
_DATA_URI = re.compile(
    r"\bdata:[\w.+-]{0,64}(?:/[\w.+-]{1,64})?(?:;[\w.+-]{1,64}=[\w.+\"-]{1,64}){0,4};base64,"
    r"(?P<data>[0-9A-Za-z+/=_%-]*)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(
    rf"(?<![0-9A-Za-z+/])(?:[0-9A-Za-z+/]{{{_LINE},76}}\r?\n){{3,}}[0-9A-Za-z+/]{{0,76}}={{0,2}}"
)
_RUN = re.compile(rf"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{{{RUN_LENGTH},}}={{0,2}}")
_UPPER, _LOWER, _DIGIT = (re.compile(f"[{letters}]") for letters in ("A-Z", "a-z", "0-9"))
_DISTINCT = 20
_LONG = 2_048
_MIME_KEYS = ("mimeType", "mime_type", "media_type")
_BINARY_TYPES = ("image", "audio", "base64", "file")
_DATA_KEYS = ("data", "blob")


class Inlined(msgspec.Struct, frozen=True):
    """A result in the transcript; ``text`` is for the model.

    Attributes:
        size: bytes of the whole text, without binary.
        result_id: of the stored text; None if ``text`` has all of it, or it could not be stored.
        binary_ids: stored binary parts.
        problem: why something could not be stored, for a warning; empty when nothing failed.
    """

    text: str
    size: int
    result_id: str | None = None
    binary_ids: tuple[str, ...] = ()
    problem: str = ""


class Readable(msgspec.Struct, frozen=True):
    """A value as text.

    Attributes:
        value: in JSON's types, with bytes.
        text: with a note, without an id, for each binary part.
        size: bytes of the text.
        binaries: the noted parts, by checksum.
    """

    value: object
    text: str
    size: int
    binaries: Mapping[str, bytes]

    def fits(self, limit: int) -> bool:
        """Whether nothing has to be stored."""
        return self.size <= limit and not self.binaries


def readable(value: object) -> Readable:
    """A text, bytes, or anything with a JSON form, as text. Raises nothing."""
    binaries: dict[str, bytes] = {}

    def found(data: bytes) -> str:
        binaries[checksum(data)] = data
        return omitted(data)

    if isinstance(value, str):
        text = well_formed(text_without_binary(value, found))
    else:
        value = _builtins(value)
        try:
            with foreign_code:
                text = result_text(without_binary(value, found))
        except Exception:  # as in `_builtins`
            value = text = f"[unreadable result of type {type_name(value)}]"
    text = storable(text)
    return Readable(value, text, len(text.encode()), binaries)


async def inline(
    store: ActorRef[ResultProtocol] | None,
    *,
    session: str,
    tool: str,
    read: Readable,
    limit: int = INLINE_LIMIT,
) -> Inlined:
    """The part of a value for the model: all of its text, or a head and the id of the rest.

    ``store`` None: a text that does not fit is cut. Raises nothing but a cancellation.
    """
    storing, text, size = _Storing(store, session, tool), read.text, read.size
    ids: dict[str, str] = {}
    if read.binaries and store is not None:
        # Before the text is made, since its notes show only ids of content that is on disk.
        for digest, data in islice(read.binaries.items(), BINARIES_STORED):
            if (binary_id := await storing.put("binary", data)) is not None:
                ids[digest] = binary_id

        def note(data: bytes) -> str:
            return omitted(data, ids.get(checksum(data)))

        text = storable(result_text(without_binary(read.value, note)))
        size = len(text.encode())
    stored = tuple(ids.values())
    if size <= limit:
        return Inlined(text, size, None, stored, storing.problem)
    kind: Kind = "json" if is_array(text) else "text"
    result_id = await storing.put(kind, text.encode())
    pieces = units(text, kind)
    if result_id is None:
        cut = _cut(pieces, size, limit, storing.problem)
        return Inlined(cut, size, None, stored, storing.problem)
    head = _head(pieces, kind, size, result_id, min(HEAD_LIMIT, limit))
    return Inlined(head, size, result_id, stored, storing.problem)


@attrs.define
class _Storing:
    """Stores the parts of one result; after the first failure, no more."""

    store: ActorRef[ResultProtocol] | None
    session: str
    tool: str
    problem: str = ""

    async def put(self, kind: Kind, content: bytes) -> str | None:
        if self.store is None or self.problem:
            return None
        self.problem = f"no answer within {STORE_DEADLINE:g} s"
        with trio.move_on_after(STORE_DEADLINE):
            try:
                info = await self.store.ask(StoreResult(self.session, self.tool, kind, content))
            except Exception as error:
                self.problem = summarize(redact_text(error_text(error)))
            else:
                self.problem = ""
                return info.id
        return None


def _builtins(value: object) -> object:
    """A value in JSON's types and bytes; the value itself if that fails."""
    if isinstance(value, str | bytes | bytearray):
        return value
    if isinstance(value, memoryview):
        return cast("memoryview[int]", value).tobytes()
    try:
        with foreign_code:
            return msgspec.to_builtins(
                value, builtin_types=(bytes, bytearray), str_keys=True, enc_hook=plain
            )
    except Exception:  # an object may raise anything here; it is shown by its type then
        return value


def storable(text: str) -> str:
    """The text with U+FFFD for NUL, which databases and protocols refuse."""
    return text.replace("\x00", "\ufffd")


def _head(pieces: Sequence[str], kind: Kind, size: int, result_id: str, limit: int) -> str:
    first = page(pieces, 0, max(len(pieces), 1), limit)
    text, above = first.text, f"the first {first.returned} are above"
    if not first.returned:  # the limit is below the size of one unit
        text, above = "".join(pieces[:1]).encode()[:limit].decode(errors="ignore"), "cut above"
    what = "items" if kind == "json" else "lines"
    return (
        f"{text.rstrip()}\n\n"
        f"[Result ID: {result_id}] {size} bytes, {first.total} {what}; {above}.\n"
        f'Use get_tool_result("{result_id}", offset={first.next_offset}) for more.'
    )


def _cut(pieces: Sequence[str], size: int, limit: int, problem: str) -> str:
    """The beginning of a result whose rest is lost, and the reason."""
    room = max(limit - _NOTE_ROOM, limit // 2)
    kept = "".join(pieces).encode()[:room].decode("utf-8", "ignore")
    why = f", the rest could not be stored: {problem}" if problem else ""
    return f"{kept}\n[truncated: {len(kept.encode())} of {size} bytes{why}]"


# Units and pages


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


# Binary


def omitted(data: bytes, result_id: str | None = None) -> str:
    """The note: size, checksum, and the id of the stored bytes."""
    stored = "" if result_id is None else f" [Result ID: {result_id}]"
    return f"[binary omitted: {len(data)} bytes, sha256 {checksum(data)}]{stored}"


def without_binary(value: object, note: Note) -> object:
    """The value (text, bytes, or JSON's types with bytes in them) with notes for its binary."""
    return _without(value, note, _DEPTH)


def _without(value: object, note: Note, depth: int) -> object:
    match value:
        case str():
            return text_without_binary(value, note)
        case bytes() | bytearray():
            return note(bytes(value))
        case dict() if depth:
            return _mapping(cast("dict[object, object]", value), note, depth - 1)
        case list() | tuple() if depth:
            return [_without(item, note, depth - 1) for item in cast("list[object]", value)]
        case _:
            return value


def _mapping(value: dict[object, object], note: Note, depth: int) -> dict[object, object]:
    return {
        key: note(data)
        if (data := _typed(value, key, item)) is not None
        else _without(item, note, depth)
        for key, item in value.items()
    }


def _typed(block: dict[object, object], key: object, item: object) -> bytes | None:
    """The bytes of a field that its block says is base64."""
    declared = block.get("type") in _BINARY_TYPES or any(name in block for name in _MIME_KEYS)
    if isinstance(item, str) and item and (key == "b64_json" or (key in _DATA_KEYS and declared)):
        return _decoded(item)
    return None


def text_without_binary(text: str, note: Note) -> str:
    """The text with a note for each ``data:`` URI and each long run of base64 in it."""
    if ";base64," in text.lower():
        text = _DATA_URI.sub(lambda found: note(_payload(found["data"])), text)
    if len(text) < RUN_LENGTH or max(map(len, text.split()), default=0) < _LINE:
        return text  # looking for a long word takes a quarter of the time of the two searches
    text = _WRAPPED.sub(lambda found: _replaced(found.group(), note), text)
    return _RUN.sub(lambda found: _replaced(found.group(), note), text)


def _replaced(found: str, note: Note) -> str:
    run = "".join(found.split())
    data = _decoded(run) if _is_mixed(run) else None
    return found if data is None else note(data)


def _is_mixed(run: str) -> bool:
    """Whether capitals, small letters and digits are mixed as in encoded bytes.

    A very long run need only have all three: no word is like that.
    """
    counts = [len(kind.findall(run)) for kind in (_UPPER, _LOWER, _DIGIT)]
    if len(run) < RUN_LENGTH or not all(counts) or len(set(run)) < _DISTINCT:
        return False
    upper, lower, digits = (count / len(run) for count in counts)
    return len(run) >= _LONG or (upper >= 0.15 and lower >= 0.15 and digits >= 0.03)


def _payload(text: str) -> bytes:
    """The bytes of a data URI; a damaged one is binary, too."""
    decoded = _decoded(unquote(text))
    return text.encode() if decoded is None else decoded


def _decoded(text: str) -> bytes | None:
    plain = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (Base64Error, ValueError):
        return None


# ``get_tool_result``, the tool that reads a stored result page by page. A page as the model reads
# it has at most PAGE_LIMIT bytes; another session's result is "not found" (G16).

INVALID_INPUT = "INVALID_INPUT"
INVALID_OFFSET = "INVALID_OFFSET"
INVALID_LIMIT = "INVALID_LIMIT"
RESULT_NOT_FOUND = "RESULT_NOT_FOUND"
NOT_TEXT = "NOT_TEXT"
DATABASE_ERROR = "DATABASE_ERROR"

PAGE_LIMIT = INLINE_LIMIT
HEADER_ROOM = 384
_SHOWN_ID = 100
_RESULT_ID = re.compile(r"(?<![0-9A-Za-z_])res_[0-9a-f]{16}(?![0-9A-Za-z_])")

Pages: TypeAlias = Callable[[str, object, object, object], Awaitable[JsonObject]]
"""``pages(session, result_id, offset, limit)``: ``success`` with ``data``, or with ``error``."""

_DESCRIPTION = (
    "Get more of a large tool result, by the Result ID that its first part names. offset and "
    "limit count lines, or the items of an array; a page is at most 16 KB. Only results of this "
    "session, its sub-agents and its callers are found, for one hour after their last use."
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
    *,
    is_related: Callable[[str], Awaitable[bool]] | None = None,
) -> JsonObject:
    """``{"success": True, "data": …}`` or ``{"success": False, "error": {"code", "message"}}``.

    ``is_related``: whether a session is one of a sub-agent or of a caller. The id may have text
    around it, such as its label. Raises nothing but a cancellation.
    """
    wrong = _wrong_type(result_id, offset, limit)
    if wrong or not isinstance(result_id, str) or not isinstance(offset, int):
        return failure(INVALID_INPUT, wrong)
    found = find_result_id(result_id)
    try:
        stored = await store.ask(ReadResult(found, session)) if found else None
        if stored is None and found and is_related is not None:
            other = await store.ask(ReadResult(found, None))
            stored = other if other and await is_related(other.info.session) else None
    except Exception as error:
        return failure(DATABASE_ERROR, f"the result cannot be read: {summarize(error)}")
    if stored is None:
        shown = found or shorten(first_line(result_id), _SHOWN_ID)
        return failure(RESULT_NOT_FOUND, f"no result {shown} in this session: run its call again")
    return page_of(stored, offset, limit if isinstance(limit, int) else None)


def find_result_id(text: str) -> str | None:
    """The first id in a text: models copy it with its label, quotes or Markdown escapes."""
    found = _RESULT_ID.search(text.replace("\\_", "_"))
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
