"""Where a program reads the time of day: all the names that the guard of clocks replaces.

``time.time`` and its like are replaced in their module, and in each module of the program that
has imported them by name. The classes of ``datetime`` keep their identity, since annotations name
them: only their constructors that read a clock are replaced, in the classes themselves.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import cast

from motet.runtime.testing.lines import is_installed

__all__ = ["Constructors", "clock_names"]

_FUNCTIONS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")


def clock_names() -> Iterator[tuple[object, str, str]]:
    """Owner, name in it, and what a message calls it."""
    functions: dict[int, str] = {}
    for name in _FUNCTIONS:
        functions[id(getattr(time, name))] = f"time.{name}"
        yield time, name, f"time.{name}"
    for module in _modules_of_the_program():
        for name, value in list(vars(module).items()):
            shown = functions.get(id(value))
            if shown is not None:
                yield module, name, shown
    for owner, names in (
        (datetime.datetime, ("now", "utcnow", "today")),
        (datetime.date, ("today",)),
    ):
        constructors = Constructors(owner)
        for name in names:
            if constructors.has(name):
                yield constructors, name, f"{owner.__name__}.{name}"


def _modules_of_the_program() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        file: object = getattr(module, "__file__", None)
        if not isinstance(file, str) or is_installed(file):
            continue
        if name.partition(".")[0] != "motet":
            yield module


class Constructors:
    """The class methods of a class written in C, which itself refuses to have them set."""

    def __init__(self, owner: type) -> None:
        # What its read-only view refers to.
        seen = cast("list[object]", gc.get_referents(owner.__dict__))
        names = [cast("dict[str, object]", one) for one in seen if isinstance(one, dict)]
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_names", names[0] if names else {})

    def has(self, name: str) -> bool:
        """Whether this interpreter lets us at it."""
        names: dict[str, object] = object.__getattribute__(self, "_names")
        return name in names

    def __getattr__(self, name: str) -> object:
        names: dict[str, object] = object.__getattribute__(self, "_names")
        return names[name]

    def __setattr__(self, name: str, value: Callable[..., object]) -> None:
        names: dict[str, object] = object.__getattribute__(self, "_names")
        plain = isinstance(value, type(clock_names))
        names[name] = classmethod(value) if plain else value
        owner: type = object.__getattribute__(self, "_owner")
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
