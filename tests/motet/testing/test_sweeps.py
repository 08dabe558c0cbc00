"""The same fault at every step of a story."""

from __future__ import annotations

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host

ENDS = ("completed", "cancelled", "dropped", "interrupted")


def told(host: mt.SimulatedHost) -> None:
    """A question with a tool that takes a while, and one more after it."""
    agent = motet.Agent("t", model=mt.ScriptedModel([mt.call("look"), *[mt.say("done")] * 5]))

    @agent.tool
    async def look() -> str:
        await trio.sleep(1)
        return "seen"

    host.start(agent, "ann/1: go", user="ann", key="k")
    host.run(agent, "ann/2: and?", principal=motet.Principal("ann"))


def valid(host: mt.SimulatedHost) -> None:
    """What was acknowledged is answered, or known to be dropped or interrupted."""
    for sent in host.history.sent:
        if sent.accepted:
            assert sent.run_id
            assert host.call(_status, sent.run_id) in ENDS


async def _status(host: Host, run_id: str) -> str:
    return (await host.find_run(run_id)).status


@pytest.mark.parametrize("fault", ["cancel", "crash", "power", "stop", "delay"])
def test_a_sweep_strikes_at_every_step_until_the_story_is_over(fault: mt.HostFault) -> None:
    report = mt.sweep(told, fault, every=13, check=valid)
    report.check()
    assert report.struck == report.worlds - 2 > 3
    assert str(report).endswith("0 findings")


def test_an_actor_of_the_host_can_be_killed_at_every_step() -> None:
    mt.sweep(told, "kill", target="/host/tools", every=25, check=_rests).check()
    with pytest.raises(ValueError, match="target="):
        mt.sweep(told, "kill")


def _rests(host: mt.SimulatedHost) -> None:
    assert host.host.status().running == 0


def test_a_defect_that_one_step_shows_is_found_by_its_step() -> None:
    def forgets(host: mt.SimulatedHost) -> None:
        kept: list[str] = []
        agent = motet.Agent("t", model=mt.ScriptedModel([mt.call("put"), *[mt.say("ok")] * 5]))

        @agent.tool
        async def put() -> str:
            kept.append("begun")
            await trio.sleep(1)
            kept.append("done")
            return "kept"

        host.start(agent, "go")
        host.settle()
        assert kept in (["begun", "done"], []), "half of it is there"

    report = mt.sweep(forgets, "stop", every=5, check=_rests)
    assert report.findings
    assert "half of it is there" in report.findings[0].why
    with pytest.raises(AssertionError, match="stop before step"):
        report.check()


def test_an_error_of_the_undisturbed_story_is_no_finding() -> None:
    def wrong(host: mt.SimulatedHost) -> None:
        assert host.now() == 7

    with pytest.raises(AssertionError):
        mt.sweep(wrong, "stop")
