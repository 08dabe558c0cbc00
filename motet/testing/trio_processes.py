"""Makes ``trio.run_process`` and ``open_process`` start the programs of a simulated world."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import trio

from motet.runtime.processes import Program, simulated
from motet.runtime.testing.scheduler import patched, processes_of_trio
from motet.testing.fake_program import FakeProgram
from motet.testing.pipes import PipeReader, PipeWriter

__all__ = ["SimulatedProcess", "discard", "trio_processes"]

Begin: TypeAlias = Callable[[Program], Awaitable[FakeProgram]]

_STREAMS = ("stdin", "stdout", "stderr")


class SimulatedProcess:
    """A running program with the attributes and methods of a :class:`trio.Process`."""

    def __init__(self, command: object, program: FakeProgram, piped: Sequence[bool]) -> None:
        stdin, stdout, stderr = piped
        self.args = command
        self.pid = program.pid
        self.stdin = program.to_stdin if stdin else None
        self.stdout = program.from_stdout if stdout else None
        self.stderr = program.from_stderr if stderr else None
        self.stdio: trio.StapledStream[PipeWriter, PipeReader] | None = None
        if self.stdin is not None and self.stdout is not None:
            self.stdio = trio.StapledStream(self.stdin, self.stdout)
        self._program = program

    def __repr__(self) -> str:
        return f"<SimulatedProcess {self.args!r}: {self._program!r}>"

    @property
    def returncode(self) -> int | None:
        return self._program.returncode

    async def wait(self) -> int:
        return await self._program.wait()

    def poll(self) -> int | None:
        return self._program.returncode

    def terminate(self) -> None:
        self._program.terminate()

    def kill(self) -> None:
        self._program.kill()

    def send_signal(self, sig: signal.Signals) -> None:
        if sig == signal.SIGTERM:
            self._program.terminate()
        else:
            self._program.end(-sig)


@contextmanager
def trio_processes(begin: Begin) -> Generator[None]:
    """Make Trio start programs by ``begin`` in contexts with simulated programs."""
    module = processes_of_trio()
    before: Callable[..., Awaitable[object]] = module._open_process

    async def open_process(command: Any, **options: Any) -> object:
        if not simulated():
            return await before(command, **options)
        reads, heard, warned = (_is_piped(name, options.get(name)) for name in _STREAMS)
        joined = options.get("stderr") == subprocess.STDOUT
        program = await begin(_program(command, options, reads, joined))
        for stream, wanted in ((program.from_stdout, heard), (program.from_stderr, warned)):
            if not wanted:
                trio.lowlevel.spawn_system_task(discard, stream, name="nobody's output")
        return SimulatedProcess(command, program, (reads, heard, warned))

    with patched(
        [(module, "_open_process", open_process), (trio.lowlevel, "open_process", open_process)]
    ):
        yield


def _is_piped(name: str, wanted: object) -> bool:
    if wanted in (None, subprocess.DEVNULL) or (name == "stderr" and wanted == subprocess.STDOUT):
        return False
    if wanted != subprocess.PIPE:
        raise ValueError(
            f"{name}={wanted!r}: a simulated program has no files, use subprocess.PIPE or DEVNULL"
        )
    return True


def _program(command: Any, options: Mapping[str, Any], reads: bool, joined: bool) -> Program:
    single = isinstance(command, str | bytes) or hasattr(command, "__fspath__")
    words: list[Any] = [command] if single else list(command)
    if options.get("shell"):
        words = ["sh", "-c", *words]
    cwd = options.get("cwd")
    return Program(
        tuple(os.fsdecode(word) for word in words),
        None if cwd is None else Path(os.fsdecode(cwd)),
        dict(os.environ if options.get("env") is None else options["env"]),
        0.0,
        {},
        reads,
        joined,
    )


async def discard(stream: trio.abc.ReceiveStream) -> None:
    """Read the output that nobody wants, so that the program does not wait for a reader."""
    with suppress(trio.ClosedResourceError):
        async for _ in stream:
            pass
