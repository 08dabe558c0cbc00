"""``motet fuzz``: the search for a program of users, models and faults that breaks an agent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias, cast

import attrs
import msgspec

from motet.actors.models import switch
from motet.cli.exits import CANCELLED, FAILED, OK
from motet.cli.render import in_json
from motet.cli.screen import console
from motet.cli.setup import chosen_file
from motet.protocols.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from motet.testing.fuzzing import Found, Search
    from motet.testing.invariants import Invariant
    from motet.testing.stories.target import Subject

CONFIGURED = "motet.testing.configured"
SEEDS = 2**32
PAUSE = 0.1
"""Seconds between two looks of the status line."""


class Result(msgspec.Struct, frozen=True):
    """A search as JSON. ``tried``: programs before the finding; ``smaller``: while shrinking it.

    ``survey``: the table of what was reached; ``vacuous``: what never happened; ``verdict``: what
    came of running the printed test in a process of its own.
    """

    agent: str
    seed: int
    tried: int
    smaller: int
    stopped: bool
    seconds: float
    violations: tuple[str, ...] = ()
    case: str = ""
    test: str = ""
    vacuous: tuple[str, ...] = ()
    survey: str = ""
    verdict: str = ""


@attrs.frozen
class Order:
    """The options of the command line."""

    agent: str
    examples: int
    seed: int | None
    users: int
    sessions: int
    steps: int
    checks: Sequence[str]
    cases: Path
    config: Path | None
    json: bool
    jobs: int = 1


def fuzz(order: Order) -> int:
    """Search, and print the finding and the survey; 0: none, 4: stopped before one was found.

    1: a finding, or a search that is vacuous, since something never happened in it.

    Raises ``ConfigError`` for an unknown agent or check, and for an agent that starts
    programs or opens sockets; ``MissingExtra``.
    """
    chosen_file(order.config)  # before anything here is imported
    if order.jobs > 1:
        return _share(order)
    sys.path.insert(0, os.getcwd())
    search, place = _search(order)
    out = console(sys.stderr)
    began = time.monotonic()
    with _status(out) as status, _no_models():
        stopped = _run(search, status)
    seconds = time.monotonic() - began
    result = Result(order.agent, search.seed, search.tried, search.smaller, stopped, seconds)
    result = _surveyed(result, search)
    if search.found is not None:
        result = _kept(result, order, search.found, place)
    if order.json:
        print(in_json(result))
    else:
        lanes: str = getattr(search.found.error, "lanes", "") if search.found is not None else ""
        _print(result, lanes, out, checks=bool(order.checks))
    if search.found is not None or (result.vacuous and not stopped):
        return FAILED
    return CANCELLED if stopped else OK


def _surveyed(result: Result, search: Search) -> Result:
    from motet.testing.survey import Vacuous

    try:
        search.survey.check()
    except Vacuous as vacuous:
        result = msgspec.structs.replace(result, vacuous=vacuous.reasons)
    return msgspec.structs.replace(result, survey=search.survey.table())


# Several processes


def _share(order: Order) -> int:
    """Search in ``order.jobs`` processes, each with a seed and a share of the programs.

    The first finding ends the others. An interrupt reaches all of them, and each ends by itself.
    """
    seed = SystemRandom().randrange(SEEDS) if order.seed is None else order.seed
    began = time.monotonic()
    results: dict[_Job, Result | None] = {}
    left: list[bytes] = []
    with _interrupts() as interrupted:
        jobs = [subprocess.Popen(_job(order, n, seed), stdout=-1) for n in range(order.jobs)]
        try:
            results = _until_first(jobs, interrupted)
        finally:
            for job in jobs:
                if job.poll() is None:
                    job.send_signal(signal.SIGINT)
            left = [job.communicate()[0] if job not in results else b"" for job in jobs]
    ended = [one for one in [*results.values(), *map(_result_of, left)] if one is not None]
    # Not those that were ended: one of them may just have begun.
    wrong = [one.returncode for one in results if one.returncode not in (OK, FAILED, CANCELLED)]
    if wrong:
        return wrong[0]  # the process has said on stderr what is wrong
    if not ended:
        return CANCELLED
    found = next((one for one in ended if one.violations), None)
    # What another process has reached is reached.
    never = [reason for reason in ended[0].vacuous if all(reason in one.vacuous for one in ended)]
    summed = msgspec.structs.replace(
        found if found is not None else ended[0],
        tried=sum(one.tried for one in ended),
        stopped=bool(interrupted) and any(one.stopped for one in ended),
        seconds=time.monotonic() - began,
        vacuous=() if found is not None else tuple(never),
    )
    if order.json:
        print(in_json(summed))
    else:
        _print(summed, "", console(sys.stderr), checks=bool(order.checks))
    if found is not None or (summed.vacuous and not summed.stopped):
        return FAILED
    return CANCELLED if summed.stopped else OK


_Job: TypeAlias = "subprocess.Popen[bytes]"


def _until_first(jobs: Sequence[_Job], interrupted: list[int]) -> dict[_Job, Result | None]:
    """The results of those that have ended, until one has found something, or at an interrupt."""
    results: dict[_Job, Result | None] = {}
    while not interrupted and len(results) < len(jobs):
        for job in jobs:
            if job not in results and job.poll() is not None:
                result = results[job] = _result_of(job.communicate()[0])
                if result is None or result.violations:
                    return results
        time.sleep(PAUSE)
    return results


def _job(order: Order, number: int, seed: int) -> list[str]:
    """The command of one process."""
    examples = order.examples // order.jobs + (number < order.examples % order.jobs)
    command = [sys.executable, "-m", "motet", "fuzz", order.agent, "--json"]
    command += ["--examples", str(max(examples, 1)), "--seed", str(seed + number)]
    command += ["--users", str(order.users), "--sessions", str(order.sessions)]
    command += ["--steps", str(order.steps), "--cases", str(order.cases)]
    for check in order.checks:
        command += ["--check", check]
    return [*command, "--config", str(order.config)] if order.config is not None else command


def _result_of(text: bytes) -> Result | None:
    try:
        return msgspec.json.decode(text, type=Result)
    except msgspec.DecodeError:
        return None


# One process


def _search(order: Order) -> tuple[Search, str]:
    try:
        from motet.testing.fuzzing import Search
    except ImportError as error:
        if error.name != "hypothesis":
            raise
        raise MissingExtra("test", "motet fuzz") from None
    subject, place = _subject(order.agent, order.config)
    seed = SystemRandom().randrange(SEEDS) if order.seed is None else order.seed
    search = Search(
        subject,
        examples=order.examples,
        seed=seed,
        users=order.users,
        sessions=order.sessions,
        max_steps=order.steps,
        invariants=[_invariant(check) for check in order.checks],
    )
    return search, place


def _subject(name: str, config: Path | None) -> tuple[Subject, str]:
    """The agent or room, and where a test would import it from."""
    from motet.actors.agents.spec import AgentSpec
    from motet.actors.rooms.definition import Room
    from motet.testing.configured import configured

    if ":" not in name:
        return configured(name, config), f"{CONFIGURED}:{name}"
    found = _imported(name)
    if not isinstance(found, AgentSpec | Room):
        raise ConfigError(f"{name} is {found!r}, and no agent or room")
    subject: Subject = found  # pyright: ignore[reportUnknownVariableType]  # of whatever output
    return subject, name


def _invariant(name: str) -> Invariant:
    found = _imported(name)
    if not callable(found):
        raise ConfigError(f"--check {name}: {found!r} is not a function of a snapshot")
    return cast("Invariant", found)  # what it gives is seen when it is asked


def _imported(name: str) -> object:
    """The object that ``module:attribute`` names. Raises ``ConfigError``."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be imported: {error}; write it as myapp.agents:agent, and start "
            "motet where `import myapp` works"
        ) from error


# The search


def _run(search: Search, status: Status | None) -> bool:
    """Search until the end or Ctrl-C; True if it was stopped."""
    from motet.runtime.testing import NotSimulated
    from motet.testing.fuzzing import Stopped

    began = shown = time.monotonic()
    with _interrupts() as interrupted:

        def look() -> None:
            nonlocal shown
            if interrupted:
                raise Stopped
            if status is not None and time.monotonic() - shown > PAUSE:
                shown = time.monotonic()
                status.update(_progress(search, shown - began))

        search.look = look
        try:
            search.run()
        except Stopped:
            return True
        except NotSimulated as error:
            raise ConfigError(
                f"the agent needs something that a simulation does not have: {error}\n"
                "a test of your own can declare it: see `mt.programs` in the guide to testing"
            ) from error
    return False


def _progress(search: Search, seconds: float) -> str:
    if search.found is None:
        rate = search.tried / max(seconds, 0.1)
        return f"{search.tried} of {search.examples} programs, {rate:.0f}/s, seed {search.seed}"
    return f"found one after {search.tried}; {search.smaller} tried to make it smaller"


@contextmanager
def _status(out: Console) -> Generator[Status | None]:
    """A status line at a terminal; none elsewhere."""
    if not out.is_terminal:
        yield None
        return
    with out.status("…") as status:
        yield status


@contextmanager
def _interrupts() -> Generator[list[int]]:
    """The first Ctrl-C or SIGTERM waits for the current program; a second one does not."""
    seen: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_models() -> Generator[None]:
    before = switch.allowed()
    switch.allow(False)
    try:
        yield
    finally:
        switch.allow(before)


# The finding


def _kept(result: Result, order: Order, found: Found, place: str) -> Result:
    """The result; the finding is run again in another process, and written into a case."""
    from motet.testing.outside import fingerprints
    from motet.testing.reproduction import verdict_of
    from motet.testing.stories.cases import save_case
    from motet.testing.stories.printing import as_test
    from motet.testing.stories.program import InvariantBroken

    error = found.error
    wrong: tuple[str, ...] = (f"{type(error).__name__}: {error}",)
    if isinstance(error, InvariantBroken):
        wrong = tuple(map(str, error.violations))
    name = re.sub(r"\W+", "_", order.agent)
    file = order.cases / f"fuzz-{name}-{result.seed}.json"
    invariants = [_invariant(check) for check in order.checks]
    test = as_test(
        found.program.program,
        found.program.target,
        place,
        name=f"test_{name}",
        invariants=invariants,
    )
    verdict = verdict_of(test, error, fingerprints())
    why = "" if verdict.reproduced else verdict.why
    save_case(found.program, file, violations=wrong, irreproducible=why)
    _say_where(file, place)
    return msgspec.structs.replace(
        result, violations=wrong, case=str(file), test=test, verdict=str(verdict)
    )


def _say_where(file: Path, place: str) -> None:
    """Put the place of the agent into the case, also if only the configuration has it."""
    from motet.testing.stories.cases import load_case

    case = msgspec.structs.replace(load_case(file), subject=place)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n")


def _print(result: Result, lanes: str, out: Console, *, checks: bool) -> None:
    """The test alone on stdout, ready for a file; all else on stderr."""
    again = f"seed {result.seed}, {result.seconds:.1f} s"
    if not result.violations:
        ended = "stopped" if result.stopped else "nothing found"
        style = "yellow" if result.stopped else "green"
        out.print(f"{ended}: {result.tried} programs, {again}", style=style)
        for reason in () if result.stopped else result.vacuous:
            out.print(f"✗ vacuous: {reason}", style="red", markup=False, highlight=False)
        _print_survey(result, out)
        return
    if lanes:
        out.print(lanes, markup=False, highlight=False, style="dim", soft_wrap=True)
    head = f"after {result.tried} programs, {result.smaller} more to make it smaller; {again}"
    out.print(f"\n✗ {head}", style="red", highlight=False)
    _print_survey(result, out)
    if result.stopped:
        out.print("  stopped before it was as small as it could be", style="yellow")
    for sentence in result.violations:
        out.print(f"  {sentence}", markup=False, highlight=False, soft_wrap=True)
    if not checks:  # a case knows the invariants of every host, and no others
        out.print(f"\nto replay it: pytest --motet-replay {result.case}", style="dim")
    out.print(f"\nas a test ({result.verdict}):\n", style="dim", markup=False, soft_wrap=True)
    print(result.test, end="")


def _print_survey(result: Result, out: Console) -> None:
    out.print(result.survey, markup=False, highlight=False, style="dim", soft_wrap=True)
