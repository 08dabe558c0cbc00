"""The filter of system calls, run by a small interpreter of classic BPF."""

from __future__ import annotations

import struct

import pytest

from motet.protocols.seccomp import TIOCLINUX, TIOCSTI, seccomp_filter

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {
    "x86_64": {"read": 0, "execve": 59, "clone": 56, "unshare": 272, "ioctl": 16, "mount": 165},
    "aarch64": {"read": 63, "execve": 221, "clone": 220, "unshare": 97, "ioctl": 29, "mount": 40},
}
ALLOWED, KILLED, REFUSED, ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
THREAD, FORK = 0x3D0F00, 0x1200011  # flags of pthread_create and of fork in glibc


def decision(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The answer of the filter to a call."""
    program = seccomp_filter(machine)
    assert program is not None
    steps = list(struct.iter_unpack("=HBBI", program))
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, audit or AUDIT[machine], 0, *given)
    at = word = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        match code:
            case 0x20:
                (word,) = struct.unpack_from("=I", data, value)
            case 0x15:
                at += if_true if word == value else if_false
            case 0x35:
                at += if_true if word >= value else if_false
            case 0x45:
                at += if_true if word & value else if_false
            case _:
                assert code == 0x06
                return int(value)


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_ordinary_calls_are_allowed(machine: str) -> None:
    calls = CALLS[machine]
    for name in ("read", "execve"):
        assert decision(machine, calls[name]) == ALLOWED
    for flags in (THREAD, FORK):
        assert decision(machine, calls["clone"], flags) == ALLOWED
    assert decision(machine, calls["unshare"], 0x400) == ALLOWED  # CLONE_FILES
    assert decision(machine, calls["ioctl"], 1, 0x5401) == ALLOWED  # TCGETS: isatty


@pytest.mark.parametrize("bit", [17, 25, 26, 27, 28, 29, 30])
def test_no_namespace_can_be_made(machine: str, bit: int) -> None:
    calls = CALLS[machine]
    assert decision(machine, calls["clone"], 1 << bit | 17) == REFUSED
    assert decision(machine, calls["unshare"], 1 << bit) == REFUSED
    assert decision(machine, calls["unshare"], 0x80) == REFUSED
    assert decision(machine, 435) == ABSENT


@pytest.mark.parametrize("command", [TIOCSTI, TIOCLINUX, TIOCSTI | 1 << 32, TIOCLINUX | 7 << 40])
def test_nothing_is_typed_into_a_terminal(machine: str, command: int) -> None:
    assert decision(machine, CALLS[machine]["ioctl"], 0, command) == REFUSED


def test_the_mounts_and_the_ring_are_closed(machine: str) -> None:
    assert decision(machine, CALLS[machine]["mount"]) == REFUSED
    assert {decision(machine, number) for number in (*range(425, 434), 442)} == {ABSENT}


def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    for audit in (0x40000003, 0x40000028):
        assert decision(machine, 4, audit=audit) == KILLED
    assert decision("x86_64", 0x40000000 | 520) == KILLED


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp_filter("riscv64") is None
