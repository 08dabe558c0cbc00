"""The line of a program that an error of the simulator names.

It is the innermost line that belongs neither to the standard library, nor to Trio, nor to motet.
A task without such a line was started by a task that has one.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import TypeAlias

import trio

__all__ = ["blamed", "caller_of_motet", "is_installed", "is_library"]

Place: TypeAlias = tuple[FrameType, int]

_LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "trio", "outcome", "hypothesis", "_pytest", "pluggy", "pytest"}
    | {"pytest_trio", "xdist", "execnet"}
)
_STDLIB = sysconfig.get_path("stdlib")


def blamed(caller: FrameType) -> str:
    """The line that used something real: the user's, or motet's and the user's behind it."""
    places = list(_places(caller))
    innermost = next(((frame, line) for frame, line in places if not is_library(frame)), None)
    if innermost is None:
        return _shown((caller, caller.f_lineno))
    own = _own(places)
    if own is None or own == innermost:
        return _shown(innermost)
    return f"{_shown(innermost)}, for {_shown(own)},"


def caller_of_motet() -> str | None:
    """The user's line that is being executed; None if there is none."""
    own = _own(_places(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]  # documented
    return None if own is None else _shown(own)


def is_library(frame: FrameType) -> bool:
    """Whether it is of a library that may use the real clock inside a simulation."""
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in _LIBRARIES or _is_simulator(module)


@cache
def is_installed(file: str) -> bool:
    """Whether a file came with the interpreter or an installed package."""
    return "site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB)


def _own(places: Iterable[Place]) -> Place | None:
    """The innermost line of the user's program; else one of an installed package."""
    packaged: Place | None = None
    for frame, line in places:
        module: str = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == "motet" or is_library(frame):
            continue
        if not is_installed(frame.f_code.co_filename):
            return frame, line
        packaged = packaged or (frame, line)
    return packaged


def _places(caller: FrameType) -> Iterator[Place]:
    """The frames of this task, innermost first, then of its parent tasks, then of Trio's caller."""
    frame: FrameType | None = caller
    while frame is not None and not _runs_tasks(frame):
        yield frame, frame.f_lineno
        frame = frame.f_back
    if frame is not None and trio.lowlevel.in_trio_task():
        nursery = trio.lowlevel.current_task().parent_nursery
        while nursery is not None:
            yield from reversed(list(nursery.parent_task.iter_await_frames()))
            nursery = nursery.parent_task.parent_nursery
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _runs_tasks(frame: FrameType) -> bool:
    return frame.f_code.co_name == "unrolled_run" and frame.f_globals["__name__"].startswith(
        "trio."
    )


def _is_simulator(module: str) -> bool:
    return module.startswith("motet.runtime.testing.")


def _shown(place: Place) -> str:
    frame, line = place
    return f"{frame.f_code.co_filename}:{line} (in {frame.f_code.co_name})"
