"""Background children: reported once, in order, and ended with their caller."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ChatMessage, JsonObject, ToolMessage, UserMessage
from tests.paced import Paced
from tests.scripted import Scripted, Step, call, say

ALICE = motet.Principal("alice")
LIMITS = motet.Limits()


def spawn(*tasks: str, **more: str) -> Step:
    given: list[JsonObject] = [{"task": task, "agent": "worker", **more} for task in tasks]
    return call(*(("spawn", args) for args in given))


def lead_of(model: Scripted, limits: motet.Limits = LIMITS) -> motet.Agent[None]:
    return motet.Agent("lead", model=model, tools=["group:agents"], limits=limits)


def told(rows: tuple[ChatMessage, ...]) -> list[str]:
    """What of the rows tells of children that have ended."""
    return [row.text for row in rows if isinstance(row, UserMessage) and row.note == "injected"]


async def test_a_caller_goes_on_and_gets_all_results_before_it_ends(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(spawn("5 slow", "1 quick"), say("I wait"), say("more"), say("all done"))
    worker = Paced()
    async with motet.open_host(agents=[worker.agent()], check_messages=True) as host:
        async with host.stream(lead_of(model), "go", session="s", principal=ALICE) as run:
            seen = [event async for event in run]
        result = run.result
        children = [info for info in await host.runs() if info.agent == "worker"]

    assert (result.status, result.output) == ("completed", "all done")
    assert violations(result.rows) == ()
    first, second = told(result.rows)
    assert "completed]\ndid quick" in first
    assert "completed]\ndid slow" in second
    assert [row.text for row in worker.requests[0].messages] == ["5 slow"]
    assert {(info.user, info.status) for info in children} == {("alice", "completed")}
    started = [event for event in seen if isinstance(event, motet.ChildStarted)]
    ended = [event for event in seen if isinstance(event, motet.ChildEnded)]
    assert [one.run for one in started] == [one.run for one in reversed(ended)]
    assert isinstance(seen[-1], motet.RunCompleted)
    assert result.usage.total_tokens == sum(c.usage.total_tokens for c in children) + 4 * 15
    del autojump_clock


async def test_children_that_end_together_are_reported_together(autojump_clock: MockClock) -> None:
    model = Scripted(spawn("2 a", "2.5 b", "2.9 c"), say("I wait"), say("done"))
    async with motet.open_host(agents=[Paced().agent()]) as host:
        result = await host.run(lead_of(model), "go")
    (once,) = told(result.rows)
    assert [once.count(f"did {name}") for name in "abc"] == [1, 1, 1]
    assert once.index("did a") < once.index("did b") < once.index("did c")
    assert len(model.requests) == 3
    del autojump_clock


async def test_results_of_calls_come_before_notices_of_children(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(spawn("1 a"), call(("nap", {})), say("done"))
    lead = lead_of(model)

    @lead.tool
    async def nap() -> str:
        await trio.sleep(2)
        return "rested"

    async with motet.open_host(agents=[Paced().agent()]) as host:
        result = await host.run(lead, "go")
    kinds = [type(row).__name__ for row in result.rows[-4:]]
    assert kinds == ["AssistantMessage", "ToolMessage", "UserMessage", "AssistantMessage"]
    assert len(told(result.rows)) == 1
    del autojump_clock


async def test_stopping_the_caller_ends_every_child_and_publishes_it(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(spawn("never a", "never b", "1 c"), say("I wait"))
    worker = Paced()
    async with motet.open_host(agents=[worker.agent()]) as host:
        async with host.stream(lead_of(model), "go", session="s"):
            while worker.working < 3:
                await trio.sleep(0.01)
            await trio.sleep(0.5)
            report = await host.stop(session="s")
            assert not report.still_running
        assert (worker.working, host.status().running) == (0, 0)
        runs = {info.text: info for info in await host.runs()}
        rows = tuple(item.row for item in await host.history("s"))
    assert {info.status for info in runs.values()} == {"cancelled"}
    assert violations(rows) == ()
    assert rows[-1].text.startswith("I wait\n\n[Stopped by user]")
    for task in ("never a", "never b", "1 c"):
        assert f"- worker ({runs[task].run_id}): cancelled, its caller has ended" in rows[-1].text
    del autojump_clock


async def test_a_cancelled_child_is_not_reported_again(autojump_clock: MockClock) -> None:
    worker = Paced()
    model = Scripted(spawn("never a"))
    async with motet.open_host(agents=[worker.agent()]) as host, trio.open_nursery() as nursery:
        lead = lead_of(model)

        @lead.tool
        async def child() -> str:
            (info,) = [info for info in await host.runs() if info.agent == "worker"]
            model.then(
                call(("subagents", {"action": "cancel", "id": info.run_id})),
                call(("subagents", {"action": "status", "id": info.run_id})),
                call(("subagents", {"action": "status", "id": "run_of_another"})),
                say("well"),
            )
            return info.run_id

        model.then(call(("child", {})))
        result = await host.run(lead, "go")
        nursery.cancel_scope.cancel()
    assert told(result.rows) == []
    cancelled, status, foreign = [
        row.text for row in result.rows if isinstance(row, ToolMessage) and row.name == "subagents"
    ]
    assert ": cancelled, cancelled by its caller" in cancelled
    assert cancelled == status
    assert foreign.startswith("You have no sub-agent 'run_of_another'.")
    del autojump_clock


async def test_the_limits_of_live_and_of_working_children_hold(autojump_clock: MockClock) -> None:
    limits = motet.Limits(children=4, parallel_children=2)
    model = Scripted(spawn(*[f"1 {n}" for n in range(6)]), say("I wait"), say("w"), say("done"))
    worker = Paced()
    async with motet.open_host(agents=[worker.agent()]) as host:
        result = await host.run(lead_of(model, limits), "go")
    refused = [row for row in result.rows if isinstance(row, ToolMessage) and row.outcome != "done"]
    assert len(refused) == 2
    assert "the limit 'children'" in refused[0].text
    assert worker.most == 2
    del autojump_clock


async def test_a_child_of_depth_one_is_offered_no_children() -> None:
    model = Scripted(call(("spawn", {"task": "be me"})), say("I wait"), name="m")
    model.then(say("I am you"), say("done"))
    async with motet.open_host() as host:
        await host.run(lead_of(model), "go")
    offered = [{tool.name for tool in request.tools} for request in model.requests]
    mine = [tools for tools in offered if "spawn" in tools]
    its = [tools for tools in offered if "spawn" not in tools]
    assert len(its) == 1
    assert len(mine) == 3
    assert "get_error_detail" in its[0]


async def test_a_child_that_runs_out_of_turns_is_reported_as_limited() -> None:
    endless = Scripted(*(call(("ping", {"n": n})) for n in range(9)), name="endless")
    worker = motet.Agent("worker", model=endless, limits=motet.Limits(turns=2))

    @worker.tool
    def ping(n: int) -> str:
        return f"pong {n}"

    model = Scripted(spawn("work"), say("I wait"), say("a pity"))
    async with motet.open_host(agents=[worker]) as host:
        result = await host.run(lead_of(model), "go")
    (once,) = told(result.rows)
    assert "limited, turns]" in once
    assert "completed" not in once


async def test_an_unknown_agent_is_refused_with_the_nearest_name() -> None:
    model = Scripted(call(("spawn", {"task": "x", "agent": "wroker"})), say("sorry"))
    async with motet.open_host(agents=[Paced().agent()]) as host:
        result = await host.run(lead_of(model), "go")
    (failed,) = result.errors
    assert "unknown agent 'wroker'" in failed.text
    assert "There are:\n- worker: Works.\n- lead" in failed.text


async def test_a_gate_can_refuse_a_background_child() -> None:
    model = Scripted(spawn("rm"), say("no then"))
    async with motet.open_host(agents=[Paced().agent()]) as host:

        @host.on("before_child")
        async def gate(event: motet.BeforeChild) -> motet.Deny:
            return motet.Deny(f"not {event.text}")

        result = await host.run(lead_of(model), "go")
        assert {info.agent for info in await host.runs()} == {"lead"}
    (row,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert (row.outcome, row.text) == ("denied", "Permission denied: not rm")


async def test_a_limit_of_the_caller_ends_children_and_names_them(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(spawn("never a"), say("I wait"))
    async with motet.open_host(agents=[Paced().agent()]) as host:
        limits = motet.Limits(wall=10)
        result = await host.run(lead_of(model), "go", limits=limits, check=False)
    assert (result.status, result.limit) == ("limited", "wall")
    assert ": cancelled, its caller has ended" in result.rows[-1].text
    assert violations(result.rows) == ()
    del autojump_clock


async def test_a_steering_text_enters_while_children_work(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(spawn("50 a"), say("I wait"), say("I hear you"), say("done"))
    async with motet.open_host(agents=[Paced().agent()]) as host:
        async with host.stream(lead_of(model), "go", session="s") as run:
            await trio.sleep(1)
            await host.send("hurry up", run_id=run.id)
            await trio.sleep(1)
            assert len(model.requests) == 3
            assert [event async for event in run]
        result = run.result
    assert result.output == "done"
    assert [row.text for row in result.rows if isinstance(row, UserMessage)][1] == "hurry up"
    del autojump_clock


async def test_a_child_has_no_tool_that_its_caller_is_denied() -> None:
    worker_model = Scripted(call(("shell", {"command": "id"})), say("no shell"), name="worker")
    worker = motet.Agent("worker", model=worker_model, tools=["shell", "read_file"])
    model = Scripted(spawn("rm"), say("I wait"), say("done"))
    lead = motet.Agent(
        "lead", model=model, tools=["group:agents"], policy=motet.ToolRules(deny=("shell",))
    )
    async with motet.open_host(agents=[worker]) as host:
        await host.run(lead, "go")
    assert "shell" not in {tool.name for tool in worker_model.requests[0].tools}
    (refused,) = [r for r in worker_model.requests[1].messages if isinstance(r, ToolMessage)]
    assert refused.outcome != "done"


async def test_sessions_of_children_are_not_listed() -> None:
    model = Scripted(spawn("0 a"), say("I wait"), say("done"))
    async with motet.open_host(agents=[Paced().agent()]) as host:
        await host.run(lead_of(model), "go", session="s")
        assert [info.session for info in await host.sessions()] == ["s"]
