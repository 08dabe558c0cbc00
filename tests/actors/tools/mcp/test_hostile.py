"""A siege: servers that break every rule of the protocol cost their callers an error, no more."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Set
from pathlib import Path
from random import Random

import pytest
import trio

from motet.actors.tools.mcp import stdio as wire
from motet.protocols.mcp import McpFailed, McpServer
from tests.actors.tools.mcp.hostile import BAD, DEAD, ENDS, GOOD
from tests.actors.tools.mcp.hostile_web import HTTP_BAD, HTTP_DEAD, HTTP_ENDS, besieging
from tests.actors.tools.mcp.stage import Stage, acting, children, open_files
from tests.aimock import SDK_GENERATORS

COMMAND = (sys.executable, "-I", str(Path(__file__).with_name("hostile.py")))
LONG = 30.0
SHORT = 0.3


def on_pipes(timeout: float) -> McpServer:
    return McpServer(command=COMMAND, idle_stop=0, timeout=timeout, start_timeout=20)


def on_the_web(url: str, timeout: float) -> McpServer:
    return McpServer(url=url, idle_stop=0, timeout=timeout, start_timeout=20)


@pytest.fixture(autouse=True)
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 8 << 20)


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def suffered(stage: Stage, how: str) -> str:
    """The outcome of a call: its text, or the kind and the words of its failure."""
    with trio.fail_after(LONG + 20):
        try:
            return f"done: {await stage.call('do', how=how)}"
        except McpFailed as failed:
            return f"{failed.kind}: {failed}"


def problem(how: str, outcome: str, *, web: bool) -> str:
    """The law that an outcome breaks; empty when it keeps all."""
    kind, _, words = outcome.partition(": ")
    expected, says = {
        **dict.fromkeys(GOOD, ("done", "")),
        **dict.fromkeys(BAD | HTTP_BAD, ("refused", ": ")),
        **dict.fromkeys(ENDS | HTTP_ENDS, ("unavailable", "the next call starts it again")),
        **dict.fromkeys(DEAD | HTTP_DEAD, ("timeout", "its timeout in the configuration")),
        **(dict.fromkeys(HTTP_BAD, ("refused", ": ")) if web else {}),
    }[how]
    return "" if kind == expected and says in words else f"{how}: {outcome[:200]}"


async def beats(stage: Stage, hows: Iterable[str], *, web: bool) -> list[str]:
    """The laws that break while a server does all this, one after the other, in one host.

    Meanwhile another task of the host goes on, and after each misdeed the server can be used.
    """
    broken: list[str] = []
    steps = 0

    async def heart() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(heart)
        for how in hows:
            before = steps
            broken.append(problem(how, await suffered(stage, how), web=web))
            if steps == before:
                broken.append(f"{how}: the host stood still")
            broken.append(await unusable(stage, how))
        nursery.cancel_scope.cancel()
    return [one for one in broken if one]


async def unusable(stage: Stage, how: str) -> str:
    """Why an honest call fails afterwards, but for the pause of a server that has failed often."""
    with trio.move_on_after(60):
        while True:
            try:
                assert await stage.call("echo", text=how) == how
                return ""
            except McpFailed as failed:
                if "it is started again in" not in str(failed) and failed.kind != "timeout":
                    return f"after {how}: {failed}"
                await trio.sleep(0.05)
    return f"after {how}: no answer"


async def settled(expected: tuple[object, ...]) -> None:
    """Wait until the processes, open files and tasks are those of before."""
    with trio.fail_after(60):
        while (children(), open_files(), tasks()) != expected:
            await trio.sleep(0.01)


async def siege_on_pipes(hows: Iterable[str], timeout: float) -> None:
    before = children(), open_files(), tasks()
    async with acting(on_pipes(timeout)) as stage:
        assert await beats(stage, hows, web=False) == []
        assert len(children()) == len(before[0]) + 1
    await settled(before)


async def siege_on_the_web(hows: list[str], timeout: float) -> None:
    before = children(), open_files(), tasks()
    async with besieging() as web, acting(on_the_web(web.url, timeout)) as stage:
        await stage.call("echo", text="up")
        within = tasks()
        assert await beats(stage, hows, web=True) == []
        # Nothing of the SDK outlives the call that it was for; one task listens, off and on.
        with trio.fail_after(60):
            while tasks() > within + 2:
                await trio.sleep(0.01)
        assert web.gets < 5 + 10 * len(hows)
    await settled(before)


def drawn(hows: Set[str], count: int) -> list[str]:
    return Random(3).sample(sorted(hows), count)


async def test_a_server_on_pipes_that_breaks_the_protocol_costs_single_calls() -> None:
    """Law: a misdeed costs its call, which says what to do; the host lives; the next call works."""
    await siege_on_pipes([*drawn(GOOD | BAD, 8), "half"], LONG)


async def test_a_server_on_pipes_that_does_not_answer_costs_single_calls() -> None:
    """Law: the same where nothing comes that could be an answer."""
    await siege_on_pipes(drawn(DEAD, 2), SHORT)


@SDK_GENERATORS
async def test_a_server_on_the_web_that_breaks_the_protocol_costs_single_calls() -> None:
    """Law: a misdeed costs its call, which says what to do; the host lives; the next call works."""
    await siege_on_the_web([*drawn(GOOD | BAD | HTTP_BAD, 12), "cut"], LONG)


@SDK_GENERATORS
async def test_a_server_on_the_web_that_does_not_answer_costs_single_calls() -> None:
    """Law: the same where nothing comes that could be an answer."""
    await siege_on_the_web(["sleepy", "silent"], SHORT)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
async def test_all_misdeeds_on_pipes_in_any_order_cost_single_calls(seed: int) -> None:
    random = Random(seed)
    await siege_on_pipes(random.sample(sorted(GOOD | BAD), len(GOOD | BAD)), LONG)
    await siege_on_pipes(random.sample(sorted(DEAD), len(DEAD)), SHORT)


@pytest.mark.sweep
@SDK_GENERATORS
@pytest.mark.parametrize("seed", range(10))
async def test_all_misdeeds_on_the_web_in_any_order_cost_single_calls(seed: int) -> None:
    random = Random(seed)
    hows = GOOD | BAD | HTTP_BAD
    await siege_on_the_web(random.sample(sorted(hows), len(hows)), LONG)
    await siege_on_the_web(random.sample(sorted(HTTP_DEAD), len(HTTP_DEAD)), SHORT)


@pytest.mark.sweep
@pytest.mark.parametrize("how", sorted(ENDS))
async def test_an_end_on_pipes_is_told_and_the_next_call_starts_the_server_again(how: str) -> None:
    await siege_on_pipes([how, how], LONG)


@pytest.mark.sweep
@SDK_GENERATORS
@pytest.mark.parametrize("how", sorted(HTTP_ENDS))
async def test_an_end_on_the_web_is_told_and_the_next_call_starts_it_again(how: str) -> None:
    await siege_on_the_web([how, how], LONG)


@pytest.mark.sweep
@SDK_GENERATORS
async def test_a_hundred_calls_without_an_answer_leave_room_for_the_next() -> None:
    """A connection that waits for an answer which nobody wants any more is given back."""
    async with besieging() as web, acting(on_the_web(web.url, SHORT)) as stage:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for how in ("silent", "stuck", "sleepy") * 15:
                    nursery.start_soon(suffered, stage, how)
        assert await unusable(stage, "a hundred") == ""
