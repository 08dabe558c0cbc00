"""The shell tool: a command in the workspace, confined by bubblewrap.

Invariant: in mode ``sandbox`` a command runs confined or not at all. Bubblewrap is tested before
the first command, since user namespaces may be switched off.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import attrs
import msgspec
import trio

from motet.actors.tools.builtin.paths import NOBODY, Owner, owner_of
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, ToolFailure, ToolNegative, tool
from motet.protocols.chat import JsonObject
from motet.protocols.config import ShellConfig
from motet.runtime import processes
from motet.runtime.process_guard import FAILED
from motet.runtime.processes import Finished, environment, run_command

# The command line of bubblewrap is built from plain data. Its parts, with their reasons:
#     - ``/usr`` is read-only, and of ``/etc`` only two entries are there, for finding programs: a
#       file that is absent cannot be read, whatever its mode.
#     - Own namespaces for processes, network, IPC and host name: no other process can be seen or
#       signalled, no service of the host reached.
#     - When the host is root, bubblewrap sets up the mounts as root and ``setpriv`` drops to an
#       ordinary user inside. ``bwrap --uid`` would only rename root, who still reads every file;
#       dropping before bubblewrap would make a workspace below ``/root`` unreachable.
#     - The last options make ``/`` and ``/dev`` read-only: only the workspace, ``/tmp`` and
#       ``/dev/shm`` can be written, the latter two in memory and bounded.
# A size limit holds for each process, not for their sum.

FILE_MB = 1024
SCRATCH_MB = 512
PROCESSES = 512
PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store")
_LOOKUP = ("/etc/ld.so.cache", "/etc/alternatives")
_NETWORK = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)
_SYSTEM = ("/usr", "/etc", "/proc", "/dev", "/sys", "/run", "/boot", "/bin", "/sbin", "/lib")
_UNFIT = frozenset({"/", "/tmp", "/home", "/root", "/var", "/opt", "/srv", "/mnt", "/media"})


class Machine(msgspec.Struct, frozen=True):
    """The programs and folders of a machine that the command line depends on.

    ``links``, with their targets, and ``folders``: entries of ``/`` such as ``lib64``.
    """

    bwrap: str | None
    setpriv: str | None
    prlimit: str | None
    shell: str
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    root: bool


def inspect_machine() -> Machine:
    """The machine that the host runs on."""
    paths = [(name, f"/{name}") for name in _TOP]
    return Machine(
        bwrap=shutil.which("bwrap"),
        setpriv=shutil.which("setpriv"),
        prlimit=shutil.which("prlimit", path=PATH),
        shell="/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        links=tuple((name, os.readlink(path)) for name, path in paths if os.path.islink(path)),
        folders=tuple(
            name for name, path in paths if os.path.isdir(path) and not os.path.islink(path)
        ),
        root=os.geteuid() == 0,
    )


def unfit(workspace: str) -> bool:
    """Whether a resolved folder is a part of the system, which a sandbox must not share."""
    return workspace in _UNFIT or any(
        workspace == name or workspace.startswith(f"{name}/") for name in _SYSTEM
    )


def sandbox_argv(
    machine: Machine, config: ShellConfig, workspace: str, owner: Owner, command: str
) -> list[str]:
    """The confined command. ``workspace``: absolute and resolved; ``owner``: used by root only."""
    assert machine.bwrap is not None
    return [
        machine.bwrap,
        *_namespaces(machine, config),
        *_mounts(machine, config, workspace),
        *_environment(),
        "--",
        *_drop(machine, owner),
        *_process_limit(machine),
        machine.shell,
        "-c",
        command,
    ]


def unsafe_argv(machine: Machine, command: str) -> list[str]:
    """The command without a sandbox."""
    return [machine.shell, "-c", command]


def limits(config: ShellConfig) -> dict[str, int]:
    """The resource limits of each process of a command."""
    return {
        "RLIMIT_CPU": math.ceil(config.timeout) * (os.cpu_count() or 1) + 1,
        # Not RLIMIT_AS: node and Go reserve address space that they never use.
        "RLIMIT_DATA": config.memory_mb << 20,
        "RLIMIT_FSIZE": FILE_MB << 20,
    }


def _namespaces(machine: Machine, config: ShellConfig) -> list[str]:
    kinds = ["ipc", "pid", "uts", "cgroup-try"]
    if not config.network:
        kinds.append("net")
    if not machine.root:
        kinds.append("user")
    options = [f"--unshare-{kind}" for kind in kinds]
    options += ["--die-with-parent", "--new-session"]
    if machine.root:
        # setpriv needs these to change its user, and bwrap to enter a workspace that is closed to
        # others; setpriv drops all of them.
        needed = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
        options += ["--cap-drop", "ALL"]
        options += [word for cap in needed for word in ("--cap-add", cap)]
    return options


def _mounts(machine: Machine, config: ShellConfig, workspace: str) -> list[str]:
    scratch = str(SCRATCH_MB << 20)
    outside = (*_LOOKUP, *(_NETWORK if config.network else ()))
    return [
        *("--ro-bind", "/usr", "/usr"),
        *(word for name, to in machine.links for word in ("--symlink", to, f"/{name}")),
        *(word for name in machine.folders for word in _bind("--ro-bind", f"/{name}")),
        *(word for path in outside for word in _bind("--ro-bind-try", path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", scratch, "--perms", "1777", "--tmpfs", "/dev/shm"),
        *("--size", scratch, "--perms", "1777", "--tmpfs", "/tmp"),
        *_bind("--bind", workspace),
        *("--chdir", workspace, "--remount-ro", "/dev", "--remount-ro", "/"),
    ]


def _bind(option: str, path: str) -> list[str]:
    """Mount ``path`` at the same path, below folders that everybody may enter."""
    folders = [str(folder) for folder in reversed(PurePosixPath(path).parents)][1:]
    return [*(word for folder in folders for word in ("--dir", folder)), option, path, path]


def _environment() -> list[str]:
    variables = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8"}
    words = [w for name, value in variables.items() for w in ("--setenv", name, value)]
    return ["--clearenv", *words]


def _drop(machine: Machine, owner: Owner) -> list[str]:
    if not machine.root:
        return []
    assert machine.setpriv is not None
    return [
        machine.setpriv,
        *("--reuid", str(owner.uid), "--regid", str(owner.gid), "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"),
    ]


def _process_limit(machine: Machine) -> list[str]:
    """Set inside the sandbox, where only its processes count, not all of the user's."""
    if machine.prlimit is None:
        return []
    return [machine.prlimit, f"--nproc={PROCESSES}", "--"]


MAX_COMMAND = 100_000
"""The longest command in bytes; the kernel takes 131,072 for one argument."""

PROBE_TIMEOUT = 10.0
MARGIN = 10.0
"""Seconds that the tool's time-out exceeds the command's, whose message says more."""

_UNSAFE_HINT = "or configure shell mode 'unsafe' to run commands unconfined, as the host's own user"
_MEMORY_WORDS = re.compile(
    r"MemoryError|cannot allocate memory|bad_alloc|out of memory|memory exhausted", re.IGNORECASE
)


@attrs.define(eq=False)
class Shell:
    """Runs commands as configured; one per host, shared by all sessions."""

    config: ShellConfig
    inspect: Callable[[], Machine] = inspect_machine
    _proven: Machine | None = attrs.field(default=None, init=False)

    async def run(self, workspace: Path, command: str, timeout: float | None = None) -> str:
        """Run ``command`` by the shell in ``workspace``, and return its output.

        A cancellation first ends every process of the command.

        Raises:
            ToolFailure: it could not be run.
            ToolNegative: it timed out (``timeout``) or failed (``exit``), with its output.
        """
        seconds = self._seconds(timeout)
        _check_command(command)
        if self.config.mode == "off":
            off = "the shell is switched off (shell mode 'off')"
            raise ToolFailure(off, kind="permission", failure="refusal")
        folder = os.path.realpath(workspace)
        if processes.simulated():  # no command reaches this machine
            argv = ["sh", "-c", command]
            return _result(await self._start(argv, folder, seconds), seconds, self.config, "")
        if sys.platform != "linux":
            raise ToolFailure(
                "the shell tool needs Linux",
                code="NO_SANDBOX",
                kind="permission",
                failure="infrastructure",
            )
        if self.config.mode == "unsafe":
            argv = unsafe_argv(self.inspect(), command)
            return _result(await self._start(argv, folder, seconds), seconds, self.config, "")
        machine, owner, note = await self._sandbox(folder)
        argv = sandbox_argv(machine, self.config, folder, owner, command)
        return _result(await self._start(argv, folder, seconds), seconds, self.config, note)

    def _seconds(self, timeout: float | None) -> float:
        longest = self.config.timeout
        if timeout is None:
            return longest
        if not 0 < timeout <= longest:
            message = f"timeout is above 0 and at most {longest:g} seconds, not {timeout:g}"
            raise ToolFailure(message, kind="validation")
        return timeout

    async def _sandbox(self, folder: str) -> tuple[Machine, Owner, str]:
        if unfit(folder):
            raise ToolFailure(
                f"the workspace {folder} is part of the system and cannot be handed to a sandbox; "
                "configure a folder of its own",
                kind="permission",
                failure="refusal",
            )
        machine = self._proven or await self._prove(folder)
        try:
            owner = await trio.to_thread.run_sync(owner_of, Path(folder))
        except OSError as error:
            raise _no_start(folder, error) from error
        if owner is None and machine.root:
            note = (
                f"the workspace belongs to root and commands run as user {NOBODY}; to let them "
                f"write: chown -R {NOBODY}:{NOBODY} {folder}, or run the host as an ordinary user"
            )
            return machine, Owner(NOBODY, NOBODY), note
        return machine, owner or Owner(os.geteuid(), os.getegid()), ""

    async def _prove(self, folder: str) -> Machine:
        """Test the sandbox. Only success is remembered: a failure may be temporary."""
        machine = self.inspect()
        needed = {"bubblewrap": machine.bwrap}
        if machine.root:
            needed["setpriv (util-linux)"] = machine.setpriv
        absent = [name for name, path in needed.items() if path is None]
        if absent:
            raise _no_sandbox(f"{' and '.join(absent)} is not installed")
        argv = sandbox_argv(machine, self.config, folder, Owner(NOBODY, NOBODY), "exit 0")
        tried = await self._start(argv, folder, PROBE_TIMEOUT)
        if tried.code or tried.timed_out:
            lines = tried.output.strip().splitlines()
            raise _no_sandbox(f"bubblewrap does not work here ({lines[-1] if lines else 'silent'})")
        self._proven = machine
        return machine

    async def _start(self, argv: list[str], folder: str, seconds: float) -> Finished:
        try:
            return await run_command(
                argv,
                cwd=folder,
                env=environment(),
                limits=limits(self.config),
                timeout=seconds,
                room=self.config.output_chars,
            )
        except OSError as error:
            raise _no_start(folder, error) from error


def shell_tool(config: ShellConfig) -> Tool:
    """The ``shell`` tool."""
    runner = Shell(config)
    confined = {
        "sandbox": "It is confined: it can change the workspace and /tmp only, "
        f"and has {'network' if config.network else 'no network'}.",
        "unsafe": "It is not confined.",
        "off": "It is switched off.",
    }[config.mode]

    async def shell(ctx: Context[object], command: str, timeout: float | None = None) -> str:
        return await runner.run(ctx.workspace, command, timeout)

    return tool(
        shell,
        description=f"Run a shell command in the workspace and return its output. {confined} "
        "Each call is a new shell; what still runs when the command returns is ended. "
        f"It may take {config.timeout:g} seconds; a lower limit can be given as timeout.",
        timeout=config.timeout + MARGIN + PROBE_TIMEOUT,
        max_output=config.output_chars + 1_000,
        effects="write",
        polling=True,
    )


def _check_command(command: str) -> None:
    problem = ""
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        problem = "has half of a surrogate pair in it, which no text can hold"
    else:
        if not command.strip():
            problem = "is empty"
        elif "\0" in command:
            problem = "contains a NUL character"
        elif size > MAX_COMMAND:
            problem = f"has {size:,} bytes of {MAX_COMMAND:,}; write a script and run that"
    if problem:
        raise ToolFailure(f"the command {problem}", kind="validation")


def _no_sandbox(reason: str) -> ToolFailure:
    return ToolFailure(
        f"no command was run: {reason}; install bubblewrap where user namespaces are allowed, "
        f"{_UNSAFE_HINT}",
        code="NO_SANDBOX",
        kind="permission",
        failure="infrastructure",
    )


def _no_start(folder: str, error: OSError) -> ToolFailure:
    return ToolFailure(
        f"the command could not be started in {folder}: {error.strerror or error}", kind="unknown"
    )


def _result(done: Finished, seconds: float, config: ShellConfig, note: str) -> str:
    if done.code == 0 and not done.timed_out:
        return done.output or "[no output]"
    reason = f"ran longer than {seconds:g} s and was ended" if done.timed_out else _ending(done)
    if not done.timed_out and _MEMORY_WORDS.search(done.output):
        reason += f"; each process may allocate {config.memory_mb} MiB"
    message = f"the command {reason}" + (f"; {note}" if note else "")
    last = "\n".join(done.output.rstrip().splitlines()[-5:])[-500:]
    told = f"{message}\n{last}" if last else message
    detail: JsonObject = {
        "message": message,
        "exit_code": done.code,
        "timed_out": done.timed_out,
        "output": done.output,
        "output_bytes": done.total,
    }
    if _is_unsupervised(done):
        raise ToolFailure(told, detail=detail, kind="exit")
    raise ToolNegative(
        told,
        value=f"{message}\n{done.output}" if last else message,
        detail=detail,
        kind="timeout" if done.timed_out else "exit",
    )


def _is_unsupervised(done: Finished) -> bool:
    """Whether the guard of the command has failed, and not the command."""
    return done.code == FAILED and done.output.rstrip().rpartition("\n")[2].startswith("guard: ")


def _ending(done: Finished) -> str:
    if _is_unsupervised(done):
        return "could not be supervised"
    try:
        name = signal.Signals(done.code - 128).name
    except ValueError:
        return f"failed with exit code {done.code}"
    why = {
        "SIGKILL": " (perhaps the machine was out of memory)",
        "SIGXCPU": " (it used up its processor time)",
        "SIGXFSZ": f" (it wrote a file of more than {FILE_MB} MiB)",
    }.get(name, "")
    return f"was killed by {name}{why}, exit code {done.code}"
