"""The filter of system calls for the sandbox of commands: a classic BPF program, as plain bytes.

It closes what namespaces leave open: a nested user namespace, in which a program is root and can
reach much more of the kernel; the two ``ioctl`` that type into the terminal of the host
(bubblewrap's manual names TIOCSTI, CVE-2017-5226, and TIOCLINUX, CVE-2023-28100); and calls that
ordinary programs do not make. The list is that of Flatpak, which confines programs by bubblewrap
too, with ``bpf``, ``userfaultfd`` and ``io_uring``.

Invariants:
    - It looks at numbers and words of a call only, never behind a pointer, which another thread
      could change. ``clone3``, whose flags are behind one, does not exist: libraries use ``clone``.
    - Of a command of ``ioctl`` the lower 32 bits count, as they do for the kernel (CVE-2019-10063).
    - ``memfd_create`` does not exist, since nothing counts the memory of such a file: libraries use
      ``/dev/shm``, which is bounded.
    - ``fallocate`` is not supported, since it takes the disk without a write that is counted: the C
      library writes instead.
    - A call of another architecture (32-bit, x32) has other numbers, so it ends the process.

Source: linux/seccomp.h, linux/bpf_common.h; Flatpak, common/flatpak-run.c (``setup_seccomp``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EOPNOTSUPP = 1, 38, 95
_X32 = 0x40000000

NAMESPACES: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_NEW_TIME = 0x80
"""CLONE_NEWTIME; in ``clone``, this bit is a part of the signal at the end."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C


class _Machine(msgspec.Struct, frozen=True):
    """An architecture: its number in the audit interface, and of its calls.

    ``none``: those that do not exist; ``denied``: those that are refused.
    """

    audit: int
    clone: int
    memfd: int
    fallocate: int
    unshare: int
    ioctl: int
    denied: tuple[int, ...]
    x32: bool = False


_NONE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 442)
"""io_uring_setup, _enter and _register; open_tree, move_mount, fsopen, fsconfig, fsmount, fspick;
clone3; mount_setattr. Their numbers are the same everywhere."""

_MACHINES: Final[Mapping[str, _Machine]] = {
    # setns, mount, umount2, pivot_root, chroot; syslog, acct, quotactl and _fd, swapon, swapoff,
    # reboot, vhangup; add_key, request_key, keyctl; move_pages, migrate_pages, mbind,
    # get_mempolicy, set_mempolicy and _home_node; kexec_load and _file_load; init_module,
    # finit_module, delete_module; bpf, perf_event_open, userfaultfd; the clock's three; uselib,
    # iopl, ioperm, modify_ldt, open_by_handle_at
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        memfd=319,
        fallocate=285,
        unshare=272,
        ioctl=16,
        denied=(
            *(308, 165, 166, 155, 161),
            *(103, 163, 179, 443, 167, 168, 169, 153),
            *(248, 249, 250),
            *(279, 256, 237, 239, 238, 450),
            *(246, 320, 175, 313, 176),
            *(321, 298, 323, 164, 227, 305),
            *(134, 172, 173, 154, 304),
        ),
        x32=True,
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        memfd=279,
        fallocate=47,
        unshare=97,
        ioctl=29,
        denied=(
            *(268, 40, 39, 41, 51),
            *(116, 89, 60, 443, 224, 225, 142, 58),
            *(217, 218, 219),
            *(239, 238, 235, 236, 237, 450),
            *(104, 294, 105, 273, 106),
            *(280, 241, 282, 170, 112, 266),
            265,
        ),
    ),
}


def seccomp_filter(machine: str) -> bytes | None:
    """The program for ``bwrap --seccomp``; None for an architecture whose calls are not known.

    ``machine``: as ``os.uname().machine`` names it.
    """
    known = _MACHINES.get(machine)
    if known is None:
        return None
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, known.audit, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if known.x32:
        steps += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _KILL)]
    for number in (*_NONE, known.memfd):
        steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERROR | _ENOSYS)]
    steps += [_step(_EQUAL, known.fallocate, 0, 1), _step(_RETURN, _ERROR | _EOPNOTSUPP)]
    for number in known.denied:
        steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERROR | _EPERM)]
    steps += _with_argument(known.clone, 0, [(_ANY_BIT, NAMESPACES)])
    steps += _with_argument(known.unshare, 0, [(_ANY_BIT, NAMESPACES | _NEW_TIME)])
    steps += _with_argument(known.ioctl, 1, [(_EQUAL, TIOCSTI), (_EQUAL, TIOCLINUX)])
    steps.append(_step(_RETURN, _ALLOW))
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction; the jumps are relative to the next one."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _with_argument(number: int, argument: int, tests: Sequence[tuple[int, int]]) -> list[bytes]:
    """Refuse the call if one of the tests is true of the argument's lower half; else allow it."""
    refusal = len(tests)
    steps = [_step(_EQUAL, number, 0, refusal + 3), _step(_LOAD, _ARGUMENTS + 8 * argument)]
    for at, (code, value) in enumerate(tests):
        last = at == refusal - 1
        steps.append(_step(code, value, refusal - at - 1, 1 if last else 0))
    return [*steps, _step(_RETURN, _ERROR | _EPERM), _step(_RETURN, _ALLOW)]
