"""The source of a program: a test that can be pasted into a file, and fails in the same way."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Protocol

import attrs

from motet.testing.scripted import Step
from motet.testing.stories.acts import Act, Do, Mishap
from motet.testing.stories.schedule import Schedule
from motet.testing.stories.target import Target
from motet.testing.stories.vocabulary import Rule

__all__ = ["Place", "as_test", "place_of", "source", "used_rules"]

INDENT = "    "
UNKNOWN = "myapp"

_MAKERS = ("call", "cut", "fail", "raw_call", "say", "slow")


class Printable(Protocol):
    """The fields of a program; see :class:`~motet.testing.stories.program.Program`."""

    @property
    def steps(self) -> Sequence[Act]: ...
    @property
    def script(self) -> Mapping[str, Sequence[Step]]: ...
    @property
    def mishaps(self) -> Sequence[Mishap]: ...
    @property
    def choices(self) -> Sequence[int]: ...
    @property
    def seed(self) -> int: ...
    @property
    def approves(self) -> bool: ...
    @property
    def schedule(self) -> Schedule | None: ...


@attrs.frozen
class Place:
    """A module and a name in it: ``myapp.agents``, ``agent``."""

    module: str
    name: str

    @classmethod
    def of(cls, path: str) -> Place:
        """Of ``module:name``. Raises ``ValueError``."""
        module, colon, name = path.partition(":")
        if not (colon and module and name):
            raise ValueError(f"{path!r} is no place: write it as 'myapp.agents:agent'")
        return cls(module, name)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def place_of(thing: object) -> Place | None:
    """The module and name of an object; None when no imported module has it.

    Modules that are not tests come first, since a test imports its subject.
    """
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if name and name.isidentifier() and _in(sys.modules.get(module), name) is thing:
        return Place(module, name)
    found = [
        Place(module, name)
        for module, loaded in tuple(sys.modules.items())
        if type(loaded) is ModuleType and not module.startswith("motet.")
        for name, value in tuple(vars(loaded).items())
        if value is thing
    ]
    return min(found, key=lambda place: (_is_test(place.module), str(place)), default=None)


def as_test(
    program: Printable,
    target: Target,
    agent_import: str = "",
    *,
    name: str = "test_found",
    setup: Iterable[object] = (),
    invariants: Iterable[object] = (),
    words: Iterable[str] = (),
) -> str:
    """The source of a test that executes ``program``.

    ``setup`` and ``invariants`` are those of the host, ``words`` say what its schedule does. An
    object that no module has is imported from ``myapp``, with a comment that asks for its place.
    """
    places = {id(target.subject): Place.of(agent_import)} if agent_import else {}
    names = _Names(places)
    subject = names.get(target.subject, "agent" if target.room is None else "room")
    options = [subject]
    if target.receive is not None:
        options.append(f"receive={names.get(target.receive, 'receive')}")
    if target.own_models:
        options.append("own_models=True")
    if rules := [names.get(one.function, one.name) for one in used_rules(program, target)]:
        options.append(f"rules=[{', '.join(rules)}]")
    prepared = [names.get(one, "setup") for one in setup]
    asked = [names.get(one, "invariant") for one in invariants]
    seed = [f"seed={program.seed}"] if program.seed else []
    host = ", ".join([*seed, *(f"setup={one}" for one in prepared[:1])])
    more = [f"{INDENT * 2}host.setup.append({one})" for one in prepared[1:]]
    body = [
        f"def {name}() -> None:",
        f"{INDENT}program = {_indented(source(program))}",
        *(f"{INDENT}# {sentence}" for sentence in words),
        f"{INDENT}with mt.simulated_host({host}) as host:",
        *more,
        f"{INDENT * 2}program.execute(host, {', '.join(options)})",
        f"{INDENT * 2}mt.check({', '.join(['host', *asked])})",
    ]
    text = "\n".join(body) + "\n"
    head = ["from motet import testing as mt"]
    if made := [maker for maker in _MAKERS if re.search(rf"(?<![\w.'\"]){maker}\(", text)]:
        head.append(f"from motet.testing import {', '.join(made)}")
    return "\n".join([*head, "", *names.imports(), "", "", text])


def used_rules(program: Printable, target: Target) -> Sequence[Rule]:
    """The steps of the project that a program has."""
    used = {step.name for step in program.steps if isinstance(step, Do)}
    return [one for name, one in target.rules.items() if name in used]


def source(program: Printable) -> str:
    """The source that makes a program."""
    parts = [f"{_listed(map(repr, program.steps))},"]
    if script := _script(program.script):
        parts.append(f"script={script},")
    if program.mishaps:
        parts.append(f"mishaps={_listed(map(repr, program.mishaps))},")
    if program.choices:
        parts.append(f"choices={list(program.choices)},")
    if program.seed:
        parts.append(f"seed={program.seed},")
    if program.approves:
        parts.append("approves=True,")
    if program.schedule is not None:
        parts.append(f"schedule={program.schedule!r},")
    inner = "\n".join(INDENT + _indented(part) for part in parts)
    return f"mt.Program(\n{inner}\n)"


def _script(script: Mapping[str, Sequence[Step]]) -> str:
    parts = [f"{agent!r}: {_listed(map(repr, steps))}" for agent, steps in script.items() if steps]
    inner = "".join(f"{INDENT}{_indented(part)},\n" for part in parts)
    return f"{{\n{inner}}}" if parts else ""


def _listed(items: Iterable[str]) -> str:
    lines = "".join(f"{INDENT}{item},\n" for item in items)
    return f"[\n{lines}]" if lines else "[]"


def _indented(text: str) -> str:
    """Indent all lines but the first; no literal spans lines, so this changes no text."""
    return text.replace("\n", f"\n{INDENT}")


class _Names:
    """The imports of a test, each name once."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places
        self._needed: dict[str, set[str]] = {}

    def get(self, thing: object, otherwise: str) -> str:
        """The name of an object in the test."""
        shown = repr(thing)
        if shown.startswith("mt."):
            return shown
        place = self._places.get(id(thing)) or place_of(thing)
        if place is None:
            place = Place(UNKNOWN, otherwise)
        if place.module == "motet.testing.invariants.rooms":
            return f"mt.invariants.{place.name}"
        self._needed.setdefault(place.module, set()).add(place.name)
        return place.name

    def imports(self) -> Iterator[str]:
        """The lines, in order."""
        for module in sorted(self._needed):
            hint = "  # say where it is" if module == UNKNOWN else ""
            yield f"from {module} import {', '.join(sorted(self._needed[module]))}{hint}"


def _in(module: ModuleType | None, name: str) -> object:
    return getattr(module, name, None)


def _is_test(module: str) -> bool:
    last = module.rpartition(".")[2]
    return last.startswith("test_") or last in ("conftest", "__main__")
