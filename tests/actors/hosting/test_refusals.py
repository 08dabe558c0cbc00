"""A refused answer is an end of its own: no success, no failure, not repaired, not replayed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.history import NO_ANSWER, REFUSED_REQUEST, sendable, without_refused
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelFailure,
    OutputSchema,
    TextPart,
)
from motet.protocols.sessions import Principal
from tests.actors.models.test_lawful import garbage_rows
from tests.actors.rooms.talk import said, until_idle, warnings
from tests.scripted import USAGE, Scripted, Step, call, say


class Ticket(msgspec.Struct):
    title: str


class Native(Scripted):
    """Its provider holds answers to a form."""

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:
        del output, tools
        return True


def refuse(text: str = "", why: str = "SAFETY") -> Step:
    return [*([TextPart(text)] if text else []), USAGE, Finished("content_filter", why)]


async def test_a_refusal_in_the_middle_of_an_answer_is_an_end_of_its_own() -> None:
    model = Scripted(refuse("First, you take "), say("Hello."))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        async with host.stream(agent, "how do I?", session="s") as run:
            seen = [event async for event in run]
            result = run.result
        (info,) = await host.runs(status="refused")
        trace = await host.trace(run.id)
        stored = [item.row for item in await host.history("s")]
        assert (await host.run(agent, "hello", session="s")).output == "Hello."
    assert (result.status, result.text, result.detail) == ("refused", "First, you take", "SAFETY")
    assert (info.run_id, info.detail, info.usage) == (run.id, "SAFETY", result.usage)
    assert seen[-1] == motet.RunRefused(result.usage, "SAFETY")
    assert isinstance(seen[-2], events.MessageAdded)
    assert seen[-2].text == "First, you take\n\n[Refused: SAFETY]"
    assert [span.status for span in trace.spans] == ["refused", "refused"]
    assert stored == [
        UserMessage("how do I?"),
        AssistantMessage("First, you take\n\n[Refused: SAFETY]", note="refused"),
    ]
    assert model.requests[1].messages == (
        UserMessage(REFUSED_REQUEST),
        AssistantMessage(NO_ANSWER),
        UserMessage("hello"),
    )
    with pytest.raises(motet.AnswerRefused, match="SAFETY"):
        result.check()


async def test_no_repair_is_asked_for_after_a_refusal() -> None:
    words = "I cannot help with that."
    for model in (Scripted(refuse(words, words)), Native(refuse(words, words))):
        agent = motet.Agent("a", model=model, output_type=Ticket)
        async with motet.open_host() as host:
            result = await host.run(agent, "go", check=False)
        assert (result.status, result.detail, len(model.requests)) == ("refused", words, 1)
        with pytest.raises(motet.AnswerRefused, match="I cannot help"):
            _ = result.output


async def test_calls_of_a_refused_answer_are_not_run() -> None:
    ran: list[str] = []

    def wipe() -> str:
        ran.append("wipe")
        return "gone"

    answer: Step = [
        TextPart("I wipe."),
        CallStart(0, "c", "wipe"),
        CallArguments(0, "{}"),
        Finished("content_filter"),
    ]
    model = Scripted(call(("wipe", {})), answer, say("ok"))
    agent = motet.Agent("a", model=model, tools=[wipe])
    async with motet.open_host() as host:
        result = await host.run(agent, "go", session="s", check=False)
        await host.run(agent, "and now", session="s")
    assert (result.status, ran) == ("refused", ["wipe"])
    assert violations(result.rows) == ()
    assert [row.text for row in model.requests[-1].messages] == [
        REFUSED_REQUEST,
        f"{NO_ANSWER} It had called: wipe",
        "and now",
    ]


async def test_a_draft_that_is_refused_when_it_goes_on_is_one_refused_answer() -> None:
    first: Step = [TextPart("Once "), Finished("length")]
    model = Scripted(first, refuse("upon"))
    async with motet.open_host() as host:
        result = await host.run(motet.Agent("a", model=model), "go", check=False)
    assert (result.status, result.text) == ("refused", "Once upon")
    assert [row.text for row in result.rows] == ["go", "Once upon\n\n[Refused: SAFETY]"]


@pytest.mark.parametrize("why", ["SAFETY", "", "the secret is"])
async def test_text_that_no_gate_has_seen_is_not_told_with_the_refusal(why: str) -> None:
    model = Scripted(refuse("the secret is", why))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:

        @host.on("before_output")
        async def check(event: motet.BeforeOutput) -> motet.Allow:
            raise AssertionError(f"no answer to check: {event}")

        async with host.stream(agent, "go") as run:
            seen = [event async for event in run]
    assert run.result.status == "refused"
    assert "secret" not in msgspec.json.encode(seen).decode()


async def test_a_gate_can_answer_in_place_of_a_refusal() -> None:
    agent = motet.Agent("a", model=Scripted(refuse()))
    async with motet.open_host() as host:

        @host.on("after_model")
        async def instead(event: motet.AfterModel) -> motet.Replace:
            assert event.response.stop_reason == "content_filter"
            return motet.Replace(response=type(event.response)("Ask our support."))

        assert (await host.run(agent, "go")).output == "Ask our support."


async def test_a_refusal_that_a_provider_reports_as_an_error_is_no_fault() -> None:
    """The model's own failures are retried, end a run as failed, and are errors of its span."""
    failure = ModelFailure("HTTP 400: the prompt was flagged", kind="content_filter", status=400)
    model = Scripted(failure, say("fine"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        result = await host.run(agent, "go", check=False)
        assert (await host.run(agent, "hello")).output == "fine"
    assert (result.status, result.detail) == ("refused", "HTTP 400: the prompt was flagged")
    assert len(model.requests) == 2


async def test_a_refused_child_is_a_denied_call_of_its_caller_and_counts_for_no_breaker() -> None:
    child = Scripted(refuse("no", "policy"), name="child")
    worker = motet.Agent("worker", model=child, description="Works.")
    model = Scripted(call(("worker", {"task": "go"})), say("It would not."))
    lead = motet.Agent("lead", model=model, tools=[worker.as_tool()])
    async with motet.open_host() as host:
        result = await host.run(lead, "go")
    (told,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert (told.outcome, told.text) == (
        "denied",
        "Permission denied: agent 'worker' refused to answer: policy",
    )
    assert result.output == "It would not."


async def test_a_refusal_in_a_room_leaves_the_room_usable(tmp_path: Path) -> None:
    model = Scripted(refuse("bad words"), say("Here I am."))
    room = motet.Room("r", members=[motet.Agent("ann", model=model)], speakers=motet.mentions())
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as seen:
            await opened.post("@ann how do I?", user="alice")
            first = await until_idle(seen)
            await opened.post("@ann hello", user="alice")
            second = await until_idle(seen)
        runs = await host.runs()
    assert any("refused" in text for text in warnings(first)), first
    assert ("ann", "Here I am.") in said(second)
    assert sorted(run.status for run in runs) == ["completed", "refused"]
    assert "bad words" not in str(model.requests[1].messages)


async def test_a_text_that_was_to_steer_a_refused_run_is_answered_by_its_own() -> None:
    """G15: it is acknowledged, so it is answered, and exactly once."""
    model = Scripted(refuse("half"), say("Yes."))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:

        @host.on("after_model")
        async def late(event: motet.AfterModel) -> None:
            if len(model.requests) == 1:
                assert (await host.send("are you there?", session="s")).status == "steered"

        first = await host.run(agent, "go", session="s", check=False)
        with trio.fail_after(60):
            while not await host.runs(session="s", status="completed"):
                await trio.sleep(0.01)
        rows = [item.row for item in await host.history("s")]
    assert first.status == "refused"
    assert [row.text for row in rows].count("are you there?") == 1
    assert rows[-1].text == "Yes."
    assert violations(rows) == ()


async def test_a_refused_run_is_told_again_after_a_restart(tmp_path: Path) -> None:
    model = Scripted(refuse("half", "why"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host(tmp_path) as host:
        first = await host.run(agent, "go", session="s", key="k", check=False)
    async with motet.open_host(tmp_path) as host:
        again = await host.run(agent, "go", session="s", key="k", check=False)
    assert (again.run_id, again.status, again.text, again.detail) == (
        first.run_id,
        "refused",
        "half",
        "why",
    )


async def test_a_paused_answer_goes_on_with_another_request() -> None:
    first: Step = [TextPart("One, "), Finished("paused")]
    model = Scripted(first, [Finished("paused")], first, first, first, say("two."))
    async with motet.open_host() as host:
        result = await host.run(motet.Agent("a", model=model), "go")
    assert result.output == "One, One, One, One, two."
    assert violations(result.rows) == ()


async def test_a_paused_answer_of_a_type_is_read_when_it_is_whole() -> None:
    model = Native([TextPart('{"title":'), Finished("paused")], say('"x"}'))
    async with motet.open_host() as host:
        result = await host.run(motet.Agent("a", model=model, output_type=Ticket), "go")
    assert (result.output, len(model.requests)) == (Ticket("x"), 2)


async def test_an_answer_that_pauses_for_ever_ends_with_its_turns() -> None:
    pause: Step = [TextPart("x"), Finished("paused")]
    model = Scripted(*[pause] * 9)
    agent = motet.Agent("a", model=model, limits=motet.Limits(turns=4))
    async with motet.open_host() as host:
        result = await host.run(agent, "go", check=False)
    assert (result.status, result.limit, len(model.requests)) == ("limited", "turns", 4)


async def test_an_answer_beyond_the_window_is_withdrawn_and_asked_for_again() -> None:
    full: Step = [TextPart("Half of "), USAGE, Finished("context_exhausted")]
    turns = [say("x" * 400) for _ in range(4)]
    model = Scripted(*turns, full, say("The summary."), say("All of it."))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        for _ in range(4):
            await host.run(agent, "y" * 400, session="s")
        async with host.stream(agent, "go", session="s") as run:
            seen = [event async for event in run]
    assert run.result.output == "All of it."
    (again,) = [event for event in seen if isinstance(event, events.RunRetrying)]
    assert again.withdrawn
    assert run.result.usage.input_tokens == 30  # what was withdrawn is paid for


async def test_an_answer_beyond_the_window_of_a_short_conversation_is_a_failure() -> None:
    model = Scripted([TextPart("Half"), Finished("context_exhausted")])
    async with motet.open_host() as host:
        result = await host.run(motet.Agent("a", model=model), "go", check=False)
    assert result.status == "failed"
    assert isinstance(result.error, motet.Llm)
    assert result.error.kind == "context_exhausted"


@given(st.integers(0, 10_000))
@settings(max_examples=100)
def test_no_row_of_a_refused_turn_is_shown_again(seed: int) -> None:
    """Law: of a refused turn no text is left; all other rows stay, and the result is sendable."""
    random, rows, others = Random(seed), list[ChatMessage](), list[str]()
    for number in range(random.randrange(6)):
        refused = random.random() < 0.4
        text = f"{'bad' if refused else 'good'} {number}"
        inner: list[ChatMessage] = [
            row
            if isinstance(row, ToolMessage)
            else msgspec.structs.replace(row, text=text, note="injected")
            if isinstance(row, UserMessage)
            else msgspec.structs.replace(row, text=text, note="")
            for row in garbage_rows(random)
            if not isinstance(row, ToolMessage)
        ]
        end = AssistantMessage(text, note="refused" if refused else "")
        rows += [UserMessage(text), *inner, end]
        others += [] if refused else [text] * (len(inner) + 2)
    shown = without_refused(rows)
    texts = [row.text for row in shown if not isinstance(row, ToolMessage)]
    assert [text for text in texts if text.startswith("good")] == others
    assert not any(text.startswith("bad") for text in texts)
    assert violations(sendable(shown)) == ()


async def test_a_refusal_belongs_to_its_session_alone() -> None:
    model = Scripted(refuse(), say("fine"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        alice, bob = Principal("alice"), Principal("bob")
        first = await host.run(agent, "go", principal=alice, check=False)
        second = await host.run(agent, "go", principal=bob)
    assert (first.status, second.status) == ("refused", "completed")
