"""The area of sub-agents: which tools they lack, and what their callers are told of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import SPAWN
from motet.protocols.chat import JsonObject, UserMessage
from tests.paced import Paced
from tests.scripted import Scripted, Step, call, say
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood

TOOLS = ("group:agents", "group:memory", "group:fs", "group:shell")


def sub_agents(given: Given) -> Facts:
    if "process" in given:
        return trio.run(_restarted, 3)  # real disks take real time
    clock = MockClock(autojump_threshold=0)
    if "finished_within_ms" in given:
        within, count = given.seconds("finished_within_ms") or 0, given.number("count")
        return trio.run(_told, within / 1000, count, clock=clock)
    if given.value != {}:
        raise NotUnderstood(str(given))
    return trio.run(_denied, clock=clock)


def _spawn(*tasks: str) -> Step:
    given: list[JsonObject] = [{"task": task, "agent": "worker"} for task in tasks]
    return call(*((SPAWN, args) for args in given))


def _lead(*steps: Step) -> motet.Agent[None]:
    return motet.Agent("lead", model=Scripted(*steps, name="lead"), tools=["group:agents"])


async def _denied() -> Facts:
    """The tools that a caller has, and a child of its own at the greatest depth has not."""
    model = Scripted(call((SPAWN, {"task": "be me"})), say("I wait"), say("me"), say("done"))
    async with motet.open_host() as host:
        await host.run(motet.Agent("a", model=model, tools=TOOLS), "go")
    offered = [{tool.name for tool in request.tools} for request in model.requests]
    child = min(offered, key=len)
    return {MAIN: sorted(max(offered, key=len) - child), "offered": child}


async def _told(within: float, count: int) -> Facts:
    """How often a caller's model is told of children that end so close together."""
    tasks = [f"{5 + within * n / count} {n}" for n in range(count)]
    lead = _lead(_spawn(*tasks), say("I wait"), *[say("more")] * count)
    async with motet.open_host(agents=[Paced().agent()]) as host:
        result = await host.run(lead, "go")
    told = [row for row in result.rows if isinstance(row, UserMessage) and row.note == "injected"]
    return {"parent_runs": len(told)}


async def _restarted(count: int) -> Facts:
    """The state as a kill would leave it, taken up by another host."""
    worker = Paced()
    with TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        async with motet.open_host(first, agents=[worker.agent()]) as host:
            lead = _lead(_spawn(*["never"] * count), say("I wait"))
            async with host.stream(lead, "go", session="s"):
                while worker.working < count:
                    await trio.sleep(0.01)
                shutil.copytree(first, second)
        async with motet.open_host(second) as host:
            children = [run for run in await host.runs() if run.agent == "worker"]
            said = [item.row.text for item in await host.history("s")][-1]
    told = [f"({run.run_id}): {run.status}" in said for run in children]
    lost = "told of" if told == [True] * count else "lost without a word"
    return {"children": lost}
