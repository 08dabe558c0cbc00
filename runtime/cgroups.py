"""The control group (cgroup v2) below which each command with totals has a group of its own.

The kernel keeps the totals of a group at every moment, also those of processes that live for less
than the guard's looks are apart, and kills a whole group at once. But only its owner may divide a
group: systemd hands one over to a unit with ``Delegate=yes``, and marks it (``user.delegate``).
Where no such group is found, the guard's own looks are all there is.

Source: "Control Group v2" of the kernel, and systemd's ``CGROUP_DELEGATION``. Its two rules are
kept: nothing above the delegated group is touched, and the processes of a group that hands
controllers down are in a group below it (here ``motet``), since no inner group may have any.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from motet.runtime.process_guard import COMMAND_GROUP, descendants, parents

__all__ = ["Place", "command_groups", "own_group"]

CONTROLLERS: Final = ("memory", "pids")
"""What a group of a command needs to have totals of its own; processor time counts without."""
HOST: Final = "motet"
"""The group below the delegated one that this process moves to."""
_MARKS: Final = ("user.delegate", "trusted.delegate")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_ROUNDS: Final = 10


class Place(msgspec.Struct, frozen=True):
    """A group that may be divided. ``controllers``: those of the groups below it."""

    path: str
    controllers: tuple[str, ...] = ()


def own_group(mounts: str, groups: str) -> tuple[PurePosixPath, PurePosixPath] | None:
    """The mount of cgroup v2, and the group of a process below it; None: it has none.

    ``mounts``, ``groups``: its ``/proc/self/mountinfo`` and ``/proc/self/cgroup``.
    """
    lines = (line.partition("::")[2] for line in groups.splitlines() if line.startswith("0::"))
    own = PurePosixPath(next(lines, ""))
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 4 and right.split()[:1] == ["cgroup2"]:
            top, mount = map(_plain, fields[3:5])
            # A group outside of what is mounted here, as in some containers, begins with `/..`.
            if own.is_relative_to(top) and ".." not in own.parts:
                return PurePosixPath(mount), PurePosixPath(mount) / own.relative_to(top)
    return None


def _plain(field: str) -> str:
    """A field of ``mountinfo``, in which blanks and backslashes are octal numbers."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), field)


@cache
def command_groups() -> Place | None:
    """The group in which each command has one of its own; None: none is delegated to this process.

    The first call moves this process and its children into a group below it, and removes the groups
    that commands of a killed host have left.
    """
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        own = own_group(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
        if own is not None and (found := _delegated(*own)) is not None:
            return _prepared(found)
    return None


def _read(path: str) -> str:
    return Path(path).read_text("utf-8", "surrogateescape")


def _delegated(mount: PurePosixPath, own: PurePosixPath) -> str | None:
    """The nearest group at or above ``own`` that its owner was told to divide."""
    for group in (own, *own.parents):
        if any(map(_is_marked, [group] * len(_MARKS), _MARKS)):
            return str(group)
        if group == mount:
            break
    return None


def _is_marked(group: PurePosixPath, mark: str) -> bool:
    try:
        return os.getxattr(group, mark) == b"1"
    except OSError:
        return False


def _prepared(group: str) -> Place | None:
    if not os.access(group, os.W_OK | os.X_OK):
        return None
    folder = Path(group)
    for left in folder.glob(f"{COMMAND_GROUP}*"):
        with suppress(OSError):  # a command of another host runs in it
            left.rmdir()
    wanted = set(CONTROLLERS).intersection(_read(f"{group}/cgroup.controllers").split())
    if wanted.difference(_read(f"{group}/cgroup.subtree_control").split()):
        _make_room(folder)
    for controller in sorted(wanted):
        # Refused if a process of others is in the group: then its commands have no such total.
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    given = _read(f"{group}/cgroup.subtree_control").split()
    return Place(group, tuple(name for name in CONTROLLERS if name in given))


def _make_room(folder: Path) -> None:
    """Move this process and what it has started to a group below; more may be started meanwhile."""
    room = folder / HOST
    room.mkdir(exist_ok=True)
    for _ in range(_ROUNDS):
        ours = {os.getpid(), *descendants(os.getpid(), parents())}
        here = ours.intersection(_members(folder))
        if not here:
            return
        for pid in here:
            with suppress(ProcessLookupError):
                (room / "cgroup.procs").write_text(str(pid))


def _members(folder: Path) -> Sequence[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
