"""Programs of a simulated world: functions in the place of processes, with all that these may do.

Whatever a host starts comes here: the shell, the programs of hooks, MCP servers on their stdio,
process tools. A function has what a process has: arguments, three streams, signals, an exit code.

    async def git(program: FakeProgram) -> int:
        if program.argv[1] == "push":
            await trio.sleep(30)            # of virtual time
        await program.write("all is well\\n")
        return 0

    host.processes.program("git", git)
    host.processes.program("make", answers("nothing to be done\\n"))

Tools that use ``trio.run_process`` get the same programs. Invariant: one that nobody declared fails
the test, whatever the host makes of that (``failures``).
"""

from __future__ import annotations

import json
import os
import shlex
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
from motet.runtime.testing.guards import NotSimulated
from motet.runtime.testing.lines import blamed
from motet.testing.fake_program import Behaviour, FakeProgram, answers
from motet.testing.trio_processes import trio_processes

__all__ = ["Behaviour", "FakeProcesses", "FakeProgram", "UndeclaredProgram", "answers"]

_SHELLS = frozenset({"sh", "bash"})
_NOT_PLAIN = frozenset("|&;<>()$`*?[]{}~!#=\n")
"""What makes of a command more than a program and its arguments."""


class UndeclaredProgram(NotSimulated):
    """A program was started that the simulation does not have. ``line`` says where."""

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
    """All programs of a world, and what became of them.

    Attributes:
        started: every program that was started, in order.
        failures: what is a mistake of the test: programs that nobody declared, and errors of the
            functions of others. ``note``, if there is one, gets to see them at once instead.
        left: what a host has left running when it was closed (G2).
        commands: what commands of a shell do whose program nobody declared; None: to start one
            is a mistake.
        cut_off: no program can be started, and those that ran are gone: the power was cut. What
            their functions do in their clean-up is heard by nobody.
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
        """Have a program: ``git`` for whatever path, ``/usr/bin/git`` for that one.

        Declaring it again replaces it for those started from now on. A command of the shell that
        is but a program and its arguments starts that program; for others declare ``sh``, whose
        last argument is the command.
        """
        self._declared[name] = behave

    @property
    def running(self) -> Sequence[FakeProgram]:
        """Those that have not ended, in the order of their start."""
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
        """Raises the first of the failures."""
        if self.failures:
            raise self.failures[0]

    @contextmanager
    def installed(self) -> Generator[None]:
        """What this context starts, and what it starts in turn, are programs of this world."""
        with started_by(self.start), trio_processes(self.begin):
            yield

    def host_ended(self) -> None:
        """A host has gone: end what it has left. Called inside of the world."""
        self.left += self.running
        for program in [*self._running, *self._dead]:
            program.kill()
        self._running.clear()
        self._dead.clear()

    async def start(self, program: Program) -> Child:
        """Start a program, as :func:`motet.runtime.processes.open_child` would."""
        fake = await self.begin(program)
        stdin = fake.to_stdin if program.reads else Nothing()
        lifeline = _Lifeline(fake, program.grace)
        return Child(stdin, fake.from_stdout, fake.from_stderr, fake, lifeline, program.grace)

    async def begin(self, program: Program) -> FakeProgram:
        """Start a program that somebody else will end, or :meth:`host_ended`."""
        line = blamed(_starter())
        await trio.lowlevel.checkpoint()
        if self._cut_off:
            raise OSError("the power is off")
        argv, behave = self._behaviour(program.argv, line)
        fake = FakeProgram(next(self._pids), attrs.evolve(program, argv=argv), line)
        self.started.append(fake)
        self._running.append(fake)
        # In the context of whoever has started it, by which a run is known that leaves it behind.
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
    """Letting go of it ends the program, as the guard of a real one would."""

    def __init__(self, program: FakeProgram, grace: float) -> None:
        self._program = program
        self._grace = grace
        self._held = True

    async def aclose(self) -> None:
        if self._held and self._program.returncode is None:
            ending = self._program.end_within
            trio.lowlevel.spawn_system_task(ending, self._grace, name="guard")
        self._held = False
        await trio.lowlevel.checkpoint()


async def _process_tool(program: FakeProgram) -> int:
    """A call of a ``process_tool``: its function is at hand, and so is called here."""
    request: dict[str, Any] = json.loads(await program.read())
    await program.write(await answer_here(request["module"], request["name"], request["args"]))
    return 0


def _plain(argv: tuple[str, ...]) -> tuple[str, ...] | None:
    """The program and the arguments that a command of a shell consists of, if it does."""
    if len(argv) != 3 or os.path.basename(argv[0]) not in _SHELLS or argv[1] != "-c":
        return None
    if _NOT_PLAIN & set(argv[2]):
        return None
    try:
        return tuple(shlex.split(argv[2])) or None
    except ValueError:  # a quotation mark too few
        return None


def _starter() -> FrameType:
    """Who has opened the child; not how that is done."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OPENERS:
        frame = frame.f_back
    return frame


_OPENERS = frozenset(
    {__name__, "motet.testing.trio_processes", "motet.runtime.processes", "contextlib"}
)
