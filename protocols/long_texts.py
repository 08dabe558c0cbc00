"""Texts of megabytes on their way into a store, cut so that no half of a secret is left. Pure.

Invariants: a text is kept in blocks, each of which is let go of as soon as it is written; what is
written has :data:`WRITTEN_LIMIT` bytes at most, however much its characters grow in JSON. So a text
and what is made of it take less than twice :data:`ERROR_LIMIT` at any time, whatever the text is.
At a cut, :data:`MARGIN` characters are searched for secrets and then dropped.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, cast

import attrs

from motet.protocols.texts import well_formed

ERROR_LIMIT = 12_000_000
"""Bytes of the texts of one error; three quarters of a longer text are its beginning."""
WRITTEN_LIMIT = ERROR_LIMIT * 27 // 20
"""Bytes of the JSON text of one error, about: most characters take one byte there, some six."""
MARGIN = 16_384
"""Characters around a cut that are searched for secrets and then dropped: more than a key has."""
_LONG = 65_536
"""Bytes of the longest text that is kept as it is."""
_BLOCK = 262_144
"""Characters of a block."""
_SHORT_LIMIT = ERROR_LIMIT // 6
"""Bytes of all texts of an error that are kept as they are: of those, redaction makes a copy."""
BASE_SIZE, FRAMES_SIZE = 1_000, 4_000
"""Bytes of a snapshot, and of a traceback, generously."""
_LEAST = 4_096
"""Characters of the beginning of one of many long texts."""
_CHUNK = 1_024
"""Characters that are written, or left out, together."""
_ESCAPED = 12
"""Bytes that one character takes in JSON, at most."""


@attrs.define(eq=False)
class LongText:
    """A text on its way: its blocks, or those of its two ends, with a margin at the cut.

    ``length``: characters of the whole. ``size``: bytes of the blocks. To write it empties it.
    """

    head: deque[str] = attrs.field(repr=False)
    tail: deque[str] = attrs.field(repr=False)
    length: int
    left_out: int
    size: int

    @property
    def beginning(self) -> str:
        return well_formed(self.head[0])


class Stream(Protocol):
    """Cleans a text that comes in pieces."""

    def feed(self, piece: str, /) -> str: ...
    def close(self) -> str: ...


class Texts:
    """Cuts the texts of one error, of which all together have a limit."""

    def __init__(self) -> None:
        self.room = ERROR_LIMIT
        self.short_room = _SHORT_LIMIT
        self.long: list[LongText] = []

    @property
    def size(self) -> int:
        return BASE_SIZE + ERROR_LIMIT - max(self.room, 0)

    def __call__(self, text: str) -> object:
        """The text, or a :class:`LongText`. Takes as long as it takes to copy what is left."""
        # Not by its own methods, which may do anything where it is of a subclass.
        size, length = str.__sizeof__(text), str.__len__(text)
        if self.room <= 0:
            return f"[{length} characters left out]"
        if size <= _LONG and size <= min(self.room, self.short_room):
            self.room -= size
            self.short_room -= size
            return well_formed(text if type(text) is str else str.__getitem__(text, slice(None)))
        made = _cut(text, length, self.room)
        self.room -= made.size
        self.long.append(made)
        return made


def _cut(text: str, length: int, room: int) -> LongText:
    """The blocks at the beginning and the end of a text that have about so many bytes."""
    step = max(2 * MARGIN, min(_BLOCK, room // 8))
    head, tail, size, at, end = deque[str](), deque[str](), 0, 0, length
    room = max(room - 2 * step, room // 2)  # the last block of each end goes beyond it
    while at < end and size < room * 3 // 4:
        head.append(str.__getitem__(text, slice(at, min(at + step, end))))
        size += str.__sizeof__(head[-1])
        at = min(at + step, end)
    while at < end and size < room:
        tail.appendleft(str.__getitem__(text, slice(max(at, end - step), end)))
        size += str.__sizeof__(tail[0])
        end = max(at, end - step)
    if at >= end or end - at <= 2 * MARGIN:
        head += _blocks(text, at, end, step) if at < end else ()
        head += tail
        tail.clear()
        at = end
    return LongText(head, tail, length, end - at, size)


def _blocks(text: str, at: int, end: int, step: int) -> Iterator[str]:
    return (str.__getitem__(text, slice(n, min(n + step, end))) for n in range(at, end, step))


def beginnings(values: list[object]) -> tuple[list[object], dict[str, int]]:
    """JSON values with the beginnings of their long texts; the whole length of each of these.

    All beginnings together have some hundred thousand characters.
    """
    lengths, room = dict[str, int](), _BLOCK

    def shown(value: object) -> object:
        nonlocal room
        match value:
            case LongText():
                text = value.beginning[: max(room, _LEAST)]
                room -= len(text)
                lengths[text] = value.length
                return text
            case dict():
                items = cast("dict[str, object]", value).items()
                return {key: shown(item) for key, item in items}
            case list():
                return [*map(shown, cast("list[object]", value))]
            case _:
                return value

    return [*map(shown, values)], lengths


def written(value: object, long: Iterable[LongText], stream: Callable[[], Stream] | None) -> str:
    """The JSON value as JSON text, with the ``long`` texts that it has. Empties these.

    A new stream cleans each end of them; None: they are clean. The text is ASCII, so that it takes
    a byte for each character in memory, in the database, and on the way there.
    """
    out = _Pieces()
    _Writer(out, sum(one.size for one in long), stream).write(value)
    return out.joined()


class _Pieces:
    """Pieces of a text, which are let go of while they are joined: ``io.StringIO`` keeps them."""

    def __init__(self) -> None:
        self.size = 0
        self._small: list[str] = []
        self._small_size = 0
        self._large = deque[str]()

    def write(self, piece: str) -> None:
        self._small.append(piece)
        self.size += len(piece)
        self._small_size += len(piece)
        if self._small_size >= _BLOCK:
            self._settle()

    def joined(self) -> str:
        self._settle()
        whole = ""
        for piece in _drained(self._large):
            whole += piece  # CPython grows it in place, since nothing else refers to it
        return whole

    def _settle(self) -> None:
        self._large.append("".join(self._small))
        self._small, self._small_size = [], 0


def _drained(texts: deque[str]) -> Iterator[str]:
    """The texts, each of which is let go of with the next one."""
    while texts:
        yield texts.popleft()


class _Writer:
    """Writes one value. ``reserved``: bytes that are left to the long texts that follow."""

    def __init__(self, out: _Pieces, reserved: int, stream: Callable[[], Stream] | None) -> None:
        self.out = out
        self._reserved = reserved
        self._stream = stream

    def write(self, value: object) -> None:
        match value:
            case LongText():
                self._reserved -= value.size
                room = WRITTEN_LIMIT - self.out.size - self._reserved
                ends = _Ends(self.out, max(room, _ESCAPED * _CHUNK))
                self.out.write('"')
                self._long(value, ends)
                ends.close()
                self.out.write('"')
            case dict():
                self.out.write("{")
                for number, (key, item) in enumerate(cast("dict[str, object]", value).items()):
                    self.out.write(f"{',' if number else ''}{json.dumps(key)}:")
                    self.write(item)
                self.out.write("}")
            case list():
                self.out.write("[")
                for number, item in enumerate(cast("list[object]", value)):
                    self.out.write("," if number else "")
                    self.write(item)
                self.out.write("]")
            case _:
                self.out.write(json.dumps(value))

    def _long(self, text: LongText, ends: _Ends) -> None:
        head, tail, left_out = text.head, text.tail, text.left_out
        late, held = deque[str](), 0  # the last of them are the margin
        for piece in self._cleaned(head):
            late.append(piece)
            held += len(piece)
            while late and (not left_out or held - len(late[0]) >= MARGIN):
                held -= len(late[0])
                ends.put(late.popleft())
            if ends.is_full and (left_out or sum(map(len, head)) > ends.most + _BLOCK):
                break
        else:
            if not left_out:
                return
            ends.put("".join(late)[: max(0, held - MARGIN)])
        if not left_out:  # the end of this text is that of its first blocks
            tail = head
        while sum(map(len, head)) > (ends.most + _BLOCK if tail is head else 0):
            left_out += len(head.popleft())
        ends.leave_out(left_out + 2 * MARGIN)
        margin = MARGIN
        for piece in self._cleaned(tail):
            ends.put(piece[margin:])
            margin = max(0, margin - len(piece))

    def _cleaned(self, blocks: deque[str]) -> Iterator[str]:
        one = None if self._stream is None else self._stream()
        for block in map(well_formed, _drained(blocks)):
            yield block if one is None else one.feed(block)
        if one is not None:
            yield one.close()


class _Ends:
    """Writes the two ends of a text that have so many bytes together, and what was left out.

    ``most``: bytes of the second one. ``is_full``: the first one is complete.
    """

    def __init__(self, out: _Pieces, room: int) -> None:
        self._out = out
        self._head, self.most = room * 3 // 4, room // 4
        self.is_full = False
        self._tail = deque[tuple[str, int]]()
        self._held = 0
        self._left_out = 0

    def put(self, piece: str) -> None:
        for at in range(0, len(piece), _CHUNK):
            chunk = piece[at : at + _CHUNK]
            escaped = json.dumps(chunk)[1:-1]
            if not self.is_full and len(escaped) <= self._head:
                self._head -= len(escaped)
                self._out.write(escaped)
                continue
            self.is_full = True
            self._tail.append((escaped, len(chunk)))
            self._held += len(escaped)
            while self._held > self.most:
                gone, count = self._tail.popleft()
                self._held -= len(gone)
                self._left_out += count

    def leave_out(self, count: int) -> None:
        """So many characters are missing here."""
        self.is_full = True
        self._left_out += count + sum(count for _, count in self._tail)
        self._tail.clear()
        self._held = 0

    def close(self) -> None:
        if self._left_out:
            self._out.write(f"\\n[... {self._left_out} characters left out ...]\\n")
        for escaped, _ in self._tail:
            self._out.write(escaped)
        self._tail.clear()
