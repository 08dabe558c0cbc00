"""Programs of a simulated world: functions in place of processes.

Every program that a host starts comes here: the shell, the programs of hooks, MCP servers on stdio,
process tools. A function has arguments, three streams, signals and an exit code, as a process has.

    async def git(program: FakeProgram) -> int:
        if program.argv[1] == "push":
            await trio.sleep(30)            # of virtual time
        await program.write("all is well\\n")
        return 0

    host.processes.program("git", git)
    host.processes.program("make", answers("nothing to be done\\n"))

Tools that use ``trio.run_process`` get the same programs. Invariant: a program that the test did
not declare fails the test, however the host handles the error (``failures``).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from itertools import count
from types import FrameType
from typing import Any

import attrs
import trio

from motet.actors.tools.process_tool import MAIN, answer_here
from motet.runtime.processes import Child, Nothing, Program, started_by
from motet.runtime.programs import HostChild, children_from
from motet.runtime.testing.guards import NotSimulated
from motet.runtime.testing.lines import blamed
from motet.testing.fake_program import Behaviour, FakeProgram, answers
from motet.testing.trio_processes import discard, trio_processes

__all__ = ["Behaviour", "FakeProcesses", "FakeProgram", "UndeclaredProgram", "answers"]

_SHELLS = frozenset({"sh", "bash"})
_NOT_PLAIN = frozenset("|&;<>()$`*?[]{}~!#=\n")
"""Characters that need a real shell."""


class UndeclaredProgram(NotSimulated):
    """A program was started that the test did not declare. ``line``: where it was started."""

    def __init__(self, line: str, argv: Sequence[str], known: Sequence[str]) -> None:
        name = os.path.basename(argv[0])
        others = f"; declared are {', '.join(known)}" if known else ""
        RuntimeError.__init__(
            self,
            f"{line} started {shlex.join(argv)!r}, a program that the simulation does not have: "
            f"declare it with host.processes.program({name!r}, answers('what it prints')), or give "
            f"an async function of a FakeProgram in the place of answers{others}",
        )
        self.guard = "process"
        self.line = line
        self.argv = tuple(argv)


class FakeProcesses:
    """All programs of a world.

    Attributes:
        started: every started program, in order.
        failures: mistakes of the test: undeclared programs, and errors of the functions of declared
            ones. ``note``, if given, gets them at once instead.
        left: programs that ran on when their host was closed (G2).
        commands: the behaviour of shell commands without a declared program; None: they fail the
            test.
        cut_off: the power was cut: no program can start, and the running ones are gone. Effects of
            their clean-up are ignored.
    """

    def __init__(self, note: Callable[[Exception], None] | None = None) -> None:
        self.started: list[FakeProgram] = []
        self.failures: list[Exception] = []
        self.left: list[FakeProgram] = []
        self.commands: Behaviour | None = None
        self._note = note
        self._declared: dict[str, Behaviour] = {}
        self._running: list[FakeProgram] = []
        self._dead: list[FakeProgram] = []
        self._cut_off = False
        self._pids = count(1001)

    def __repr__(self) -> str:
        return f"<FakeProcesses: {len(self.running)} of {len(self.started)} programs run>"

    def program(self, name: str, behave: Behaviour) -> None:
        """Declare a program: ``git`` for any path, ``/usr/bin/git`` for that path only.

        A second declaration replaces the first for later starts. A shell command that is only a
        program and its arguments starts that program; for other commands declare ``sh``, whose last
        argument is the command.
        """
        self._declared[name] = behave

    @property
    def running(self) -> Sequence[FakeProgram]:
        """The running programs, in the order of their start."""
        return [program for program in self._running if program.returncode is None]

    @property
    def cut_off(self) -> bool:
        return self._cut_off

    @cut_off.setter
    def cut_off(self, cut_off: bool) -> None:
        self._cut_off = cut_off
        if cut_off:
            self._dead += self._running
            self._running.clear()

    def check(self) -> None:
        """Raise the first of the failures."""
        if self.failures:
            raise self.failures[0]

    @contextmanager
    def installed(self) -> Generator[None]:
        """Start the programs of this context, and of all its tasks, in this world."""
        with (
            started_by(self.start),
            trio_processes(self.begin),
            children_from(lambda: [*map(_as_child, self._strays())]),
        ):
            yield

    def _strays(self) -> list[FakeProgram]:
        """Programs that were started without a lifeline, as ``trio.run_process`` starts them."""
        return [program for program in self.running if not program.guarded]

    def host_ended(self) -> None:
        """End the programs of a host that has ended. Called inside of the world."""
        self.left += self.running
        for program in [*self._running, *self._dead]:
            program.kill()
        self._running.clear()
        self._dead.clear()

    async def start(self, program: Program) -> Child:
        """Start a program, as :func:`motet.runtime.processes.open_child` would."""
        fake = await self.begin(program)
        fake.guarded = True
        for stream, wanted in (
            (fake.from_stdout, program.stdout),
            (fake.from_stderr, program.stderr),
        ):
            if wanted != subprocess.PIPE:
                trio.lowlevel.spawn_system_task(discard, stream, name="nobody's output")
        stdin = fake.to_stdin if program.reads else Nothing()
        lifeline = _Lifeline(fake, program.grace)
        return Child(stdin, fake.from_stdout, fake.from_stderr, fake, lifeline, program.grace)

    async def begin(self, program: Program) -> FakeProgram:
        """Start a program without a lifeline; the caller or :meth:`host_ended` ends it."""
        line = blamed(_starter())
        await trio.lowlevel.checkpoint()
        if self._cut_off:
            raise OSError("the power is off")
        argv, behave = self._behaviour(program.argv, line)
        fake = FakeProgram(next(self._pids), attrs.evolve(program, argv=argv), line)
        self.started.append(fake)
        self._running.append(fake)
        # In the starter's context, which names the run of a program that is left running.
        trio.lowlevel.spawn_system_task(
            self._run, fake, behave, name=f"program {argv[0]}", context=copy_context()
        )
        return fake

    async def _run(self, program: FakeProgram, behave: Behaviour) -> None:
        failure = await program.run(behave)
        if program in self._running:
            self._running.remove(program)
        if failure is not None and not self._cut_off:
            failure.add_note(f"in the fake program {shlex.join(program.argv)!r}")
            self._fail(failure)

    def _behaviour(self, argv: tuple[str, ...], line: str) -> tuple[tuple[str, ...], Behaviour]:
        if argv[-1] == MAIN:
            return argv, _process_tool
        plain = _plain(argv)
        for known in (argv, plain or argv):
            found = self._declared.get(known[0]) or self._declared.get(os.path.basename(known[0]))
            if found is not None:
                return known, found
        if self.commands is not None and os.path.basename(argv[0]) in _SHELLS:
            return argv, self.commands
        argv = plain or argv
        error = UndeclaredProgram(line, argv, sorted(self._declared))
        self._fail(error)
        raise error

    def _fail(self, error: Exception) -> None:
        if self._note is not None:
            self._note(error)
        else:
            self.failures.append(error)


class _Lifeline(trio.abc.AsyncResource):
    """Closing it ends the program, as the guard of a real process does."""

    def __init__(self, program: FakeProgram, grace: float) -> None:
        self._program = program
        self._grace = grace
        self._held = True

    def send_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._program.terminate()
        else:
            self._program.end(-number)

    async def aclose(self) -> None:
        if self._held and self._program.returncode is None:
            ending = self._program.end_within
            trio.lowlevel.spawn_system_task(ending, self._grace, name="guard")
        self._held = False
        await trio.lowlevel.checkpoint()


def _as_child(program: FakeProgram) -> HostChild:
    return HostChild(program.pid, os.path.basename(program.argv[0]), program.began)


async def _process_tool(program: FakeProgram) -> int:
    """Run a call of a ``process_tool``: its function is called in this process."""
    request: dict[str, Any] = json.loads(await program.read())
    await program.write(await answer_here(request["module"], request["name"], request["args"]))
    return 0


def _plain(argv: tuple[str, ...]) -> tuple[str, ...] | None:
    """The program and arguments of a shell command; None if it needs a real shell."""
    if len(argv) != 3 or os.path.basename(argv[0]) not in _SHELLS or argv[1] != "-c":
        return None
    if _NOT_PLAIN & set(argv[2]):
        return None
    try:
        return tuple(shlex.split(argv[2])) or None
    except ValueError:  # an unbalanced quotation mark
        return None


def _starter() -> FrameType:
    """The frame that started the program, without those of the openers."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OPENERS:
        frame = frame.f_back
    return frame


_OPENERS = frozenset(
    {
        __name__,
        "motet.testing.trio_processes",
        "motet.runtime.processes",
        "motet.runtime.programs",
        "motet.actors.tools.context",
        "contextlib",
    }
)
