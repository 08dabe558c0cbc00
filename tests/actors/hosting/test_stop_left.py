"""A stop of what a killed host has left: nothing of it goes on, and what was done stays told."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ToolMessage
from motet.protocols.errors import NotFound
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import StopReport
from motet.protocols.tools import Effects
from tests import forks
from tests.guarantees.test_g15_storage import FAULTS
from tests.guarantees.test_g15_storage import World as Storage
from tests.scripted import Scripted, call, say

ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")
HOST = """
import sys, trio
import motet
from tests.actors.hosting.test_stop_left import ALICE, agent

async def main():
    async with motet.open_host(sys.argv[1], agents=[agent()]) as host:
        await host.submit("go", session="s", principal=ALICE)
        await host.submit("later", session="s", principal=ALICE, mode="followup")
        while not any(
            isinstance(one.event, motet.ToolResult)
            for one in await host.events.read("session:s", 0)
        ):
            await trio.sleep(0.01)
        await trio.sleep(0.2)
        print("now", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def agent() -> motet.Agent[None]:
    """It looks, and then waits for its model for ever."""

    async def look() -> str:
        return "seen"

    return motet.Agent("a", model=Scripted(call(("look", {})), None, None), tools=[look])


async def test_runs_of_a_killed_host_are_stopped_before_their_agent_is_added(
    tmp_path: Path,
) -> None:
    with forks.started("-c", HOST, str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.kill()
    async with motet.open_host(tmp_path) as host:
        later, begun = [run.run_id for run in await host.runs()]
        assert await host.stop(session="s", principal=BOB) == StopReport()

        newest = await host.stop(session="s", newest=True, principal=ALICE)
        rest = await host.stop(everything=True, principal=ALICE)

        assert newest == StopReport(stopped=[begun], dropped_inputs=[later])
        assert rest == StopReport()
        assert [run.status for run in await host.runs()] == ["dropped", "cancelled"]
        assert (await host.trace(begun, principal=ALICE)).info.status == "cancelled"
        rows = [item.row for item in await host.history("s")]
        assert violations(rows) == ()
        assert any(isinstance(row, ToolMessage) and row.text == "seen" for row in rows)
        assert rows[-1].text == "[Stopped by user]"
        with_agent = motet.Agent("a", model=Scripted(say("back")))
        host.add(with_agent)
        result = await host.run("a", "again", session="s", principal=ALICE)
        assert result.text == "back"
        with pytest.raises(NotFound):
            await host.stop(run_id=begun, principal=ALICE)


def stopped_and_left(
    effects: Effects, first: str, end: str, fault: str = "", passivate: bool = False
) -> tuple[list[str], int, int]:
    """The statuses of a run and of the input behind it, how often its tool began, and how often its
    model was asked, when its host ends while the tool shields itself from a stop.

    ``fault``: of the storage when the stop comes; it works again before the host ends.
    ``passivate``: so long after the stop that idle sessions are passivated meanwhile.
    """
    asked, begun = list[int](), list[int]()

    def answered(_: ModelRequest) -> mt.Step:
        asked.append(1)
        return mt.call("look") if len(asked) == 1 else mt.say("done")

    agent = motet.Agent("a", model=mt.FunctionModel(answered))

    @agent.tool(effects=effects)
    async def look() -> str:
        begun.append(1)
        with trio.CancelScope(shield=True):
            await trio.sleep(6_000)
        return "seen"

    with mt.simulated_host(1, agents=[agent]) as host:
        host.start(agent, "go", session="s")
        host.advance(1)
        host.start(agent, "later", session="s")
        host.advance(1)
        if first == "shutdown":
            host.begin(lambda live: live.drain(0))
            host.advance(1)
        storage = Storage(host, Random(1))
        if fault:
            storage.fail(fault)
        report = host.call(lambda live: live.stop(session="s", grace=0.1))
        assert len([*report.still_running, *report.dropped_inputs]) == 2
        if fault:
            host.advance(2_000 if passivate else 2)
            storage.mend()
            host.advance(2_000 if passivate else 5)
        host.crash() if end == "crash" else host.restart(0)
        host.advance(300)
        return [run.status for run in host.call(motet.Host.runs)], len(begun), len(asked)


@pytest.mark.parametrize("end", ["crash", "restart"])
@pytest.mark.parametrize("first", ["stop", "shutdown"])
@pytest.mark.parametrize("effects", ["read", "write"])
def test_a_run_that_was_stopped_is_cancelled_though_its_host_ends_before_it(
    effects: Effects, first: str, end: str
) -> None:
    """Law: nothing that a stop has covered goes on in the next host, also when a tool outlasts the
    grace of the stop and its host, and when the host was about to leave the run to the next one."""
    statuses, begun, asked = stopped_and_left(effects, first, end)
    assert (statuses, begun, asked) == (["dropped", "cancelled"], 1, 1)


@pytest.mark.parametrize("passivate", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_stop_that_came_while_nothing_could_be_stored_is_kept_once_the_storage_is_back(
    fault: str, passivate: bool
) -> None:
    """Law: a stop that is only in memory is stored within five seconds of the storage's return,
    however long that took: the next host neither goes on with its run nor begins its inputs."""
    statuses, begun, asked = stopped_and_left("read", "stop", "crash", fault, passivate)
    assert (statuses, begun, asked) == (["dropped", "cancelled"], 1, 1)
