"""The programs of a call: as Trio's, but they end with the call; and the processes of others."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from secrets import randbelow
from typing import Any, cast

import pytest
import trio
import trio.testing

from motet.runtime import UnderWay
from motet.runtime.processes import Child, Program, Start, start_child, started_by
from motet.runtime.programs import CallPrograms, Command, ProgramOptions, Strays
from tests.processes import alive, wait_alive

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
SIGNALS = ("KILL", "TERM", "SEGV", "INT", "PIPE")


def marked() -> str:
    """A number of seconds that no other test sleeps."""
    return f"1000.{randbelow(10**9):09}"


def names(mark: str) -> list[str]:
    """The programs that the live processes with a mark run."""
    found = list[str]()
    for pid in alive(mark):
        with suppress(OSError):  # it has ended since
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def is_known(programs: CallPrograms) -> list[bool]:
    """For each program of a call, whether its start is over."""
    return [isinstance(child, Child) for child in programs.children or ()]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["true"], {}),
        (["sh", "-c", "echo out; echo err >&2; exit 3"], {}),
        *[
            (["sh", "-c", f"kill -{name} $$"], {})
            for name in ("KILL", "TERM", "SEGV", "INT", "PIPE")
        ],
        (["sh", "-c", "exit 137"], {}),
        ("echo out; exit 5", {"shell": True}),
        ([Path("pwd")], {"cwd": "/"}),
        (["sh", "-c", "echo $ONLY$HOME"], {"env": {"PATH": "/usr/bin:/bin", "ONLY": "this"}}),
    ],
)
@pytest.mark.parametrize("stdin", [b"", b"x" * 300_000, subprocess.DEVNULL])
async def test_output_and_exit_code_are_those_of_trio(
    command: Command, options: ProgramOptions, stdin: bytes | int
) -> None:
    run: Any = trio.run_process  # which has an overload for each kind of command
    theirs: subprocess.CompletedProcess[bytes] = await run(
        command,
        stdin=stdin,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        **options,
    )
    ours = await CallPrograms().run(
        command, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False, **options
    )
    assert ours.args == theirs.args
    assert ours.returncode == theirs.returncode
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)


async def test_all_input_and_both_outputs_reach_their_places() -> None:
    programs = CallPrograms()
    copied = await programs.run(["cat"], stdin=b"x" * 300_000, capture_stdout=True)
    assert copied.stdout == b"x" * 300_000
    joined = await programs.run(
        ["sh", "-c", "echo one; echo two >&2"], capture_stdout=True, stderr=subprocess.STDOUT
    )
    assert joined.stdout == b"one\ntwo\n"
    assert joined.stderr is None
    with pytest.raises(subprocess.CalledProcessError) as failed:
        await programs.run(["sh", "-c", "echo no >&2; exit 4"], capture_stderr=True)
    assert (failed.value.returncode, failed.value.stderr) == (4, b"no\n")


async def test_output_goes_to_a_file_of_the_host(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        await CallPrograms().run(["echo", "hello"], stdout=file)
    assert (tmp_path / "out").read_bytes() == b"hello\n"


@pytest.mark.parametrize(
    ("command", "options", "error"),
    [
        (["no-such-program"], {}, FileNotFoundError),
        ("ls -l", {}, TypeError),
        (["true"], {"stdout": subprocess.PIPE}, ValueError),
        (["true"], {"stdin": subprocess.PIPE}, ValueError),
        (["true"], {"stderr": subprocess.DEVNULL, "capture_stderr": True}, ValueError),
    ],
)
async def test_a_program_that_cannot_be_run_so_is_refused(
    command: Command, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await CallPrograms().run(command, **options)


async def test_an_open_program_takes_signals_and_is_waited_for() -> None:
    programs = CallPrograms()
    asleep = await programs.open(["sleep", marked()])
    asleep.terminate()
    assert await asleep.wait() == asleep.returncode == asleep.poll() == -15
    script = "trap 'echo got; exit 4' TERM; echo on; sleep 1000 & wait"
    trapping = await programs.open(["sh", "-c", script], stdout=subprocess.PIPE)
    assert trapping.stdout is not None
    assert await trapping.stdout.receive_some() == b"on\n"
    trapping.terminate()
    assert await trapping.wait() == 4
    assert await trapping.stdout.receive_some() == b"got\n"
    killed = await programs.open(["sleep", marked()])
    killed.kill()
    assert await killed.wait() == -9


async def test_the_end_of_the_call_ends_all_of_its_programs_and_starts_no_more() -> None:
    mark, programs = marked(), CallPrograms()
    async with trio.open_nursery() as nursery:
        # The shell's own command line does not have the mark, so that three are the three sleeps.
        shell, env = "(setsid sleep $MARK &); sleep $MARK", {**os.environ, "MARK": mark}
        await programs.open(["sh", "-c", shell], env=env)

        async def in_a_nursery_of_its_own() -> None:
            with pytest.raises(subprocess.CalledProcessError):
                await programs.run(["sleep", mark])

        nursery.start_soon(in_a_nursery_of_its_own)
        # The guard of the second one has the mark, too, before its program is there.
        with trio.fail_after(60):
            while names(mark).count("sleep") < 3 or not all(is_known(programs)):
                await trio.sleep(0.01)
        with trio.CancelScope() as scope:  # also in a call that is cancelled
            scope.cancel()
            await programs.end()
        assert alive(mark) == []
    with pytest.raises(RuntimeError, match="the call has ended"):
        await programs.open(["true"])
    with pytest.raises(RuntimeError, match="the call has ended"):
        await programs.run(["true"])
    programs.ended = False
    await programs.run(["true"])


async def test_the_end_of_the_call_waits_for_a_program_that_is_being_started() -> None:
    mark, programs, refused = marked(), CallPrograms(), list[str]()
    called, gate = trio.Event(), trio.Event()

    async def late(program: Program) -> Child:
        called.set()
        await gate.wait()
        with started_by(cast("Start", None)):  # the one that this one replaces
            return await start_child(program)

    async def run() -> None:
        with pytest.raises(RuntimeError, match="the call has ended") as raised:
            await programs.run(["sleep", mark])
        refused.append(str(raised.value))

    async with trio.open_nursery() as nursery:
        with started_by(late):
            nursery.start_soon(run)
        await called.wait()
        nursery.start_soon(_open_when_all_wait, gate)
        with trio.CancelScope() as scope:  # also in a call that is cancelled
            scope.cancel()
            await programs.end()
        has_waited = gate.is_set()
        gate.set()
        assert has_waited
        assert alive(mark) == []
    assert len(refused) == 1


async def test_a_program_that_cannot_be_started_holds_up_no_end_of_its_call() -> None:
    programs = CallPrograms()
    with pytest.raises(FileNotFoundError):
        await programs.open(["no-such-program"])
    assert not programs.children


async def _open_when_all_wait(gate: trio.Event) -> None:
    await trio.testing.wait_all_tasks_blocked()
    gate.set()


async def test_a_cancelled_program_has_ended_with_all_that_it_started() -> None:
    mark, programs = marked(), CallPrograms()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_alive, mark, 2)
            nursery.start_soon(_cancel_when_alive, scope, mark)
            await programs.run(["sh", "-c", f"trap '' TERM; sleep {mark} & sleep {mark}; :"])
    assert alive(mark) == []
    with trio.CancelScope() as scope:
        scope.cancel()
        await programs.run(["sleep", mark])
    assert scope.cancelled_caught
    assert alive(mark) == []


async def _cancel_when_alive(scope: trio.CancelScope, mark: str) -> None:
    await wait_alive(mark, 2)
    scope.cancel()


@LINUX
async def test_processes_that_a_call_has_started_by_itself_are_named() -> None:
    mark = marked()
    before = subprocess.Popen(["sleep", mark])
    # The times of processes are rounded down to a tick: be sure that one has passed.
    await trio.sleep(0.05)
    programs = CallPrograms()
    with UnderWay("run_1", "tool 'mine'"):
        own = subprocess.Popen(["sleep", mark])
        nested = subprocess.Popen(f"sleep {mark} & wait", shell=True)
        await programs.open(["sleep", mark])
        await wait_alive(mark, 5)
        strays = Strays()
    try:
        assert strays.left(["another"]) == []
        named = strays.left(["run_1"])
        assert len(named) == 3, named
        assert f"run_1: process {own.pid} (sleep) began during tool 'mine' and still runs" in named
        # Its shell ends, and it belongs to nobody whom the host knows: it is named all the same.
        nested.kill()
        nested.wait()
        own.kill()
        own.wait()
        (last,) = strays.left(["run_1"])
        assert last.startswith("run_1: process ")  # its name is sh until it has become a sleep
        assert Strays().left(["run_1"]) == []
    finally:
        await programs.end()
        before.kill()
        before.wait()
        for line in subprocess.run(["pgrep", "-f", mark], capture_output=True).stdout.split():
            subprocess.run(["kill", "-9", line.decode()])


@LINUX
async def test_a_process_that_starts_another_program_during_the_stop_is_named(
    tmp_path: Path,
) -> None:
    mark, door = marked(), tmp_path / "door"
    os.mkfifo(door)
    with UnderWay("run_1", "tool 'mine'"):
        shell = subprocess.Popen(f"(read x < {door}; exec sleep {mark}) & wait", shell=True)
        await wait_alive(mark, 2)
        strays = Strays()
    try:
        shell.kill()
        shell.wait()
        door.write_text("go on\n")
        (pid,) = alive(mark)
        with trio.fail_after(60):
            while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
                await trio.sleep(0.01)
        assert [f"process {pid} (sleep)" in line for line in strays.left(["run_1"])] == [True]
    finally:
        subprocess.run(["pkill", "-9", "-f", mark])
