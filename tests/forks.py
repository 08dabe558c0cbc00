"""Python programs of the tests as forks of a server that has imported motet already.

The import of motet and its libraries is most of the time of a short program. The server imports
them once and forks for each program. A fork is a process as any other: it has its own pid, streams,
folder, environment, terminal and signals, and ends as an interpreter ends.

Invariants: the server has one thread, and neither an event loop nor an open database when it forks.
A program whose interpreter would start with other settings (:data:`READ_AT_START`) is no fork.
Each process of the tests has a server of its own, which dies with it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import os
import pkgutil
import random
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, BinaryIO, NoReturn, Self, TextIO

import attrs
import msgspec

import motet
from motet.cli.commands import command
from motet.testing import simulated_host
from motet.testing.disk_files import end_resting

ROOT = Path(__file__).parents[1]
READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "LD_")
"""Beginnings of the variables that an interpreter reads when it starts, and not again."""
LEFT_OUT = ("motet.testing.casefiles", "motet.testing.fuzzing", "motet.testing.plugin")
"""Modules of motet that are for tests, and need their libraries."""
LATE = ("encodings.idna", "tomllib", "typer._adapters")
"""Modules that most commands import only when they run."""
PACKET = 1 << 20
"""Bytes of a request, at most."""


class Request(msgspec.Struct, frozen=True):
    """``python *arguments``. With ``session``, its standard input is the terminal of its own."""

    arguments: list[str]
    cwd: str
    env: dict[str, str]
    session: bool = False


# Environment and folder are those of the shell that calls it.
_IN_A_SHELL = """
import json, os, signal, socket, sys
path, *arguments = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(path)
    asked = {"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}
    socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
    server.recv(64)
    code = int(server.recv(64))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def in_a_shell() -> list[str]:
    """The words that stand for ``python`` in a shell. A signal reaches them, not the fork."""
    return [sys.executable, "-I", "-S", "-c", _IN_A_SHELL, str(_server().address)]


@attrs.define(eq=False)
class Fork:
    """A forked program, with the part of :class:`subprocess.Popen` that tests use."""

    pid: int
    stdin: BinaryIO | None
    stdout: BinaryIO | None
    stderr: BinaryIO | None
    _handle: int
    _server: socket.socket
    returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except TimeoutError:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, -N after signal N. Raises ``TimeoutError``."""
        if self.returncode is None:
            self._server.settimeout(timeout)
            try:
                self.returncode = int(self._server.recv(64))
            except BlockingIOError:
                raise TimeoutError from None
            self._server.close()
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


Program = subprocess.Popen[bytes] | Fork


def started(
    *arguments: str,
    cwd: str | os.PathLike[str] = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    stderr: int = 2,
    session: bool = False,
) -> Program:
    """``python *arguments``: a fork, or a new process if it needs another interpreter.

    Without ``env``, in :func:`environment`.

    ``stdin``, ``stdout``, ``stderr``: a descriptor, or a constant of subprocess.
    ``session``: it leads a session of its own, and ``stdin`` is its terminal.
    """
    env = environment() if env is None else env
    if not hasattr(os, "pidfd_open") or _at_start(env) != _at_start(environment()):
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=session,
            preexec_fn=_take_terminal if session else None,
        )
    theirs, ours = [stdin, stdout, stderr], list[BinaryIO | None]([None, None, None])
    opened: list[int] = []
    for number, wanted in enumerate(theirs):
        if wanted == subprocess.PIPE:
            ends = os.pipe()
            mine, theirs[number] = ends if number else ends[::-1]
            ours[number] = os.fdopen(mine, "rb" if number else "wb", buffering=-1 if number else 0)
            opened.append(theirs[number])
        elif wanted == subprocess.DEVNULL:
            theirs[number] = os.open(os.devnull, os.O_RDWR)
            opened.append(theirs[number])
        elif wanted == subprocess.STDOUT:
            theirs[number] = theirs[1]
    request = Request(list(arguments), os.fspath(cwd), dict(env), session)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(str(_server().address))
    socket.send_fds(server, [msgspec.json.encode(request)], theirs)
    for descriptor in opened:
        os.close(descriptor)
    pid, handles, _, _ = socket.recv_fds(server, 64, 1)
    return Fork(int(pid), ours[0], ours[1], ours[2], handles[0], server)


def ran(
    *arguments: str,
    cwd: str | os.PathLike[str] = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """``python *arguments`` on pipes, to its end. It is killed when the seconds are over."""
    with (
        started(*arguments, cwd=cwd, env=env, stderr=subprocess.PIPE) as program,
        ThreadPoolExecutor(3) as pool,
    ):
        assert program.stdin
        assert program.stdout
        assert program.stderr
        out, err = pool.submit(program.stdout.read), pool.submit(program.stderr.read)
        pool.submit(_send, program.stdin, stdin.encode())
        try:
            code = program.wait(timeout)
        except (TimeoutError, subprocess.TimeoutExpired):
            program.kill()
            raise
        said, told = out.result(timeout), err.result(timeout)
        return subprocess.CompletedProcess(arguments, code, _text(said), _text(told))


def _send(stream: IO[bytes], data: bytes) -> None:
    with stream:
        stream.write(data)


def _text(data: bytes) -> str:
    return io.TextIOWrapper(io.BytesIO(data), "utf-8").read()


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in env if name.startswith(READ_AT_START)}


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# ---------------------------------------------------------------------- the server


@attrs.frozen
class _Server:
    address: Path
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@cache
def _server() -> _Server:
    address = Path(tempfile.mkdtemp(prefix="motet-forks-"), "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(listener.fileno())],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    server = _Server(address, process)
    atexit.register(server.end)
    return server


def environment() -> dict[str, str]:
    """The environment of the server: in it, a program is a fork."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def main(listener: int) -> None:
    """Serve until the standard input ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in (*_modules(), *LATE):
            importlib.import_module(module)
    _warm_up()
    assert threading.active_count() == 1
    generators = [one for one in gc.get_objects() if isinstance(one, random.Random)]
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=listener) as server:
        asked = _serve(server)
        if asked is None:
            shutil.rmtree(Path(server.getsockname()).parent)
            return
    for generator in generators:
        generator.seed()
    _run(*asked)


def _modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(motet.__path__, "motet."):
        if module.name not in LEFT_OUT and not module.name.endswith("__main__"):
            yield module.name


def _warm_up() -> None:
    """Compute what motet computes once in a process: each fork would take four times as long.

    These are the options of the commands, the tables of a new database, the schemas of the tools.
    A simulated host has neither threads nor files.
    """
    command()
    with simulated_host():
        pass
    end_resting()


def _serve(listener: socket.socket) -> tuple[Request, Sequence[int]] | None:
    """Fork for each request and tell its asker how it ended. The request, in a fork."""
    forks: dict[int, tuple[int, socket.socket]] = {}
    # Not epoll: forks share what is registered with it.
    with selectors.PollSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    return None
                if key.fd != listener.fileno():
                    selector.unregister(key.fd)
                    _tell_end(key.fd, *forks.pop(key.fd))
                    continue
                asker, _ = listener.accept()
                request, streams, _, _ = socket.recv_fds(asker, PACKET, 3)
                pid = os.fork()
                if not pid:
                    asker.close()
                    for handle, (_, other) in forks.items():
                        os.close(handle)
                        other.close()
                    return msgspec.json.decode(request, type=Request), streams
                for stream in streams:
                    os.close(stream)
                handle = os.pidfd_open(pid)
                socket.send_fds(asker, [str(pid).encode()], [handle])
                forks[handle] = (pid, asker)
                selector.register(handle, selectors.EVENT_READ)


def _tell_end(handle: int, pid: int, asker: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(handle)
    with asker, suppress(OSError):  # an asker that is gone needs no answer
        asker.send(str(code).encode())


# ---------------------------------------------------------------------- in a fork


def _run(request: Request, streams: Sequence[int]) -> NoReturn:
    """Be the interpreter of the request, from its start to its end."""
    if request.session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request.session:
        _take_terminal()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, _text_stream(number, getattr(sys, name)))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    code = _exit_code(partial(_run_main, request, module))
    # As at the end of an interpreter, which would then free every object: that takes longer than
    # most programs, and only what the program has made can have something to say.
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    vars(module).clear()
    gc.collect()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{error!r}", file=sys.stderr)
        code = 120
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(code & 255)


def _run_main(request: Request, module: types.ModuleType) -> None:
    words = [*request.arguments]
    sys.orig_argv = [sys.executable, *words]
    if words[:2] == ["-W", "error"]:
        del words[:2]
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    match words:
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            exec(compile(code, "<string>", "exec", dont_inherit=True), vars(module))
        case ["-m", name, *rest]:
            sys.argv, sys.path[0] = [name, *rest], request.cwd
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case _:
            script = words[0]
            sys.argv, sys.path[0] = words, str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")


def _exit_code(program: Callable[[], None]) -> int:
    """Run the program; its exit code, after the message of the exception that ended it."""
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _text_stream(number: int, as_it_was: io.TextIOWrapper) -> TextIO:
    """A standard stream as an interpreter makes it, for the file that it is now."""
    unbuffered = as_it_was.write_through  # PYTHONUNBUFFERED
    mode, buffering = ("wb", 0 if unbuffered else -1) if number else ("rb", -1)
    file = os.fdopen(number, mode, buffering, closefd=False)
    return io.TextIOWrapper(
        file,
        as_it_was.encoding,
        as_it_was.errors,
        newline="\n",
        line_buffering=not unbuffered and (number == 2 or file.isatty()),
        write_through=unbuffered,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
