"""Tools that start programs by Trio's own means get those of the simulated world."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from motet.testing.processes import FakeProcesses, FakeProgram, UndeclaredProgram, answers


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


async def count(program: FakeProgram) -> int:
    text = await program.read()
    await program.write(f"{len(text)} bytes\n")
    await program.stderr.send_all(b"counted\n")
    return 0 if text else 3


async def deaf(program: FakeProgram) -> None:
    program.trap_sigterm()
    await trio.sleep_forever()


async def flood(program: FakeProgram) -> None:
    for _ in range(100):
        await program.write("y\n" * 1_000)


async def test_run_process_feeds_captures_and_checks(processes: FakeProcesses) -> None:
    processes.program("wc", count)
    with processes.installed():
        done = await trio.run_process(
            ["wc", "-c"], stdin=b"hello", capture_stdout=True, capture_stderr=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"5 bytes\n", b"counted\n")
        with pytest.raises(subprocess.CalledProcessError) as failed:
            await trio.run_process(["wc"], capture_stdout=True, stderr=subprocess.STDOUT)
    assert (failed.value.returncode, failed.value.stdout) == (3, b"0 bytes\ncounted\n")
    processes.check()


async def test_a_command_of_the_shell_is_understood(processes: FakeProcesses) -> None:
    processes.program("git", answers("clean\n"))
    with processes.installed():
        done = await trio.run_process("git status", shell=True, capture_stdout=True)
        assert done.stdout == b"clean\n"
        await trio.run_process([Path("/usr/bin/git"), "log"], cwd=Path("/srv"), env={"A": "1"})
    first, second = processes.started
    assert first.argv == ("git", "status")
    assert (second.argv, second.cwd, second.env) == (("/usr/bin/git", "log"), "/srv", {"A": "1"})


async def test_cancelling_asks_and_then_kills(
    processes: FakeProcesses, autojump_clock: MockClock
) -> None:
    processes.program("make", deaf)
    with processes.installed(), trio.move_on_after(1), pytest.warns(RuntimeWarning, match="hasn't"):
        await trio.run_process(["make"])
    assert trio.current_time() == 6.0
    assert processes.started[0].returncode == -signal.SIGKILL


async def test_discarded_output_does_not_block(
    processes: FakeProcesses, autojump_clock: MockClock
) -> None:
    processes.program("yes", flood)
    with processes.installed():
        assert (await trio.run_process(["yes"], stdout=subprocess.DEVNULL)).returncode == 0


async def test_a_process_can_be_written_to_and_signalled(processes: FakeProcesses) -> None:
    async def cat(program: FakeProgram) -> None:
        async for line in program.lines():
            await program.write(line)

    processes.program("cat", cat)
    with processes.installed():
        process = await trio.lowlevel.open_process(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdio is not None
        await process.stdio.send_all(b"hi\n")
        assert await process.stdio.receive_some() == b"hi"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert await process.wait() == process.returncode == -signal.SIGINT


async def test_files_and_unknown_programs_are_refused(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    with processes.installed(), (tmp_path / "out").open("wb") as file:
        with pytest.raises(ValueError, match=r"stdout=.*has no files"):
            await trio.run_process(["git"], stdout=file)
        with pytest.raises(UndeclaredProgram) as refused:
            await trio.run_process(["git"])
    assert f"{Path(__file__).name}:" in refused.value.line


async def test_outside_of_the_world_processes_are_real(processes: FakeProcesses) -> None:
    with processes.installed():
        pass
    assert (await trio.run_process(["true"])).returncode == 0
    assert not processes.started
