"""The guard: a process between the host and a command that ends the command with the host.

It is run by path, ``python -I -S process_guard.py GRACE LIMITS COMMAND...``, with the standard
library only, since each command waits for its start. Its standard input is the lifeline: a pipe
that the host holds open. When the host closes it, or dies, the guard ends the command. A byte in it
is the number of a signal for the command. LIMITS is a list of ``NAME=NUMBER`` with commas;
``STDIN=7`` in it makes descriptor 7 the standard input of the command, which is empty otherwise.

``TOTAL_MEMORY``, ``TOTAL_TASKS``, ``TOTAL_CPU`` and ``TOTAL_WRITTEN`` bound all processes of the
command together, in bytes, threads and seconds. The guard looks at them ten times a second, and at
the end once more: a process that lives for less than that is counted in the latter two at the end.
A command that is over one is killed, and the guard says which one and exits with 125. ``GROUP=8``
makes the directory with descriptor 8 the place of a control group for the command (``cgroups.py``),
in which the kernel keeps the first three totals as well, without a pause between two looks.

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
LOOK_EVERY = 0.1
"""Seconds between two looks at the totals of a command."""
TOTALS = {
    "TOTAL_MEMORY": "memory",
    "TOTAL_TASKS": "tasks",
    "TOTAL_CPU": "cpu",
    "TOTAL_WRITTEN": "written",
}
"""Names of the totals, and what the guard calls them."""
FAILED = 125
"""Exit code of a guard that could not do its work; the reason is the last line of the output."""

COMMAND_GROUP = "motet-command-"
"""The control group of a command; behind it stands the number of its guard."""

TICKS = os.sysconf("SC_CLK_TCK")

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


class Use(tuple[int, int, int, int, int]):
    """What one process has: threads, memory that is no file's, ticks, ticks with dead children, and
    bytes that it has written to disk."""


def tree(root: int) -> list[int]:
    """Every process below ``root``, as ``descendants``, but without a look at all of a machine."""
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                queue += children
        except OSError:
            if pid == root:  # a kernel without CONFIG_PROC_CHILDREN
                return descendants(root, parents())
    return found


def use_of(pid: int) -> Use | None:
    """None: the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read()
    except OSError:
        return None
    own, dead = int(stat[11]) + int(stat[12]), int(stat[13]) + int(stat[14])
    written = 0
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", "rb") as file:
        lines = dict(line.split(b": ") for line in file.read().splitlines())
        written = int(lines[b"write_bytes"]) - int(lines[b"cancelled_write_bytes"])
    memory = _kilobytes(status, b"RssAnon:", b"RssShmem:") << 10
    return Use((int(stat[17]), memory, own, own + dead, max(0, written)))


def share_of(pid: int) -> int:
    """The memory of a process, of shared pages its share; dearer than what ``use_of`` says."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return _kilobytes(file.read(), b"Pss_Anon:", b"Pss_Shmem:") << 10
    except OSError:
        found = use_of(pid)
        return 0 if found is None else found[1]


def _kilobytes(text: bytes, *names: bytes) -> int:
    """The sum of these lines of a file of ``/proc``."""
    rows = [line.split() for line in text.splitlines()]
    return sum(int(row[1]) for row in rows if row and row[0] in names)


class Totals:
    """What all processes of a command have and have used together, so far as it was seen."""

    def __init__(self, bounds: dict[str, int]) -> None:
        self._bounds = bounds
        self._live: dict[int, Use] = {}
        self._cpu = 0
        self._written = 0

    def over(self, root: int) -> str:
        """The name of a total that is exceeded; empty: none is."""
        live = {pid: use for pid in tree(root) if (use := use_of(pid)) is not None}
        for pid, use in self._live.items():
            after = live.get(pid)
            if after is None or after[2] < use[2]:  # it has ended, and so has its number
                self._cpu += use[2]
                self._written += use[4]
        self._live = live
        uses = live.values()
        ticks = max(self._cpu + sum(use[2] for use in uses), sum(use[3] for use in uses))
        memory = sum(use[1] for use in uses)
        if memory > self._bounds.get("TOTAL_MEMORY", memory):
            memory = sum(share_of(pid) for pid in live)  # a fork shares the pages of its parent
        return self._first(
            TOTAL_MEMORY=memory,
            TOTAL_TASKS=sum(use[0] for use in uses),
            TOTAL_CPU=ticks / TICKS,
            TOTAL_WRITTEN=self._written + sum(use[4] for use in uses),
        )

    def over_at_the_end(self) -> str:
        """As ``over``, for a command whose processes have ended; all were waited for."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self._first(
            TOTAL_CPU=used.ru_utime + used.ru_stime, TOTAL_WRITTEN=used.ru_oublock * 512
        )

    def _first(self, **used: float) -> str:
        for name, amount in used.items():
            if amount > self._bounds.get(name, amount):
                return TOTALS[name]
        return ""


class Group:
    """The control group of a command, in which the kernel keeps its totals.

    A total whose controller the group does not have is left to the looks of the guard.
    """

    def __init__(self, place: int, bounds: dict[str, int]) -> None:
        """Make it below the directory ``place``. Raises ``OSError``: it cannot be made."""
        self._place, self._name = place, f"{COMMAND_GROUP}{os.getpid()}"
        self._cpu = bounds.get("TOTAL_CPU", 0) * 1_000_000
        os.mkdir(self._name, dir_fd=place)
        if "TOTAL_TASKS" in bounds:
            self._write("pids.max", bounds["TOTAL_TASKS"])
        if "TOTAL_MEMORY" in bounds:
            # All of it at once, or a command would go on without one of its processes.
            self._write("memory.oom.group", 1)
            self._write("memory.swap.max", 0)
            self._write("memory.max", bounds["TOTAL_MEMORY"])

    def enter(self) -> None:
        """Move this process into it. Raises ``OSError``."""
        if not self._write("cgroup.procs", 0):
            raise OSError("the control group takes no process")

    def over(self) -> str:
        """The name of a total that is exceeded, or that the kernel had to enforce."""
        if self._number("memory.events", b"oom_kill"):
            return "memory"
        if self._number("pids.events", b"max"):
            return "tasks"
        return "cpu" if 0 < self._cpu < self._number("cpu.stat", b"usage_usec") else ""

    def kill(self) -> None:
        """Kill all of its processes at once, also those that are being forked (Linux 5.14)."""
        self._write("cgroup.kill", 1)

    def remove(self) -> None:
        """Remove it. A process that is about to vanish may be in it still."""
        for _ in range(50):
            try:
                os.rmdir(self._name, dir_fd=self._place)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.002)
            else:
                return

    def _number(self, name: str, key: bytes) -> int:
        try:
            file = os.open(f"{self._name}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._place)
        except OSError:
            return 0
        with open(file, "rb") as lines:
            rows = dict(line.split() for line in lines.read().splitlines())
        return int(rows.get(key, 0))

    def _write(self, name: str, value: int) -> bool:
        try:
            file = os.open(f"{self._name}/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._place)
        except OSError:
            return False
        try:
            os.write(file, b"%d" % value)
        except OSError:
            return False
        finally:
            os.close(file)
        return True


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
        place = self._limits.pop("GROUP", None)
        bounds = {name: self._limits.pop(name) for name in TOTALS if name in self._limits}
        self._totals = Totals(bounds) if bounds else None
        self._group = None if place is None else _group(place, bounds)
        self._over = ""
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
        over = self._over or self._over_at_the_end()
        if self._group is not None:
            self._group.remove()
        if not self._alone:
            return _fail("some processes could not be killed: " + _names())
        if over:
            return _fail(f"limit {over}")
        if self._status is None:
            return 128
        if os.WIFSIGNALED(self._status):
            _die_by(os.WTERMSIG(self._status))
        return os.waitstatus_to_exitcode(self._status)

    def _become_command(self, libc: ctypes.CDLL, guard: int) -> None:
        try:
            os.setsid()
            if self._group is not None:
                with contextlib.suppress(OSError):  # then the looks of the guard are left
                    self._group.enter()
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
        look, pause = 0.0, None
        while self._status is None and not self._alone:
            if self._totals is not None:
                now = time.monotonic()
                look = look or now + LOOK_EVERY
                if now >= look:
                    self._over = self._over_in_group() or self._totals.over(os.getpid())
                    look = time.monotonic() + LOOK_EVERY
                pause = max(0.0, look - time.monotonic())
            if self._over:
                self._grace = 0.0
                return
            ready, _, _ = select.select([0, self._wake], [], [], pause)
            self._collect()
            if 0 in ready and not self._pass_on(os.read(0, 64)):
                return

    def _over_in_group(self) -> str:
        return "" if self._group is None else self._group.over()

    def _over_at_the_end(self) -> str:
        if self._totals is None:
            return ""
        return self._over_in_group() or self._totals.over_at_the_end()

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
            if self._group is not None:
                self._group.kill()
            send(signal.SIGKILL)
            self._wait_until_alone(time.monotonic() + 0.02)

    def _wait_until_alone(self, deadline: float) -> None:
        while not self._alone and (left := deadline - time.monotonic()) > 0:
            select.select([self._wake], [], [], left)
            self._collect()


def _group(place: int, bounds: dict[str, int]) -> Group | None:
    """A group for the command; None: it cannot be made, and the looks of the guard are left."""
    os.set_inheritable(place, False)  # the command could leave its group by it
    try:
        return Group(place, bounds)
    except OSError:
        return None


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
