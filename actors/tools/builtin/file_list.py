"""Listing folders: sorted, bounded, and never through a symbolic link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import trio

from motet.actors.tools.builtin.paths import Parts, explained, locate, missing, open_folder
from motet.actors.tools.tool import ToolFailure

MAX_LIMIT = 5_000
MAX_SEEN = 50_000
"""After so many entries a recursive listing stops, and says so."""

MAX_CHARS = 15_500
"""The most text that one call gives, in characters; what is cut is said."""

MAX_DEPTH = 64
SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Folders that a recursive listing names and does not enter."""


def list_folder(root: Path, path: str, pattern: str, recursive: bool, limit: int) -> str:
    """The entries of a folder that match, one a line: folders end in ``/``, files have sizes.

    Blocking; for a Trio worker thread, whose cancellation it notices between folders.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ToolFailure(f"limit is 1 to {MAX_LIMIT}, not {limit}", kind="validation")
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
    for entry in sorted(os.listdir(folder)):
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
        # Gone, replaced or closed to us: its own line says that it is there.
        return
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
    """A file name as text: bytes that are no UTF-8 replaced, control characters escaped."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
