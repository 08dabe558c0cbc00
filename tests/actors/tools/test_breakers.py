"""The breakers of tools in the executor."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.actors.errors.classify import Verdict
from motet.actors.hooks.registry import HookSet
from motet.actors.tools.breakers import SCOPES, Breakers, refusal
from motet.actors.tools.tool import Tool, tool
from motet.protocols.events import Warned
from motet.protocols.hooks import BeforeTool, Deny
from motet.protocols.tools import ToolRetry
from motet.runtime.breaker import Breaker
from tests.actors.tools.stage import AGENT, Stage, on_stage


def test_a_refusal_says_why_and_when_it_ends() -> None:
    five = Breaker(state="open", failures=5, opens=1, until=30)
    assert refusal(five, "t", 10) == (
        "Tool 't' is taken out after 5 failures in a row; it can be tried again in 20 s. "
        "Go on without it, or say what is missing."
    )
    half, _ = five.admit(30)
    assert "right now" in refusal(half, "t", 30)


def flaky(log: list[str]) -> Tool:
    """Fails as the log says, and records each call in it."""

    async def flaky() -> str:
        log.append("ran")
        if "down" in log:
            raise RuntimeError("service is down")
        return "fine"

    return tool(flaky)


async def fail(stage: Stage, times: int) -> None:
    for _ in range(times):
        assert (await stage.call("flaky")).outcome == "failed"


async def test_the_fifth_failure_in_a_row_takes_a_tool_out_with_a_warning(
    autojump_clock: MockClock,
) -> None:
    log = ["down"]
    async with on_stage(flaky(log)) as stage:
        await fail(stage, 4)
        assert stage.breakers.taken_out(AGENT, "local") == {}
        await fail(stage, 1)
        assert "after 5 failures in a row" in stage.breakers.taken_out(AGENT, "local")["flaky"]
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
        assert stage.breakers.taken_out(AGENT, "local") == {}
        await fail(stage, 1)
        assert "in 60 s" in stage.breakers.taken_out(AGENT, "local")["flaky"]
        await trio.sleep(60)
        log.remove("down")
        for _ in range(2):
            assert (await stage.call("flaky")).text == "fine"
        log.append("down")
        await fail(stage, 4)
        assert stage.breakers.taken_out(AGENT, "local") == {}


@pytest.mark.parametrize("cause", ["retry", "arguments", "gate"])
async def test_an_attempt_without_a_verdict_does_not_count(cause: str) -> None:
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
        assert stage.breakers.taken_out(AGENT, "local") == {}


async def test_a_cancelled_probe_frees_its_place(autojump_clock: MockClock) -> None:
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


# Several people


USERS = ("ann", "bob", "cyd")
VERDICTS: tuple[Verdict, ...] = ("succeeded", "failed", "down", "abandoned")
steps = st.tuples(
    st.sampled_from(USERS), st.sampled_from(VERDICTS), st.sampled_from([0.0, 1.0, 40.0])
)


async def left_to(user: str, played: list[tuple[str, Verdict, float]]) -> list[bool]:
    """Whether the tool is left to a user before each step."""
    breakers, left = Breakers(chance=lambda: 0.0), list[bool]()
    for who, verdict, seconds in played:
        await trio.sleep(seconds)
        left.append(not breakers.taken_out(AGENT, user))
        breakers.end(breakers.attempt(AGENT, "t", who), verdict)
    return left


@given(st.lists(steps, max_size=40))
def test_the_faults_of_others_are_as_if_they_had_not_been(
    played: list[tuple[str, Verdict, float]],
) -> None:
    """Law: a fault of another user changes nothing for this one; the infrastructure's does."""

    async def both() -> None:
        alone: list[tuple[str, Verdict, float]] = [
            (who, "abandoned" if who != "ann" and verdict == "failed" else verdict, seconds)
            for who, verdict, seconds in played
        ]
        assert await left_to("ann", played) == await left_to("ann", alone)

    trio.run(both, clock=MockClock(autojump_threshold=0))


@given(st.lists(steps.filter(lambda step: step[1] != "failed"), max_size=30))
def test_the_infrastructures_failures_take_a_tool_from_all_or_none(
    played: list[tuple[str, Verdict, float]],
) -> None:
    async def each() -> None:
        ann, bob, cyd = [await left_to(user, played) for user in USERS]
        assert ann == bob == cyd

    trio.run(each, clock=MockClock(autojump_threshold=0))


async def test_the_breakers_of_the_people_who_were_longest_idle_are_forgotten() -> None:
    breakers = Breakers()
    for number in range(SCOPES + 10):
        breakers.end(breakers.attempt(AGENT, "t", f"user{number}"), "failed")
    assert len(breakers.scopes) == SCOPES
    assert (AGENT, f"user{SCOPES + 9}", "") in breakers.scopes
    assert (AGENT, "user0", "") not in breakers.scopes
    for number in range(SCOPES + 10):
        breakers.end(breakers.attempt(AGENT, "t", f"user{number}"), "succeeded")
    assert not breakers.scopes
