"""Functions in the place of programs: as a host meets them, and beside real ones."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet import testing as mt
from motet.actors.hooks.programs import run_program
from motet.actors.tools.builtin.shell import Shell
from motet.actors.tools.process_tool import process_tool
from motet.protocols.config import ShellConfig
from motet.protocols.mcp import McpServer
from motet.protocols.tools import ToolFailure
from motet.runtime.processes import Child, Program, open_child
from motet.testing.pipes import PIPE_SIZE, pipe
from motet.testing.processes import (
    Behaviour,
    FakeProcesses,
    FakeProgram,
    UndeclaredProgram,
    answers,
)
from tests.actors.tools import in_process
from tests.actors.tools.mcp.stage import acting
from tests.actors.tools.stage import CONTEXT

HERE = Path(__file__).name
SHELL = Shell(ShellConfig(timeout=30))


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


async def all_of(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def hang(_program: FakeProgram) -> int:
    await trio.sleep_forever()
    return 0


async def deaf(program: FakeProgram) -> int:
    program.trap_sigterm()
    return await hang(program)


async def tidy(program: FakeProgram) -> int:
    asked = program.trap_sigterm()
    await program.write("ready\n")
    await asked.wait()
    await program.write("bye\n")
    return 7


async def echo(program: FakeProgram) -> None:
    await program.write(await program.read())
    await program.stderr.send_all(b"oops\n")


async def flood(program: FakeProgram) -> int:
    while True:
        await program.write("y\n" * 1_000)


async def segfault(_program: FakeProgram) -> int:
    return -signal.SIGSEGV


class TestAProgram:
    async def test_has_arguments_streams_and_an_exit_code(self, processes: FakeProcesses) -> None:
        async def cat(program: FakeProgram) -> int:
            assert (program.argv, program.cwd) == (("/usr/bin/cat", "-n"), "/srv")
            assert program.env == {"ONLY": "this"}
            await echo(program)
            return 3

        processes.program("cat", cat)
        with processes.installed():
            async with open_child(
                ["/usr/bin/cat", "-n"], cwd="/srv", env={"ONLY": "this"}
            ) as child:
                (running,) = processes.running
                assert child.pid == running.pid
                await child.stdin.send_all(b"hello")
                await child.stdin.aclose()
                assert await all_of(child.stdout) == b"hello"
                assert await all_of(child.stderr) == b"oops\n"
                assert await child.wait() == 3
        processes.check()
        assert not processes.running

    async def test_reads_line_by_line(self, processes: FakeProcesses) -> None:
        async def shout(program: FakeProgram) -> None:
            async for line in program.lines():
                await program.write(line.upper() + ";")

        processes.program("shout", shout)
        with processes.installed():
            async with open_child(["shout"]) as child:
                for part in (b"one\ntw", b"o\n\nlast"):
                    await child.stdin.send_all(part)
                await child.stdin.aclose()
                assert await all_of(child.stdout) == b"ONE;TWO;;LAST;"

    async def test_waits_for_its_reader_and_dies_without_one(
        self, processes: FakeProcesses
    ) -> None:
        processes.program("yes", flood)
        with processes.installed():
            async with open_child(["yes"]) as child:
                await wait_all_tasks_blocked()
                assert child.returncode is None
                await child.stdout.aclose()
                assert await child.wait() == 128 + signal.SIGPIPE
        processes.check()

    async def test_can_be_ended_by_the_test(self, processes: FakeProcesses) -> None:
        processes.program("server", hang)
        with processes.installed():
            async with open_child(["server"]) as child:
                processes.running[0].kill()
                assert await child.wait() == 128 + signal.SIGKILL
                with pytest.raises(trio.BrokenResourceError):
                    await child.stdin.send_all(b"x")

    async def test_that_raises_ends_with_1_and_fails_the_test(
        self, processes: FakeProcesses
    ) -> None:
        async def wrong(program: FakeProgram) -> None:
            assert program.argv == ("git", "pull")

        processes.program("git", wrong)
        with processes.installed():
            async with open_child(["git", "push"]) as child:
                assert await child.wait() == 1
        with pytest.raises(AssertionError) as failed:
            processes.check()
        assert failed.value.__notes__[-1] == "in the fake program 'git push'"

    async def test_that_is_undeclared_is_refused_with_the_line_and_advice(
        self, processes: FakeProcesses
    ) -> None:
        processes.program("make", answers())
        with processes.installed(), pytest.raises(UndeclaredProgram) as refused:
            async with open_child(["/usr/bin/git", "log", "-n 1"]):
                pass
        assert f"{HERE}:" in refused.value.line
        assert "(in test_that_is_undeclared" in refused.value.line
        said = str(refused.value)
        assert "started \"/usr/bin/git log '-n 1'\"" in said
        assert "host.processes.program('git', answers(" in said
        assert said.endswith("declared are make")
        with pytest.raises(UndeclaredProgram):
            processes.check()


class TestTheEndOfAHost:
    async def test_ends_the_programs_left_running_and_lists_them(
        self, processes: FakeProcesses
    ) -> None:
        processes.program("server", deaf)
        with processes.installed():
            child = await processes.start(_program("server"))
        processes.host_ended()
        assert await child.wait() == 128 + signal.SIGKILL
        assert [program.argv for program in processes.left] == [("server",)]

    async def test_by_a_loss_of_power_ends_all_at_once_and_unseen(
        self, processes: FakeProcesses
    ) -> None:
        async def complains(program: FakeProgram) -> None:
            try:
                await hang(program)
            finally:
                raise LookupError("nobody hears this")

        processes.program("server", complains)
        with processes.installed():
            child = await processes.start(_program("server"))
            processes.cut_off = True
            assert not processes.running
            with pytest.raises(OSError, match="power"):
                await processes.start(_program("server"))
        processes.host_ended()
        await child.wait()
        await wait_all_tasks_blocked()
        processes.cut_off = False
        assert not processes.left
        processes.check()


def _program(name: str) -> Program:
    return Program((name,), None, {}, 0.1, {}, reads=True, joined=False)


def ready(behave: Behaviour) -> Behaviour:
    async def says_so(program: FakeProgram) -> int | None:
        await program.write("ready\n")
        return await behave(program)

    return says_so


ENDS_BY_ITSELF: dict[str, tuple[str, Behaviour]] = {
    "succeeds": ("echo hi", answers("hi\n")),
    "fails": ("exit 3", answers(exit=3)),
    "dies by a signal": ("kill -SEGV $$", segfault),
    "echoes": ("cat; echo oops >&2", echo),
}
HAS_TO_BE_ENDED: dict[str, tuple[str, Behaviour]] = {
    "hangs": ("echo ready; sleep 1000", ready(hang)),
    "ignores SIGTERM": ("trap '' TERM; echo ready; sleep 1000 & wait; sleep 1000", ready(deaf)),
    "says good-bye": ("trap 'echo bye; exit 7' TERM; echo ready; sleep 1000 & wait", tidy),
    "floods": ("yes", flood),
}


@pytest.mark.parametrize("name", [*ENDS_BY_ITSELF, *HAS_TO_BE_ENDED])
def test_a_function_ends_as_the_process_that_it_stands_for(name: str) -> None:
    to_be_ended = name in HAS_TO_BE_ENDED
    script, behave = (HAS_TO_BE_ENDED if to_be_ended else ENDS_BY_ITSELF)[name]

    async def real() -> tuple[int | None, bytes]:
        async with open_child(["bash", "-c", script], joined=True) as child:
            return await ending(child, to_be_ended=to_be_ended)

    async def fake() -> tuple[int | None, bytes]:
        processes = FakeProcesses()
        processes.program("bash", behave)
        with processes.installed():
            found = await real()
        processes.check()
        return found

    assert trio.run(fake, clock=MockClock(autojump_threshold=0)) == trio.run(real)


async def ending(child: Child, *, to_be_ended: bool) -> tuple[int | None, bytes]:
    """How it ends, by itself or asked to once it has said something, and its first words."""
    said, heard = bytearray(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hear, child.stdout, said, heard)
        with suppress(trio.BrokenResourceError):  # it has ended
            await child.stdin.send_all(b"some input\n")
        await child.stdin.aclose()
        await (heard.wait() if to_be_ended else child.wait())
        await child.stop()
    return child.returncode, bytes(said[:20])


async def _hear(stream: trio.abc.ReceiveStream, said: bytearray, heard: trio.Event) -> None:
    async for chunk in stream:
        said += chunk[:20]
        heard.set()


async def test_the_grace_is_time_of_the_clock(
    processes: FakeProcesses, autojump_clock: MockClock
) -> None:
    processes.program("deaf", deaf)
    processes.program("hang", hang)
    took: list[float] = []
    with processes.installed():
        for name in ("deaf", "hang"):
            start = trio.current_time()
            async with open_child([name], grace=4):
                await wait_all_tasks_blocked()
            took.append(trio.current_time() - start)
    assert took == [4.0, 0.0]


class TestTheShell:
    async def test_runs_a_declared_program_for_a_plain_command(
        self, processes: FakeProcesses, tmp_path: Path
    ) -> None:
        processes.program("git", answers("clean\n"))
        with processes.installed():
            assert await SHELL.run(tmp_path, 'git commit -m "two words"') == "clean\n"
        (git,) = processes.started
        assert (git.argv, git.cwd) == (("git", "commit", "-m", "two words"), str(tmp_path))

    async def test_is_a_program_itself_for_any_other(
        self, processes: FakeProcesses, tmp_path: Path
    ) -> None:
        async def sh(program: FakeProgram) -> int:
            assert await program.read() == b""
            await program.write("out ")
            await program.stderr.send_all(b"err ")
            await program.write(program.argv[-1])
            return 4

        processes.program("sh", sh)
        with processes.installed(), pytest.raises(ToolFailure) as failed:
            await SHELL.run(tmp_path, "ls | wc")
        detail = failed.value.detail or {}
        assert (detail["output"], detail["exit_code"]) == ("out err ls | wc", 4)

    async def test_ends_a_command_that_is_out_of_time(
        self, processes: FakeProcesses, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        processes.program("make", deaf)
        with processes.installed(), pytest.raises(ToolFailure, match="longer than 30 s"):
            await SHELL.run(tmp_path, "make all")
        assert not processes.running

    async def test_ends_an_endless_writer_too(
        self, processes: FakeProcesses, tmp_path: Path, autojump_clock: MockClock
    ) -> None:
        processes.program("yes", flood)
        with processes.installed(), pytest.raises(ToolFailure, match="longer than 5 s"):
            await SHELL.run(tmp_path, "yes", timeout=5)

    async def test_names_the_undeclared_program(
        self, processes: FakeProcesses, tmp_path: Path
    ) -> None:
        for command in ("git status", "git status | cat", "git 'status", " "):
            with processes.installed(), pytest.raises((UndeclaredProgram, ToolFailure)):
                await SHELL.run(tmp_path, command)
        named = [error.argv for error in processes.failures if isinstance(error, UndeclaredProgram)]
        assert [argv[0] for argv in named] == ["git", "sh", "sh"]


async def test_a_hook_is_answered(processes: FakeProcesses) -> None:
    async def judge(program: FakeProgram) -> int:
        assert json.loads(await program.read()) == {"tool": "rm"}
        await program.stderr.send_all(b"not that one")
        return 2

    processes.program("judge", judge)
    with processes.installed():
        ended = await run_program(["/opt/judge"], b'{"tool": "rm"}', cwd="/", env={})
    assert (ended.code, ended.stderr) == (2, "not that one")


async def test_process_tools_work_without_being_declared(processes: FakeProcesses) -> None:
    later = process_tool(in_process.later)
    with processes.installed():
        moved = await in_process.move.run(CONTEXT, {"point": {"x": 1, "day": "2026-11-21"}})
        assert moved == {"x": 2, "day": "2026-11-21"}
        assert await later.run(CONTEXT, {"text": "hi"}) == "HI"
    assert not processes.running


async def test_an_mcp_server_is_called(processes: FakeProcesses, autojump_clock: MockClock) -> None:
    async def server(program: FakeProgram) -> None:
        async for line in program.lines():
            request = json.loads(line)
            result = REPLIES.get(request["method"])
            if result is not None:
                reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
                await program.write(json.dumps(reply) + "\n")

    processes.program("weather", server)
    with processes.installed():
        async with acting(McpServer(command=("weather", "--stdio"))) as stage:
            assert await stage.call("forecast", place="here") == "rain"
            assert len(processes.running) == 1
    assert not processes.running
    processes.check()


REPLIES: dict[str, object] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "weather", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "forecast", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "rain"}]},
}


@given(st.lists(st.binary(max_size=3 * PIPE_SIZE // 2), max_size=5), st.integers(1, PIPE_SIZE))
def test_a_pipe_keeps_its_data_and_is_bounded(parts: list[bytes], at_once: int) -> None:
    """For all writes and all sizes of reads: the same bytes, in order, then the end."""

    async def main() -> bytes:
        writer, reader = pipe()
        held = writer._pipe.content  # pyright: ignore[reportPrivateUsage]
        got = bytearray()

        async def write() -> None:
            for part in parts:
                await writer.send_all(part)
            await writer.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while chunk := await reader.receive_some(at_once):
                assert len(held) <= PIPE_SIZE
                got += chunk
        return bytes(got)

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == b"".join(parts)


async def test_each_end_of_a_pipe_sees_the_close_of_the_other() -> None:
    writer, reader = pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_is_broken, writer)
        await wait_all_tasks_blocked()
        await reader.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await reader.receive_some()
    writer.close()
    with pytest.raises(trio.ClosedResourceError):
        await writer.send_all(b"x")


async def _is_broken(writer: trio.abc.SendStream) -> None:
    with pytest.raises(trio.BrokenResourceError):
        await writer.send_all(bytes(PIPE_SIZE + 1))


def test_the_programs_of_a_call_are_simulated_and_end_with_it() -> None:
    left: list[str] = []

    async def build(program: FakeProgram) -> int:
        await program.write(await program.read())
        await program.stderr.send_all(b"warned")
        return 3

    agent = motet.Agent("a", model=mt.ScriptedModel([mt.call("make"), mt.say("made")]))

    @agent.tool
    async def make(ctx: motet.Context[None]) -> str:
        await ctx.open_process(["serve"])
        done = await ctx.run_process(
            ["make", "all"], stdin=b"in", capture_stdout=True, capture_stderr=True, check=False
        )
        return f"{done.returncode} {done.stdout!r} {done.stderr!r}"

    with mt.simulated_host(agents=[agent]) as host:
        host.processes.program("make", build)
        host.processes.program("serve", deaf)
        result = host.run(agent, "go")
        left += [str(program) for program in host.processes.running]
        assert [program.returncode for program in host.processes.started] == [-9, 3]
    assert left == []
    assert result.rows[2].text == "3 b'in' b'warned'"


def test_a_stop_ends_the_programs_of_a_call_and_names_those_it_started_by_itself() -> None:
    agent = motet.Agent("a", model=mt.ScriptedModel([mt.call("make")]))

    @agent.tool
    async def make(ctx: motet.Context[None]) -> None:
        await trio.lowlevel.open_process(["daemon"])
        await ctx.open_process(["serve"])
        await ctx.run_process(["serve"])

    with mt.simulated_host(agents=[agent]) as host:
        for name in ("daemon", "serve"):
            host.processes.program(name, deaf)
        ack = host.start(agent, "go", session="s")
        host.advance(1)
        report = host.stop(session="s")
        (daemon,) = host.processes.running
        assert report.stopped == [ack.run_id]
        assert report.processes == [
            f"{ack.run_id}: process {daemon.pid} (daemon) began during tool 'make' and still runs"
        ]
