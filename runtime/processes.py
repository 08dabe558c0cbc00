"""Child processes that never outlive the host (G2).

Invariant: when the block of :func:`open_child` has been left, by return, error or cancellation,
every process that the program started is dead and reaped, unless the kernel could not end it. The
same holds when :func:`run_command` has ended; it also bounds the output and the time.

On Linux a guard process (``process_guard.py``) stands between the host and the program. It holds
one end of a pipe whose other end only the host has, so it notices every end of the host,
``kill -9`` included. It is the subreaper of all descendants of the program, so that neither a
double fork nor a ``setsid`` escapes it. If the guard is killed, the kernel kills the program.
A process group alone would not do: a ``setsid`` leaves it, and it survives a killed host. On other
systems there is only that.

All programs of the host are started by :func:`open_child`, so that a simulation can replace them:
see :func:`started_by`.

    async with open_child(["some-server", "--stdio"], env={"PATH": "/usr/bin"}) as child:
        await child.stdin.send_all(b"hello\n")
        answer = await child.stdout.receive_some()
"""

from __future__ import annotations

import codecs
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import attrs
import msgspec
import trio

from motet.runtime import process_guard as guard
from motet.runtime.cgroups import Place, command_groups
from motet.runtime.process_guard import PATIENCE, TOTALS


class HeadTail:
    """The first and the last bytes of an output of any length, in bounded memory.

    Its text has at most ``room`` bytes, and it holds at most twice as many. ``total`` counts all
    bytes that were added.
    """

    def __init__(self, room: int) -> None:
        self._head_room = room // 2
        self._tail_room = room - self._head_room
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes | bytearray) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        missing = self._head_room - len(self._head)
        self._head += data[:missing]
        self._tail += data[missing:][-self._tail_room :]
        # Only when the tail has twice its room: cutting it for each piece would copy it each time.
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    def text(self) -> str:
        """The kept bytes as text. Invalid UTF-8 is replaced; a line counts the omitted bytes."""
        tail = self._tail[-self._tail_room :]
        cut = self.total - len(self._head) - len(tail)
        if not cut:
            return (self._head + tail).decode("utf-8", "replace")
        # A character that the cut went through is omitted whole: the incremental decoder holds back
        # its first bytes, and continuation bytes at the beginning of the tail are skipped.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        begin = next((i for i, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        shown = tail[begin:].decode("utf-8", "replace")
        return f"{head}\n[... {cut:,} of {self.total:,} bytes left out ...]\n{shown}"


GRACE = 0.1
"""Seconds between asking a program to end and killing it."""

GUARD = guard.__file__
GUARDED = sys.platform == "linux"


@attrs.frozen
class Program:
    """A program to start; the fields are the arguments of :func:`open_child`.

    Attributes:
        stdin: a descriptor of the host, if the program does not read from it; None: it is empty.
        stdout, stderr: ``subprocess.PIPE``, ``subprocess.DEVNULL``, a descriptor of the host, or
            None for the host's own.
        passed: descriptors of the host that the program has under the same numbers.
    """

    argv: tuple[str, ...]
    cwd: str | Path | None
    env: Mapping[str, str]
    grace: float
    limits: Mapping[str, int]
    reads: bool
    joined: bool
    stdin: int | None = None
    stdout: int | None = subprocess.PIPE
    stderr: int | None = subprocess.PIPE
    passed: tuple[int, ...] = ()


class Process(Protocol):
    """The part of :class:`trio.Process` that is used here, for simulated programs."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


class Lifeline(Protocol):
    """Holds a program: closing it ends the program with all its descendants."""

    async def aclose(self) -> None: ...

    def send_signal(self, number: int, /) -> None:
        """Send the program a signal. Does nothing when it has ended."""
        ...


@attrs.define(eq=False)
class Child:
    """A running program and its three streams.

    After the end of the program, writing to a stream raises ``trio.BrokenResourceError``, and
    reading reaches its end. Read both outputs, or the program blocks when a pipe is full.

    Attributes:
        stdin: close it to end the input of the program.
        pid: of the process that the host waits for, which is the guard if there is one.
    """

    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream
    stderr: trio.abc.ReceiveStream
    _process: Process = attrs.field(repr=False)
    _lifeline: Lifeline | None = attrs.field(repr=False)
    _grace: float = attrs.field(repr=False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or 128 plus the signal that killed it; None while it runs."""
        code = self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    @property
    def status(self) -> int | None:
        """As ``subprocess.Popen.returncode``: its exit code, or minus the signal that killed it."""
        return self._process.returncode

    def send_signal(self, number: int) -> None:
        """Send the program a signal. Does nothing when it has ended."""
        if self._process.returncode is not None:
            return
        if self._lifeline is not None:
            self._lifeline.send_signal(number)
        else:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait until it and all its descendants have ended. Cancelled: it is not affected."""
        await self._process.wait()
        assert self.returncode is not None
        return self.returncode

    async def answer(self, question: bytes, *, room: int, words: HeadTail) -> bytes | None:
        """Write ``question``, close its stdin, and return its whole stdout when it has ended.

        ``words`` gets its stderr. None if it wrote more than ``room`` bytes; then it still runs.
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
            # Stdout has ended, so all writers are gone. The rest of stderr is in the pipe.
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE
        return bytes(said) if len(said) <= room else None

    async def _ask(self, question: bytes) -> None:
        with suppress(trio.BrokenResourceError):  # it ended before it read all; see its exit code
            await self.stdin.send_all(question)
        await self.stdin.aclose()

    async def _drain(self, words: HeadTail) -> None:
        async for chunk in self.stderr:
            words.add(chunk)

    async def end(self) -> None:
        """End it as :meth:`stop` does, and close its streams. Does nothing the second time."""
        await self.stop()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
            await self.stdout.aclose()
            await self.stderr.aclose()
        STARTED.discard(self.pid)

    async def stop(self) -> None:
        """End it and all its descendants, and wait for their end. Does nothing the second time.

        Sends SIGTERM, and after the grace SIGKILL. Shielded: takes at most the grace and a few
        seconds, whatever the program does. Its output can still be read.
        """
        budget = self._grace + 2 * PATIENCE
        with trio.CancelScope(shield=True, deadline=trio.current_time() + budget):
            await self.stdin.aclose()
            await (self._release() if self._lifeline else self._end_group())
        # Only if the guard itself hangs. The kernel kills the program when the guard dies.
        if self._process.returncode is None:
            self._process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
                await self._process.wait()

    async def _release(self) -> None:
        """Close the lifeline: the guard ends all remaining processes, then itself."""
        assert self._lifeline is not None
        await self._lifeline.aclose()
        await self._process.wait()

    async def _end_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
            with trio.move_on_after(self._grace):
                await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):  # also those that outlived the leader
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
    reads: bool = True,
    joined: bool = False,
    passed: tuple[int, ...] = (),
) -> AsyncGenerator[Child]:
    """Run a program during the block; at the end of the block the program is ended.

    Args:
        argv: the program, looked up in ``PATH`` of ``env``, and its arguments; no shell.
        cwd: its current directory, by default the host's.
        env: its whole environment, by default the host's, which may hold API keys.
        grace: seconds between asking it to end and killing it.
        limits: names of ``resource.RLIMIT_*`` and their values, for each of its processes; only
            where there is a guard.
        reads: whether it has a stdin; if not, that is ``/dev/null``.
        joined: whether its stderr goes into its stdout, in the order of writing.
        passed: descriptors of the host that it has under the same numbers.

    Raises ``OSError`` when it cannot be started. Cancellation ends it and waits.
    """
    known = dict(os.environ if env is None else env)
    program = Program(tuple(argv), cwd, known, grace, limits or {}, reads, joined, passed=passed)
    child = await start_child(program)
    try:
        yield child
    finally:
        await child.end()


async def start_child(program: Program) -> Child:
    """Start a program that the caller has to end. Raises ``OSError`` when it cannot be started."""
    start = _replacement.get() or (_start_guarded if GUARDED else _start_group)
    return await start(program)


STARTED: Final[set[int]] = set()
"""The processes that the host has started here and has not ended."""


Start: TypeAlias = Callable[[Program], Awaitable[Child]]
"""Starts a program; raises ``OSError``. Closing the lifeline of the child has to end it, by
SIGTERM and after the grace by SIGKILL, as a guard does."""

_replacement: ContextVar[Start | None] = ContextVar("motet_start_program", default=None)


@contextmanager
def started_by(start: Start) -> Generator[None]:
    """Start programs by ``start`` in the block, and in tasks that are started in it."""
    before = _replacement.set(start)
    try:
        yield
    finally:
        _replacement.reset(before)


def simulated() -> bool:
    """Whether programs are replaced in this context; see :func:`started_by`."""
    return _replacement.get() is not None


def _look_for(program: Program) -> None:
    """Raise ``FileNotFoundError`` here: the guard could only write it into the program's output."""
    name = program.argv[0]
    named = os.path.join(program.cwd or ".", name) if os.path.dirname(name) else name
    if shutil.which(named, path=program.env.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(f"there is no program {name!r} that can be run")


async def _start_guarded(program: Program) -> Child:
    _look_for(program)
    groups: Place | None = None
    if program.limits.keys() & TOTALS:
        # In a thread, since the first look reads all of /proc.
        groups = await trio.to_thread.run_sync(command_groups)
    options, passed = {"RLIMIT_CORE": 0, **program.limits}, list[int]()
    stdin: trio.abc.SendStream = Nothing()
    if program.reads:
        read, write = os.pipe()
        stdin = trio.lowlevel.FdStream(write)
        passed.append(read)
    elif program.stdin is not None:
        passed.append(os.dup(program.stdin))
    if passed:
        options["STDIN"] = passed[0]
    if groups is not None:
        with suppress(OSError):
            passed.append(os.open(groups.path, os.O_PATH | os.O_DIRECTORY))
            options["GROUP"] = passed[-1]
    listed = ",".join(f"{name}={value}" for name, value in options.items())
    words = [sys.executable, "-I", "-S", GUARD, str(program.grace), listed, *program.argv]
    try:
        process = await _open(words, program, subprocess.PIPE, [*passed, *program.passed])
    except BaseException:
        await trio.aclose_forcefully(stdin)
        raise
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return _child(process, stdin, _Guarded(process.stdin), program.grace)


@attrs.frozen(eq=False)
class _Guarded:
    """The pipe to the guard: its end ends the program, a byte in it is a signal for the program."""

    _pipe: trio.abc.SendStream | None

    async def aclose(self) -> None:
        if self._pipe is not None:
            await self._pipe.aclose()

    def send_signal(self, number: int) -> None:
        assert isinstance(self._pipe, trio.lowlevel.FdStream)
        with suppress(OSError):  # the guard has ended, or is about to, for the lifeline is closed
            os.write(self._pipe.fileno(), bytes([number]))


async def _start_group(program: Program) -> Child:
    _look_for(program)
    fed = subprocess.PIPE if program.reads else program.stdin
    fed = subprocess.DEVNULL if fed is None else fed
    process = await _open(list(program.argv), program, fed, program.passed)
    return _child(process, process.stdin or Nothing(), None, program.grace)


async def _open(
    words: list[str], program: Program, stdin: int, passed: Sequence[int]
) -> trio.Process:
    return await trio.lowlevel.open_process(
        words,
        stdin=stdin,
        stdout=program.stdout,
        stderr=subprocess.STDOUT if program.joined else program.stderr,
        start_new_session=True,
        pass_fds=passed,
        cwd=program.cwd,
        env=dict(program.env),
    )


def _child(
    process: trio.Process,
    stdin: trio.abc.SendStream,
    lifeline: Lifeline | None,
    grace: float,
) -> Child:
    STARTED.add(process.pid)
    stdout, stderr = process.stdout or Nothing(), process.stderr or Nothing()
    return Child(stdin, stdout, stderr, process, lifeline, grace)


class Nothing(trio.abc.SendStream, trio.abc.ReceiveStream):
    """A stream that the program does not have: writing fails, and reading is at its end."""

    async def send_all(self, data: object) -> None:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        return b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Finished(msgspec.Struct, frozen=True):
    """The result of a command. ``code`` is 128 plus the signal if a signal killed it.

    ``total`` counts the bytes of the whole output, of which ``output`` may omit the middle.
    """

    code: int
    timed_out: bool
    output: str
    total: int


async def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    limits: Mapping[str, int],
    timeout: float,
    room: int,
    passed: tuple[int, ...] = (),
) -> Finished:
    """Run ``argv`` for at most ``timeout`` seconds; ``limits`` and ``passed`` as for a child.

    Cancellation and time-out end the command and wait for its end: SIGTERM, a moment of grace, then
    SIGKILL, which takes a fraction of a second.

    Raises:
        OSError: it could not be started.
    """
    output = HeadTail(room)
    drained = trio.Event()
    async with (
        open_child(
            argv, cwd=cwd, env=env, limits=limits, reads=False, joined=True, passed=passed
        ) as child,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_drain, child.stdout, output, drained)
        try:
            with trio.move_on_after(timeout) as limit:
                await child.wait()
        finally:
            await child.stop()
        # The writers are dead, so the pipe has an end. The limit is for a process in a failing
        # driver, which cannot be killed and holds the pipe open.
        with trio.move_on_after(PATIENCE):
            await drained.wait()
        nursery.cancel_scope.cancel()
    assert child.returncode is not None
    return Finished(child.returncode, limit.cancelled_caught, output.text(), output.total)


async def _drain(stdout: trio.abc.ReceiveStream, output: HeadTail, drained: trio.Event) -> None:
    async for chunk in stdout:
        output.add(chunk)
    drained.set()


def environment() -> dict[str, str]:
    """The variables that an unconfined command gets from the host: no API keys, no tokens."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8"}
