"""The policy of a host as its runs meet it: in the list, at the call, below and after a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.telemetry.subscription import subscribe
from motet.protocols.agents import AgentRecord
from motet.protocols.approvals import ApprovalDecision, ApprovalsConfig
from motet.protocols.chat import ToolMessage
from motet.protocols.config import HostConfig, ToolsConfig
from motet.protocols.errors import ConfigError
from motet.protocols.events import ApprovalRequested, EventRecord, RunCompleted
from motet.protocols.policy import Effect, PolicyRule, Ruling, Subject, ToolFacts, ToolRules
from tests.scripted import Scripted, call, say

VERA = motet.Principal("vera", "viewer")
NO_SHELL = PolicyRule(tool="group:shell", effect="deny", roles=("viewer",), reason="viewers look")


def config(*rules: PolicyRule, tools: ToolsConfig | None = None) -> HostConfig:
    return HostConfig(policy=rules, tools=tools or ToolsConfig())


def offered(model: Scripted, request: int = 0) -> list[str]:
    return [tool.name for tool in model.requests[request].tools]


def results(result: motet.RunResult[Any]) -> list[ToolMessage]:
    return [row for row in result.rows if isinstance(row, ToolMessage)]


async def completed(events: AsyncIterator[EventRecord]) -> None:
    with trio.fail_after(10):
        async for record in events:
            if isinstance(record.event, RunCompleted):
                return


async def test_what_is_denied_is_not_offered_and_does_not_exist_when_it_is_called() -> None:
    asked = call(("shell", {"command": "id"}), ("shel", {}))
    for who, seen in ((VERA, False), (motet.Principal("bob"), True)):
        model = Scripted(asked, say("well"))
        agent = motet.Agent("a", model=model, tools=["group:shell", "group:fs"])
        async with motet.open_host(config=config(NO_SHELL), agents=[agent]) as host:
            result = await host.run(agent, "go", principal=who)
        assert ("shell" in offered(model)) is seen
        denied, unknown = results(result)
        if not seen:
            assert denied.outcome == "denied"
            assert denied.text.startswith("There is no tool 'shell'. Available tools")
            assert unknown.text == denied.text.replace("'shell'", "'shel'")
        assert ("shell" in unknown.text.partition("Available")[2]) is seen


async def test_a_denial_counts_as_no_failure_of_the_run() -> None:
    calls = [call(("shell", {"command": f"echo {n}"})) for n in range(4)]
    agent = motet.Agent("a", model=Scripted(*calls, say("well")), tools=["shell"])
    async with motet.open_host(config=config(NO_SHELL), agents=[agent]) as host:
        result = await host.run(agent, "go", principal=VERA)
    assert result.status == "completed"
    assert [row.outcome for row in results(result)] == ["denied"] * 4


async def test_a_call_by_another_name_is_the_call_it_means() -> None:
    ran: list[str] = []

    def shell(command: str) -> str:
        ran.append(command)
        return "done"

    asked = call(("functions.bash", {"command": "id"}), ("proxy_shell", {"command": "who"}))
    model = Scripted(asked, say("well"))
    agent = motet.Agent("a", model=model, tools=[shell])
    some = config(tools=ToolsConfig(prefixes=("proxy",)))
    async with motet.open_host(config=some, agents=[agent]) as host:
        result = await host.run(agent, "go")
    assert sorted(ran) == ["id", "who"]
    assert [row.name for row in results(result)] == ["shell", "shell"]

    model = Scripted(call(("Bash", {"command": "id"})), say("well"))
    agent = motet.Agent("a", model=model, tools=["shell", "read_file"])
    async with motet.open_host(config=config(NO_SHELL), agents=[agent]) as host:
        result = await host.run(agent, "go", principal=VERA)
    assert [row.outcome for row in results(result)] == ["denied"]


async def test_a_sub_agent_may_call_nothing_that_its_parent_may_not() -> None:
    asked = call(("shell", {"command": "id"}))
    child = Scripted(asked, say("no luck"), name="child")
    worker = motet.Agent("worker", model=child, tools=["shell", "read_file"])
    parent = Scripted(call(("worker", {"task": "run id"})), say("well"), name="parent")
    lead = motet.Agent(
        "lead", model=parent, tools=[worker.as_tool()], policy=ToolRules(deny=("shell",))
    )
    async with motet.open_host(agents=[lead]) as host:
        await host.run(lead, "go")
        assert "read_file" in offered(child)
        assert "shell" not in offered(child)
        assert child.requests[1].messages[-1].text.startswith("There is no tool 'shell'.")
        child.then(say("alone"))
        await host.run(worker, "go")
        assert "shell" in offered(child, 2)


async def test_whoever_takes_a_conversation_over_is_bound_as_well() -> None:
    second = Scripted(say("well"), name="second")
    writer = motet.Agent("writer", model=second, tools=["shell", "read_file"])
    first = Scripted(call(("transfer_to_writer", {})), name="first")
    lead = motet.Agent("lead", model=first, handoffs=[writer], policy=ToolRules(deny=("shell",)))
    async with motet.open_host(agents=[lead]) as host:
        await host.run(lead, "go")
    assert "read_file" in offered(second)
    assert "shell" not in offered(second)


@pytest.mark.parametrize("decision", ["allow-once", "deny"])
async def test_an_ask_waits_for_a_person(decision: ApprovalDecision) -> None:
    ran: list[str] = []

    def look() -> str:
        ran.append("look")
        return "seen"

    agent = motet.Agent("a", model=Scripted(call(("look", {})), say("well")), tools=[look])
    rule = PolicyRule(tool="look", effect="ask", reason="looking costs money")
    host_of = motet.open_host(config=config(rule), agents=[agent])
    async with host_of as host, host.stream(agent, "go") as run:
        async for event in run:
            if isinstance(event, ApprovalRequested):
                assert (event.tool, event.reason, ran) == ("look", rule.reason, [])
                await host.approve(event.id, decision)
    assert ran == (["look"] if decision == "allow-once" else [])
    assert run.result is not None
    assert run.result.status == "completed"


async def test_an_approved_call_is_not_one_too_many_because_it_had_to_wait() -> None:
    async def look() -> str:
        return "seen"

    agent = motet.Agent("a", model=Scripted(call(("look", {})), say("well")), tools=[look])
    some = attrs.evolve(
        config(PolicyRule(tool="look", effect="ask"), tools=ToolsConfig(calls_per_hour=1)),
        approvals=ApprovalsConfig(hold=0),
    )
    async with motet.open_host(config=some, agents=[agent]) as host:
        async with subscribe(host.events, "session:s") as events:
            waiting = await host.run("a", "go", session="s", check=False)
            assert waiting.status == "waiting"
            (approval,) = await host.approvals(state="pending")
            await host.approve(approval.id, "allow-once")
            await completed(events)
        rows = [item.row for item in await host.history("s")]
    assert [row.text for row in rows if isinstance(row, ToolMessage)] == ["seen"]


async def test_who_takes_over_is_bound_after_a_restart_as_well(tmp_path: Path) -> None:
    """A run that was handed over, then suspended, then found by another host has its lineage."""
    asked, second = call(("look", {})), Scripted(name="second")
    second.then(asked)
    rules = (
        PolicyRule(tool="look", effect="ask"),
        PolicyRule(tool="shell", effect="deny", agents=("lead",)),
    )
    some = attrs.evolve(config(*rules), approvals=ApprovalsConfig(hold=0))

    def look() -> str:
        return "seen"

    def agents() -> list[motet.Agent]:
        writer = motet.Agent("writer", model=second, tools=[look, "shell"])
        first = Scripted(call(("transfer_to_writer", {})), name="first")
        return [motet.Agent("lead", model=first, handoffs=[writer]), writer]

    async with motet.open_host(tmp_path, config=some, agents=agents()) as host:
        waiting = await host.run("lead", "go", session="s", check=False)
        assert waiting.status == "waiting"
    async with motet.open_host(tmp_path, config=some, agents=agents()) as host:
        second.then(say("well"))
        (approval,) = await host.approvals(state="pending")
        async with subscribe(host.events, "session:s") as events:
            await host.approve(approval.id, "allow-once")
            await completed(events)
    for request in range(2):
        assert "look" in offered(second, request)
        assert "shell" not in offered(second, request)


async def test_too_many_calls_are_refused_until_there_is_room(mock_clock: MockClock) -> None:
    def look() -> str:
        return "seen"

    both = call(("look", {}), ("look", {}))
    model = Scripted(*[both, say("so")] * 4)
    agent = motet.Agent("a", model=model, tools=[look])
    some = config(tools=ToolsConfig(per_hour={"look": 3}))
    async with motet.open_host(config=some, agents=[agent]) as host:
        first = await host.run(agent, "go", session="s")
        second = await host.run(agent, "go", session="s")
        mock_clock.jump(1800)
        late = await host.run(agent, "go", session="s")
        mock_clock.jump(1801)
        third = await host.run(agent, "go", session="s")
    texts = [[row.text for row in results(one)] for one in (first, second, late, third)]
    assert texts[0] == texts[3] == ["seen", "seen"]
    assert texts[1][0] == "seen"
    assert texts[2][0] == texts[2][1] == texts[1][1].replace("60 min", "30 min")
    assert texts[1][1] == (
        "Rate limit: 'look' may be called 3 times an hour in one session. Nothing was done; "
        "try again in 60 min, or go on without it."
    )


async def test_children_count_for_the_session_above_them() -> None:
    def look() -> str:
        return "seen"

    child = Scripted(call(("look", {})), say("1"), call(("look", {})), say("2"), name="child")
    worker = motet.Agent("worker", model=child, tools=[look])
    twice = call(("worker", {"task": "a"})), call(("worker", {"task": "b"}))
    lead = motet.Agent(
        "lead", model=Scripted(*twice, say("well"), name="p"), tools=[worker.as_tool()]
    )
    some = config(tools=ToolsConfig(per_hour={"look": 1}))
    async with motet.open_host(config=some, agents=[lead]) as host:
        await host.run(lead, "go")
    seen = [m.text for r in child.requests for m in r.messages if isinstance(m, ToolMessage)]
    assert seen[0] == "seen"
    assert seen[1].startswith("Rate limit: 'look'")


async def test_an_engine_of_the_program_decides_beside_the_rules() -> None:
    class Office:
        """Nobody but the night watch works at night."""

        def decide(self, subject: Subject, tool: ToolFacts) -> Ruling:
            effect: Effect = "allow" if subject.user == "watch" else "deny"
            return Ruling(effect, "office hours")

    agent = motet.Agent("a", model="demo", tools=["shell", "read_file"])
    async with motet.open_host(config=config(NO_SHELL), agents=[agent], policy=Office()) as host:
        for who in (motet.Principal("watch"), motet.Principal("watch", "viewer"), VERA):
            judged = {one.name: one for one in await host.tools("a", principal=who)}
            assert (judged["shell"].effect == "allow") is (who == motet.Principal("watch"))
            assert (judged["read_file"].effect == "allow") is (who.user == "watch")
        assert judged["read_file"].rule == "office hours"


async def test_a_stored_agent_has_its_policy() -> None:
    record = AgentRecord("clerk", tools=("group:fs",), policy=ToolRules(allow=("read_file",)))
    async with motet.open_host() as host:
        await host.put_agent(record)
        judged = await host.tools("clerk")
        assert {one.name for one in judged if one.effect == "allow"} == {
            "read_file",
            "get_error_detail",
            "get_tool_result",
        }
        wrong = AgentRecord("clerk", tools=("group:fs",), policy=ToolRules(deny=("reed_file",)))
        with pytest.raises(ConfigError, match="did you mean 'read_file'"):
            await host.put_agent(wrong)
        assert await host.stored_agents() == (record,)


@pytest.mark.parametrize(
    "rule",
    [
        PolicyRule(tool="shel", effect="deny"),
        PolicyRule(tool="shell", effect="deny", agents=("helpr",)),
    ],
)
async def test_a_host_with_a_rule_on_nothing_does_not_open(rule: PolicyRule) -> None:
    agent = motet.Agent("helper", model="demo", tools=["shell"])
    with pytest.raises(ConfigError, match=r"policy\[0\]\.\w+: unknown .* did you mean"):
        async with motet.open_host(config=config(rule), agents=[agent]):
            pass


async def test_a_rule_may_be_on_an_agent_of_the_store(tmp_path: Path) -> None:
    some = config(PolicyRule(tool="shell", effect="deny", agents=("clerk",)))
    async with motet.open_host(tmp_path) as host:
        await host.put_agent(AgentRecord("clerk", tools=("shell",)))
    async with motet.open_host(tmp_path, config=some) as host:
        judged = {one.name: one.effect for one in await host.tools("clerk")}
    assert judged["shell"] == "deny"
