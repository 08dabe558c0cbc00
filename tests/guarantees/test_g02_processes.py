"""G2 for child processes: when a stop has returned, nothing that the run started is alive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import randbelow

import pytest
import trio

import motet
from motet.actors.hosting.inputs import RunStream
from motet.actors.transcript.grammar import violations
from motet.protocols import events
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
