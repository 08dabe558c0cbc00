"""A child run that a call waits for: its scope, its budget, its gate, its trace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
)
from tests.scripted import Scripted, call, say

ALICE = motet.Principal("alice")
LIMITS = motet.Limits()


def pair(
    child: Scripted, parent: Scripted, *, limits: motet.Limits = LIMITS
) -> tuple[motet.Agent[None], motet.Agent[None]]:
    worker = motet.Agent("worker", model=child, description="Does the work.", limits=limits)
    return worker, motet.Agent("lead", model=parent, tools=[worker.as_tool()])


async def test_the_answer_of_a_child_is_the_result_of_the_call() -> None:
    child = Scripted(say("it is done"), name="child")
    parent = Scripted(call(("worker", {"task": "do it"})), say("well"), name="parent")
    _, lead = pair(child, parent)
    async with motet.open_host(check_messages=True) as host:
        result = await host.run(lead, "go", session="s", principal=ALICE)
        runs = await host.runs()
        (sub,) = [run for run in runs if run.agent == "worker"]
        assert (sub.status, sub.user, sub.text) == ("completed", "alice", "do it")
        assert violations([row.row for row in await host.history(sub.session)]) == ()

    offered = {tool.name: tool.description for tool in parent.requests[0].tools}
    assert offered["worker"] == "Does the work."
    assert [row.text for row in result.rows if isinstance(row, ToolMessage)] == ["it is done"]
    assert [row.text for row in child.requests[0].messages] == ["do it"]
    assert result.usage == Usage(30, 15)


async def test_a_child_is_a_part_of_its_callers_trace() -> None:
    child = Scripted(say("one"), say("two"), name="child")
    both = call(("worker", {"task": "a"}), ("worker", {"task": "b"}))
    _, lead = pair(child, Scripted(both, say("well"), name="parent"))
    async with motet.open_host() as host:
        result = await host.run(lead, "go")
        runs = [run for run in await host.runs() if run.agent == "worker"]
        above = await host.trace(result.run_id)
        calls = {span.id for span in above.spans if span.kind == "tool"}
        below = [await host.trace(run.run_id) for run in runs]
    assert {trace.info.parent for trace in below} == calls
    assert {trace.info.trace_id for trace in below} == {above.info.trace_id}


async def test_stopping_the_caller_ends_the_child_first(autojump_clock: MockClock) -> None:
    child = Scripted(None, name="child")
    _, lead = pair(child, Scripted(call(("worker", {"task": "wait"})), name="parent"))
    async with motet.open_host() as host:
        async with host.stream(lead, "go", session="s") as run:
            await child.asked.wait()
            report = await host.stop(session="s")
            assert report.stopped == [run.id]
        assert host.status().running == 0
        statuses = {info.agent: info.status for info in await host.runs()}
    assert statuses == {"lead": "cancelled", "worker": "cancelled"}
    del autojump_clock


async def test_leaving_the_callers_block_ends_the_child() -> None:
    child = Scripted(None, name="child")
    _, lead = pair(child, Scripted(call(("worker", {"task": "wait"})), name="parent"))
    async with motet.open_host() as host:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run, lead, "go")
            await child.asked.wait()
            nursery.cancel_scope.cancel()
        assert host.status().running == 0
        assert {info.status for info in await host.runs()} == {"cancelled"}
        await wait_all_tasks_blocked()


async def test_a_child_spends_its_callers_tokens() -> None:
    child = Scripted(*(call(("ping", {"n": n})) for n in range(60)), name="child")
    parent = Scripted(call(("worker", {"task": "do it"})), say("never"), name="parent")
    worker, lead = pair(child, parent, limits=motet.Limits(turns=100))

    @worker.tool
    def ping(n: int) -> str:
        return f"pong {n}"

    async with motet.open_host() as host:
        result = await host.run(lead, "go", limits=motet.Limits(tokens=800), check=False)
        by_agent = {run.agent: run for run in await host.runs()}
    assert (result.status, result.limit) == ("limited", "tokens")
    assert (by_agent["worker"].status, by_agent["worker"].detail) == ("limited", "tokens")
    assert len(parent.requests) == 1
    assert result.usage.total_tokens == 15 + by_agent["worker"].usage.total_tokens
    assert 400 < result.usage.total_tokens <= 800


async def test_a_child_that_runs_out_of_turns_has_not_completed() -> None:
    endless = Scripted(*(call(("ping", {"n": n})) for n in range(3)), name="child")
    parent = Scripted(call(("worker", {"task": "do it"})), say("a pity"), name="parent")
    worker, lead = pair(endless, parent, limits=motet.Limits(turns=2))

    @worker.tool
    def ping(n: int) -> str:
        return f"pong {n}"

    async with motet.open_host() as host:
        result = await host.run(lead, "go")
    (failed,) = result.errors
    assert "agent 'worker' did not finish, limited: turns" in failed.text


async def test_children_go_no_deeper_than_the_limit() -> None:
    inner = motet.Agent("inner", model=Scripted(say("deep"), name="inner"))
    middle_model = Scripted(call(("inner", {"task": "go down"})), say("alone then"), name="middle")
    middle = motet.Agent("middle", model=middle_model, tools=[inner.as_tool()])
    outer_model = Scripted(call(("middle", {"task": "go down"})), say("up again"), name="outer")
    outer = motet.Agent("outer", model=outer_model, tools=[middle.as_tool()])
    async with motet.open_host() as host:
        assert (await host.run(outer, "go")).output == "up again"
        assert {run.agent for run in await host.runs()} == {"outer", "middle"}
    (refused,) = [row for row in middle_model.requests[-1].messages if isinstance(row, ToolMessage)]
    assert "the limit 'depth' of this run does not allow it" in refused.text


async def test_a_gate_can_refuse_a_child() -> None:
    child = Scripted(name="child")
    _, lead = pair(child, Scripted(call(("worker", {"task": "rm"})), say("no"), name="parent"))
    async with motet.open_host() as host:
        seen: list[str] = []

        @host.on("before_child")
        async def gate(event: motet.BeforeChild) -> motet.Deny:
            seen.append(f"{event.agent} -> {event.child}: {event.text}")
            return motet.Deny("nobody works today")

        result = await host.run(lead, "go")
        assert {run.agent for run in await host.runs()} == {"lead"}
    assert seen == ["lead -> worker: rm"]
    (row,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert (row.outcome, row.text) == ("denied", "Permission denied: nobody works today")


class Delegating:
    """Calls the first tool it is offered, once, and is done."""

    def __init__(self, name: str) -> None:
        self.name = name

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        asked = isinstance(request.messages[-1], UserMessage)
        yield self._answer(request.tools[-1].name if asked else "")

    async def _answer(self, tool: str) -> AsyncIterator[ModelEvent]:
        if tool:
            yield CallStart(0, "c0", tool)
            yield CallArguments(0, '{"task": "go"}' if tool == "worker" else "{}")
            yield Finished("tool_calls")
        else:
            yield TextPart("done")
            yield Finished("stop")


async def test_waiting_callers_take_no_place_from_their_children() -> None:
    """More runs at once than an executor would have places for: their children's calls run."""
    worker = motet.Agent("worker", model=Delegating("child"))
    lead = motet.Agent("lead", model=Delegating("parent"), tools=[worker.as_tool()])
    everybody = 300
    waiting, all_there = list[int](), trio.Event()

    @worker.tool
    async def zz_meet() -> str:
        waiting.append(1)
        if len(waiting) == everybody:
            all_there.set()
        await all_there.wait()
        return "met"

    with trio.fail_after(60):
        async with motet.open_host(agents=[lead]) as host, trio.open_nursery() as nursery:
            for _ in range(everybody):
                nursery.start_soon(host.run, "lead", "go")
    assert len(waiting) == everybody
