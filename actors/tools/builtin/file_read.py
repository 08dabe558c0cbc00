"""Reading text by lines, in bounded memory however large the file or its lines are."""

from __future__ import annotations

import codecs
import mimetypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import trio

from motet.actors.tools.builtin.paths import open_file
from motet.actors.tools.tool import ToolFailure

CHUNK = 1 << 16
MAX_CHARS = 15_500
"""The most text that one call gives, in characters; what is cut is said."""

MAX_LIMIT = 10_000

_LINES = re.compile(r"[^\n]*\n|[^\n]+")

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or office document"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x7fELF", "an ELF program or library"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"\xff\xfe", "UTF-16 text; convert it with iconv"),
    (b"\xfe\xff", "UTF-16 text; convert it with iconv"),
)


def read_lines(root: Path, path: str, offset: int, limit: int) -> str:
    """``limit`` lines of a file from line ``offset`` on, and how to go on if there are more.

    Blocking; for a Trio worker thread, whose cancellation it notices between chunks. What is not
    UTF-8 is replaced.

    Raises:
        ToolFailure: no such text file, a binary one, or an offset past the end.
    """
    if offset < 1 or not 1 <= limit <= MAX_LIMIT:
        raise ToolFailure(
            f"offset is a line number from 1 on, limit is 1 to {MAX_LIMIT}; "
            f"not offset={offset}, limit={limit}",
            kind="validation",
        )
    with open_file(root, path) as file:
        size = os.fstat(file.fileno()).st_size
        refuse_binary(path, file.read(8192), size)
        file.seek(0)
        page = _Page(offset, limit)
        for text in _texts(file):
            if page.add(text):
                break
    return page.shown(path, size)


def refuse_binary(path: str, head: bytes, size: int) -> None:
    """Raise unless ``head``, the beginning of a file, can be text."""
    kind = next((what for magic, what in _SIGNATURES if head.startswith(magic)), None)
    if kind is None and b"\0" not in head:
        return
    guess = mimetypes.guess_type(path)[0]
    kind = kind or (f"binary data (by its name {guess})" if guess else "binary data")
    message = f"{path!r} is {kind}, {size:,} bytes; read_file reads text only"
    raise ToolFailure(message, kind="validation")


def _texts(file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    while chunk := file.read(CHUNK):
        trio.from_thread.check_cancelled()
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


class _Page:
    """The lines ``offset`` to ``offset + limit - 1`` of a text that comes in pieces.

    When they do not fit, it ends after the last line that does; a line that fills a page by
    itself is cut.
    """

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._end = offset + limit
        self._line = 1
        self._begun = ""
        self._kept: list[str] = []
        self._room = MAX_CHARS
        self._more = False

    def add(self, text: str) -> bool:
        """Take the next piece; true when the page is full and the text goes on."""
        for piece in _LINES.findall(text):
            if self._line < self._offset:
                self._line += piece.endswith("\n")
            elif self._line >= self._end or len(self._begun) + len(piece) > self._room:
                self._more = True
                if not self._kept:
                    self._begun = (self._begun + piece)[: self._room]
                return True
            else:
                self._take(piece)
        return False

    def _take(self, piece: str) -> None:
        self._begun += piece
        if piece.endswith("\n"):
            self._kept.append(self._begun)
            self._room -= len(self._begun)
            self._begun = ""
            self._line += 1

    def shown(self, path: str, size: int) -> str:
        """The page, with a note in brackets about what it leaves out."""
        text = "".join(self._kept)
        if not self._more:
            return text + self._begun or self._empty(path)
        if self._kept:
            note = f"lines {self._offset} to {self._line - 1}; go on with offset={self._line}"
        else:
            text = self._begun + "\n"
            note = f"line {self._line} is cut after {MAX_CHARS:,} characters"
        return f"{text}[{note}; the file has {size:,} bytes]"

    def _empty(self, path: str) -> str:
        if self._offset == 1:
            return f"[{path!r} is empty]"
        raise ToolFailure(
            f"{path!r} ends before line {self._offset}; it has {self._line - 1} line ends",
            kind="validation",
        )
