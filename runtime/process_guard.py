"""The guard: a process between the host and a command that ends the command with the host.

It is run by path, ``python -I -S process_guard.py GRACE LIMITS COMMAND...``, with the standard
library only, since each command waits for its start. Its standard input is the lifeline: a pipe
that the host holds open. When the host closes it, or dies, the guard ends the command. A byte in it
is the number of a signal for the command. LIMITS is a list of ``NAME=NUMBER`` with commas;
``STDIN=7`` in it makes descriptor 7 the standard input of the command, which is empty otherwise.

Invariants:
    - Every descendant of the command is a descendant of the guard, also after a double fork or a
      ``setsid``: the guard is their subreaper.
    - It exits only when all of them are dead and reaped, or when they could not be killed within
      ``PATIENCE`` seconds (a process inside a failing driver); then it says so and exits with 125.
    - It ends as the command has: with its exit code, or by the signal that killed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

PATIENCE = 2.0
FAILED = 125
"""Exit code of a guard that could not do its work; the reason is the last line of the output."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def parents() -> dict[int, int]:
    """The parent of every process that ``/proc`` shows and that is not a zombie."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command name in round brackets may hold anything, brackets included.
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state not in (b"Z", b"X"):
                found[int(name)] = int(parent)
    return found


def descendants(root: int, parent_of: dict[int, int]) -> list[int]:
    """Every process below ``root``, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(children.get(pid, ()))
    return found


def send(number: int) -> None:
    """Send a signal to every descendant."""
    for pid in descendants(os.getpid(), parents()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL or not _is_sandbox(pid):
                os.kill(pid, number)


def _is_sandbox(pid: int) -> bool:
    """Whether it is bubblewrap itself, whose end would kill the processes inside it at once."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read() == b"bwrap\n"
    except OSError:
        return False


def reap() -> dict[int, int]:
    """The exit statuses of all dead children; -1 is a key when there is no other child."""
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            statuses[-1] = 0
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status


class Guard:
    """One command from its start to the death of its last descendant."""

    def __init__(self, grace: float, limits: str, argv: list[str]) -> None:
        self._grace = grace
        self._limits = {
            name: int(value)
            for name, _, value in (one.partition("=") for one in limits.split(","))
            if name
        }
        self._stdin = self._limits.pop("STDIN", None)
        self._argv = argv
        self._alone = False
        self._status: int | None = None
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)

    def run(self) -> int:
        """Run the command and return its exit code; does not return if a signal killed it."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            return _fail("the system has no subreaper (Linux 3.4 or newer is needed)")
        guard = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._become_command(libc, guard)
        if self._stdin is not None:
            os.close(self._stdin)  # or the host could write to it after the command has ended
            os.dup2(2, 1)  # or the host could not see that the command has closed its output
        self._wait_for_command()
        self._end_all()
        if not self._alone:
            return _fail("some processes could not be killed: " + _names())
        if self._status is None:
            return 128
        if os.WIFSIGNALED(self._status):
            _die_by(os.WTERMSIG(self._status))
        return os.waitstatus_to_exitcode(self._status)

    def _become_command(self, libc: ctypes.CDLL, guard: int) -> None:
        try:
            os.setsid()
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(128 + signal.SIGKILL)  # the guard died before prctl, which missed it
            stdin = os.open(os.devnull, os.O_RDONLY) if self._stdin is None else self._stdin
            os.dup2(stdin, 0)
            os.close(stdin)
            for name, value in self._limits.items():
                _, hard = resource.getrlimit(getattr(resource, name))
                wanted = value if hard < 0 else min(value, hard)
                resource.setrlimit(getattr(resource, name), (wanted, wanted))
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvp(self._argv[0], self._argv)
        except BaseException as error:
            os.write(1, f"cannot start {self._argv[0]}: {error}\n".encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def _wait_for_command(self) -> None:
        while self._status is None and not self._alone:
            ready, _, _ = select.select([0, self._wake], [], [])
            self._collect()
            if 0 in ready and not self._pass_on(os.read(0, 64)):
                return

    def _pass_on(self, signals: bytes) -> bool:
        """Send the command these signals, while it is not reaped; False: the lifeline is closed."""
        for number in signals if self._status is None else b"":
            with contextlib.suppress(OSError):
                os.kill(self._child, number)
        return bool(signals)

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 512)
        statuses = reap()
        self._alone = -1 in statuses
        self._status = statuses.get(self._child, self._status)

    def _end_all(self) -> None:
        """Send SIGTERM once, then SIGKILL until none is left: a fork may race with any round."""
        self._collect()
        if not self._alone:
            send(signal.SIGTERM)
            self._wait_until_alone(time.monotonic() + self._grace)
        deadline = time.monotonic() + PATIENCE
        while not self._alone and time.monotonic() < deadline:
            send(signal.SIGKILL)
            self._wait_until_alone(time.monotonic() + 0.02)

    def _wait_until_alone(self, deadline: float) -> None:
        while not self._alone and (left := deadline - time.monotonic()) > 0:
            select.select([self._wake], [], [], left)
            self._collect()


def _only_wake(_number: int, _frame: object) -> None:
    """Do nothing. Python writes to the wake-up descriptor only for signals with a handler."""


def _die_by(number: int) -> None:
    """End by the signal, without a core. Returns only if it cannot end a process."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):  # for SIGKILL there is nothing to restore
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _names() -> str:
    return ", ".join(map(str, descendants(os.getpid(), parents())))


def _fail(reason: str) -> int:
    os.write(1, f"\nguard: {reason}\n".encode())
    return FAILED


if __name__ == "__main__":
    sys.exit(Guard(float(sys.argv[1]), sys.argv[2], sys.argv[3:]).run())
