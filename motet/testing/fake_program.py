"""A function in place of a process: its arguments, streams, signals and exit code.

Invariants: a program runs until its function returns or a signal ends it; then its streams are
closed, even if its function is still running; the exit code never changes.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

import trio

from motet.runtime.outside import boot_time
from motet.runtime.processes import Program
from motet.testing.pipes import pipe

__all__ = ["Behaviour", "FakeProgram", "answers"]


class FakeProgram:
    """A running program: the argument of its function, and a handle for tests.

    Attributes:
        argv: its name, as it was started, and its arguments.
        env: all of its environment.
        cwd: its current directory.
        stdin: the host writes to it.
        stdout: the host reads from it; a write waits while 64 KiB are unread.
        stderr: the same, or ``stdout`` if both are joined.
        line: the source line that started it.
        guarded: it ends with the code that started it; else it may outlive that.
        began: when, as :func:`motet.runtime.outside.boot_time`.
    """

    def __init__(self, pid: int, program: Program, line: str) -> None:
        self.pid = pid
        self.argv = program.argv
        self.env: Mapping[str, str] = dict(program.env)
        self.cwd = str(program.cwd or os.getcwd())
        self.line = line
        self.guarded = False
        self.began = boot_time()
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
        """Handle SIGTERM: from now on it sets the returned event and does not end the program."""
        self._trap = self._trap or trio.Event()
        return self._trap

    # ------------------------------------------------------------------ for its host, and a test

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, or minus the signal that ended it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM: ends it at once, unless it has trapped the signal."""
        if self._trap is not None:
            self._trap.set()
        else:
            self.end(-signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: ends it at once."""
        self.end(-signal.SIGKILL)

    def end(self, code: int) -> None:
        """End it with an exit code and cancel its function. Does nothing if it has ended."""
        if self.returncode is not None:
            return
        self.returncode = code
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self._scope.cancel()
        self._ended.set()

    async def end_within(self, grace: float) -> None:
        """Terminate it, and kill it after ``grace`` seconds."""
        self.terminate()
        with trio.move_on_after(grace):
            await self._ended.wait()
        self.kill()

    async def run(self, behave: Behaviour) -> Exception | None:
        """Run the function; returns its error, which ends the program with exit code 1.

        A write to a closed pipe ends it by SIGPIPE, as a process.
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
"""The function of a program. It returns the exit code: None for 0, minus a signal."""


def answers(
    stdout: str | bytes = "", exit: int = 0, *, stderr: str | bytes = "", after: float = 0.0
) -> Behaviour:
    """A program that waits ``after`` virtual seconds, prints and exits; it ignores its input."""

    async def behave(program: FakeProgram) -> int:
        await trio.sleep(after)
        await program.write(stdout)
        await program.stderr.send_all(stderr.encode() if isinstance(stderr, str) else stderr)
        return exit

    return behave
