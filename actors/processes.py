"""Programs that run beside the host and never outlive it (G2).

Invariant: when the block of :func:`open_child` has been left, by return, error or cancellation,
every process that the program started is dead and reaped, unless the kernel could not end it.

On Linux a guard stands between the host and the program. It holds one end of a pipe whose other
end only the host has, so it notices the end of the host in whatever way, ``kill -9`` included;
and it is the subreaper of all that the program starts, so that neither a double fork nor a
``setsid`` gets out of its reach. If somebody kills the guard, the kernel kills the program.
Elsewhere the program leads a process group, which is killed; a host that is killed leaves it.

    async with open_child(["some-server", "--stdio"], env={"PATH": "/usr/bin"}) as child:
        await child.stdin.send_all(b"hello\\n")
        answer = await child.stdout.receive_some()
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from motet.actors.tools.builtin.guard import PATIENCE
from motet.actors.tools.builtin.output import HeadTail
from motet.actors.tools.builtin.sandbox import GRACE, GUARD

GUARDED = sys.platform == "linux"


@attrs.define(eq=False)
class Child:
    """A running program and its three streams.

    A stream whose program has gone raises ``trio.BrokenResourceError`` when written to, and ends
    when read. Read both outputs, or the program blocks once a pipe is full.

    Attributes:
        stdin: close it to let the program see the end of its input.
        pid: of the process that the host waits for: the guard where there is one.
    """

    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream
    stderr: trio.abc.ReceiveStream
    _process: trio.Process = attrs.field(repr=False)
    _lifeline: trio.abc.SendStream | None = attrs.field(repr=False)
    _grace: float = attrs.field(repr=False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended: its exit code, or 128 and the signal that killed it; None: it runs."""
        code = self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    async def wait(self) -> int:
        """Wait until it has ended, and with it all that it started. Cancelling leaves it alone."""
        await self._process.wait()
        assert self.returncode is not None
        return self.returncode

    async def answer(self, question: bytes, *, room: int, words: HeadTail) -> bytes | None:
        """Write to it, close its stdin, and read all that it says until it has ended.

        ``words`` gets its stderr. None, and it still runs: it has said more than ``room`` bytes.
        """
        said = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask, question)
            nursery.start_soon(self._drain, words)
            async for chunk in self.stdout:
                said += chunk
                if len(said) > room:
                    nursery.cancel_scope.cancel()
                    break
            # It is gone, and with it all that could write: what is left is in the pipe.
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE
        return bytes(said) if len(said) <= room else None

    async def _ask(self, question: bytes) -> None:
        with suppress(trio.BrokenResourceError):  # it has not read all; how it ends says why
            await self.stdin.send_all(question)
        await self.stdin.aclose()

    async def _drain(self, words: HeadTail) -> None:
        async for chunk in self.stderr:
            words.add(chunk)

    async def end(self) -> None:
        """End it with all that it started, and wait until they are gone; again does nothing.

        Asks them to (SIGTERM), and kills what is there after the grace. Shielded: takes at most
        the grace and a few seconds, whatever the program does.
        """
        budget = self._grace + 2 * PATIENCE
        with trio.CancelScope(shield=True, deadline=trio.current_time() + budget):
            await self.stdin.aclose()
            await (self._release() if self._lifeline else self._end_group())
        if self._process.returncode is None:
            self._process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
                await self._process.wait()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
            await self.stdout.aclose()
            await self.stderr.aclose()

    async def _release(self) -> None:
        """Let go of the lifeline: the guard ends all that is left, then itself."""
        assert self._lifeline is not None
        await self._lifeline.aclose()
        await self._process.wait()

    async def _end_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
            with trio.move_on_after(self._grace):
                await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):  # also what has outlived its leader
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def open_child(
    argv: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    grace: float = GRACE,
    limits: Mapping[str, int] | None = None,
) -> AsyncGenerator[Child]:
    """Run a program for the length of the block; at its end the program is ended.

    Args:
        argv: the program, looked for in ``PATH`` of ``env``, and its arguments; no shell.
        cwd: its current directory, default the host's.
        env: all of its environment, default the host's: think of the keys in it.
        grace: seconds between asking it to end and killing it.
        limits: names of ``resource.RLIMIT_*`` and their values, for each of its processes; only
            where there is a guard.

    Raises ``OSError`` when it cannot be started. Cancellation ends it and waits.
    """
    known = dict(os.environ if env is None else env)
    _look_for(argv[0], cwd, known)
    start = _start_guarded if GUARDED else _start_group
    child = await start(argv, cwd, known, grace, limits or {})
    try:
        yield child
    finally:
        await child.end()


def _look_for(program: str, cwd: str | Path | None, env: Mapping[str, str]) -> None:
    """Raises ``FileNotFoundError``: the guard could only say so in the program's own output."""
    named = os.path.join(cwd or ".", program) if os.path.dirname(program) else program
    if shutil.which(named, path=env.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(f"there is no program {program!r} that can be run")


async def _start_guarded(
    argv: Sequence[str],
    cwd: str | Path | None,
    env: dict[str, str],
    grace: float,
    limits: Mapping[str, int],
) -> Child:
    read, write = os.pipe()
    stdin = trio.lowlevel.FdStream(write)
    try:
        options = {"RLIMIT_CORE": 0, **limits, "STDIN": read}
        listed = ",".join(f"{name}={value}" for name, value in options.items())
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", GUARD, str(grace), listed, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(read,),
            cwd=cwd,
            env=env,
        )
    except BaseException:
        stdin.close()
        raise
    finally:
        os.close(read)
    return _child(process, stdin, process.stdin, grace)


async def _start_group(
    argv: Sequence[str],
    cwd: str | Path | None,
    env: dict[str, str],
    grace: float,
    _limits: Mapping[str, int],
) -> Child:
    process = await trio.lowlevel.open_process(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=cwd,
        env=env,
    )
    assert process.stdin is not None
    return _child(process, process.stdin, None, grace)


def _child(
    process: trio.Process,
    stdin: trio.abc.SendStream,
    lifeline: trio.abc.SendStream | None,
    grace: float,
) -> Child:
    assert process.stdout is not None
    assert process.stderr is not None
    return Child(stdin, process.stdout, process.stderr, process, lifeline, grace)
