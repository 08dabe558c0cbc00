"""Answers that cannot be read: how they are repaired, and what a run without any gives."""

from __future__ import annotations

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ToolMessage
from motet.protocols.models import Finished, TextPart
from tests.actors.hosting.outputs import BAD, GOOD, GOOD_TEXT, Native, Ticket, answer
from tests.scripted import Scripted, call, say

# Repairs


async def test_a_call_that_cannot_be_read_gets_all_its_problems_and_another_try() -> None:
    model = Scripted(answer({"severity": "very"}), answer(GOOD))
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "go", session="s")
        rows = [item.row for item in await host.history("s")]

    assert result.output == Ticket("It crashes", 2)
    told = model.requests[1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert "title: is missing" in told.text
    assert 'severity: "very" is of type string; expected {"type": "integer"}' in told.text
    assert violations(rows) == ()
    assert [type(row).__name__ for row in rows] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
    ]
    assert result.errors == ()


async def test_a_text_that_cannot_be_read_is_repaired_and_no_person_is_shown_it() -> None:
    model = Native(say("It crashes, badly."), say(GOOD_TEXT))
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    async with motet.open_host() as host:
        async with host.stream(agent, "go", session="s") as run:
            seen = [event async for event in run]
        rows = [item.row for item in await host.history("s")]

    assert run.result.output == Ticket("It crashes", 2)
    assert not [event for event in seen if "badly" in str(event)]
    assert [getattr(row, "note", "") for row in rows] == ["", "silent", "hint", ""]
    assert violations(rows) == ()


async def test_a_text_in_place_of_the_call_is_taken_if_it_can_be_read() -> None:
    model = Scripted(say(f"```json\n{GOOD_TEXT}\n```"))
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    async with motet.open_host() as host:
        assert (await host.run(agent, "go")).output == Ticket("It crashes", 2)


async def test_a_text_in_place_of_the_call_is_repaired_by_the_call() -> None:
    model = Scripted(say("It crashes."), answer(GOOD))
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    async with motet.open_host() as host:
        assert (await host.run(agent, "go")).output == Ticket("It crashes", 2)
    assert "call of final_answer" in model.requests[1].messages[-1].text


async def test_an_answer_beside_other_calls_waits_for_their_results() -> None:
    model = Scripted(call(("look", {}), ("final_answer", BAD)), answer(GOOD))
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    looked: list[str] = []

    @agent.tool
    def look() -> str:
        looked.append("once")
        return "a stack trace"

    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "go")

    assert result.output == Ticket("It crashes", 2)
    assert looked == ["once"]
    assert violations(result.rows) == ()
    assert "final_answer" not in str(result.rows)


async def test_an_answer_that_was_cut_off_is_asked_for_again() -> None:
    whole = say('{"title": "It cra')
    assert isinstance(whole, list)
    model = Native([*whole[:-1], Finished("length")], say(GOOD_TEXT))
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    async with motet.open_host() as host:
        result = await host.run(agent, "go")
    assert result.output == Ticket("It crashes", 2)
    assert "cut off" in model.requests[1].messages[-1].text


async def test_the_beginning_of_a_number_is_not_taken_for_the_number() -> None:
    model = Native([TextPart("4"), Finished("length")], say("42"))
    agent = motet.Agent("a", model=model, output_type=int)
    async with motet.open_host() as host:
        assert (await host.run(agent, "go")).output == 42


async def test_repairs_do_not_count_as_errors_of_tools() -> None:
    model = Scripted(*[answer(BAD)] * 5, answer(GOOD))
    agent = motet.Agent("triage", model=model, output_type=Ticket, output_retries=5)
    async with motet.open_host() as host:
        assert (await host.run(agent, "go")).status == "completed"


# Where there is none


@pytest.mark.parametrize("native", [True, False])
async def test_a_run_fails_when_its_repairs_are_used_up_and_keeps_the_last_answer(
    native: bool,
) -> None:
    step = say('{"title": "x"}') if native else answer({"title": "x"})
    model = (Native if native else Scripted)(step, step, step)
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    async with motet.open_host() as host:
        async with host.stream(agent, "go", session="s") as run:
            (*_, last) = [event async for event in run]
        with pytest.raises(motet.OutputSerialization, match="severity: is missing"):
            run.result.check()
        assert isinstance(last, motet.RunFailed)
        assert last.kind == "OutputSerialization"
        assert last.error_id is not None
        stored = await host.error(last.error_id)
        rows = [item.row for item in await host.history("s")]

    assert len(model.requests) == 3
    assert isinstance(stored.raw_error, dict)
    assert msgspec.json.decode(str(stored.raw_error["text"])) == {"title": "x"}
    with pytest.raises(motet.OutputSerialization):
        assert run.result.output
    assert violations(rows) == ()


async def test_no_repairs_can_be_asked_for() -> None:
    model = Scripted(answer(BAD))
    agent = motet.Agent("triage", model=model, output_type=Ticket, output_retries=0)
    async with motet.open_host() as host:
        with pytest.raises(motet.OutputSerialization, match=r"Error ID: err_"):
            await host.run(agent, "go")


async def test_a_limited_run_has_an_output_if_it_came_to_one() -> None:
    limits = motet.Limits(turns=2)
    model = Scripted(call(("look", {})), answer(GOOD), call(("look", {})), answer(BAD))
    agent = motet.Agent("triage", model=model, output_type=Ticket, limits=limits)

    @agent.tool
    def look() -> str:
        return "a stack trace"

    async with motet.open_host() as host:
        good = await host.run(agent, "go", check=False)
        bad = await host.run(agent, "go", check=False)

    assert (good.status, good.limit, good.output) == ("limited", "turns", Ticket("It crashes", 2))
    assert [tool.name for tool in model.requests[1].tools] == ["final_answer"]
    assert "final_answer is still there" in model.requests[1].messages[-1].text
    assert (bad.status, bad.limit) == ("limited", "turns")
    assert "very" in bad.text
    with pytest.raises(motet.LimitReached):
        assert bad.output


async def test_a_cancelled_run_has_no_output() -> None:
    agent = motet.Agent("triage", model=Scripted(None), output_type=Ticket)
    async with motet.open_host() as host, host.stream(agent, "go") as run:
        await wait_all_tasks_blocked()
        run.cancel()
        result = await run.wait()
    with pytest.raises(motet.RunCancelled):
        assert result.output


async def test_an_input_that_was_dropped_from_the_queue_has_no_output() -> None:
    agent = motet.Agent("triage", model=Scripted(None), output_type=Ticket)
    async with motet.open_host() as host, host.stream(agent, "one", session="s"):
        await wait_all_tasks_blocked()
        async with host.stream(agent, "two", session="s") as queued:
            await host.stop(session="s")
            result = await queued.wait()
    with pytest.raises(motet.RunCancelled):
        assert result.output
