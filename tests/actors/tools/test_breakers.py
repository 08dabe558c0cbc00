"""A tool that only fails is taken out for all runs of its agent, and tried again later."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from motet.actors.hooks.registry import HookSet
from motet.actors.tools.tool import Tool, ToolRetry, tool
from motet.protocols.events import Warned
from motet.protocols.hooks import BeforeTool, Deny
from tests.actors.tools.stage import AGENT, Stage, on_stage


def flaky(log: list[str]) -> Tool:
    """Fails for as long as the log says so; writes each run into it."""

    async def flaky() -> str:
        log.append("ran")
        if "down" in log:
            raise RuntimeError("service is down")
        return "fine"

    return tool(flaky)


async def fail(stage: Stage, times: int) -> None:
    for _ in range(times):
        assert (await stage.call("flaky")).outcome == "failed"


async def test_the_fifth_failure_in_a_row_takes_a_tool_out_and_says_so(
    autojump_clock: MockClock,
) -> None:
    log = ["down"]
    async with on_stage(flaky(log)) as stage:
        await fail(stage, 4)
        assert stage.breakers.taken_out(AGENT) == {}
        await fail(stage, 1)
        assert "after 5 failures in a row" in stage.breakers.taken_out(AGENT)["flaky"]
        (warned,) = stage.warned
        assert isinstance(warned, Warned)
        assert "'flaky' is taken out" in warned.message

        refused = await stage.call("flaky")
        assert (refused.outcome, refused.kind) == ("failed", "unavailable")
        assert "can be tried again in 30 s" in refused.text
        assert log.count("ran") == 5


async def test_one_probe_at_a_time_and_two_successes_put_it_back(
    autojump_clock: MockClock,
) -> None:
    log = ["down"]
    async with on_stage(flaky(log)) as stage:
        await fail(stage, 5)
        await trio.sleep(30)
        assert stage.breakers.taken_out(AGENT) == {}
        await fail(stage, 1)
        assert "in 60 s" in stage.breakers.taken_out(AGENT)["flaky"]
        await trio.sleep(60)
        log.remove("down")
        for _ in range(2):
            assert (await stage.call("flaky")).text == "fine"
        log.append("down")
        await fail(stage, 4)
        assert stage.breakers.taken_out(AGENT) == {}


@pytest.mark.parametrize("cause", ["retry", "arguments", "gate"])
async def test_what_says_nothing_of_the_tool_does_not_count(cause: str) -> None:
    async def picky(x: int) -> str:
        raise ToolRetry(f"not {x}: ask for another one")

    async def refuse(_call: BeforeTool) -> Deny:
        return Deny("no")

    hooks = HookSet()
    if cause == "gate":
        hooks.add("before_tool", refuse)
    async with on_stage(tool(picky), hooks=hooks) as stage:
        for _ in range(8):
            result = await stage.call("picky", {} if cause == "arguments" else {"x": 1})
            assert not result.ok
        assert stage.breakers.taken_out(AGENT) == {}


async def test_a_cancelled_probe_gives_its_place_back(autojump_clock: MockClock) -> None:
    log = ["down"]

    async def hang_or_fail() -> str:
        if "hang" in log:
            await trio.sleep_forever()
        raise RuntimeError("down")

    async with on_stage(tool(hang_or_fail, name="flaky")) as stage:
        await fail(stage, 5)
        await trio.sleep(30)
        log.append("hang")
        with trio.move_on_after(1):
            await stage.call("flaky")
        log.remove("hang")
        assert (await stage.call("flaky")).kind == "unknown"
