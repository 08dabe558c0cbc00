"""Texts of megabytes on their way into a store, cut so that no half of a secret is left. Pure.

A text is cut generously before it is redacted, and to its limit after that: :data:`MARGIN`
characters at each cut are searched and then dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Literal, NamedTuple, Protocol, cast

from motet.protocols.texts import well_formed

ERROR_LIMIT = 12_000_000
"""Bytes of the texts of one error; three quarters of a longer text are its beginning."""
MARGIN = 16_384
"""Characters around a cut that are searched for secrets and then dropped: more than a key has."""
_LONG = 65_536
_BLOCK = 262_144
"""Characters that are cleaned at once."""
BASE_SIZE, FRAMES_SIZE = 1_000, 4_000
"""Bytes of a snapshot, and of a traceback, generously."""
_LEAST = 4_096
"""Characters that are left of the text with which the texts of an error are too long together."""


class LongText(NamedTuple):
    """A text on its way: whole, or its two ends with a margin each."""

    head: str
    tail: str = ""
    left_out: int = 0

    def finished(self, stream: Callable[[], Stream] | None) -> str:
        """The text, cleaned in blocks by a new stream for each end; None: it is clean."""
        pieces = _cleaned(self.head, stream)
        if self.left_out:
            _drop(pieces, MARGIN, -1)
            rest = _cleaned(self.tail, stream)
            _drop(rest, MARGIN, 0)
            pieces += [f"\n[... {self.left_out} characters left out ...]\n", *rest]
        return "".join(pieces)


class Stream(Protocol):
    """Cleans a text that comes in pieces."""

    def feed(self, piece: str, /) -> str: ...
    def close(self) -> str: ...


def _cleaned(text: str, stream: Callable[[], Stream] | None) -> list[str]:
    """The pieces of a clean text. One copy of it is made, since it may have megabytes."""
    text = well_formed(text)
    if stream is None:
        return [text]
    one = stream()
    pieces = [one.feed(text[at : at + _BLOCK]) for at in range(0, len(text), _BLOCK)]
    return [*pieces, one.close()]


def _drop(pieces: list[str], count: int, end: Literal[0, -1]) -> None:
    """Drop so many characters at one end."""
    while pieces and count > 0:
        piece = pieces.pop(end)
        kept = piece[count:] if end == 0 else piece[: max(0, len(piece) - count)]
        count -= len(piece)
        if kept:
            pieces.insert(0 if end == 0 else len(pieces), kept)


class Texts:
    """Cuts the texts of one error, of which all together have a limit."""

    def __init__(self) -> None:
        self.room = ERROR_LIMIT

    @property
    def size(self) -> int:
        return BASE_SIZE + ERROR_LIMIT - max(self.room, 0)

    def __call__(self, text: str) -> object:
        """The text, or a :class:`LongText`. Takes as long as it takes to copy what is left."""
        if type(text) is not str:
            text = str.__getitem__(text, slice(None))  # of a class whose methods may do anything
        size = getsizeof(text)
        if self.room <= 0:
            return f"[{len(text)} characters left out]"
        if size <= _LONG and size <= self.room:
            self.room -= size
            return well_formed(text)
        width = max(1, round(size / (len(text) + 50)))
        limit = max(self.room // width, _LEAST)
        self.room -= size
        if len(text) <= limit + 4 * MARGIN:
            return LongText(text)
        head, tail = limit * 3 // 4, limit // 4
        left_out = len(text) - head - tail
        return LongText(text[: head + MARGIN], text[-tail - MARGIN :], left_out)


def with_texts(value: object, text: Callable[[LongText], str]) -> object:
    """The JSON value with a text for each long one."""
    match value:
        case LongText():
            return text(value)
        case dict():
            items = cast("dict[str, object]", value).items()
            return {key: with_texts(item, text) for key, item in items}
        case list():
            return [with_texts(item, text) for item in cast("list[object]", value)]
        case _:
            return value
