"""Nothing real inside a simulation: a socket, thread or process used by mistake is refused.

What is guarded, for the thread of the simulation only: every Python socket, also Trio's
(``socket``); every thread, also Trio's idle ones, and with them ``trio.to_thread``, ``trio.Path``,
``trio.open_file`` and name resolution (``thread``); every ``subprocess.Popen``, also Trio's, and
``os.fork`` (``process``). On demand, since much harmless code looks at clocks: ``time.time``,
``monotonic``, ``perf_counter`` and ``sleep``, called through the module by code that is not of
the standard library (``clock``).

What is not: ``from time import time`` done before, ``datetime.now``, files opened without a thread,
``os.urandom``, and extension modules that do their own input and output.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal, get_args

import trio

from motet.runtime.testing.scheduler import Patch, patched, thread_cache

__all__ = ["ALL_GUARDS", "DEFAULT_GUARDS", "Guard", "NotSimulated", "Watchman"]

Guard = Literal["socket", "thread", "process", "clock"]

DEFAULT_GUARDS: frozenset[Guard] = frozenset({"socket", "thread", "process"})
ALL_GUARDS: frozenset[Guard] = frozenset(get_args(Guard))

_INSTEAD: dict[Guard, str] = {
    "socket": "use trio.testing.memory_stream_pair, or a fake in the world's place of it",
    "thread": "call the function directly, or put a fake in its place",
    "process": "put a fake in its place",
    "clock": "use trio.current_time() and trio.sleep()",
}


class NotSimulated(RuntimeError):
    """Something real was used inside a simulation. ``line`` says where."""

    def __init__(self, guard: Guard, what: str, line: str) -> None:
        super().__init__(
            f"{line} used {what} inside a simulation, which has none: {_INSTEAD[guard]}"
            f" (or pass guards= without {guard!r})"
        )
        self.guard: Guard = guard
        self.line = line


class Watchman:
    """Refuses while ``on_duty``, in the thread it was made in; ``note`` sees every refusal.

    An actor's supervisor might take the error for a crash and restart it: the note remains.
    """

    def __init__(self, guards: Collection[Guard], note: Callable[[NotSimulated], None]) -> None:
        unknown = set(guards) - set(get_args(Guard))
        if unknown:
            raise ValueError(f"no such guard: {sorted(unknown)}; there are {get_args(Guard)}")
        self.on_duty = False
        self._guards = guards
        self._note = note
        self._thread = threading.get_ident()

    @contextmanager
    def posted(self) -> Generator[None]:
        """Stand before all that ``guards`` name, for the time of the block."""
        with patched(self._patches()):
            try:
                yield
            finally:
                self.on_duty = False

    def _patches(self) -> Iterator[Patch]:
        for guard, owner, name in _guarded_names():
            if guard in self._guards:
                before: Callable[..., object] = getattr(owner, name)
                yield owner, name, self._refusing(before, guard, _shown(owner, name))

    def _refusing(
        self, before: Callable[..., object], guard: Guard, what: str
    ) -> Callable[..., object]:
        def refuse(*args: object, **kwargs: object) -> object:
            if not self.on_duty or threading.get_ident() != self._thread:
                return before(*args, **kwargs)
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # the documented way
            if guard == "clock" and _is_library(caller):
                return before(*args, **kwargs)
            error = NotSimulated(guard, what, _line(caller))
            self._note(error)
            raise error

        return refuse


def _guarded_names() -> Iterator[tuple[Guard, object, str]]:
    yield "socket", socket.socket, "__init__"
    yield "thread", threading.Thread, "start"
    yield "thread", thread_cache(), "start_thread_soon"
    yield "process", subprocess.Popen, "__init__"
    if hasattr(os, "fork"):
        yield "process", os, "fork"
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"):
        yield "clock", time, name


def _shown(owner: object, name: str) -> str:
    owner_name: str = getattr(owner, "__name__", repr(owner))
    if owner is thread_cache():
        return "a thread"
    if owner is threading.Thread:
        return "threading.Thread"
    return owner_name if name == "__init__" else f"{owner_name}.{name}"


_LIBRARIES = frozenset({*sys.stdlib_module_names, "trio", "outcome", "hypothesis", "_pytest"})


def _is_library(frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in _LIBRARIES


def _line(caller: FrameType) -> str:
    """The innermost line that is neither the standard library's nor Trio's.

    A task that Trio started for itself has none: then its parent's.
    """
    frame: FrameType | None = caller
    while frame is not None and not _is_simulator(frame):
        if not _is_library(frame):
            return _shown_line(frame, frame.f_lineno)
        frame = frame.f_back
    nursery = trio.lowlevel.current_task().parent_nursery
    while nursery is not None:
        waiting = list(nursery.parent_task.iter_await_frames())
        for frame, line in reversed(waiting):
            if not _is_library(frame) and not _is_simulator(frame):
                return _shown_line(frame, line)
        nursery = nursery.parent_task.parent_nursery
    return _shown_line(caller, caller.f_lineno)


def _is_simulator(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("motet.runtime.testing.")


def _shown_line(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line} (in {frame.f_code.co_name})"
