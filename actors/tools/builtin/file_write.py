"""Writing and editing files, atomically: a reader sees the old content or the new one.

Invariants:
    - New content is written beside the file, made durable and then renamed over it.
    - A replaced file keeps its mode and owner; a new one belongs to the owner of the workspace.
    - An edit changes the bytes it was asked to replace and no others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from motet.actors.tools.builtin.paths import (
    explained,
    give,
    locate,
    not_regular,
    open_file,
    open_folder,
    owner_of,
)
from motet.protocols.tools import ToolFailure, ToolNegative
from motet.runtime.outside import fresh_hex
from motet.runtime.sandbox import Owner

CHUNK = 1 << 20
MAX_EDIT = 10 << 20
"""The largest file that edit_file changes, in bytes."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_text(root: Path, path: str, content: str) -> str:
    """Create or replace a file, and its folders; returns a report for the model.

    Blocking, for a Trio worker thread. Cancelled between chunks, it leaves the old content.
    """
    data = encoded(content, "content")
    existed = replace(root, path, data)
    return f"{'replaced' if existed else 'created'} {path}: {len(data):,} bytes"


def edit_text(root: Path, path: str, old: str, new: str, everywhere: bool) -> str:
    """Replace exact occurrences of ``old`` by ``new``; returns a report for the model.

    Raises:
        ToolFailure: no occurrence, or several without ``everywhere``; nothing is changed.
    """
    if not old or old == new:
        problem = "old is empty; write_file makes a new file" if not old else "old and new are same"
        raise ToolFailure(f"nothing to replace: {problem}", kind="validation")
    wanted, replacement = encoded(old, "old"), encoded(new, "new")
    with open_file(root, path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_EDIT:
            raise ToolFailure(
                f"{path!r} has {found.st_size:,} bytes; edit_file takes up to {MAX_EDIT:,}",
                kind="validation",
            )
        before = _read_all(file.read)
    places = positions(before, wanted)
    if not places:
        raise ToolNegative(no_match(path, before, old), kind="not_found")
    if len(places) > 1 and not everywhere:
        lines = ", ".join(str(line_of(before, place)) for place in places[:10])
        raise ToolFailure(
            f"old occurs {len(places)} times in {path!r} (lines {lines}); "
            "give more of the text around it, or all=true to replace every one",
            kind="validation",
        )
    count = before.count(wanted)
    replace(root, path, before.replace(wanted, replacement), unless_changed_since=found)
    first = line_of(before, places[0])
    return f"edited {path}: {count} replacement{'s' * (count > 1)}, the first in line {first}"


def _read_all(read: Callable[[int], bytes]) -> bytes:
    chunks: list[bytes] = []
    while chunk := read(CHUNK):
        trio.from_thread.check_cancelled()
        chunks.append(chunk)
    return b"".join(chunks)


def encoded(text: str, name: str) -> bytes:
    """``text`` as UTF-8, or a failure that names the argument."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"{name} has half of a surrogate pair at {error.start}, which no text can hold"
        raise ToolFailure(message, kind="validation") from None


def positions(data: bytes, wanted: bytes) -> list[int]:
    """The places of ``wanted`` in ``data``, overlapping ones too: each may be the one meant."""
    found: list[int] = []
    at = data.find(wanted)
    while at >= 0:
        found.append(at)
        at = data.find(wanted, at + 1)
    return found


def line_of(data: bytes, position: int) -> int:
    """The line number of a byte, from 1."""
    return data.count(b"\n", 0, position) + 1


def no_match(path: str, data: bytes, old: str) -> str:
    """The reason of an edit without a match: the lines that differ in white space only, if any."""
    text = data.decode("utf-8", "replace")
    lines, wanted = text.split("\n"), [_squeezed(line) for line in old.strip().split("\n")]
    squeezed = [_squeezed(line) for line in lines]
    for at in range(len(lines) - len(wanted) + 1) if any(wanted) else ():
        window = squeezed[at : at + len(wanted)]
        if all(_alike(want, have) for want, have in zip(wanted, window, strict=True)):
            exact = "\n".join(lines[at : at + len(wanted)])
            endings = "; its lines end with \\r\\n" if "\r" in exact else ""
            place = f"{at + 1} to {at + len(wanted)}" if len(wanted) > 1 else f"{at + 1}"
            return (
                f"old is not in {path!r}, but line {place} differs in white space only{endings}; "
                f"it is exactly: {exact[:2000]!r}"
            )
    return f"old is not in {path!r} (0 matches); read the file again and copy the text exactly"


def _alike(want: str, have: str) -> bool:
    return want in have if want else not have


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def replace(
    root: Path, path: str, data: bytes, *, unless_changed_since: os.stat_result | None = None
) -> bool:
    """Make ``data`` the content of ``path`` in one step; true if a file was there before."""
    owner = owner_of(root)
    parts = locate(root, path)
    if not parts or path.endswith("/"):
        raise not_regular(path, stat.S_IFDIR)
    with explained(path), open_folder(root, parts[:-1], make=True, owner=owner) as folder:
        before = _present(folder, parts[-1], path)
        temporary = f".motet-{fresh_hex(8)}.tmp"
        try:
            _write(folder, temporary, data, before, owner)
            if unless_changed_since and _changed(folder, parts[-1], unless_changed_since):
                raise ToolNegative(f"{path!r} was changed just now; read it again", kind="unknown")
            os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)
    return before is not None


def _present(folder: int, name: str, path: str) -> os.stat_result | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise not_regular(path, found.st_mode)
    return found


def _changed(folder: int, name: str, since: os.stat_result) -> bool:
    now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return (now.st_ino, now.st_size, now.st_mtime_ns) != (
        since.st_ino,
        since.st_size,
        since.st_mtime_ns,
    )


def _write(
    folder: int, name: str, data: bytes, before: os.stat_result | None, owner: Owner | None
) -> None:
    fd = os.open(name, _NEW, 0o666, dir_fd=folder)
    with open(fd, "wb", buffering=0) as file:
        if before is None:
            give(fd, owner)
        else:
            # The owner first: a change of owner may clear mode bits.
            give(fd, Owner(before.st_uid, before.st_gid) if os.geteuid() == 0 else None)
            os.fchmod(fd, before.st_mode & 0o777)
        view = memoryview(data)
        while view:
            trio.from_thread.check_cancelled()
            view = view[file.write(view[:CHUNK]) :]
        os.fsync(fd)
