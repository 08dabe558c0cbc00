"""State of a project outside of the simulation: module globals, class attributes, closures, caches.

A simulated world forgets its host, its disk and its services. It cannot forget a dictionary in a
module of the project, so that one program changes what the next one finds, and a finding may need
programs that ran before it. :func:`fingerprints` names each such place, with a digest of what is
there.

Invariants: a digest depends on the content alone, in every process; nothing of the project is
called, and nothing is changed.
"""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from random import Random
from types import FunctionType, ModuleType
from typing import cast

import motet
from motet.actors.agents.spec import AgentSpec
from motet.actors.rooms.definition import Room
from motet.actors.tools.tool import Tool

__all__ = ["changes", "fingerprints", "shown"]

DEPTH = 8
ITEMS = 2_000
"""Items of one place that are looked at."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
    | {str(Path(path, part).resolve()) for path in motet.__path__ for part in ("", "actors")}
    | {str(Path(path, "runtime").resolve()) for path in motet.__path__}
    | {str(Path(path, "protocols").resolve()) for path in motet.__path__}
)


def fingerprints(modules: Iterable[ModuleType] | None = None) -> dict[str, str]:
    """The digest of each place of these modules, as ``myapp.tools.CACHE``; None: the project's."""
    found: dict[str, str] = {}
    for module in _modules() if modules is None else modules:
        for name, value in tuple(vars(module).items()):
            for place, content in _places(f"{module.__name__}.{name}", module.__name__, value):
                found[place] = content
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The places whose content differs, in the order of their names."""
    return sorted(place for place in before.keys() & after.keys() if before[place] != after[place])


def _modules() -> Iterator[ModuleType]:
    """The modules that are neither of Python, nor installed, nor motet's."""
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None) if type(module) is ModuleType else None
        if file and not str(Path(file).resolve()).startswith(_LIBRARIES):
            yield module


def _places(place: str, module: str, value: object) -> Iterator[tuple[str, str]]:
    """The places behind one name of a module."""
    if place.rpartition(".")[2].startswith(("__", "@")):
        return
    match value:
        case ModuleType():
            return
        case type():
            # Not its attribute, which a metaclass may compute.
            if vars(value).get("__module__") == module:
                for name, one in tuple(vars(value).items()):
                    if not name.startswith("__") and not callable(one):
                        yield from _places(f"{place}.{name}", module, one)
        case FunctionType():
            if value.__module__ == module:
                yield from _of_function(place, value)
        case AgentSpec():
            for tool in cast("AgentSpec[object, object]", value).tools:
                if isinstance(tool, Tool):
                    yield from _of_callable(f"{place}.{tool.name}", tool.run)
        case Room() | Tool():
            return
        case _ if callable(getattr(value, "cache_info", None)):
            yield place, str(getattr(value, "cache_info")())  # noqa: B009 (of functools)
        case _:
            if (content := _digest(value)) is not None:
                yield place, content


def _of_function(place: str, function: FunctionType) -> Iterator[tuple[str, str]]:
    """The closure and the mutable defaults of a function."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            held: object = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
        if not callable(held) and (content := _digest(held)) is not None:
            yield f"{place}.{name}", content
    for default in function.__defaults__ or ():
        if isinstance(default, list | dict | set):
            yield f"{place}(default)", str(_digest(cast("object", default)))


def _of_callable(place: str, function: object) -> Iterator[tuple[str, str]]:
    """The state behind the function of a tool, which its runner has in its closure."""
    for cell in getattr(function, "__closure__", None) or ():
        held: object = getattr(cell, "cell_contents", None)
        inner = getattr(held, "__wrapped__", held)
        if isinstance(inner, FunctionType) and not _is_library(inner):
            yield from _of_function(place, inner)


def _is_library(function: FunctionType) -> bool:
    return str(Path(function.__code__.co_filename).resolve()).startswith(_LIBRARIES)


def _digest(value: object) -> str | None:
    """A digest of plain data and of the project's own objects; None for all others."""
    budget = [ITEMS]
    try:
        content = _content(value, 0, budget, set())
    except (RecursionError, RuntimeError):  # changed while it was read
        return None
    return None if content is None else hashlib.sha256(content.encode()).hexdigest()[:16]


def _content(value: object, depth: int, budget: list[int], seen: set[int]) -> str | None:
    budget[0] -= 1
    if depth > DEPTH or budget[0] < 0 or id(value) in seen:
        return "…"
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | bytearray():
            return repr(value)
        case Random():
            return repr(hashlib.sha256(repr(value.getstate()).encode()).hexdigest())
        case dict() | OrderedDict() | list() | tuple() | deque() | AbstractSet():
            seen = {*seen, id(cast("object", value))}
            return _of_items(cast("object", value), depth, budget, seen)
        case _:
            return _of_object(value, depth, budget, {*seen, id(value)})


def _of_items(value: object, depth: int, budget: list[int], seen: set[int]) -> str:
    def inner(one: object) -> str:
        return _content(one, depth + 1, budget, seen) or "?"

    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return "{" + ", ".join(f"{inner(k)}: {inner(v)}" for k, v in tuple(items)) + "}"
    if isinstance(value, AbstractSet):
        return "{" + ", ".join(sorted(map(inner, tuple(cast("AbstractSet[object]", value))))) + "}"
    return "[" + ", ".join(map(inner, tuple(cast("list[object]", value)))) + "]"


def _of_object(value: object, depth: int, budget: list[int], seen: set[int]) -> str | None:
    """The fields of an object whose class is the project's; iterators such as ``count`` by repr."""
    kind = type(value)
    if kind.__module__ == "itertools" and kind.__name__ == "count":
        return repr(value)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None or str(Path(file).resolve()).startswith(_LIBRARIES):
        return None
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    fields = {name: getattr(value, name, None) for name in slots if not name.startswith("__")}
    fields |= getattr(value, "__dict__", {})
    return f"{kind.__name__}{_of_items(fields, depth, budget, seen)}"


def shown(text: str, workspace: str = "") -> str:
    """A text without what differs in each process: addresses of objects, and the workspace."""
    text = _ADDRESS.sub(" at 0x…", text)
    return text.replace(workspace, "<workspace>") if workspace else text
