"""Texts of megabytes on their way into a store, cut so that no half of a secret is left. Pure.

A text is cut generously before it is redacted, and to its limit after that: :data:`MARGIN`
characters at each cut are searched and then dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import NamedTuple, cast

from motet.protocols.texts import well_formed

ERROR_LIMIT = 12_000_000
"""Bytes of the texts of one error; three quarters of a longer text are its beginning."""
MARGIN = 16_384
"""Characters around a cut that are searched for secrets and then dropped: more than a key has."""
_LONG = 65_536
BASE_SIZE, FRAMES_SIZE = 1_000, 4_000
"""Bytes of a snapshot, and of a traceback, generously."""
_LEAST = 4_096
"""Characters that are left of the text with which the texts of an error are too long together."""


class LongText(NamedTuple):
    """A text on its way: whole, or its two ends with a margin each."""

    head: str
    tail: str = ""
    left_out: int = 0

    def finished(self, clean: Callable[[str], str]) -> str:
        head = clean(well_formed(self.head))
        if not self.left_out:
            return head
        note = f"\n[... {self.left_out} characters left out ...]\n"
        return f"{head[:-MARGIN]}{note}{clean(well_formed(self.tail))[MARGIN:]}"


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
