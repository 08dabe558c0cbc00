"""The command line that confines a program to one folder, by bubblewrap. Pure but for
:func:`inspect_machine` and :func:`descriptor_of`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import PurePosixPath

import msgspec

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


class Owner(msgspec.Struct, frozen=True):
    """A numeric user and group."""

    uid: int
    gid: int


class Machine(msgspec.Struct, frozen=True):
    """The programs and folders of a machine that the command line depends on.

    ``links``, with their targets, and ``folders``: entries of ``/`` such as ``lib64``; ``kind``:
    its architecture.
    """

    bwrap: str | None
    setpriv: str | None
    prlimit: str | None
    shell: str
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    root: bool
    kind: str = ""


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
        kind=os.uname().machine,
    )


@contextmanager
def descriptor_of(content: bytes | None) -> Generator[int | None]:
    """A file in memory with the content, for the length of the block; None: without one."""
    if content is None:
        yield None
        return
    descriptor = os.memfd_create("motet", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def unfit(workspace: str) -> bool:
    """Whether a resolved folder is a part of the system, which a sandbox must not share."""
    return workspace in _UNFIT or any(
        workspace == name or workspace.startswith(f"{name}/") for name in _SYSTEM
    )


def sandbox_argv(
    machine: Machine,
    workspace: str,
    owner: Owner,
    command: str,
    *,
    network: bool,
    processes: int = PROCESSES,
    calls: int | None = None,
) -> list[str]:
    """The confined command.

    ``workspace``: absolute and resolved; ``owner``: used by root only; ``network``: it has one;
    ``processes``: threads and processes of the owner; ``calls``: descriptor of the filter of system
    calls (:mod:`motet.protocols.seccomp`).
    """
    assert machine.bwrap is not None
    return [
        machine.bwrap,
        *_namespaces(machine, network),
        *_mounts(machine, network, workspace),
        *_environment(),
        *(() if calls is None else ("--seccomp", str(calls))),
        "--",
        *_drop(machine, owner),
        *_process_limit(machine, processes),
        machine.shell,
        "-c",
        command,
    ]


def unsafe_argv(machine: Machine, command: str) -> list[str]:
    """The command without a sandbox."""
    return [machine.shell, "-c", command]


def _namespaces(machine: Machine, network: bool) -> list[str]:
    kinds = ["ipc", "pid", "uts", "cgroup-try"]
    if not network:
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


def _mounts(machine: Machine, network: bool, workspace: str) -> list[str]:
    scratch = str(SCRATCH_MB << 20)
    outside = (*_LOOKUP, *(_NETWORK if network else ()))
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


def _process_limit(machine: Machine, processes: int) -> list[str]:
    """Set inside the sandbox, where only its processes count, not all of the user's."""
    if machine.prlimit is None:
        return []
    return [machine.prlimit, f"--nproc={processes}", "--"]
