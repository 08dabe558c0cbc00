"""The command line that confines a command, built from plain data.

What bubblewrap is asked for, and why:
    - ``/usr`` read-only and nothing of ``/etc`` but the two files programs are found by: what is
      not there cannot be read, whatever the modes say.
    - Namespaces of its own for processes, network, IPC and host name: no other process can be
      seen or signalled, no service of the host reached.
    - When the host is root, bubblewrap sets the mounts up as root and ``setpriv`` drops to an
      ordinary user inside. ``bwrap --uid`` would only rename root, who still reads every file;
      and dropping before bubblewrap could not reach a workspace below ``/root``.
    - The last steps make ``/`` and ``/dev`` read-only: only the workspace, ``/tmp`` and
      ``/dev/shm`` can be written, the latter two in memory and bounded.

A size limit holds for each process, not for their sum.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import PurePosixPath

import msgspec

from motet.actors.tools.builtin.ownership import Owner
from motet.protocols.config import ShellConfig

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
    """What the command line depends on besides the call: the programs and folders there are.

    ``links`` and ``folders`` are the entries of ``/`` such as ``lib64``, the former with targets.
    """

    bwrap: str | None
    setpriv: str | None
    prlimit: str | None
    shell: str
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    root: bool


def inspect_machine() -> Machine:
    """Look at this machine."""
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
    """Whether a resolved folder is a part of the system, which no sandbox may hand over."""
    return workspace in _UNFIT or any(
        workspace == name or workspace.startswith(f"{name}/") for name in _SYSTEM
    )


def sandbox_argv(
    machine: Machine, config: ShellConfig, workspace: str, owner: Owner, command: str
) -> list[str]:
    """The confined command. ``workspace`` is absolute and resolved; ``owner`` is for root only."""
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
    """The command as it is."""
    return [machine.shell, "-c", command]


def limits(config: ShellConfig) -> dict[str, int]:
    """What each process of a command may use."""
    return {
        "RLIMIT_CPU": math.ceil(config.timeout) * (os.cpu_count() or 1) + 1,
        # Not RLIMIT_AS: address space that is only reserved, as node and Go do, costs nothing.
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
        # What setpriv needs to become somebody else, and bwrap to enter a workspace that only its
        # owner may enter; setpriv leaves none of them.
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
    """Mount ``path`` at its own place, in folders that everybody may enter."""
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
    """Set inside, where only the sandbox's processes are counted, not all of the user's."""
    if machine.prlimit is None:
        return []
    return [machine.prlimit, f"--nproc={PROCESSES}", "--"]
