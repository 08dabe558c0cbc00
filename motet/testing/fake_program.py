"""A function in the place of a process: what it is given, and how it ends.

Invariants: a program runs until its function returns or a signal ends it, and then its streams are
closed, whatever its function still does; how it ended never changes.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

import trio

from motet.runtime.processes import Program
from motet.testing.pipes import pipe

__all__ = ["Behaviour", "FakeProgram", "answers"]


class FakeProgram:
    """A running program: what its function is given, and what a test can look at and end.

    Attributes:
        argv: its name, as it was started, and its arguments.
        env: all of its environment.
        cwd: its current directory.
        stdin: what the host writes to it.
        stdout: what the host reads; waits while 64 KiB are unread.
        stderr: the same, or ``stdout`` where both come as one.
        line: where it was started.
    """

    def __init__(self, pid: int, program: Program, line: str) -> None:
        self.pid = pid
        self.argv = program.argv
        self.env: Mapping[str, str] = dict(program.env)
        self.cwd = str(program.cwd or os.getcwd())
        self.line = line
        self.to_stdin, self.stdin = pipe()
        self.stdout, self.from_stdout = pipe()
        self.stderr, self.from_stderr = pipe()
        if program.joined:
            self.stderr.close()
            self.stderr = self.stdout
        if not program.reads:
            self.to_stdin.close()
        self.returncode: int | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._trap: trio.Event | None = None

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"ended with {self.returncode}"
        return f"<FakeProgram {self.pid} {shlex.join(self.argv)!r}, {state}>"

    # ------------------------------------------------------------------ for its function

    async def read(self) -> bytes:
        """All of its stdin, to the end."""
        return b"".join([chunk async for chunk in self.stdin])

    async def lines(self) -> AsyncGenerator[str]:
        """The lines of its stdin, each as it comes, without their ends."""
        rest = b""
        async for chunk in self.stdin:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode()
        if rest:
            yield rest.decode()

    async def write(self, text: str | bytes) -> None:
        """Write to its stdout."""
        await self.stdout.send_all(text.encode() if isinstance(text, str) else text)

    def trap_sigterm(self) -> trio.Event:
        """From now on SIGTERM does not end it, but sets this; whoever never looks ignores it."""
        self._trap = self._trap or trio.Event()
        return self._trap

    # ------------------------------------------------------------------ for its host, and a test

    async def wait(self) -> int:
        """Wait until it has ended; its exit code, or minus the signal that ended it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM: ends it at once, unless it has trapped that."""
        if self._trap is not None:
            self._trap.set()
        else:
            self.end(-signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: ends it at once."""
        self.end(-signal.SIGKILL)

    def end(self, code: int) -> None:
        """End it with an exit code; nothing if it has ended. Its function is cancelled."""
        if self.returncode is not None:
            return
        self.returncode = code
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self._scope.cancel()
        self._ended.set()

    async def end_within(self, grace: float) -> None:
        """Ask it to end, and kill it when it has not after ``grace`` seconds."""
        self.terminate()
        with trio.move_on_after(grace):
            await self._ended.wait()
        self.kill()

    async def run(self, behave: Behaviour) -> Exception | None:
        """Be the program until it has ended; what its function raised, which ends it with 1.

        Writing where nobody reads any more ends it by SIGPIPE, as it does a process.
        """
        failure: Exception | None = None
        code: int | None = 1
        try:
            with self._scope:
                code = await behave(self)
        except trio.BrokenResourceError:
            code = -signal.SIGPIPE
        except Exception as error:
            failure = error if self.returncode is None else None
        finally:
            self.end(code or 0)
        return failure


Behaviour: TypeAlias = Callable[[FakeProgram], Awaitable[int | None]]
"""What a program does; its exit code, None for 0, minus a signal for one that ends it."""


def answers(
    stdout: str | bytes = "", exit: int = 0, *, stderr: str | bytes = "", after: float = 0.0
) -> Behaviour:
    """A program that prints after so many virtual seconds, and exits, whatever it is told."""

    async def behave(program: FakeProgram) -> int:
        await trio.sleep(after)
        await program.write(stdout)
        await program.stderr.send_all(stderr.encode() if isinstance(stderr, str) else stderr)
        return exit

    return behave
