"""G2 for child processes: when a stop has returned, nothing that the run started is alive."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import randbelow

import pytest
import trio

import motet
from motet.actors.hosting.inputs import RunStream
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import ToolMessage
from tests.processes import alive, need_sandbox, wait_alive
from tests.scripted import Scripted, call, say


def marked() -> str:
    """A number of seconds that no other test sleeps."""
    return f"1000.{randbelow(10**9):09}"


async def stop_by_host(host: motet.Host, run: RunStream) -> None:
    report = await host.stop(session="s")
    assert report.stopped == [run.id]


async def stop_by_id(host: motet.Host, run: RunStream) -> None:
    report = await host.stop(run_id=run.id)
    assert report.stopped == [run.id]


async def leave_the_block(_host: motet.Host, _run: RunStream) -> None:
    pass


@pytest.mark.parametrize("stop", [stop_by_host, stop_by_id, leave_the_block])
async def test_a_stop_during_a_shell_command_leaves_no_process(
    tmp_path: Path, stop: Callable[[motet.Host, RunStream], Awaitable[None]]
) -> None:
    need_sandbox()
    mark = marked()
    model = Scripted(call(("shell", {"command": f"sleep {mark} & sleep {mark}"})), say("back"))
    agent = motet.Agent("a", model=model, tools=["shell"])
    async with motet.open_host(tmp_path / "state", workspace=tmp_path / "work") as host:
        ends: list[events.EventRecord] = []
        host.events.attach(
            "session:s",
            lambda record: (
                ends.append(record) if isinstance(record.event, events.Terminal) else None
            ),
        )
        async with host.stream(agent, "go", session="s") as run:
            await wait_alive(mark, 2)
            await stop(host, run)
        assert alive(mark) == []
        assert run.result.status == "cancelled"
        assert violations([item.row for item in await host.history("s")]) == ()
        assert (await host.run(agent, "again", session="s")).output == "back"
        names = [events.event_name(record.event) for record in ends]
        assert names.count("run.cancelled") == 1


async def test_cancelling_everything_leaves_no_process(tmp_path: Path) -> None:
    need_sandbox()
    mark = marked()
    model = Scripted(call(("shell", {"command": f"sleep {mark} & sleep {mark}"})))
    agent = motet.Agent("a", model=model, tools=["shell"])
    with trio.CancelScope() as scope:
        async with motet.open_host(workspace=tmp_path, agents=[agent]) as host:
            await host.submit("go", session="s")
            await wait_alive(mark, 2)
            scope.cancel()
            await trio.sleep_forever()
    assert alive(mark) == []


STARTS = ("run_process", "open_process", "open_process, swallowing", "run_process, in a thread")


@pytest.mark.parametrize("stop", [stop_by_host, stop_by_id, leave_the_block])
@pytest.mark.parametrize("how", STARTS)
async def test_a_stop_leaves_nothing_of_the_programs_of_a_users_own_tool(
    how: str, stop: Callable[[motet.Host, RunStream], Awaitable[None]]
) -> None:
    mark = marked()
    command = ["sh", "-c", f"trap '' TERM; (setsid sleep {mark} &); sleep {mark}; :"]
    agent = motet.Agent("a", model=Scripted(call(("deploy", {})), say("back")))

    async def deploys(ctx: motet.Context[None]) -> str:
        """Deploy."""
        if how == "run_process":
            await ctx.run_process(command, capture_stdout=True)
        process = await ctx.open_process(command)
        try:
            await process.wait()
        except trio.Cancelled:
            if "swallowing" not in how:
                raise
        return "deployed"

    def deploys_in_a_thread(ctx: motet.Context[None]) -> str:
        """Deploy."""
        trio.from_thread.run(ctx.run_process, command)
        return "deployed"

    agent.tool(name="deploy")(deploys_in_a_thread if "thread" in how else deploys)
    async with motet.open_host(agents=[agent]) as host:
        async with host.stream(agent, "go", session="s") as run:
            await wait_alive(mark, 4)
            await stop(host, run)
        assert alive(mark) == []
        assert run.result.status == "cancelled"
        assert (await host.run(agent, "again", session="s")).output == "back"


async def test_the_programs_of_a_call_end_with_the_call() -> None:
    mark = marked()
    agent = motet.Agent("a", model=Scripted(call(("begin", {}), ("late", {})), say("done")))

    @agent.tool
    async def begin(ctx: motet.Context[None]) -> str:
        await ctx.open_process(["sleep", mark])
        await wait_alive(mark, 1)
        return "begun"

    @agent.tool(timeout=0.5)
    async def late(ctx: motet.Context[None]) -> None:
        await ctx.run_process(["sleep", mark])

    async with motet.open_host() as host:
        result = await host.run(agent, "go")
    assert alive(mark) == []
    done, timed_out = (row for row in result.rows if isinstance(row, ToolMessage))
    assert (done.text, done.outcome) == ("begun", "done")
    assert timed_out.outcome == "failed"
    assert "no result within 0.5 s; it was stopped" in timed_out.text


async def test_a_stop_names_the_processes_that_a_tool_has_started_by_itself() -> None:
    mark = marked()
    agent = motet.Agent("a", model=Scripted(call(("deploy", {}))))
    started: list[subprocess.Popen[bytes]] = []

    @agent.tool
    async def deploy() -> None:
        started.append(subprocess.Popen(["sleep", mark]))
        await trio.run_process(["sleep", mark])

    async with motet.open_host(agents=[agent]) as host:
        ack = await host.submit("go", session="s")
        await wait_alive(mark, 2)
        report = await host.stop(session="s")
        again = await host.stop(session="s")
    (left,) = started
    left.kill()
    left.wait()
    assert report.stopped == [ack.run_id]
    assert report.processes == [
        f"{ack.run_id}: process {left.pid} (sleep) began during tool 'deploy' and still runs"
    ]
    assert again.processes == []
