"""The rule for results: the part that enters the transcript, and the part that is stored.

Laws: the text for the model has at most :data:`INLINE_LIMIT` bytes, no NUL and no binary; other
text within the limit is unchanged; an id is shown only after its content is on disk; a store that
fails costs the rest of the result, never the run; work on a large value is done in a thread, in
parts, since a single search of 20 MB would hold the interpreter, and so the loop, for a second.

Sources: errors specification, section 3; seed 000, contradiction 46.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, TypeGuard, TypeVar, cast

import attrs
import msgspec
import trio

from motet.actors.errors.classify import result_text
from motet.actors.tools.arguments import plain
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.protocols.binary import RUN_LENGTH, omitted, text_without_binary, without_binary
from motet.protocols.chat import JsonObject
from motet.protocols.redaction.redact import redact_text
from motet.protocols.result_pages import (
    PAGE_LIMIT,
    find_result_id,
    is_array,
    page,
    page_of,
    page_text,
    units,
)
from motet.protocols.results import Kind, ReadResult, ResultProtocol, StoreResult, checksum
from motet.protocols.texts import first_line, shorten, well_formed
from motet.protocols.tools import ToolRetry, unsuccessful
from motet.runtime import ActorRef
from motet.runtime.describe import error_text, summarize
from motet.runtime.exceptions import type_name
from motet.runtime.outside import foreign_code

T = TypeVar("T")
INLINE_LIMIT = PAGE_LIMIT
"""Bytes of UTF-8."""
HEAD_LIMIT = 4_096
STORE_DEADLINE = 5.0
"""Seconds that a result waits for the store."""
BINARIES_STORED = 16
"""Binary parts of one result that are stored; further ones are noted without an id."""
_NOTE_ROOM = 512

IN_THREAD_FROM = 131_072
"""Characters of a value, all its texts together, from which on a thread works on it."""
LONGEST = 32 << 20
"""Characters of a text; the rest of a longer one is dropped before anything is done with it."""
_ITEMS = 256
_NODE = 16  # characters that a number or a container counts for


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


def is_plain(value: object, limit: int) -> TypeGuard[str]:
    """Whether :func:`readable` would find a value to be its own text, and one that fits."""
    # A shorter text than a run of base64 has none, and one of ASCII is as many bytes.
    return (
        type(value) is str
        and len(value) <= limit
        and len(value) < RUN_LENGTH
        and value.isascii()
        and "\0" not in value
        and ";base64," not in value.lower()
    )


def is_large(value: object) -> bool:
    """Whether a value has more than :data:`IN_THREAD_FROM` characters, found in bounded time.

    Raises nothing: one that cannot be read is not large, and :func:`readable` says what it is.
    """
    room, rest = IN_THREAD_FROM, [value]
    try:
        with foreign_code:
            while rest and room >= 0:
                one = rest.pop()
                room -= len(one) if isinstance(one, str | bytes | bytearray) else _NODE
                if isinstance(one, Mapping):
                    some = islice(cast("Mapping[object, object]", one).items(), room // _NODE + 1)
                    rest += [part for pair in some for part in pair]
                elif isinstance(one, list | tuple):
                    rest += islice(cast("Sequence[object]", one), room // _NODE + 1)
    except Exception:
        return False
    return room < 0


async def worked_on(value: object, work: Callable[[], T]) -> T:
    """The result of ``work`` on ``value``: in a thread if that is large. Not cancelled then."""
    return await trio.to_thread.run_sync(work) if is_large(value) else work()


def readable(value: object) -> Readable:
    """A text, bytes, or anything with a JSON form, as text. Raises nothing."""
    binaries: dict[str, bytes] = {}
    if isinstance(value, str) and len(value) > LONGEST:
        value = f"{value[:LONGEST]}\n[truncated: {LONGEST} of {len(value)} characters]"

    def found(data: bytes) -> str:
        binaries[checksum(data)] = data
        return omitted(data)

    if isinstance(value, str):
        text = well_formed(text_without_binary(value, found))
    else:
        value = _builtins(value)
        try:
            with foreign_code:
                text = _json_text(without_binary(value, found))
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
    user: str = "",
) -> Inlined:
    """The part of a value for the model: all of its text, or a head and the id of the rest.

    ``store`` None: a text that does not fit is cut. Raises nothing but a cancellation.
    """
    storing, text, size = _Storing(store, session, tool, user), read.text, read.size
    ids: dict[str, str] = {}
    if read.binaries and store is not None:
        # Before the text is made, since its notes show only ids of content that is on disk.
        for digest, data in islice(read.binaries.items(), BINARIES_STORED):
            if (binary_id := await storing.put("binary", data)) is not None:
                ids[digest] = binary_id

        def note(data: bytes) -> str:
            return omitted(data, ids.get(checksum(data)))

        text = await worked_on(
            read.value, lambda: storable(_json_text(without_binary(read.value, note)))
        )
        size = len(text.encode())
    stored = tuple(ids.values())
    if size <= limit:
        return Inlined(text, size, None, stored, storing.problem)
    kind: Kind = "json" if await worked_on(text, lambda: is_array(text)) else "text"
    result_id = await storing.put(kind, text.encode())
    if result_id is None:
        cut = await worked_on(text, lambda: _cut(units(text, kind), size, limit, storing.problem))
        return Inlined(cut, size, None, stored, storing.problem)
    id, most = result_id, min(HEAD_LIMIT, limit)
    head = await worked_on(text, lambda: _head(units(text, kind), kind, size, id, most))
    return Inlined(head, size, result_id, stored, storing.problem)


def _json_text(data: object) -> str:
    """As :func:`result_text`; of a large value in parts, of which each holds the loop less."""
    if isinstance(data, str) or not is_large(data):
        return result_text(data)
    try:
        return well_formed("".join(_json_parts(data, 4)))
    except (TypeError, ValueError, RecursionError):
        return result_text(data)


def _json_parts(data: object, depth: int) -> Iterator[str]:
    """Raises what ``json.dumps`` raises."""
    if not depth or not is_large(data) or not isinstance(data, list | dict):
        yield _dumped(data)
    elif isinstance(data, list):
        items, before = cast("list[object]", data), "["
        for at in range(0, len(items), _ITEMS):
            some = items[at : at + _ITEMS]
            yield before
            before = ", "
            if is_large(cast("object", some)):
                for place, one in enumerate(some):
                    yield ", " if place else ""
                    yield from _json_parts(one, depth - 1)
            else:
                yield _dumped(some)[1:-1]
        yield "]" if items else "[]"
    else:
        before = "{"
        for key, one in cast("dict[object, object]", data).items():
            if not isinstance(key, str):
                raise TypeError(key)
            yield f"{before}{_dumped(key)}: "
            before = ", "
            yield from _json_parts(one, depth - 1)
        yield "}" if data else "{}"


def _dumped(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


@attrs.define
class _Storing:
    """Stores the parts of one result; after the first failure, no more."""

    store: ActorRef[ResultProtocol] | None
    session: str
    tool: str
    user: str
    problem: str = ""

    async def put(self, kind: Kind, content: bytes) -> str | None:
        if self.store is None or self.problem:
            return None
        self.problem = f"no answer within {STORE_DEADLINE:g} s"
        with trio.move_on_after(STORE_DEADLINE):
            try:
                new = StoreResult(self.session, self.tool, kind, content, user=self.user)
                info = await self.store.ask(new)
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


# ``get_tool_result``, the tool that reads a stored result page by page. Another session's result is
# "not found" (G16).

INVALID_INPUT = "INVALID_INPUT"
RESULT_NOT_FOUND = "RESULT_NOT_FOUND"
DATABASE_ERROR = "DATABASE_ERROR"

_SHOWN_ID = 100

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
        return unsuccessful(INVALID_INPUT, wrong)
    found = find_result_id(result_id)
    try:
        stored = await store.ask(ReadResult(found, session)) if found else None
        if stored is None and found and is_related is not None:
            other = await store.ask(ReadResult(found, None))
            stored = other if other and await is_related(other.info.session) else None
    except Exception as error:
        return unsuccessful(DATABASE_ERROR, f"the result cannot be read: {summarize(error)}")
    if stored is None:
        shown = found or shorten(first_line(result_id), _SHOWN_ID)
        return unsuccessful(
            RESULT_NOT_FOUND, f"no result {shown} in this session: run its call again"
        )
    return page_of(stored, offset, limit if isinstance(limit, int) else None)


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
