"""One process per server, however runs end; none after the end of the host (G2).

The issue's 500 runs: ``pytest -m sweep tests/actors/tools/mcp/test_pool.py``; by default it is 60.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from secrets import randbelow

import pytest
import trio

import motet
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.models import ModelEvent, ModelRequest
from motet.runtime.process_guard import descendants, parents
from tests.actors.tools.mcp.stage import children, everything, faulty, open_files
from tests.aimock import ROOT
from tests.processes import alive, wait_alive
from tests.scripted import Scripted, call, say

AT_ONCE = 4
POOL = 2
DOOMED = "go, until you are cut off"


class Caller:
    """Calls random tools of both servers, and then ends."""

    name = "caller"

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        last = request.messages[-1]
        over = isinstance(last, ToolMessage)
        step = say("done") if over else call(*self._calls(last.text == DOOMED))
        async with Scripted(step).request(request) as events:
            yield events

    def _calls(self, doomed: bool) -> list[tuple[str, JsonObject]]:
        # Some would go on until long after the test: only a cancellation that arrives ends them.
        seconds = self._chance.choice((0, 0.02, 600 if doomed else 0.05))
        calls: list[tuple[str, JsonObject]] = [
            ("mcp__it__echo", {"text": "hi"}),
            ("mcp__it__slow", {"seconds": seconds}),
            ("mcp__it__big", {"size": 100_000}),
            ("mcp__every__echo", {"message": "hi"}),
            (
                "mcp__every__trigger-long-running-operation",
                {"duration": min(seconds, 1), "steps": 1},
            ),
            ("mcp__every__get-tiny-image", {}),
        ]
        return self._chance.sample(calls, self._chance.randint(1, 3))


async def runs(count: int, node: Path, seed: int) -> tuple[int, int]:
    """The numbers of cancelled and completed runs."""
    chance = Random(seed)
    agent = motet.Agent("a", model=Caller(chance), tools=["mcp:it", "mcp:every"])
    ended = {True: 0, False: 0}

    async def one(host: motet.Host, turns: trio.CapacityLimiter, number: int) -> None:
        async with turns:
            assert len(children()) == POOL
            doomed = chance.random() < 0.5
            with trio.move_on_after(chance.uniform(0, 0.08) if doomed else math.inf) as scope:
                text = DOOMED if doomed else "go"
                await host.run(agent, text, session=f"s{number % 20}")
            ended[scope.cancelled_caught] += 1
            assert len(children()) == POOL

    servers = {"it": faulty(), "every": everything(node)}
    async with motet.open_host(mcp=servers) as host:
        await host.run(agent, "start them")
        turns = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, host, turns, number)
        assert await _pending(host) == "0"
        # None of them has taken the servers along, and none has been replaced.
        assert len(children()) == POOL
        assert all(len(children(guard)) == 1 for guard in children())
    return ended[True], ended[False]


async def _pending(host: motet.Host) -> str:
    """The number of calls that our own server still works on."""
    model = Scripted(call(("mcp__it__pending", {})), say("done"), name="asking")
    agent = motet.Agent("asking", model=model, tools=["mcp:it"])
    result = await host.run(agent, "go")
    return next(row.text for row in result.rows if isinstance(row, ToolMessage))


async def check(count: int, node: Path, seed: int) -> None:
    before, files = children(), open_files()
    cut, completed = await runs(count, node, seed)
    assert min(cut, completed) >= count // 10
    assert children() == before
    assert open_files() <= files  # one of an earlier test may be collected meanwhile


@pytest.mark.slow
async def test_there_is_one_process_per_server_whichever_runs_are_cancelled(node: Path) -> None:
    await check(60, node, seed=1)


@pytest.mark.sweep
async def test_there_is_one_process_per_server_over_500_runs(node: Path) -> None:
    await check(500, node, seed=randbelow(1 << 30))


async def test_the_servers_of_a_killed_host_end(node: Path) -> None:
    mark = f"runaway-{os.getpid()}-{randbelow(1 << 30)}"
    host = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.actors.tools.mcp.pool_host", str(node), mark],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert host.stdout is not None
    with ExitStack() as stack:
        stack.callback(host.kill)  # also when this test fails before it does
        with trio.fail_after(60):
            assert (await host.stdout.receive_some()).startswith(b"ready")
        await wait_alive(mark, 1)
        below = [os.pidfd_open(pid) for pid in descendants(host.pid, parents())]
        assert len(below) == 2 * POOL + 1  # a guard and a server each, and the runaway
        for process in below:
            stack.callback(os.close, process)
        host.send_signal(signal.SIGKILL)
        assert await host.wait() == -signal.SIGKILL
        await host.stdout.aclose()
        with trio.fail_after(20):
            for process in below:
                await trio.lowlevel.wait_readable(process)
    assert not alive(mark)
