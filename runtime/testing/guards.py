"""Guards: a real socket, thread, process or clock used inside a simulation is refused.

They hold for the thread of the simulation only:

* ``socket``: every Python socket, also Trio's;
* ``thread``: every thread, also Trio's idle ones, and with them ``trio.to_thread``, ``trio.Path``,
  ``trio.open_file`` and name resolution;
* ``process``: every ``subprocess.Popen``, also Trio's, and ``os.fork``;
* ``clock``: ``time.time`` and its like, and the constructors of ``datetime`` that read a clock,
  unless the standard library or Trio calls them.

Not guarded: names of ``time`` that were put into a class or a container, files opened without a
thread, ``os.urandom``, and extension modules that do their own input and output.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal, cast, get_args

from motet.runtime.testing.lines import blamed, is_installed, is_library
from motet.runtime.testing.scheduler import Patch, patched, thread_cache

__all__ = ["ALL_GUARDS", "DEFAULT_GUARDS", "Guard", "Guards", "NotSimulated"]

Guard = Literal["socket", "thread", "process", "clock"]

DEFAULT_GUARDS: frozenset[Guard] = frozenset({"socket", "thread", "process"})
ALL_GUARDS: frozenset[Guard] = frozenset(get_args(Guard))

_INSTEAD: dict[Guard, str] = {
    "socket": "use trio.testing.memory_stream_pair, or a fake in the world's place of it",
    "thread": "call the function directly, or put a fake in its place",
    "process": "put a fake in its place, or in a simulated host use trio.run_process, for which "
    "it has programs that a test declares",
    "clock": "use trio.current_time() and trio.sleep()",
}


class NotSimulated(RuntimeError):
    """Something real was used inside a simulation, at ``line``."""

    def __init__(self, guard: Guard, what: str, line: str) -> None:
        super().__init__(
            f"{line} used {what} inside a simulation, which has none: {_INSTEAD[guard]}"
            f" (or pass guards= without {guard!r})"
        )
        self.guard: Guard = guard
        self.line = line


class Guards:
    """Refuses while ``active``, in the thread it was made in; ``note`` is called with each refusal.

    The error alone is not enough: an actor's supervisor may take it for a crash and restart it.
    """

    def __init__(self, guards: Collection[Guard], note: Callable[[NotSimulated], None]) -> None:
        unknown = set(guards) - ALL_GUARDS
        if unknown:
            raise ValueError(f"no such guard: {sorted(unknown)}; there are {get_args(Guard)}")
        self.active = False
        self._note = note
        self._thread = threading.get_ident()
        self._names = [name for name in _guarded_names(guards) if name[0] in guards]

    @contextmanager
    def installed(self) -> Generator[None]:
        """Replace the guarded names in the block."""
        with patched(self._patches()):
            try:
                yield
            finally:
                self.active = False

    def _patches(self) -> Iterator[Patch]:
        for guard, owner, name, shown in self._names:
            before: Callable[..., object] = getattr(owner, name)
            yield owner, name, self._refusing(before, guard, shown)

    def _refusing(
        self, before: Callable[..., object], guard: Guard, what: str
    ) -> Callable[..., object]:
        def refuse(*args: object, **kwargs: object) -> object:
            if not self.active or threading.get_ident() != self._thread:
                return before(*args, **kwargs)
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # the documented way
            if guard == "clock" and is_library(caller):
                return before(*args, **kwargs)
            error = NotSimulated(guard, what, blamed(caller))
            self._note(error)
            raise error

        return refuse


def _guarded_names(guards: Collection[Guard]) -> Iterator[tuple[Guard, object, str, str]]:
    """The guarded names: the guard, the owner, the name in it, and its name in messages."""
    yield "socket", socket.socket, "__init__", "socket"
    yield "thread", threading.Thread, "start", "threading.Thread"
    yield "thread", thread_cache(), "start_thread_soon", "a thread"
    yield "process", subprocess.Popen, "__init__", "Popen"
    if hasattr(os, "fork"):
        yield "process", os, "fork", "os.fork"
    if "clock" in guards:  # finding them takes longer than a small world
        for owner, name, shown in _clock_names():
            yield "clock", owner, name, shown


# ---------------------------------------------------------------------- names of clocks

# The functions of ``time`` are replaced in their module, and in each module of the program that
# has imported them by name. The classes of ``datetime`` keep their identity, since annotations name
# them: only their constructors that read a clock are replaced, in the classes themselves.

_FUNCTIONS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")


def _clock_names() -> Iterator[tuple[object, str, str]]:
    """The names of clocks: the owner, the name in it, and its name in messages."""
    functions: dict[int, str] = {}
    for name in _FUNCTIONS:
        functions[id(getattr(time, name))] = f"time.{name}"
        yield time, name, f"time.{name}"
    for module in _modules_of_the_program():
        globals_of = vars(module)
        # Most modules have none of them, which one pass without Python code finds out.
        if functions.keys().isdisjoint(map(id, globals_of.values())):
            continue
        for name, value in list(globals_of.items()):
            shown = functions.get(id(value))
            if shown is not None:
                yield module, name, shown
    for owner, names in (
        (datetime.datetime, ("now", "utcnow", "today")),
        (datetime.date, ("today",)),
    ):
        constructors = _Constructors(owner)
        for name in names:
            if constructors.has(name):
                yield constructors, name, f"{owner.__name__}.{name}"


_known: dict[str, ModuleType] = {}
_own: list[ModuleType] = []


def _modules_of_the_program() -> list[ModuleType]:
    """The modules that are not installed; they are looked for anew when modules have changed."""
    if _known != sys.modules:
        _known.clear()
        _known.update(sys.modules)
        _own[:] = [module for name, module in _known.items() if _is_own(name, module)]
    return _own


def _is_own(name: str, module: ModuleType) -> bool:
    file: object = getattr(module, "__file__", None)
    if not isinstance(file, str) or is_installed(file):
        return False
    return name != "motet" and not name.startswith("motet.")


class _Constructors:
    """The class methods of a class written in C, whose attributes Python cannot set."""

    def __init__(self, owner: type) -> None:
        # `__dict__` is a read-only view; the garbage collector gives the dict behind it.
        seen = cast("list[object]", gc.get_referents(owner.__dict__))
        names = [cast("dict[str, object]", one) for one in seen if isinstance(one, dict)]
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_names", names[0] if names else {})

    def has(self, name: str) -> bool:
        """Whether this interpreter gives access to it."""
        names: dict[str, object] = object.__getattribute__(self, "_names")
        return name in names

    def __getattr__(self, name: str) -> object:
        names: dict[str, object] = object.__getattribute__(self, "_names")
        return names[name]

    def __setattr__(self, name: str, value: Callable[..., object]) -> None:
        names: dict[str, object] = object.__getattribute__(self, "_names")
        plain = isinstance(value, type(_clock_names))
        names[name] = classmethod(value) if plain else value
        owner: type = object.__getattribute__(self, "_owner")
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
