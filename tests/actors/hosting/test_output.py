"""Runs of agents that declare a type of output: how they come by it, and what they end in."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import trio
import trio.testing

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, JsonObject, ToolMessage, UserMessage
from motet.testing import RecordedModel
from tests.actors.hosting.outputs import BAD, GOOD, GOOD_TEXT, Native, Ticket, answer
from tests.scripted import Scripted, call, cut, say


class Kind(Enum):
    BUG = "bug"
    WISH = "wish"


# How the answer is asked for


async def test_a_model_answers_by_a_call_of_final_answer() -> None:
    model = Scripted(answer(GOOD))
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "the app crashes")

    assert (result.status, result.output) == ("completed", Ticket("It crashes", 2))
    assert result.final_output == result.output
    assert result.text == GOOD_TEXT
    (request,) = model.requests
    assert [tool.name for tool in request.tools] == ["final_answer"]
    assert request.tools[0].parameters["required"] == ["title", "severity"]
    assert request.output is None


async def test_a_provider_that_holds_answers_to_a_form_is_asked_for_a_text() -> None:
    model = Native(say('{"title": "It crashes",', ' "severity": 2}'))
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "the app crashes")

    assert result.output == Ticket("It crashes", 2)
    (request,) = model.requests
    assert request.tools == ()
    assert request.output is not None
    assert request.output.name == "Ticket"
    assert request.output.schema["properties"] == {
        "title": {"type": "string"},
        "severity": {"type": "integer"},
    }


@pytest.mark.parametrize("beside_tools", [True, False])
async def test_with_tools_the_provider_is_asked_only_if_it_takes_both(beside_tools: bool) -> None:
    last = say(GOOD_TEXT) if beside_tools else answer(GOOD)
    model = Native(call(("look", {})), last, beside_tools=beside_tools)
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    @agent.tool
    def look() -> str:
        return "a stack trace"

    async with motet.open_host() as host:
        result = await host.run(agent, "the app crashes")

    assert result.output == Ticket("It crashes", 2)
    for request in model.requests:
        assert (request.output is not None) == beside_tools
        assert ("final_answer" in [tool.name for tool in request.tools]) != beside_tools


async def test_the_tool_of_the_answer_takes_no_name_that_the_agent_has_given() -> None:
    model = Scripted(call(("final_answer", {})), call(("final_answer_2", GOOD)))
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    @agent.tool
    def final_answer() -> str:
        return "the one of an exam"

    async with motet.open_host() as host:
        result = await host.run(agent, "go")

    assert result.output == Ticket("It crashes", 2)
    assert [row.text for row in result.rows if isinstance(row, ToolMessage)] == [
        "the one of an exam"
    ]


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        (int, {"answer": 42}, 42),
        (list[Ticket], {"answer": [GOOD]}, [Ticket("It crashes", 2)]),
        (Kind, {"answer": "wish"}, Kind.WISH),
        (Literal["yes", "no"], {"answer": "no"}, "no"),
        (Ticket | str, {"answer": "nothing to do"}, "nothing to do"),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (bool, {"answer": "true"}, True),
    ],
)
async def test_a_type_that_is_no_object_is_asked_for_inside_of_one(
    kind: type[object], args: JsonObject, expected: object
) -> None:
    agent: motet.Agent[None, object] = motet.Agent(
        "a", model=Scripted(answer(args)), output_type=kind
    )

    async with motet.open_host() as host:
        result = await host.run(agent, "go")

    assert result.output == expected
    assert msgspec.json.decode(result.text) == msgspec.to_builtins(expected)


async def test_without_a_type_nothing_is_asked_and_the_output_is_the_text() -> None:
    model = Scripted(say("hello"))
    async with motet.open_host() as host:
        result = await host.run(motet.Agent("a", model=model), "hi")

    assert (result.output, result.text) == ("hello", "hello")
    assert model.requests[0].tools == ()


def test_a_type_that_no_model_can_be_told_of_is_refused_when_the_agent_is_made() -> None:
    with pytest.raises(TypeError, match=r"output_type .*Socket"):
        motet.Agent("a", output_type=trio.socket.SocketType)


# What the transcript has of it


@pytest.mark.parametrize("native", [True, False])
async def test_later_turns_read_the_answer_as_json_whatever_brought_it(native: bool) -> None:
    first = say(GOOD_TEXT) if native else answer(GOOD, text="Here it is:")
    model = (Native if native else Scripted)(first, say('{"title":"b","severity":3}'))
    agent = motet.Agent("triage", model=model, output_type=Ticket)

    async with motet.open_host(check_messages=True) as host:
        await host.run(agent, "one", session="s")
        second = await host.run(agent, "two", session="s")
        rows = [item.row for item in await host.history("s")]

    assert second.output == Ticket("b", 3)
    assert model.requests[1].messages == (
        UserMessage("one"),
        AssistantMessage(GOOD_TEXT),
        UserMessage("two"),
    )
    assert violations(rows) == ()


async def test_words_and_marks_inside_of_an_answer_stay_as_they_are() -> None:
    title = "NO_REPLY <final>MEDIA:/x.png</final>\n\nsame\n\nsame"
    agent = motet.Agent(
        "a", model=Scripted(answer({"title": title, "severity": 1})), output_type=Ticket
    )
    async with motet.open_host() as host:
        result = await host.run(agent, "go", session="s")
        (_, row) = [item.row for item in await host.history("s")]

    assert result.output.title == title
    assert msgspec.json.decode(row.text, type=Ticket).title == title


async def test_nobody_is_shown_the_answer_while_it_is_made_and_everybody_when_it_is_whole() -> None:
    agent = motet.Agent(
        "a", model=Native(say('{"title":"x",', '"severity":1}')), output_type=Ticket
    )
    async with motet.open_host() as host, host.stream(agent, "go") as run:
        seen = [event async for event in run]

    assert not [event for event in seen if isinstance(event, events.TextDelta)]
    said = [event.text for event in seen if isinstance(event, events.MessageAdded)]
    assert said == ["go", '{"title":"x","severity":1}']
    assert run.result.output == Ticket("x", 1)


async def test_what_is_resent_has_the_output_it_had(tmp_path: Path) -> None:
    agent = motet.Agent("a", model=Scripted(answer(GOOD)), output_type=Ticket)
    async with motet.open_host(tmp_path) as host:
        first = await host.run(agent, "go", session="s", key="k")
    async with motet.open_host(tmp_path) as host:
        again = await host.run(agent, "go", session="s", key="k")

    assert again.run_id == first.run_id
    assert again.output == first.output == Ticket("It crashes", 2)


# Gates, sub-agents, crashes


async def test_a_gate_may_replace_an_answer_by_another_of_the_type() -> None:
    agent = motet.Agent("triage", model=Scripted(answer(GOOD)), output_type=Ticket)
    async with motet.open_host() as host:

        @host.on("before_output")
        async def milder(event: motet.BeforeOutput) -> motet.Replace:
            assert event.text == GOOD_TEXT
            return motet.Replace(text='{"title": "It is fine", "severity": 0}')

        result = await host.run(agent, "go")
    assert result.output == Ticket("It is fine", 0)
    assert result.text == '{"title":"It is fine","severity":0}'


async def test_a_gate_that_gives_an_answer_of_no_type_ends_the_run() -> None:
    agent = motet.Agent("triage", model=Scripted(answer(GOOD)), output_type=Ticket)
    async with motet.open_host() as host:

        @host.on("before_output")
        async def rude(_event: motet.BeforeOutput) -> motet.Replace:
            return motet.Replace(text="withheld")

        with pytest.raises(motet.OutputSerialization, match="that a gate gave"):
            await host.run(agent, "go")


async def test_a_gate_may_answer_in_place_of_the_model() -> None:
    model = Scripted()
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    async with motet.open_host() as host:

        @host.on("before_input")
        async def known(_event: motet.BeforeInput) -> motet.Respond:
            return motet.Respond(text=GOOD_TEXT)

        result = await host.run(agent, "go")
    assert result.output == Ticket("It crashes", 2)
    assert model.requests == []


async def test_a_gate_may_have_the_model_go_on_from_its_answer() -> None:
    model = Scripted(answer(BAD | {"severity": 1}), answer(GOOD))
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    async with motet.open_host() as host:

        @host.on("before_output")
        async def worse(event: motet.BeforeOutput) -> motet.Allow | motet.Continue:
            return motet.Allow() if event.continued else motet.Continue("it is worse than that")

        result = await host.run(agent, "go")
    assert result.output == Ticket("It crashes", 2)
    assert violations(result.rows) == ()


async def test_the_model_of_a_parent_reads_the_output_of_a_child_as_json() -> None:
    triage = motet.Agent("triage", model=Scripted(answer(GOOD), name="t"), output_type=Ticket)
    model = Scripted(call(("classify", {"task": "it crashes"})), say("Done."), name="l")
    lead = motet.Agent(
        "lead", model=model, tools=[triage.as_tool(name="classify", description="Classify.")]
    )
    async with motet.open_host() as host:
        assert (await host.run(lead, "go")).output == "Done."
    assert model.requests[1].messages[-1].text == GOOD_TEXT


async def test_a_tool_gets_the_output_of_a_child_as_its_value() -> None:
    triage = motet.Agent("triage", model=Scripted(answer(GOOD), name="t"), output_type=Ticket)
    lead = motet.Agent("lead", model=Scripted(call(("classify", {})), say("Done."), name="l"))
    severities: list[int] = []

    @lead.tool
    async def classify(ctx: motet.Context[None]) -> str:
        result = await ctx.run(triage, "it crashes")
        severities.append(result.output.severity)
        return "classified"

    async with motet.open_host() as host:
        await host.run(lead, "go")
    assert severities == [2]


async def test_a_stream_that_breaks_is_made_anew_and_read_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    model = Native(cut('{"title": "It'), say(GOOD_TEXT))
    agent = motet.Agent("triage", model=model, output_type=Ticket)
    async with motet.open_host() as host:
        assert (await host.run(agent, "go")).output == Ticket("It crashes", 2)


def test_programs_without_a_loop_get_the_value_too() -> None:
    agent = motet.Agent("triage", model=Scripted(answer(GOOD)), output_type=Ticket)
    assert agent.run_sync("go").output == Ticket("It crashes", 2)


async def test_an_agents_own_stream_has_the_value() -> None:
    agent = motet.Agent("triage", model=Scripted(answer(GOOD)), output_type=Ticket)
    async with agent.stream("go") as run:
        assert (await run.wait()).output == Ticket("It crashes", 2)


@pytest.mark.parametrize("native", [True, False])
async def test_a_recording_is_asked_in_the_way_that_was_recorded(
    native: bool, tmp_path: Path
) -> None:
    script = Native(say(GOOD_TEXT)) if native else Scripted(answer(GOOD))
    cassette = tmp_path / "triage.jsonl"
    for recorded in (script, None):
        model = RecordedModel(cassette, recorded, mode="record" if recorded else "replay")
        agent = motet.Agent("triage", model=model, output_type=Ticket)
        async with motet.open_host() as host:
            assert (await host.run(agent, "go")).output == Ticket("It crashes", 2)
    assert len(script.requests) == 1


async def test_an_agent_that_takes_over_answers_in_the_form_that_was_asked_for() -> None:
    writer = motet.Agent("writer", model=Scripted(answer(GOOD), name="w"))
    lead = motet.Agent(
        "lead",
        model=Scripted(call(("transfer_to_writer", {})), name="l"),
        output_type=Ticket,
        handoffs=[writer],
    )
    async with motet.open_host(check_messages=True) as host:
        result = await host.run(lead, "go", session="s")
        rows = [item.row for item in await host.history("s")]
    assert result.output == Ticket("It crashes", 2)
    assert violations(rows) == ()


async def test_of_an_agent_without_a_form_the_caller_gets_the_json_of_one_that_has() -> None:
    triage = motet.Agent("triage", model=Scripted(answer(GOOD), name="t"), output_type=Ticket)
    lead = motet.Agent(
        "lead",
        model=Scripted(call(("transfer_to_triage", {})), name="l"),
        handoffs=[triage],
    )
    async with motet.open_host() as host:
        assert (await host.run(lead, "go")).output == GOOD_TEXT
