"""Child processes: three streams, an end, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from secrets import randbelow

import pytest
import trio

from motet.runtime import processes
from motet.runtime.processes import Child, open_child
from tests.processes import alive, wait_alive

HOST = """
import sys, trio
from motet.runtime.processes import open_child

async def main():
    async with open_child(sys.argv[1:]) as child:
        await child.wait()

trio.run(main)
"""


def marked() -> str:
    return f"1000.{randbelow(10**9):09}"


async def all_of(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def none_left(mark: str) -> None:
    """At once with a guard; without one the kernel may still be ending the killed processes."""
    if not processes.GUARDED:
        with trio.fail_after(60):
            while alive(mark):
                await trio.sleep(0.01)
    assert alive(mark) == []


@pytest.fixture(params=["guard", "group"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GUARDED", request.param == "guard")


@pytest.mark.usefixtures("both_ways")
class TestBothWays:
    async def test_stdin_stdout_and_stderr_are_separate_streams(self) -> None:
        async with open_child(["sh", "-c", "cat; echo oops >&2; exit 3"]) as child:
            await child.stdin.send_all(b"hello")
            await child.stdin.aclose()
            assert await all_of(child.stdout) == b"hello"
            assert await all_of(child.stderr) == b"oops\n"
            assert await child.wait() == child.returncode == 3

    async def test_a_program_killed_by_a_signal_returns_128_plus_its_number(self) -> None:
        async with open_child(["sh", "-c", "kill -TERM $$"]) as child:
            assert await child.wait() == 128 + signal.SIGTERM

    async def test_a_program_gets_the_given_environment_and_folder(self, tmp_path: Path) -> None:
        env = {"PATH": os.environ["PATH"], "ONLY": "this"}
        async with open_child(["sh", "-c", "pwd; echo $ONLY$HOME"], cwd=tmp_path, env=env) as child:
            assert await all_of(child.stdout) == f"{tmp_path}\nthis\n".encode()

    @pytest.mark.parametrize("program", ["no-such-program", "./none", "/no/such/program"])
    async def test_a_missing_program_is_named_in_the_error(self, program: str) -> None:
        with pytest.raises(FileNotFoundError, match=program):
            async with open_child([program]):
                pass

    async def test_leaving_the_block_ends_the_program_and_its_children(self) -> None:
        mark = marked()
        async with open_child(["sh", "-c", f"sleep {mark} & sleep {mark}"]):
            await wait_alive(mark, 2)
        await none_left(mark)

    async def test_a_cancellation_ends_a_program_that_ignores_sigterm(self) -> None:
        mark = marked()
        with trio.CancelScope() as scope:
            async with open_child(["sh", "-c", f"trap '' TERM; sleep {mark}; :"]):
                await wait_alive(mark, 1)
                scope.cancel()
                await trio.sleep_forever()
        await none_left(mark)

    async def test_writing_to_an_ended_program_is_an_error(self) -> None:
        async with open_child(["true"]) as child:
            await child.wait()
            with pytest.raises(trio.BrokenResourceError):
                await child.stdin.send_all(b"x")

    async def test_ending_a_program_twice_does_nothing(self) -> None:
        async with open_child(["sleep", marked()]) as child:
            await child.end()
            code = child.returncode
            await child.end()
        assert code == child.returncode == 128 + signal.SIGTERM


async def test_a_program_in_a_session_of_its_own_is_ended_too() -> None:
    """G2: neither a double fork nor a session of its own escapes the guard."""
    mark = marked()
    async with open_child(["sh", "-c", f"(setsid sleep {mark} &) ; sleep {mark}"]):
        await wait_alive(mark, 2)
    assert alive(mark) == []


@pytest.mark.parametrize("killed", ["host", "guard"])
async def test_no_process_is_left_after_a_kill(killed: str) -> None:
    """Only the guard knows the descendants of the program: its death kills only the program."""
    mark = marked()
    command = ["sleep", mark] if killed == "guard" else ["sh", "-c", f"sleep {mark} & sleep {mark}"]
    host = subprocess.Popen([sys.executable, "-c", HOST, *command])
    try:
        await wait_alive(mark, 3 if killed == "guard" else 5)  # host, guard and command carry it
        guard = await _guard(mark)
        os.kill(host.pid if killed == "host" else guard, signal.SIGKILL)
        with trio.fail_after(60):
            while alive(mark):
                await trio.sleep(0.01)
    finally:
        host.kill()
        host.wait()
        for pid in alive(mark):
            os.kill(pid, signal.SIGKILL)


async def _guard(mark: str) -> int:
    """The guard's pid; what it has forked and does not run the program yet looks the same."""
    while True:
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive(mark)}
        guards = [pid for pid, line in lines.items() if b"guard.py" in line]
        if len(guards) == 1:
            return guards[0]
        await trio.sleep(0.01)


async def test_resource_limits_apply_to_the_program() -> None:
    async with open_child(["sh", "-c", "ulimit -f"], limits={"RLIMIT_FSIZE": 512}) as child:
        assert (await all_of(child.stdout)).strip() == b"1"


async def test_the_repr_names_the_process() -> None:
    async with open_child(["true"]) as child:
        assert isinstance(child, Child)
        assert child.pid > 0
