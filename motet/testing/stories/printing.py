"""The source of a program: a test that can be pasted into a file, and fails in the same way."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Protocol

import attrs

from motet.testing.scripted import Step
from motet.testing.stories.acts import Act, Do, Mishap
from motet.testing.stories.schedule import Schedule
from motet.testing.stories.target import Target
from motet.testing.stories.vocabulary import Rule

__all__ = [
    "Body",
    "Place",
    "as_test",
    "body_of",
    "current_test",
    "place_of",
    "source",
    "tested_by",
    "used_rules",
]

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
    test: Callable[..., object] | None = None,
) -> str:
    """The source of a test that executes ``program``.

    ``setup`` and ``invariants`` are those of the host, ``words`` say what its schedule does.
    ``test``: the test that has drawn the program; its body is that of the printed one, unless it
    needs more than the program. An object that no module has is imported from ``myapp``, with a
    comment that asks for its place.
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
    own = body_of(test) if test is not None else None
    if own is not None:
        head = f"{INDENT}{own.parameter} = {_indented(source(program))}.bind({', '.join(options)})"
        said = [f"{INDENT}# {sentence}" for sentence in words]
        lines = [f"def {name}() -> None:", head, *said, *own.lines]
        return _file("\n".join(lines) + "\n", names, own.imports)
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
    return _file("\n".join(body) + "\n", names)


def _file(text: str, names: _Names, imports: Mapping[str, str] | None = None) -> str:
    """A whole file: the imports of a test, and the test."""
    made = [maker for maker in _MAKERS if re.search(rf"(?<![\w.'\"]){maker}\(", text)]
    head = ["from motet import testing as mt"]
    if made:
        head.append(f"from motet.testing import {', '.join(made)}")
    head += [line for name, line in (imports or {}).items() if name not in ("mt", *made)]
    known = [line for line in dict.fromkeys(head) if line not in names.imports()]
    return "\n".join([*known, "", *names.imports(), "", "", text])


@attrs.frozen
class Body:
    """The body of a test: the name of its program, its lines, and the imports they need by name."""

    parameter: str
    lines: Sequence[str]
    imports: Mapping[str, str]


def body_of(test: Callable[..., object]) -> Body | None:
    """The body of a test of Hypothesis that needs nothing but its program; None for any other."""
    drawn: Callable[..., object] | None = getattr(
        getattr(test, "hypothesis", None), "inner_test", None
    )
    if drawn is None:
        return None
    inner = inspect.unwrap(drawn)
    code = getattr(inner, "__code__", None)
    if not isinstance(inner, FunctionType) or code is None or code.co_freevars:
        return None
    try:
        written = textwrap.dedent(inspect.getsource(inner))
        tree = ast.parse(written).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or len(inspect.signature(inner).parameters) != 1:
        return None
    lines = written.splitlines()[tree.body[0].lineno - 1 : tree.end_lineno]
    used = {node.id for part in tree.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    imports: dict[str, str] = {}
    for name in sorted(used & inner.__globals__.keys()):
        value: object = inner.__globals__[name]
        if isinstance(value, ModuleType):
            imports[name] = _import_of(value.__name__, name)
        else:
            imports[name] = f"from {inner.__module__} import {name}"
    return Body(next(iter(inspect.signature(inner).parameters)), lines, imports)


def _import_of(module: str, name: str) -> str:
    if module == name:
        return f"import {module}"
    parent, _, last = module.rpartition(".")
    if parent and last == name:
        return f"from {parent} import {last}"
    return f"from {parent} import {last} as {name}" if parent else f"import {module} as {name}"


_testing: list[Callable[..., object]] = []


@contextmanager
def tested_by(test: Callable[..., object]) -> Generator[None]:
    """Print programs that are executed in the block with the body of this test."""
    _testing.append(test)
    try:
        yield
    finally:
        _testing.remove(test)


def current_test() -> Callable[..., object] | None:
    """The test under way; None outside of a test with the plugin."""
    return _testing[-1] if _testing else None


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

    def imports(self) -> list[str]:
        """The lines, in order."""
        return [
            f"from {module} import {', '.join(sorted(self._needed[module]))}"
            + ("  # say where it is" if module == UNKNOWN else "")
            for module in sorted(self._needed)
        ]


def _in(module: ModuleType | None, name: str) -> object:
    return getattr(module, name, None)


def _is_test(module: str) -> bool:
    last = module.rpartition(".")[2]
    return last.startswith("test_") or last in ("conftest", "__main__")
