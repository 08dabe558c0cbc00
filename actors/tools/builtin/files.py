"""The file tools: read, write, edit and list, all inside the workspace.

They are synchronous functions, so that the host runs them in worker threads; a cancelled call
stops at the next chunk or folder and leaves no half-written file. Reading takes bounded memory for
files and lines of any size; listing is sorted, bounded, and follows no symbolic link.
"""

from __future__ import annotations

import codecs
import mimetypes
import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import trio

from motet.actors.tools.builtin.file_write import edit_text, write_text
from motet.actors.tools.builtin.paths import (
    Parts,
    entries_of,
    explained,
    locate,
    missing,
    open_file,
    open_folder,
)
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.protocols.tools import ToolFailure

CHUNK = 1 << 16
MAX_LINES = 10_000

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
MAX_ENTRIES = 5_000
MAX_SEEN = 50_000
"""A recursive listing stops after this many entries, and says so."""

MAX_CHARS = 15_500
"""Characters in the result of one call; a cut is noted in it."""

MAX_DEPTH = 64
SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Folders that a recursive listing shows and does not enter."""


def file_tools() -> list[Tool]:
    """``read_file``, ``write_file``, ``edit_file`` and ``list_files``."""
    return [
        tool(read_file, effects="read"),
        tool(write_file, effects="write"),
        tool(edit_file, effects="write"),
        tool(list_files, effects="read"),
    ]


def read_file(ctx: Context[object], path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a text file of the workspace.

    Args:
        path: relative to the workspace.
        offset: the first line to read, counted from 1.
        limit: how many lines to read.
    """
    return read_lines(ctx.workspace, path, offset, limit)


def write_file(ctx: Context[object], path: str, content: str) -> str:
    """Create a file in the workspace, or replace all of one. Missing folders are created.

    Args:
        path: relative to the workspace.
        content: the whole new content.
    """
    return write_text(ctx.workspace, path, content)


def edit_file(ctx: Context[object], path: str, old: str, new: str, all: bool = False) -> str:
    """Replace a piece of text in a file of the workspace.

    Args:
        path: relative to the workspace.
        old: the exact text to replace; it must occur once, unless all is true.
        new: what to put there.
        all: replace every occurrence.
    """
    return edit_text(ctx.workspace, path, old, new, all)


def list_files(
    ctx: Context[object],
    path: str = ".",
    pattern: str = "*",
    recursive: bool = False,
    limit: int = 500,
) -> str:
    """List a folder of the workspace, sorted; folders end in '/'.

    Args:
        path: the folder, relative to the workspace.
        pattern: only names that match, such as '*.py'.
        recursive: enter folders, but not those like .git and node_modules.
        limit: how many entries to show.
    """
    return list_folder(ctx.workspace, path, pattern, recursive, limit)


# Reading


def read_lines(root: Path, path: str, offset: int, limit: int) -> str:
    """``limit`` lines of a file from line ``offset`` on, and a note on how to read more.

    Blocking; in a Trio worker thread, it notices a cancellation between chunks. Invalid UTF-8 is
    replaced.

    Raises:
        ToolFailure: no such text file, a binary one, or an offset past the end.
    """
    if offset < 1 or not 1 <= limit <= MAX_LINES:
        raise ToolFailure(
            f"offset is a line number from 1 on, limit is 1 to {MAX_LINES}; "
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

    A page that is full ends after a whole line; a line that is longer than a page is cut.
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
        """The page, with a note in brackets about the rest."""
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


# Listing


def list_folder(root: Path, path: str, pattern: str, recursive: bool, limit: int) -> str:
    """The entries of a folder that match, one a line: folders end in ``/``, files have sizes.

    Blocking; in a Trio worker thread, it notices a cancellation between folders.
    """
    if not 1 <= limit <= MAX_ENTRIES:
        raise ToolFailure(f"limit is 1 to {MAX_ENTRIES}, not {limit}", kind="validation")
    while pattern.startswith("**/"):
        pattern, recursive = pattern[3:], True
    parts = locate(root, path)
    try:
        lines, matched, seen = _collect(root, parts, path, pattern, recursive, limit)
    except ToolFailure as failure:
        if failure.kind == "not_found":
            raise missing(root, path, parts) from failure
        raise
    if seen > MAX_SEEN:
        lines.append(f"[stopped after {MAX_SEEN:,} entries; list a folder further down]")
    elif matched > len(lines):
        lines.append(f"[{len(lines):,} of {matched:,} entries; narrow the pattern or the folder]")
    elif not lines:
        return f"[no entry matches {pattern!r}]" if seen else "[the folder is empty]"
    return "\n".join(lines)


def _collect(
    root: Path, parts: Parts, path: str, pattern: str, recursive: bool, limit: int
) -> tuple[list[str], int, int]:
    lines: list[str] = []
    matched = seen = 0
    room = MAX_CHARS
    with explained(path), open_folder(root, parts) as folder:
        for name, line in _entries(folder, "", recursive, 0):
            seen += 1
            if seen > MAX_SEEN:
                break
            if matches(name, pattern):
                matched += 1
                room -= len(line) + 1
                if matched <= limit and room >= 0:
                    lines.append(line)
    return lines, matched, seen


def matches(name: str, pattern: str) -> bool:
    """Whether an entry matches: its last name, or its whole path if the pattern has a ``/``."""
    return fnmatchcase(name if "/" in pattern else name.rpartition("/")[2], pattern)


def _entries(folder: int, prefix: str, recursive: bool, depth: int) -> Iterator[tuple[str, str]]:
    trio.from_thread.check_cancelled()
    for entry in entries_of(folder):
        try:
            found = os.stat(entry, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        name = f"{prefix}{printable(entry)}"
        yield name, _line(folder, entry, name, found)
        enter = recursive and stat.S_ISDIR(found.st_mode) and entry not in SKIPPED
        if enter and depth < MAX_DEPTH:
            yield from _below(folder, entry, f"{name}/", depth + 1)


def _below(folder: int, name: str, prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except OSError:
        return  # gone, replaced or not readable: its own line is listed already
    try:
        yield from _entries(fd, prefix, True, depth)
    finally:
        os.close(fd)


def _line(folder: int, entry: str, name: str, found: os.stat_result) -> str:
    if stat.S_ISDIR(found.st_mode):
        return f"{name}/"
    if stat.S_ISREG(found.st_mode):
        return f"{name}  {found.st_size:,} bytes"
    if stat.S_ISLNK(found.st_mode):
        try:
            return f"{name} -> {printable(os.readlink(entry, dir_fd=folder))}"
        except OSError:
            return f"{name} -> ?"
    return f"{name}  (not a regular file)"


def printable(name: str) -> str:
    """A file name as text: invalid UTF-8 replaced, control characters escaped."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
