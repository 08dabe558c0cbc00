"""Limits as a user of a host meets them: tokens, dollars, loops; and answers cut off or silent."""

from __future__ import annotations

import motet
from motet.protocols.chat import AssistantMessage, ToolMessage
from motet.protocols.events import AnyEvent, MessageAdded, TextDelta, ToolCall, Warned
from motet.protocols.models import Finished, TextPart, Usage, UsageReport
from tests.scripted import Scripted, Step, call, say


def asking(cost: float | None, page: int) -> Step:
    """A call of ``look`` that costs so much."""
    made = call(("look", {"page": page}))
    assert isinstance(made, list)
    kept = [event for event in made if not isinstance(event, UsageReport | Finished)]
    return [*kept, UsageReport(Usage(10, 5, cost=cost)), Finished("tool_calls")]


def cut(text: str) -> Step:
    return [TextPart(text), Finished("length")]


def agent_of(*steps: Step, limits: motet.Limits | None = None) -> motet.Agent[None]:
    agent = motet.Agent("a", model=Scripted(*steps), limits=limits or motet.Limits())

    @agent.tool
    def look(page: int) -> str:
        return f"page {page}"

    @agent.tool(polling=True)
    def status() -> str:
        return "still running"

    return agent


async def events_of(agent: motet.Agent[None]) -> tuple[motet.RunResult, list[AnyEvent]]:
    async with motet.open_host() as host, host.stream(agent, "go", session="s") as run:
        seen = [event async for event in run]
    assert run.result is not None
    return run.result, seen


def texts(events: list[AnyEvent]) -> list[str]:
    return [e.text for e in events if isinstance(e, MessageAdded) and e.role == "assistant"]


async def test_dollars_end_a_run_before_the_request_that_would_not_fit() -> None:
    steps = [asking(0.2, page) for page in range(9)]
    agent = agent_of(*steps, limits=motet.Limits(usd=0.5))
    result, _ = await events_of(agent)
    assert (result.status, result.limit) == ("limited", "usd")
    assert result.usage.cost == 0.4


async def test_a_price_that_is_unknown_is_warned_of_once() -> None:
    steps = [asking(None, page) for page in range(3)]
    agent = agent_of(*steps, say("done"), limits=motet.Limits(usd=0.5))
    result, seen = await events_of(agent)
    assert result.status == "completed"
    assert result.usage.cost is None
    (warning,) = [event for event in seen if isinstance(event, Warned)]
    assert warning.source == "limits"
    assert "limits.usd cannot be checked" in warning.message


async def test_a_prompt_that_needs_more_tokens_than_are_left_is_not_sent() -> None:
    model = Scripted(say("done"))
    agent = motet.Agent("a", model=model, limits=motet.Limits(tokens=50), instructions="x" * 600)
    result, _ = await events_of(agent)
    assert (result.status, result.limit) == ("limited", "tokens")
    assert model.requests == []


async def test_an_answer_that_is_not_counted_is_estimated() -> None:
    result, _ = await events_of(agent_of([TextPart("x" * 300), Finished("stop")]))
    assert result.usage.output_tokens == 100
    assert result.usage.input_tokens > 0


async def test_an_agent_that_goes_in_circles_answers_once_more_without_tools() -> None:
    agent = agent_of(*[call(("look", {"page": 1}))] * 5, say("I give up"))
    result, _ = await events_of(agent)
    assert (result.status, result.limit, result.output) == ("limited", "tool_loop", "I give up")
    assert isinstance(agent.model, Scripted)
    assert agent.model.requests[-1].tools == ()
    assert all(request.tools for request in agent.model.requests[:-1])


async def test_a_tool_that_is_there_to_be_asked_again_is_no_loop() -> None:
    result, seen = await events_of(agent_of(*[call(("status", {}))] * 12, say("finished")))
    assert (result.status, result.output) == ("completed", "finished")
    assert sum(isinstance(event, ToolCall) for event in seen) == 12


async def test_an_answer_that_was_cut_off_is_one_message_and_one_row() -> None:
    result, seen = await events_of(agent_of(cut("Once upon "), cut("a time "), say("it ends.")))
    assert result.output == "Once upon a time it ends."
    assert texts(seen) == [result.output]
    deltas = [event for event in seen if isinstance(event, TextDelta)]
    assert len({event.i for event in deltas}) == 1
    shown = ""
    for event in deltas:
        assert event.at == len(shown)
        shown += event.text
    assert shown == result.output
    assert [row.text for row in result.rows] == ["go", result.output]


async def test_a_cut_call_is_not_run_and_the_model_is_told() -> None:
    half = call(("look", {"page": 1}), ("look", {}))
    assert isinstance(half, list)
    steps: list[Step] = [[*half[:-1], Finished("length")], say("done")]
    result, seen = await events_of(agent_of(*steps))
    assert sum(isinstance(event, ToolCall) for event in seen) == 1
    rows = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert [row.outcome for row in rows] == ["done", "denied"]
    assert "cut off" in rows[1].text


async def test_a_gate_sees_the_whole_of_an_answer_that_was_cut_off() -> None:
    agent = agent_of(cut("Once upon "), say("a time."))
    seen: list[str] = []
    async with motet.open_host() as host:

        @host.on("before_output")
        async def look(event: motet.BeforeOutput) -> motet.Replace:
            seen.append(event.text)
            return motet.Replace(text=event.text.upper())

        result = await host.run(agent, "go")
    assert seen == ["Once upon a time."]
    assert result.output == "ONCE UPON A TIME."


async def test_a_silent_answer_is_stored_and_heard_by_nobody() -> None:
    result, seen = await events_of(agent_of(say("NO_", "REPLY")))
    assert (result.status, result.output) == ("completed", "")
    assert texts(seen) == []
    assert not [event for event in seen if isinstance(event, TextDelta)]
    assert result.rows[-1] == AssistantMessage("NO_REPLY", note="silent")
