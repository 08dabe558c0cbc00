"""Files that replay: cases of generated programs, and records of production runs.

A case is JSON and complete: versions, seed, script, fault plan, choices, and the trace with its
hash. So another process replays it byte for byte, and a difference is named by its first line.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host
from motet.actors.hosting.replay import Replay as RunReplay
from motet.actors.hosting.replay import replay
from motet.protocols.config import HostConfig
from motet.protocols.errors import UnknownName
from motet.protocols.run_journal import Comparison, excerpt
from motet.runtime.testing.replay import ReplayDiverged, difference, versions
from motet.testing.checking import check
from motet.testing.host import simulated_host
from motet.testing.run_records import read_record
from motet.testing.stories.printing import Place, place_of, used_rules
from motet.testing.stories.program import BoundProgram, InvariantBroken, Play, Program, latest
from motet.testing.stories.stage import Replay, being_replayed, hash_of, replay_of
from motet.testing.stories.target import Receive, Subject, Target

__all__ = [
    "Case",
    "Replaying",
    "load_case",
    "other_versions",
    "play_case",
    "replay_case",
    "replayed",
    "replaying",
    "save_case",
    "unreproduced",
]


FORMAT = 1
UNNAMED = "?"


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a case file.

    Attributes:
        test: the pytest id of the test that found it.
        subject, receive, setup: the places of the agent or room, of ``receive`` and of the hooks,
            as ``myapp.agents:agent``; ``?`` where no module has a name for them.
        own_models: the agents use their own models.
        rules: the places of the functions of the project's own steps.
        host_seed: the seed of its host.
        violations: the findings, in words.
        trace: all lines until the end, or until the first finding.
        irreproducible: why it does not fail again in a process of its own; empty: it does.
    """

    versions: dict[str, str]
    program: Program
    hash: str
    trace: tuple[str, ...]
    test: str = ""
    subject: str = ""
    receive: str = ""
    setup: tuple[str, ...] = ()
    own_models: bool = False
    rules: tuple[str, ...] = ()
    host_seed: int = 0
    violations: tuple[str, ...] = ()
    irreproducible: str = ""
    format: int = FORMAT

    def bind(self) -> BoundProgram:
        """The program with its imported subject and ``receive``. Raises ``ValueError``."""
        subject = cast("Subject", _imported(self.subject))
        receive = cast("Receive", _imported(self.receive)) if self.receive else None
        rules = [cast("Callable[..., object]", _imported(place)) for place in self.rules]
        return self.program.bind(subject, receive=receive, own_models=self.own_models, rules=rules)


def save_case(
    program: BoundProgram,
    path: str | Path,
    *,
    test: str = "",
    violations: Sequence[object] = (),
    irreproducible: str = "",
) -> Path:
    """Write the last execution of a program as a case file; makes folders.

    A program without an execution is executed now, in a host of its own.
    """
    play = latest(program) or _played(program, program.seed, ())[0]
    trace = play.lines()
    target = program.target
    case = Case(
        versions=_versions(),
        program=program.program,
        hash=hash_of(trace),
        trace=trace,
        test=test,
        subject=_place(target.subject),
        receive=_place(target.receive),
        setup=tuple(map(_place, play.setup)),
        own_models=target.own_models,
        rules=tuple(_place(rule.function) for rule in used_rules(program.program, target)),
        host_seed=play.host_seed,
        violations=tuple(map(str, violations)),
        irreproducible=irreproducible,
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n")
    return path


def load_case(path: str | Path) -> Case:
    """Read a case. Raises ``ValueError`` for another content, and ``OSError``."""
    try:
        case = msgspec.json.decode(Path(path).read_bytes(), type=Case)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no case of motet.testing: {error}") from error
    if case.format != FORMAT:
        raise ValueError(f"{path} has format {case.format}; this version reads {FORMAT}")
    return case


def replay_case(path: str | Path) -> tuple[str, ...]:
    """Play a case again in this process, and check the standard invariants.

    Returns the findings in words; empty: none is left. A case that did not reproduce when it was
    written is a finding as long as nothing else is found. Raises ``ReplayDiverged`` when the run
    differs, and ``ValueError`` for a case whose agent cannot be imported.
    """
    case = load_case(path)
    with replaying(case, Path(path)):
        found = play_case(case)
    if not found and case.irreproducible:
        return (unreproduced(case),)
    return found


def play_case(case: Case) -> tuple[str, ...]:
    """Play the program of a case, and check the standard invariants; the findings in words.

    Raises ``ValueError`` for a case whose agent cannot be imported.
    """
    setup = [cast("Callable[[Host], None]", _imported(place)) for place in case.setup]
    return _played(case.bind(), case.host_seed, setup)[1]


def unreproduced(case: Case) -> str:
    """The sentence about a case that does not reproduce."""
    found = "; ".join(case.violations)
    return f"not reproduced: {case.irreproducible}. It was found as: {found}"


def run_twice(program: BoundProgram, *, setup: Callable[[Host], None] | None = None) -> str:
    """Play a program in two hosts with this ``setup``; returns the hash of their common trace.

    Raises ``ReplayDiverged`` when the traces differ: then something gets randomness, time or order
    from outside of the simulation. A broken invariant is no difference.
    """
    prepared = (setup,) if setup is not None else ()
    first, second = (_played(program, program.seed, prepared)[0].lines() for _ in range(2))
    diverged = difference(Path("the second run"), first, second, versions())
    if diverged is not None:
        raise diverged
    return hash_of(first)


# ---------------------------------------------------------------------- replaying


class Replaying(Replay):
    """A replay in which ``programs()`` gives the program of the case.

    ``strict`` false: a trace that differs ends nothing, and is told by ``diverged``.
    """

    def __init__(self, case: Case, path: Path, *, strict: bool = True) -> None:
        super().__init__(path, case.hash, case.trace, case.versions)
        self.case = case
        self.diverged: ReplayDiverged | None = None
        self._strict = strict

    def compare(self, trace: Sequence[str]) -> None:
        """Raise or note ``ReplayDiverged`` when a trace differs from the recorded one."""
        try:
            super().compare(trace)
        except ReplayDiverged as diverged:
            if self._strict:
                raise
            self.diverged = diverged


@contextmanager
def replaying(
    case: Case, path: str | Path = "the case", *, strict: bool = True
) -> Generator[Replaying]:
    """Give tests the program of the case in the block, and compare its trace."""
    now = Replaying(case, Path(path), strict=strict)
    with replay_of(now):
        yield now


def replayed(target: Target) -> BoundProgram | None:
    """The replayed program for this target; None: programs are drawn."""
    now = being_replayed()
    return BoundProgram(now.case.program, target) if isinstance(now, Replaying) else None


# ---------------------------------------------------------------------- inside


def _played(
    program: BoundProgram, seed: int, setup: Sequence[Callable[[Host], None]]
) -> tuple[Play, tuple[str, ...]]:
    """One execution in a host of its own, with its findings."""
    with simulated_host(seed=seed) as host:
        for one in setup:
            host.setup.append(one)
            one(host.host)
        play = Play(program, host)
        try:
            play.execute()
            check(host)
        except InvariantBroken as broken:
            return play, tuple(map(str, broken.violations))
        return play, ()


def other_versions(case: Case) -> str:
    """The versions that differ from those that wrote a case, in words; empty: none."""
    here = _versions()
    return ", ".join(
        f"{name} was {then}, is {here[name]}"
        for name, then in case.versions.items()
        if here.get(name, then) != then
    )


def _versions() -> dict[str, str]:
    try:
        return {**versions(), "hypothesis": version("hypothesis")}
    except PackageNotFoundError:
        return versions()


def _place(thing: object) -> str:
    return str(place_of(thing) or UNNAMED) if thing is not None else ""


def _imported(path: str) -> object:
    if path == UNNAMED:
        raise ValueError(
            "the case does not say where all that it needs is, since no module has a name for it: "
            "run its test with `pytest --motet-replay FILE`"
        )
    place = Place.of(path)
    try:
        return getattr(import_module(place.module), place.name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path} cannot be imported: {error}") from error


ToolsOf: TypeAlias = Literal["record", "real"]
_MODES: dict[str, Literal["journal", "live"]] = {"record": "journal", "real": "live"}


def replay_run(
    case: str | Path,
    agent: AnyAgent,
    *,
    tools: ToolsOf = "record",
    deps: Any = None,
    config: HostConfig | None = None,
    seed: int = 0,
    check: bool = True,
) -> RunReplay:
    """Replay the run in a file of ``motet record`` as ``agent``, in a simulated host.

    The model gives its recorded answers, whatever the requests are. Time is virtual.

    Args:
        tools: ``record``: calls have their recorded results and no tool runs; ``real``: the agent's
            tools run, in the simulated world.
        deps: for real tools.
        config: limits and tools of the host.
        seed: of the schedule.
        check: raise when the run differs.

    Returns the comparison. Raises ``AssertionError`` with the lines that differ, and
    ``ConfigError`` for a file that is no record.
    """
    if tools not in _MODES:
        raise UnknownName("kind of tools", tools, tuple(_MODES))
    journal = read_record(case)

    async def play(_: Host) -> RunReplay:
        return await replay(journal, agent, config=config, tools=_MODES[tools], deps=deps)

    with simulated_host(seed) as host:
        done = host.call(play)
    if check and not done.same:
        raise AssertionError(
            f"{case}: the run does otherwise now (- then, + now)\n{_differences(done)}"
        )
    return done


def _differences(done: RunReplay) -> str:
    """The differing lines, with some context."""
    compared = {"transcript": done.rows, "events": done.events}
    return "\n".join(_differing(title, one) for title, one in compared.items() if not one.same)


def _differing(title: str, compared: Comparison) -> str:
    lines = [
        "  ⋮" if change is None else f"{change.mark} {change.line}"
        for change in excerpt(tuple(compared.changes()))
    ]
    return "\n".join([f"{title}:", *lines])
