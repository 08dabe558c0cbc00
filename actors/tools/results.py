"""A stored text as numbered units: lines, or the items of an array, so that it can be paged.

Laws: the units joined are the text as it is viewed, each has at most :data:`UNIT_LIMIT` bytes, so
that every byte is reached by some page; a page ends between characters and has at most ``room``
bytes; pages read one after the other give every unit once. Source: seed 000, contradiction 46.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TypeAlias, cast
from urllib.parse import unquote

import attrs
import msgspec
import trio

from motet.actors.errors.classify import result_text
from motet.actors.errors.describe import error_text, summarize
from motet.actors.errors.redact import redact_text
from motet.actors.errors.text import well_formed
from motet.protocols.results import Kind, ResultProtocol, StoreResult, checksum
from motet.runtime import ActorRef

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


# Binary data in what a tool returned: found, and replaced by a note, before a model sees it.
#
# Laws: what is replaced is bytes, a ``data:`` URI, a typed block of base64 as MCP and model
# providers send it, or a run of base64 long and mixed enough to be nothing else; all other text
# stays as it is; the time is linear in the text. Source: errors specification, section 3.


Note: TypeAlias = Callable[[bytes], str]
"""What stands in place of these bytes."""

RUN_LENGTH = 256
"""Shorter runs of base64 stay: hashes, keys and tokens look like them."""
_LINE = 60
"""Of base64 that is wrapped; shorter ones are not wrapped so."""
_DEPTH = 64

# A run begins where no character of its alphabet stands before it: that keeps the search linear.
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


def omitted(data: bytes, result_id: str | None = None) -> str:
    """The note: how much it was, its checksum, and the id it is stored under."""
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
        return text  # it is a quarter of the work to see that there is no long word
    text = _WRAPPED.sub(lambda found: _replaced(found.group(), note), text)
    return _RUN.sub(lambda found: _replaced(found.group(), note), text)


def _replaced(found: str, note: Note) -> str:
    run = "".join(found.split())
    data = _decoded(run) if _is_mixed(run) else None
    return found if data is None else note(data)


def _is_mixed(run: str) -> bool:
    """Whether capitals, small letters and digits are as mixed as encoded bytes have them.

    A very long run need only have all three: nobody writes such a word.
    """
    counts = [len(kind.findall(run)) for kind in (_UPPER, _LOWER, _DIGIT)]
    if len(run) < RUN_LENGTH or not all(counts) or len(set(run)) < _DISTINCT:
        return False
    upper, lower, digits = (count / len(run) for count in counts)
    return len(run) >= _LONG or (upper >= 0.15 and lower >= 0.15 and digits >= 0.03)


def _payload(text: str) -> bytes:
    """The bytes of a data URI; one that is damaged is binary all the same."""
    decoded = _decoded(unquote(text))
    return text.encode() if decoded is None else decoded


def _decoded(text: str) -> bytes | None:
    plain = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (Base64Error, ValueError):
        return None


# What of a tool's result enters the transcript: all of it, or a head, its size and an id.
#
# Laws: the text has at most :data:`INLINE_LIMIT` bytes, no NUL and no binary; other text within the
# limit stays as it is; an id is shown only after its content is on disk; a store that fails costs
# the rest of the result, never the run. One rule for all results. Source: errors specification,
# section 3.


INLINE_LIMIT = 16_384
"""Bytes of UTF-8."""
HEAD_LIMIT = 4_096
STORE_DEADLINE = 5.0
"""Seconds a result waits for the store."""
BINARIES_STORED = 16
"""Of one result; more of them are noted without an id."""
_NOTE_ROOM = 512


class Inlined(msgspec.Struct, frozen=True):
    """``text`` is for the model.

    Attributes:
        size: bytes of the whole text, without binary.
        result_id: the stored text, None when it is all here or could not be stored.
        binary_ids: stored binary parts.
        problem: why something could not be stored, for a warning; empty when nothing failed.
    """

    text: str
    size: int
    result_id: str | None = None
    binary_ids: tuple[str, ...] = ()
    problem: str = ""


class Readable(msgspec.Struct, frozen=True):
    """A value as a model could read it.

    Attributes:
        value: in JSON's types, with bytes.
        text: with a note without an id for each binary.
        size: bytes of the text.
        binaries: what the notes are for, by checksum.
    """

    value: object
    text: str
    size: int
    binaries: Mapping[str, bytes]

    def fits(self, limit: int) -> bool:
        """Whether the text is all of it, so that nothing has to be stored."""
        return self.size <= limit and not self.binaries


def readable(value: object) -> Readable:
    """Read text, bytes, or anything with a JSON form. Raises nothing."""
    binaries: dict[str, bytes] = {}

    def found(data: bytes) -> str:
        binaries[checksum(data)] = data
        return omitted(data)

    if isinstance(value, str):
        text = well_formed(text_without_binary(value, found))
    else:
        value = _builtins(value)
        text = result_text(without_binary(value, found))
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
    """Decide what a model is given of a value: its text where that :meth:`~Readable.fits`.

    ``store`` None: what does not fit is cut. Raises nothing; cancellation passes, and then
    nothing that was not shown needs an id.
    """
    shelf, text, size = _Shelf(store, session, tool), read.text, read.size
    if read.binaries and store is not None:
        text = await _with_ids(shelf, read)
        size = len(text.encode())
    ids = tuple(shelf.ids.values())
    if size <= limit:
        return Inlined(text, size, None, ids, shelf.problem)
    kind: Kind = "json" if is_array(text) else "text"
    result_id = await shelf.put(kind, text.encode())
    pieces = units(text, kind)
    if result_id is None:
        return Inlined(_cut(pieces, size, limit, shelf.problem), size, None, ids, shelf.problem)
    head = _head(pieces, kind, size, result_id, min(HEAD_LIMIT, limit))
    return Inlined(head, size, result_id, ids, shelf.problem)


@attrs.define
class _Shelf:
    """The store for one result; after its first failure it is not asked again."""

    store: ActorRef[ResultProtocol] | None
    session: str
    tool: str
    ids: dict[str, str] = attrs.field(factory=dict[str, str])
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

    async def put_binary(self, data: bytes) -> None:
        result_id = await self.put("binary", data)
        if result_id is not None:
            self.ids[checksum(data)] = result_id

    def note(self, data: bytes) -> str:
        return omitted(data, self.ids.get(checksum(data)))


async def _with_ids(shelf: _Shelf, read: Readable) -> str:
    """The text with an id in the note for each binary, which are stored first."""
    for data in list(read.binaries.values())[:BINARIES_STORED]:
        await shelf.put_binary(data)
    return storable(result_text(without_binary(read.value, shelf.note)))


def _builtins(value: object) -> object:
    """Structs, dataclasses and times in JSON's types, bytes as they are; else the value itself."""
    if isinstance(value, str | bytes | bytearray):
        return value
    if isinstance(value, memoryview):
        return cast("memoryview[int]", value).tobytes()
    try:
        return msgspec.to_builtins(
            value, builtin_types=(bytes, bytearray), str_keys=True, enc_hook=_path
        )
    except Exception:  # reading a foreign object may raise anything; its text says it has no form
        return value


def storable(text: str) -> str:
    """NUL becomes U+FFFD: stores and wires refuse it."""
    return text.replace("\x00", "\ufffd")


def _path(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _head(pieces: Sequence[str], kind: Kind, size: int, result_id: str, limit: int) -> str:
    first = page(pieces, 0, max(len(pieces), 1), limit)
    text, above = first.text, f"the first {first.returned} are above"
    if not first.returned:  # not one of them fits where so little is to be shown
        text, above = "".join(pieces[:1]).encode()[:limit].decode(errors="ignore"), "cut above"
    what = "items" if kind == "json" else "lines"
    return (
        f"{text.rstrip()}\n\n"
        f"[Result ID: {result_id}] {size} bytes, {first.total} {what}; {above}.\n"
        f'Use get_tool_result("{result_id}", offset={first.next_offset}) for more.'
    )


def _cut(pieces: Sequence[str], size: int, limit: int, problem: str) -> str:
    """As much as fits of a result whose rest is lost, and why."""
    room = max(limit - _NOTE_ROOM, limit // 2)
    kept = "".join(pieces).encode()[:room].decode("utf-8", "ignore")
    why = f", the rest could not be stored: {problem}" if problem else ""
    return f"{kept}\n[truncated: {len(kept.encode())} of {size} bytes{why}]"
