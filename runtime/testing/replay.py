"""Replay files: a run in one JSON file, to repeat it and to find the first difference.

Under other versions of Python, Trio or motet the schedule is the same list of choices, but the
steps in between may differ; then :class:`ReplayDiverged` names the line and the versions.
"""

from __future__ import annotations

import importlib
import itertools
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from motet.protocols.version import __version__
from motet.runtime.testing.faults import Fault
from motet.runtime.testing.simulate import Outcome, World, run

__all__ = ["Replay", "ReplayDiverged", "difference", "replay", "save", "versions"]


class Replay(msgspec.Struct, frozen=True):
    """The content of the file.

    ``world`` is ``module:function``. ``step`` is the step of the first violation, or the last step.
    ``trace`` has every line, so that the first difference can be shown.
    """

    versions: dict[str, str]
    world: str
    seed: int
    choices: tuple[int, ...]
    faults: tuple[Fault, ...]
    max_steps: int
    step: int
    violations: tuple[str, ...]
    error: str | None
    hash: str
    trace: tuple[str, ...]


class ReplayDiverged(AssertionError):
    """The run differs from the one in the file. ``line`` counts from 1."""

    def __init__(self, path: Path, line: int, was: str, now: str, changed: str) -> None:
        super().__init__(
            f"{path}: the replay differs from line {line} of the trace on:\n"
            f"  then {was}\n  now  {now}\n{changed}"
        )
        self.line = line


def save(path: str | Path, world: World[Any], outcome: Outcome[Any]) -> Path:
    """Write the file that :func:`replay` repeats.

    Raises ValueError if ``world`` cannot be found by name in another process.
    """
    path = Path(path)
    step = outcome.violations[0].step if outcome.violations else outcome.steps
    record = Replay(
        versions=versions(),
        world=_name_of(world),
        seed=outcome.seed,
        choices=outcome.choices,
        faults=outcome.faults,
        max_steps=outcome.max_steps,
        step=step,
        violations=tuple(map(str, outcome.violations)),
        error=repr(outcome.error) if outcome.error is not None else None,
        hash=outcome.hash,
        trace=tuple(outcome.trace.lines()),
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return path


def replay(path: str | Path) -> Outcome[Any]:
    """Repeat the run in the file and return its outcome, broken or not.

    Raises ReplayDiverged, and ValueError for a file or a world that cannot be used.
    """
    path = Path(path)
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Replay)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no replay file: {error}") from error
    outcome = run(
        _world_named(record.world),
        seed=record.seed,
        choices=record.choices,
        faults=record.faults,
        max_steps=record.max_steps,
    )
    if outcome.hash != record.hash:
        now = tuple(outcome.trace.lines())
        end, hint = len(record.trace), "the hash in the file is not that of its trace"
        raise difference(path, record.trace, now, record.versions) or ReplayDiverged(
            path, end, hint, "it was edited", "the traces are the same"
        )
    return outcome


def difference(
    path: Path, then: Sequence[str], now: Sequence[str], was: Mapping[str, str]
) -> ReplayDiverged | None:
    """The first difference of two traces; None if they are equal. ``was``: the old versions."""
    pairs = itertools.zip_longest(then, now, fillvalue="(the trace has ended)")
    found = next(((n, *pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1]), None)
    if found is None:
        return None
    here = versions()
    changed = [
        f"{name} was {version}, is {here[name]}"
        for name, version in was.items()
        if name in here and here[name] != version
    ]
    reason = "; ".join(changed) or "the versions are the same: the code or its chance has changed"
    return ReplayDiverged(path, *found, reason)


def versions() -> dict[str, str]:
    """The versions that a replay depends on."""
    return {
        "python": platform.python_version(),
        "trio": trio.__version__,
        "motet": __version__,
    }


def _name_of(world: World[Any]) -> str:
    module: str = getattr(world, "__module__", "")
    name: str = getattr(world, "__qualname__", "")
    if not name or "<" in name or module == "__main__":
        raise ValueError(
            f"{world!r} cannot be found by name in another process: "
            "make the world a function at the top of an importable module"
        )
    return f"{module}:{name}"


def _world_named(name: str) -> World[Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the world {name} cannot be imported: {error}") from error
    world: World[Any] = found
    return world
