"""The programs of a call, and the processes that it has started by itself (G2).

:class:`CallPrograms` starts programs as ``trio.run_process`` and ``trio.lowlevel.open_process`` do,
but under a guard (``process_guard.py``), and ends them with the call. Invariant: when
:meth:`CallPrograms.end` has returned, none of them is alive, nor anything they have started, and no
further one starts.

A tool can start processes by other means. Nothing ends these, so a stop names them:
:class:`Strays` finds the children of the host that it did not start itself. On Linux only, where
``/proc`` shows the parents of processes and their times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, TypeAlias, TypedDict, Unpack

import attrs
import trio

from motet.runtime.outside import all_under_way
from motet.runtime.process_guard import PATIENCE, parents
from motet.runtime.processes import GRACE, STARTED, Child, Program, start_child

__all__ = [
    "CallPrograms",
    "Command",
    "Files",
    "HostChild",
    "ProgramOptions",
    "RunningProgram",
    "Strays",
    "children_from",
]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


START = 5.0
"""Seconds for which the end of a call waits for a program that is being started."""

Command: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
_Command: TypeAlias = "str | os.PathLike[str] | list[str | os.PathLike[str]]"
Files: TypeAlias = int | HasFileno | None
"""As the streams of ``subprocess.Popen``: a descriptor, a file, PIPE, DEVNULL; None: the host's."""


class ProgramOptions(TypedDict, total=False):
    """Options of a program beside its streams.

    shell: the command is one text for ``/bin/sh``.
    cwd: its current directory, by default the host's.
    env: its whole environment, by default the host's, which may hold API keys.
    grace: seconds between asking it to end and killing it, by default 0.1.
    """

    shell: bool
    cwd: str | Path | None
    env: Mapping[str, str] | None
    grace: float


class RunningProgram:
    """A program of a call, with the attributes and methods of a ``trio.Process``.

    Attributes:
        args: the command.
        pid: of the guard, where there is one.
        stdin, stdout, stderr: its streams that are pipes, None for the others.
        stdio: both of the first two, if both are pipes.
    """

    def __init__(self, command: Command, child: Child, piped: Collection[str]) -> None:
        self._child = child
        self.args = command
        self.stdin = child.stdin if "stdin" in piped else None
        self.stdout = child.stdout if "stdout" in piped else None
        self.stderr = child.stderr if "stderr" in piped else None
        self.stdio: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream] | None = None
        if self.stdin is not None and self.stdout is not None:
            self.stdio = trio.StapledStream(self.stdin, self.stdout)

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"exited with status {self.returncode}"
        return f"<{type(self).__name__} {self.args!r}: {state}>"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that killed it; None while it runs."""
        return self._child.status

    def poll(self) -> int | None:
        """As :attr:`returncode`."""
        return self.returncode

    async def wait(self) -> int:
        """Wait until it and all that it has started have ended. Cancelled: it is not affected."""
        await self._child.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal. What it has started is ended when it has ended."""
        self._child.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@attrs.define(eq=False)
class CallPrograms:
    """The programs of one call. They end with it, also those that it does not wait for.

    ``children``: those that run, and an event for each that is being started, which is set when it
    is known here or has ended. ``ended``: the call has ended, and no further one starts.
    """

    children: dict[Child | trio.Event, None] | None = None
    ended: bool = False

    async def end(self) -> None:
        """End all programs, and start no more. Shielded: takes the grace and a few seconds."""
        self.ended = True
        if self.children:
            # Each end is bounded. The call may have its result already, which must not be lost.
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for child in self.children:
                        if isinstance(child, trio.Event):
                            nursery.start_soon(_wait, child)
                        else:
                            nursery.start_soon(self._end, child)

    async def _end(self, child: Child) -> None:
        await child.end()
        if self.children is not None:
            self.children.pop(child, None)

    async def open(
        self,
        command: Command,
        *,
        stdin: Files = None,
        stdout: Files = None,
        stderr: Files = None,
        **options: Unpack[ProgramOptions],
    ) -> RunningProgram:
        """Start a program that ends with the call. See ``Context.open_process``."""
        given = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        child = await self._start(_program(command, given, options))
        piped = [name for name, wanted in given.items() if wanted == subprocess.PIPE]
        return RunningProgram(command, child, piped)

    async def _start(self, program: Program) -> Child:
        await trio.lowlevel.checkpoint()
        self._check()
        if self.children is None:
            self.children = {}
        begun = trio.Event()
        self.children[begun] = None  # the end of the call waits for it
        try:
            with trio.CancelScope(shield=True):  # or one could be started and not be known here
                child = await start_child(program)
                self.children[child] = None
                if self.ended:  # the call has ended meanwhile, so it does not end this one
                    await self._end(child)
                    self._check()
                return child
        finally:
            del self.children[begun]
            begun.set()
        raise AssertionError("nobody cancels this scope")

    def _check(self) -> None:
        if self.ended:
            raise RuntimeError("the call has ended, and its programs with it: no other one starts")

    async def run(
        self,
        command: Command,
        *,
        stdin: bytes | bytearray | memoryview | Files = b"",
        capture_stdout: bool = False,
        capture_stderr: bool = False,
        check: bool = True,
        stdout: Files = None,
        stderr: Files = None,
        **options: Unpack[ProgramOptions],
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end. See ``Context.run_process``."""
        fed = bytes(stdin) if isinstance(stdin, bytes | bytearray | memoryview) else None
        given = {"stdin": subprocess.PIPE if fed is not None else stdin}
        for name, wanted, captured in (
            ("stdout", stdout, capture_stdout),
            ("stderr", stderr, capture_stderr),
        ):
            if wanted == subprocess.PIPE or (captured and wanted is not None):
                raise ValueError(f"give capture_{name} or {name}; a pipe would have no reader")
            given[name] = subprocess.PIPE if captured else wanted
        if fed is None and given["stdin"] == subprocess.PIPE:
            raise ValueError("stdin=PIPE has no writer here: give the bytes instead")
        child = await self._start(_program(command, given, options))
        said, warned = bytearray(), bytearray()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_feed, child, fed or b"")
                nursery.start_soon(_drain, child.stdout, said)
                nursery.start_soon(_drain, child.stderr, warned)
                await child.wait()
        finally:
            await self._end(child)
        code = child.status
        assert code is not None
        out = bytes(said) if capture_stdout else None
        err = bytes(warned) if capture_stderr else None
        if check and code:
            raise subprocess.CalledProcessError(code, _argv(command), output=out, stderr=err)
        return subprocess.CompletedProcess(_argv(command), code, out, err)


def _argv(command: Command) -> _Command:
    return command if isinstance(command, str | os.PathLike) else list(command)


def _program(command: Command, given: Mapping[str, object], options: ProgramOptions) -> Program:
    words = [command] if isinstance(command, str | os.PathLike) else list(command)
    if options.get("shell"):
        words = ["/bin/sh", "-c", *words]
    elif isinstance(command, str):
        raise TypeError(
            f"command {command!r} is one text: give a list of its words, or shell=True for a shell"
        )
    env = options.get("env")
    stdin = given["stdin"]
    return Program(
        argv=tuple(os.fspath(word) for word in words),
        cwd=options.get("cwd"),
        env=dict(os.environ if env is None else env),
        grace=options.get("grace", GRACE),
        limits={},
        reads=stdin == subprocess.PIPE,
        joined=given["stderr"] == subprocess.STDOUT,
        stdin=0 if stdin is None else _descriptor(stdin) if stdin != subprocess.DEVNULL else None,
        stdout=_descriptor(given["stdout"]),
        stderr=_descriptor(given["stderr"]),
    )


def _descriptor(stream: object) -> int | None:
    if stream is None or isinstance(stream, int):
        return stream
    return stream.fileno()  # type: ignore[attr-defined, no-any-return]  # by `Files`


async def _wait(begun: trio.Event) -> None:
    with trio.move_on_after(START + GRACE + 2 * PATIENCE):
        await begun.wait()


async def _feed(child: Child, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # it has ended, or does not read; see its exit code
        await child.stdin.send_all(data)
    await child.stdin.aclose()


async def _drain(stream: trio.abc.ReceiveStream, into: bytearray) -> None:
    async for chunk in stream:
        into += chunk


# ---------------------------------------------------------------------- processes of others


@attrs.frozen
class HostChild:
    """A process below the host. ``began``: seconds since the start of the machine."""

    pid: int
    name: str
    began: float


class Strays:
    """The processes that the calls of a stop have started by themselves; made as the stop begins.

    Those are the children of the host that appeared during one of the calls, whoever started them,
    and what is below them. One that had left its parents before the stop began is not seen.
    """

    def __init__(self) -> None:
        self._calls: dict[str, tuple[float, str]] = {}
        for one in all_under_way():  # the oldest first
            self._calls.setdefault(one.owner, (one.since, one.what))
        self._seen = {child.pid: child for child in _below_host()} if self._calls else {}

    def left(self, owners: Iterable[str]) -> list[str]:
        """Those that are still there, in words, of the calls of these owners."""
        calls = [(*self._calls[owner], owner) for owner in owners if owner in self._calls]
        if not calls:
            return []
        since, what, owner = min(calls)
        now = {child.pid: child for child in _below_host()}
        there = [*now.values()]
        for seen in self._seen.values():
            # The same process by its time: its name changes when it starts a program.
            child = None if seen.pid in now else _look_up(seen.pid)
            if child is not None and child.began == seen.began:
                there.append(child)
        return [
            f"{owner}: process {child.pid} ({child.name}) began during {what} and still runs"
            for child in there
            if child.began >= since - _TICK
        ]


_find: ContextVar[Callable[[], Iterable[HostChild]] | None] = ContextVar(
    "motet_host_children", default=None
)
_TICK = 1 / os.sysconf("SC_CLK_TCK") if sys.platform == "linux" else 0.0
"""The precision of the times in ``/proc``, which are rounded down."""


@contextmanager
def children_from(find: Callable[[], Iterable[HostChild]]) -> Generator[None]:
    """Take the processes of ``find`` for those of the host; for simulations."""
    before = _find.set(find)
    try:
        yield
    finally:
        _find.reset(before)


def _below_host() -> Iterable[HostChild]:
    """The processes below this one, without those that ``open_child`` has started."""
    if (find := _find.get()) is not None:
        return find()
    if sys.platform != "linux":
        return ()
    found, queue = list[HostChild](), _children(os.getpid())
    for pid in queue:
        if pid not in STARTED and (child := _look_up(pid)) is not None:
            found.append(child)
            queue += _children(pid)
    return found


def _children(parent: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{parent}/task").iterdir())
        return [int(pid) for task in tasks for pid in (task / "children").read_bytes().split()]
    except FileNotFoundError:  # the process has ended, or the kernel does not list children
        return [pid for pid, above in parents().items() if above == parent]
    except OSError:
        return []


def _look_up(pid: int) -> HostChild | None:
    """A process that has not ended."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
    except OSError:
        return None
    fields = tail.split()  # from the third on: its state, its parent, and so on
    if fields[0] in (b"Z", b"X"):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    return HostChild(pid, name, int(fields[19]) * _TICK)
