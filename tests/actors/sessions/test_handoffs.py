"""Handing a conversation over to another agent, and cutting that at any step."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.agents.spec import handoff_tool
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ChatMessage, ToolMessage
from motet.protocols.events import EventRecord
from motet.protocols.models import Usage
from motet.protocols.sessions import HistoryRow
from tests.actors.sessions.crashes import crashed, ended
from tests.guarantees.test_g07_transcript import CancelAt
from tests.scripted import Scripted, Step, call, say

TRANSFER = "transfer_to_writer"


def pair(first: Scripted, second: Scripted) -> tuple[motet.Agent[None], motet.Agent[None]]:
    writer = motet.Agent(
        "writer", model=second, instructions="You write.", description="Writes texts."
    )
    lead = motet.Agent("lead", model=first, instructions="You lead.", handoffs=[writer])
    return lead, writer


def texts(rows: tuple[HistoryRow, ...]) -> list[str]:
    return [item.row.text for item in rows]


async def test_the_target_answers_with_the_whole_conversation() -> None:
    first = Scripted(call((TRANSFER, {"reason": "a poem"}), text="One moment."), name="first")
    second = Scripted(say("Roses are red."), name="second")
    lead, writer = pair(first, second)

    @writer.tool
    def rhyme(word: str) -> str:
        return word

    async with motet.open_host(check_messages=True) as host:
        async with host.stream(lead, "a poem please", session="s") as run:
            told = [event async for event in run]
            result = run.result
        stored = await host.history("s")
        trace = await host.trace(result.run_id)
        (info,) = await host.runs()

    (request,) = second.requests
    assert "You write." in request.system
    assert "You lead." not in request.system
    assert {tool.name for tool in request.tools} >= {"rhyme"}
    assert TRANSFER not in {tool.name for tool in request.tools}
    assert [row.text for row in request.messages][:2] == ["a poem please", "One moment."]
    assert (result.agent, result.output) == ("writer", "Roses are red.")
    assert (result.run_id, result.usage) == (info.run_id, Usage(20, 10))
    assert info.agent == "writer"
    assert violations([item.row for item in stored]) == ()
    (changed,) = [event for event in told if isinstance(event, motet.AgentChanged)]
    assert (changed.agent, changed.model, changed.before) == ("writer", "second", "lead")
    assert [span.agent for span in trace.spans if span.kind == "model"] == ["", "writer"]


async def test_the_model_is_told_when_to_hand_over() -> None:
    first = Scripted(say("no"), name="first")
    lead, _ = pair(first, Scripted(name="second"))
    polite = motet.Agent("p.q", model=Scripted(name="third"))
    lead.may_hand_to(motet.Handoff(polite, description="When they are angry.", name="calm_down"))
    async with motet.open_host() as host:
        await host.run(lead, "go")
    offered = {tool.name: tool.description for tool in first.requests[0].tools}
    assert "Writes texts." in offered[TRANSFER]
    assert offered["calm_down"] == "When they are angry."
    assert handoff_tool(polite).name == "transfer_to_p_q"


async def test_the_session_stays_with_the_agent_that_answered_last() -> None:
    first = Scripted(call((TRANSFER, {})), name="first")
    second = Scripted(say("done"), say("still me"), name="second")
    lead, _ = pair(first, second)
    async with motet.open_host() as host:
        await host.run(lead, "go", session="s")
        (session,) = await host.sessions()
        assert session.agent == "writer"
        await host.submit("and now?", session="s")
        while host.status().running:
            await trio.sleep(0.01)
        assert texts(await host.history("s"))[-1] == "still me"


async def test_of_two_transfers_the_first_counts() -> None:
    other = motet.Agent("other", model=Scripted(name="third"))
    first = Scripted(call((TRANSFER, {}), ("transfer_to_other", {})), name="first")
    lead, _ = pair(first, Scripted(say("done"), name="second"))
    lead.may_hand_to(other)
    async with motet.open_host() as host:
        result = await host.run(lead, "go")
    won, lost = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert (won.outcome, lost.outcome) == ("done", "failed")
    assert lost.text == "Not done: 'writer' takes over, which came first."
    assert result.agent == "writer"


async def test_agents_that_hand_over_for_ever_use_up_their_turns() -> None:
    first = Scripted(*[call((TRANSFER, {}))] * 20, name="first")
    second = Scripted(*[call(("transfer_to_lead", {}))] * 20, name="second")
    lead, writer = pair(first, second)
    writer.may_hand_to(lead)
    async with motet.open_host() as host:
        result = await host.run(lead, "go", limits=motet.Limits(turns=6), check=False)
    assert (result.status, len(first.requests) + len(second.requests)) == ("limited", 6)
    assert violations(result.rows) == ()


async def test_a_gate_keeps_the_conversation_where_it_is() -> None:
    first = Scripted(call((TRANSFER, {})), say("then I do it"), name="first")
    lead, _ = pair(first, Scripted(name="second"))
    async with motet.open_host() as host:

        @host.on("before_tool", match="transfer_to_*")
        async def gate(event: motet.BeforeTool) -> motet.Deny:
            return motet.Deny(f"not {event.name}")

        result = await host.run(lead, "go")
    assert (result.agent, result.output) == ("lead", "then I do it")


async def test_a_stop_after_the_transfer_leaves_valid_rows(autojump_clock: MockClock) -> None:
    second = Scripted(None, name="second")
    lead, _ = pair(Scripted(call((TRANSFER, {})), name="first"), second)
    async with motet.open_host() as host:
        async with host.stream(lead, "go", session="s"):
            await second.asked.wait()
            await host.stop(session="s")
        rows = [item.row for item in await host.history("s")]
        (session,) = await host.sessions()
    assert violations(rows) == ()
    assert [row.outcome for row in rows if isinstance(row, ToolMessage)] == ["done"]
    assert session.agent == "writer"
    del autojump_clock


async def test_the_transfer_survives_the_end_of_its_host(tmp_path: Path) -> None:
    second = Scripted(None, name="second")
    lead, writer = pair(Scripted(call((TRANSFER, {})), name="first"), second)
    async with motet.open_host(tmp_path) as host:
        host.add(lead)
        await host.submit("go", session="s", agent="lead")
        await second.asked.wait()
    async with motet.open_host(tmp_path, agents=[lead, writer]) as host:
        (session,) = await host.sessions()
        assert session.agent == "writer"
        assert violations([item.row for item in await host.history("s")]) == ()


def test_a_name_that_can_be_no_tool_is_refused() -> None:
    agent = motet.Agent("a", model=Scripted())
    with pytest.raises(TypeError, match="tool name"):
        motet.Agent("b", model=Scripted(), handoffs=[motet.Handoff(agent, name="to a")])


async def cut_at(fault: CancelAt) -> bool:
    """Whether the run has beaten the fault; what is left of it is whole in either case."""
    first = Scripted(call((TRANSFER, {}), text="One moment."), name="first")
    lead, _ = pair(first, Scripted(say("Roses", " are red."), name="second"))
    told: list[EventRecord] = []
    async with motet.open_host() as host:
        host.events.attach("session:s", told.append)
        with trio.CancelScope() as scope:
            fault.scope = scope
            await host.run(lead, "go", session="s", check=False)
        fault.scope = None
        rows = rows_of(await host.history("s")) if await host.runs() else []
        assert violations(rows) == (), rows
        changed = any(isinstance(record.event, motet.AgentChanged) for record in told)
        for run in await host.runs():
            assert run.agent == "writer" or not changed
            assert run.status not in ("queued", "running")
        assert {info.agent for info in await host.sessions()} <= {"lead", "writer"}
    return not scope.cancelled_caught


def rows_of(rows: tuple[HistoryRow, ...]) -> list[ChatMessage]:
    return [item.row for item in rows]


def test_wherever_a_transfer_is_cut_the_transcript_is_valid() -> None:
    """Law (G7): at whatever step the run is cancelled, its rows are valid, and nothing lives on."""
    for step in range(1, 2_000, 2):
        fault = CancelAt(step)
        if trio.run(cut_at, fault, instruments=[fault]):
            assert step > 30
            return
    raise AssertionError("the run was never faster than the fault")


@pytest.mark.parametrize("hops", [1, 2])
async def test_the_policy_of_who_handed_over_holds_in_the_next_host_too(
    tmp_path: Path, hops: int
) -> None:
    """Where policy, a hand-over and a kill meet: the target gains no tool by the kill."""
    effects: list[str] = []

    def agents(*steps: Step) -> list[motet.Agent[None]]:
        """``lead`` may not touch; it hands over to ``writer``, directly or by way of ``clerk``."""
        writer = motet.Agent("writer", model=Scripted(*steps, name="second"), description="writes")

        @writer.tool
        def touch() -> str:
            effects.append("touched")
            return "touched"

        clerk_says = Scripted(call((TRANSFER, {"reason": "a poem"})), name="third")
        clerk = motet.Agent("clerk", model=clerk_says, description="passes on", handoffs=[writer])
        name = TRANSFER if hops == 1 else "transfer_to_clerk"
        first = Scripted(call((name, {"reason": "a poem"})), name="first")
        lead = motet.Agent(
            "lead",
            model=first,
            handoffs=[writer if hops == 1 else clerk],
            policy=motet.ToolRules(deny=("touch*",)),
        )
        return [lead, clerk, writer]

    async with motet.open_host(tmp_path / "one", agents=agents(None)) as host:
        ack = await host.submit("go", session="s", agent="lead")
        left = await crashed(tmp_path / "one", "agent.changed", hops)
    again = agents(call(("touch", {})), say("I may not"))
    async with motet.open_host(left, agents=again) as host:
        (info,) = await ended(host, ack.run_id)
    assert (info.agent, info.status, effects) == ("writer", "completed", [])
