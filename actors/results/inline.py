"""What of a tool's result enters the transcript: all of it, or a head, its size and an id.

Laws: the text has at most :data:`INLINE_LIMIT` bytes, no NUL and no binary; other text within the
limit stays as it is; an id is shown only after its content is on disk; a store that fails costs
the rest of the result, never the run. One rule for all results. Source: errors specification,
section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import cast

import attrs
import msgspec
import trio

from motet.actors.errors.format import result_text
from motet.actors.errors.redact import redact_text
from motet.actors.errors.summary import error_text, summarize
from motet.actors.errors.text import well_formed
from motet.actors.results.binary import omitted, text_without_binary, without_binary
from motet.actors.results.messages import Kind, ResultProtocol, StoreResult
from motet.actors.results.packing import checksum
from motet.actors.results.units import is_array, page, units
from motet.runtime import ActorRef

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
