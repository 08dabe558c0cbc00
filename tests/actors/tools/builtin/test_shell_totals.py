"""The totals of all processes of a command together, and the system calls that it has not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from attrs import evolve

from motet.actors.tools.builtin.shell import Shell
from motet.protocols.command_limits import command_limits, ending, is_unsupervised, over
from motet.protocols.config import ShellConfig
from motet.protocols.tools import ToolNegative

Mode = Literal["sandbox", "unsafe"]
CONFIG = ShellConfig(timeout=30)
PYTHON = "/usr/bin/python3"


@pytest.fixture(params=["sandbox", "unsafe"])
def mode(request: pytest.FixtureRequest) -> Mode:
    mode: Mode = request.param
    if mode == "sandbox":
        request.getfixturevalue("sandbox")
    return mode


async def refused(workspace: Path, command: str, config: ShellConfig) -> str:
    """The words of the failure, which names a limit; nothing of the command is left."""
    with pytest.raises(ToolNegative) as failed:
        await Shell(config).run(workspace, command)
    assert failed.value.kind == "exit"
    return str(failed.value)


@pytest.mark.slow
async def test_processes_that_are_small_each_have_a_total_of_memory(
    workspace: Path, mode: Mode
) -> None:
    """``tail`` keeps a line without an end in memory."""
    hold = "(head -c 40M /dev/zero | tail -n 1 | sleep 25) & "
    config = evolve(CONFIG, mode=mode, memory_mb=64, total_memory_mb=64)
    assert "more than 64 MiB of memory (total_memory_mb)" in await refused(
        workspace, f"{hold * 3} wait", config
    )


@pytest.mark.slow
async def test_shared_memory_counts_once(sandbox: None, workspace: Path) -> None:
    """A process with 50 MiB and five forks of it have 50 MiB."""
    del sandbox
    if not os.path.exists(PYTHON):
        pytest.skip("no python3 of the system")
    program = (
        "import os, time; held = b'x' * (50 << 20)\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0: time.sleep(0.25); os._exit(0)\n"
        "for _ in range(5): os.wait()\n"
        "print('fine')"
    )
    config = evolve(CONFIG, total_memory_mb=120)
    assert "fine" in await Shell(config).run(workspace, f'{PYTHON} -c "{program}"')


@pytest.mark.slow
async def test_a_crowd_of_processes_is_ended(workspace: Path, mode: Mode) -> None:
    crowd = "for i in $(seq 40); do sleep 25 & done; wait"
    told = await refused(workspace, crowd, evolve(CONFIG, mode=mode, processes=16))
    assert "16 processes and threads" in told


@pytest.mark.extended
async def test_processes_have_a_total_of_processor_time(sandbox: None, workspace: Path) -> None:
    del sandbox
    busy = "(while :; do :; done) & " * 4
    told = await refused(workspace, f"{busy} wait", evolve(CONFIG, cpu_seconds=1))
    assert "more than 1 s of processor time (cpu_seconds)" in told


@pytest.mark.slow
@pytest.mark.parametrize("after", ["; sleep 25", ""], ids=["while it runs", "at its end"])
async def test_processes_have_a_total_of_written_bytes(
    workspace: Path, mode: Mode, after: str
) -> None:
    write = "for i in 1 2 3 4; do head -c 6M /dev/zero > f$i; done" + after
    told = await refused(workspace, write, evolve(CONFIG, mode=mode, written_mb=16))
    assert "more than 16 MiB written to disk (written_mb)" in told


async def test_a_command_within_its_totals_is_left_alone(workspace: Path, mode: Mode) -> None:
    config = evolve(CONFIG, mode=mode, processes=16, written_mb=16)
    assert await Shell(config).run(workspace, "head -c 1M /dev/zero > f; sleep 0.15; echo ok") == (
        "ok\n"
    )


def test_the_guard_says_which_total_was_met_and_nobody_else_does() -> None:
    assert over(125, "words\n\nguard: limit memory\n") == "memory"
    assert over(1, "guard: limit memory\n") == ""
    assert over(125, "guard: limit words\n") == ""
    assert is_unsupervised(125, "guard: limit words\n")
    assert not is_unsupervised(125, "guard: limit cpu\n")
    config = ShellConfig(written_mb=7)
    assert "7 MiB written" in ending(125, "guard: limit written", config)
    assert command_limits(config, 2)["RLIMIT_FSIZE"] == 7 << 20


# System calls

DENIED = {
    "a nested user namespace": "unshare -U true",
    "another namespace": "unshare -m true",
    "the disk without a write": "fallocate -l 100M f",
    "a nested sandbox": "bwrap --ro-bind / / true",
}


async def test_the_sandbox_has_not_each_call_of_the_system(sandbox: None, workspace: Path) -> None:
    del sandbox
    tries = "\n".join(f"{command} 2>&1 && echo done" for command in DENIED.values())
    said = await Shell(CONFIG).run(workspace, f"cd /tmp\n{tries}\ntrue")
    lines = said.splitlines()
    assert len(lines) == len(DENIED)
    refusals = ("not permitted", "No permissions", "not supported")
    assert all(any(one in line for one in refusals) for line in lines), said


CALLS = """\
import ctypes, errno, fcntl, os, pty
libc = ctypes.CDLL(None, use_errno=True)

def failing(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def call(*words):
    if libc.syscall(*words) < 0:
        raise OSError(ctypes.get_errno(), "")

ours, theirs = pty.openpty()
print("TIOCSTI", failing(lambda: fcntl.ioctl(theirs, 0x5412, b"x")))
print("TIOCLINUX", failing(lambda: fcntl.ioctl(theirs, 0x541C, b"x")))
print("TCGETS", failing(lambda: fcntl.ioctl(theirs, 0x5401, bytes(60))))
print("memfd", failing(lambda: os.memfd_create("x")))
print("fallocate", failing(lambda: os.posix_fallocate(os.open("/tmp/f", 66), 0, 4096)))
print("size", os.stat("/tmp/f").st_size)
print("clone3", failing(lambda: call(435, 0, 0)))
print("io_uring", failing(lambda: call(425, 1, 0)))
"""


async def test_nothing_is_typed_into_a_terminal_from_the_sandbox(
    sandbox: None, workspace: Path
) -> None:
    del sandbox
    if not os.path.exists(PYTHON):
        pytest.skip("no python3 of the system")
    (workspace / "calls.py").write_text(CALLS)
    said = await Shell(CONFIG).run(workspace, f"{PYTHON} calls.py")
    assert said.split("\n")[:-1] == [
        "TIOCSTI EPERM",
        "TIOCLINUX EPERM",
        "TCGETS done",
        "memfd ENOSYS",
        "fallocate done",
        "size 4096",
        "clone3 ENOSYS",
        "io_uring ENOSYS",
    ]


ORDINARY = {
    "seq 3 | sort -r | head -n 1": "3",
    "sleep 0 & wait && echo done": "done",
    "echo x > /tmp/a && cd /tmp && tar cf - a | tar tf -": "a",
    "awk 'BEGIN { print 6 * 7 }'": "42",
    "echo 1 | xargs -P 4 -n 1 echo": "1",
}


async def test_ordinary_programs_work(sandbox: None, workspace: Path) -> None:
    del sandbox
    said = await Shell(CONFIG).run(workspace, "\n".join(ORDINARY))
    assert said.split() == list(ORDINARY.values())
