"""Paths of tools: contained in the workspace, opened safely, owned by the workspace's owner.

Invariants:
    - A path is resolved first, symbolic links included, and must then lie in the workspace.
    - It is opened component by component from the workspace down, and no component may be a link:
      the resolved path has none, so that a link found now was put there after the check.
    - Only regular files and folders are ever opened: a pipe cannot hang a tool, and no device is
      opened.
    - Existing files keep their owner. Only an empty workspace, with no one's work in it, is given
      to the unprivileged user that commands run as.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from motet.actors.errors.classify import failure_class
from motet.protocols.tools import ToolFailure, ToolNegative
from motet.runtime.sandbox import Owner

NOBODY = 65534
"""The user and group that commands run as when a workspace belongs to root."""


def owner_of(workspace: Path) -> Owner | None:
    """The owner of new files in ``workspace``; None: the user of the host.

    A host that runs as root acts for the owner of the workspace, so that the file tools and the
    shell can change each other's files. An empty workspace of root's is given to :data:`NOBODY`,
    whose group is used in place of root's too.
    """
    if os.geteuid() != 0:
        return None
    found = os.stat(workspace)
    if found.st_uid != 0:
        return Owner(found.st_uid, found.st_gid or NOBODY)
    if any(workspace.iterdir()):
        return None
    os.chown(workspace, NOBODY, NOBODY)
    return Owner(NOBODY, NOBODY)


# A file that is being written, until it takes its name; one that a killed host has left.
_TEMPORARY = re.compile(r"\.motet-[0-9a-f]{16}\.tmp")


def entries_of(folder: int) -> list[str]:
    """The names in an open folder, sorted, without the temporary files of a host."""
    return sorted(name for name in os.listdir(folder) if not _TEMPORARY.fullmatch(name))


def give(fd: int, owner: Owner | None) -> None:
    """Give an open file or folder to ``owner``; ignored by file systems without owners."""
    if owner is not None:
        with suppress(PermissionError):
            os.fchown(fd, owner.uid, owner.gid)


Parts: TypeAlias = tuple[str, ...]
"""A resolved place in a workspace: folder names and a last name. ``()`` is the workspace."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_PATH = 4000
"""The longest absolute path in bytes: ordinary programs cannot remove deeper ones."""

_ALLOWED = "allowed are paths inside the workspace {root}, such as 'notes/plan.md'"

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link in a circle, or one made just now",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}

_REASONS: dict[int, tuple[str, str]] = {
    errno.EACCES: ("permission", "the host may not access it"),
    errno.EPERM: ("permission", "the system does not permit it"),
    errno.EROFS: ("permission", "the file system is read-only"),
    errno.ENAMETOOLONG: ("validation", "the name is too long; 255 bytes are allowed for each part"),
    errno.ELOOP: ("validation", "its symbolic links lead in a circle or changed just now"),
    errno.ENOTDIR: ("validation", "a part of it that should be a folder is not one"),
    errno.EISDIR: ("validation", "it is a folder"),
    errno.ENOSPC: ("unknown", "no space is left on the disk"),
    errno.EDQUOT: ("unknown", "the disk quota is used up"),
    errno.EMFILE: ("unknown", "the host has too many open files; try again"),
}


def locate(root: Path, path: str) -> Parts:
    """The place of ``path``, as parts below ``root``. It need not exist.

    Raises:
        ToolFailure: it leads out of the workspace, or is no valid path.
    """
    allowed = _ALLOWED.format(root=root)
    if not path or "\0" in path:
        problem = "is empty" if not path else "contains a NUL character"
        raise ToolFailure(f"the path {problem}; {allowed}", kind="validation")
    if path.startswith("~"):
        raise ToolFailure(
            f"{path!r}: '~' is not expanded; {allowed}; for a name with a leading '~': './~name'",
            kind="validation",
        )
    with explained(path):
        base = os.path.realpath(root)
        resolved = os.path.realpath(os.path.join(base, os.fsdecode(_encoded(path))))
    if len(os.fsencode(resolved)) > MAX_PATH:
        raise ToolFailure(
            f"{path[:80]!r}... is too long; {MAX_PATH} bytes are allowed", kind="validation"
        )
    if resolved == base:
        return ()
    inside = resolved.startswith(base.rstrip("/") + "/")
    if not inside:
        raise ToolFailure(f"{path!r} leads out of the workspace; {allowed}", kind="validation")
    return tuple(resolved[len(base.rstrip("/")) + 1 :].split("/"))


def _encoded(path: str) -> bytes:
    try:
        return path.encode()
    except UnicodeEncodeError:
        message = f"{path!r} contains characters that cannot be in a file name"
        raise ToolFailure(message, kind="validation") from None


@contextmanager
def explained(path: str) -> Generator[None]:
    """Turn an OSError of the block into an answer, or a failure, that a model can act on."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        fallback = ("not_found", "it does not exist")
        if code not in (errno.ENOENT,):
            fallback = ("unknown", os.strerror(code) if code else str(error))
        kind, reason = _REASONS.get(code, fallback)
        name, failure = errno.errorcode.get(code, ""), failure_class(error)
        message = f"{path!r}: {reason}"
        if failure == "negative":
            raise ToolNegative(message, code=name, kind=kind) from error
        raise ToolFailure(message, code=name, kind=kind, failure=failure) from error


@contextmanager
def open_folder(
    root: Path, parts: Parts, *, make: bool = False, owner: Owner | None = None
) -> Generator[int]:
    """A descriptor of the folder at ``parts``, opened link-free from ``root`` down.

    Args:
        make: create missing folders, and give them to ``owner``.
    """
    fd = os.open(os.path.realpath(root), _DIRECTORY)
    try:
        for part in parts:
            below = _enter(fd, part, make=make, owner=owner)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _enter(fd: int, name: str, *, make: bool, owner: Owner | None) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, dir_fd=fd)
    except FileExistsError:
        return os.open(name, _DIRECTORY, dir_fd=fd)
    below = os.open(name, _DIRECTORY, dir_fd=fd)
    give(below, owner)
    return below


@contextmanager
def open_file(root: Path, path: str) -> Generator[BinaryIO]:
    """The regular file at ``path``, open for reading in binary.

    Raises:
        ToolFailure: outside, missing (with the nearest names), or not a regular file.
    """
    parts = locate(root, path)
    try:
        with explained(path), open_folder(root, parts[:-1]) as folder:
            fd = _open_regular(folder, parts, path)
    except ToolFailure as failure:
        if failure.kind != "not_found":
            raise
        raise missing(root, path, parts) from failure
    with open(fd, "rb", buffering=0) as file:
        yield file


def _open_regular(folder: int, parts: Parts, path: str) -> int:
    if not parts:
        raise not_regular(path, stat.S_IFDIR)
    before = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):
        raise not_regular(path, before.st_mode)
    fd = os.open(parts[-1], _FILE, dir_fd=folder)
    # It may have been replaced since the check: the descriptor is what was opened.
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise not_regular(path, mode)
    return fd


def not_regular(path: str, mode: int) -> ToolFailure:
    """The failure for anything but a regular file."""
    what = _KINDS.get(stat.S_IFMT(mode), "something else")
    hint = "; list_files shows what is in it" if stat.S_ISDIR(mode) else ""
    return ToolFailure(
        f"{path!r} is {what}; only regular files can be read and written{hint}", kind="validation"
    )


def missing(root: Path, path: str, parts: Parts) -> ToolNegative:
    """The answer for a missing file, with the names nearest to it."""
    present: Parts = ()
    for depth in range(len(parts)):
        present = parts[:depth]
        if (names := _names(root, present)) is None:
            break
        if parts[depth] not in names:
            return _absent(path, "/".join(present) or ".", parts[depth], names)
    return ToolNegative(f"{path!r} does not exist", kind="not_found")


def _names(root: Path, parts: Parts) -> list[str] | None:
    try:
        with open_folder(root, parts) as folder:
            return entries_of(folder)
    except OSError:
        return None


def _absent(path: str, folder: str, name: str, names: list[str]) -> ToolNegative:
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(map(repr, near)) + "?"
    elif names:
        rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
        hint = "there are: " + ", ".join(names[:8]) + rest
    else:
        hint = "that folder is empty"
    return ToolNegative(f"{path!r}: no {name!r} in folder {folder!r}; {hint}", kind="not_found")
