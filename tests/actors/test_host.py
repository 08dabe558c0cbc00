"""A host as the program that embeds it sees it: run, stream, stop, queue, history."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, JsonObject, ToolMessage, UserMessage
from motet.protocols.models import ModelFailure
from motet.protocols.sessions import KeyConflict, QueueFull
from tests.scripted import Scripted, call, cut, say

ALICE = motet.Principal("alice")
BOB = motet.Principal("bob")


async def test_one_input_gives_one_answer_with_its_usage() -> None:
    agent = motet.Agent("a", model=Scripted(say("hel", "lo")))
    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "hi")
    assert (result.status, result.output) == ("completed", "hello")
    assert result.usage.total_tokens == 15
    assert result.usage.cost is None


async def test_a_session_remembers_and_another_one_does_not() -> None:
    model = Scripted(say("one"), say("two"), say("three"))
    agent = motet.Agent("a", model=model, instructions="Be brief.")
    async with motet.open_host(check_messages=True) as host:
        await host.run(agent, "first", session="s")
        await host.run(agent, "second", session="s")
        await host.run(agent, "third", session="other")

    assert model.requests[0].system.startswith("Be brief.\n\nToday is ")
    assert model.requests[1].messages == (
        UserMessage("first"),
        AssistantMessage("one"),
        UserMessage("second"),
    )
    assert model.requests[2].messages == (UserMessage("third"),)


async def test_events_of_a_run_come_in_order_and_end_with_one_terminal_event() -> None:
    agent = motet.Agent("a", model=Scripted(say("hel", "lo")))
    async with (
        motet.open_host(check_messages=True) as host,
        host.stream(agent, "hi", session="s") as run,
    ):
        seen = [event async for event in run]
    assert [events.event_name(event) for event in seen] == [
        "input.accepted",
        "run.started",
        "message",
        "activity",
        "text.delta",
        "text.delta",
        "message",
        "run.completed",
    ]
    assert [event.at for event in seen if isinstance(event, events.TextDelta)] == [0, 3]
    assert run.result.output == "hello"


async def test_parallel_calls_end_in_any_order_and_their_results_stand_in_call_order(
    autojump_clock: MockClock,
) -> None:
    four: list[tuple[str, JsonObject]] = [("nap", {"seconds": n}) for n in (4, 3, 2, 1)]
    model = Scripted(call(*four), say("done"))
    agent = motet.Agent("a", model=model)

    @agent.tool
    async def nap(seconds: int) -> str:
        await trio.sleep(seconds)
        return f"slept {seconds}"

    async with motet.open_host() as host, host.stream(agent, "go", session="s") as run:
        seen = [event async for event in run]

    ended = [event.index for event in seen if isinstance(event, events.ToolResult)]
    assert ended == [3, 2, 1, 0]
    texts = [row.text for row in model.requests[1].messages if isinstance(row, ToolMessage)]
    assert texts == ["slept 4", "slept 3", "slept 2", "slept 1"]


async def test_a_write_makes_its_batch_run_in_call_order() -> None:
    log: list[str] = []
    agent = motet.Agent(
        "a", model=Scripted(call(("put", {"x": "1"}), ("put", {"x": "2"})), say("ok"))
    )

    @agent.tool(effects="write")
    async def put(x: str) -> None:
        log.append(f"start {x}")
        await trio.lowlevel.checkpoint()
        log.append(f"end {x}")

    async with motet.open_host() as host:
        await host.run(agent, "go")
    assert log == ["start 1", "end 1", "start 2", "end 2"]


async def test_a_failing_tool_is_summarised_for_the_model_and_stored_whole() -> None:
    whole = "kaboom " + "x" * 3_000
    model = Scripted(call(("boom", {})), say("sorry"))
    agent = motet.Agent("a", model=model, tools=["get_error_detail"])

    @agent.tool
    def boom() -> None:
        raise RuntimeError(whole)

    async with motet.open_host(check_messages=True) as host:
        result = await host.run(agent, "go", session="s")
        (failed,) = result.errors
        assert failed.error_id is not None
        stored = await host.error(failed.error_id)

    told = model.requests[1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert len(told.text) <= 300
    assert failed.error_id in told.text
    assert whole in str(stored.raw_error)


async def test_the_model_gets_the_whole_error_back_by_its_id() -> None:
    whole = "kaboom " + "x" * 3_000
    model = Scripted(call(("boom", {})))
    agent = motet.Agent("a", model=model, tools=["get_error_detail"])

    @agent.tool
    def boom() -> None:
        raise RuntimeError(whole)

    async with motet.open_host() as host:
        model.then(say("first"))
        first = await host.run(agent, "go", session="s")
        model.then(call(("get_error_detail", {"error_id": first.errors[0].error_id})), say("so"))
        await host.run(agent, "explain", session="s")

    told = model.requests[-1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert whole in told.text


async def test_a_stop_ends_the_tool_once_and_the_next_message_works() -> None:
    model = Scripted(call(("hang", {}), ("hang", {})), say("back"))
    agent = motet.Agent("a", model=model)
    cleaned: list[str] = []

    @agent.tool
    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cleaned.append("clean")

    async with motet.open_host(check_messages=True) as host:
        async with host.stream(agent, "go", session="s") as run:
            seen: list[events.AnyEvent] = []
            async for event in run:
                seen.append(event)
                if sum(isinstance(one, events.ToolCall) for one in seen) == 2 and not cleaned:
                    await wait_all_tasks_blocked()
                    report = await host.stop(session="s")
                    assert (report.stopped, report.still_running) == ([run.id], [])
                    assert cleaned == ["clean", "clean"]
        ends = [event for event in seen if isinstance(event, events.Terminal)]
        assert [events.event_name(event) for event in ends] == ["run.cancelled"]
        assert run.result.status == "cancelled"
        history = [item.row for item in await host.history("s")]
        assert violations(history) == ()
        assert [row.outcome for row in history if isinstance(row, ToolMessage)] == [
            "cancelled_while_running",
            "cancelled_while_running",
        ]
        assert (await host.run(agent, "again", session="s")).output == "back"


async def test_leaving_the_stream_early_cancels_the_run_and_waits_for_it() -> None:
    agent = motet.Agent("a", model=Scripted(call(("hang", {}))))
    ended = trio.Event()

    @agent.tool
    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with motet.open_host() as host:
        async with host.stream(agent, "go", session="s") as run:
            async for event in run:
                if isinstance(event, motet.ToolCall):
                    break
        assert run.result.status == "cancelled"
        assert host.status().running == 0
        (info,) = await host.runs(session="s")
        assert info.status == "cancelled"


async def test_a_cancelled_caller_waits_for_the_tools_clean_up(autojump_clock: MockClock) -> None:
    agent = motet.Agent("a", model=Scripted(call(("hang", {}))))

    @agent.tool
    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    async with motet.open_host() as host:
        started = trio.current_time()
        with trio.move_on_after(1):
            await host.run(agent, "go", session="s")
        assert trio.current_time() - started == 4
        assert (await host.runs())[0].status == "cancelled"


async def test_an_input_during_a_run_is_queued_and_answered_after_it() -> None:
    model = Scripted(call(("wait", {})), say("first"), say("second"))
    agent = motet.Agent("a", model=model)
    go = trio.Event()

    @agent.tool
    async def wait() -> None:
        await go.wait()

    async with motet.open_host(agents=[agent], check_messages=True) as host:
        first = await host.submit("one", session="s")
        second = await host.submit("two", session="s")
        assert (first.status, second.status, second.position) == ("accepted", "queued", 1)
        go.set()
        await wait_all_tasks_blocked()
        rows = [item.row for item in await host.history("s")]
    assert [row.text for row in rows if isinstance(row, AssistantMessage)][1:] == [
        "first",
        "second",
    ]


async def test_a_stop_drops_queued_inputs_and_reports_them() -> None:
    agent = motet.Agent("a", model=Scripted(None))
    async with motet.open_host(agents=[agent]) as host:
        await host.submit("one", session="s")
        queued = await host.submit("two", session="s")
        report = await host.stop(session="s")
        assert report.dropped_inputs == [queued.run_id]
        assert {run.status for run in await host.runs()} == {"cancelled", "dropped"}


async def test_a_full_queue_refuses_and_stores_nothing() -> None:
    agent = motet.Agent("a", model=Scripted(None))
    async with motet.open_host(agents=[agent]) as host:
        for number in range(11):
            await host.submit(f"{number}", session="s")
        with pytest.raises(QueueFull, match="10 inputs waiting"):
            await host.submit("one too many", session="s")
        assert len(await host.runs(limit=100)) == 11


async def test_the_same_key_starts_one_run_and_another_body_is_a_conflict() -> None:
    model = Scripted(say("once"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host(agents=[agent], check_messages=True) as host:
        first = await host.run(agent, "hi", session="s", key="k")
        again = await host.run(agent, "hi", session="s", key="k")
        assert (again.run_id, again.output) == (first.run_id, "once")
        assert (await host.submit("hi", session="s", key="k")).status == "duplicate"
        with pytest.raises(KeyConflict):
            await host.submit("other", session="s", key="k")
    assert len(model.requests) == 1


async def test_a_model_that_fails_for_good_raises_llm_and_keeps_the_question() -> None:
    agent = motet.Agent("a", model=Scripted(ModelFailure("bad key", kind="auth", status=401)))
    async with motet.open_host(check_messages=True) as host:
        with pytest.raises(motet.Llm) as caught:
            await host.run(agent, "hi", session="s")
        rows = [item.row for item in await host.history("s")]
    assert caught.value.status == 401
    assert rows[0] == UserMessage("hi", "local") or rows[0] == UserMessage("hi")
    assert isinstance(rows[1], AssistantMessage)
    assert rows[1].note == "failed"


async def test_a_stream_that_breaks_is_tried_again_and_its_text_withdrawn(
    autojump_clock: MockClock,
) -> None:
    agent = motet.Agent("a", model=Scripted(cut("half an ans"), say("whole")))
    async with motet.open_host() as host, host.stream(agent, "hi", session="s") as run:
        seen = [event async for event in run]
    (retry,) = [event for event in seen if isinstance(event, motet.RunRetrying)]
    assert retry.withdrawn
    assert run.result.output == "whole"


async def test_check_false_returns_the_failure_as_data() -> None:
    agent = motet.Agent("a", model=Scripted(ModelFailure("no", kind="bad_request", status=400)))
    async with motet.open_host() as host:
        result = await host.run(agent, "hi", check=False)
    assert result.status == "failed"
    assert isinstance(result.error, motet.Llm)


async def test_a_wall_limit_ends_the_run_as_limited(autojump_clock: MockClock) -> None:
    agent = motet.Agent("a", model=Scripted(None), limits=motet.Limits(wall=5))
    async with motet.open_host() as host:
        result = await host.run(agent, "hi", check=False)
        assert (result.status, result.limit) == ("limited", "wall")
        with pytest.raises(motet.LimitReached, match="wall"):
            result.check()


async def test_a_gate_denies_and_the_model_reads_the_reason() -> None:
    model = Scripted(call(("danger", {})), say("then not"))
    agent = motet.Agent("a", model=model)
    ran: list[str] = []

    @agent.tool
    def danger() -> None:
        ran.append("ran")

    async with motet.open_host(check_messages=True) as host:

        @host.on("before_tool", match="dang*")
        async def guard(event: motet.BeforeTool) -> motet.Decision:
            return motet.Deny("too dangerous")

        await host.run(agent, "go")
    told = model.requests[1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert (told.outcome, "too dangerous" in told.text, ran) == ("denied", True, [])


async def test_one_users_session_is_not_found_for_another() -> None:
    agent = motet.Agent("a", model=Scripted(say("secret"), None))
    async with motet.open_host(agents=[agent], check_messages=True) as host:
        await host.run(agent, "hi", session="s", principal=ALICE)
        with pytest.raises(motet.NotFound):
            await host.history("s", principal=BOB)
        with pytest.raises(motet.NotFound):
            await host.submit("me too", session="s", principal=BOB)
        assert await host.sessions(principal=BOB) == ()
        assert await host.runs(principal=BOB) == ()
        running = await host.submit("go", session="s", principal=ALICE)
        with pytest.raises(motet.NotFound):
            await host.stop(run_id=running.run_id, principal=BOB)
        assert (await host.stop(session="s", principal=BOB)).stopped == []
        assert (await host.stop(run_id=running.run_id, principal=ALICE)).stopped == [running.run_id]


async def test_two_hosts_in_one_process_do_not_see_each_other() -> None:
    one = motet.Agent("a", model=Scripted(say("one")))
    two = motet.Agent("a", model=Scripted(say("two")))
    async with motet.open_host() as first, motet.open_host() as second:
        await first.run(one, "hi", session="s")
        assert await second.sessions() == ()
        assert (await second.run(two, "hi", session="s")).output == "two"
        assert len(await first.history("s")) == 2


async def test_closing_the_host_ends_its_runs_and_stores_their_transcripts(tmp_path: Path) -> None:
    model = Scripted(None, say("again"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        await host.submit("hi", session="s")
        await model.asked.wait()
    async with motet.open_host(tmp_path, agents=[agent]) as host:
        assert host.interrupted == ()
        assert (await host.runs())[0].status == "cancelled"
        assert violations([item.row for item in await host.history("s")]) == ()
        assert (await host.run(agent, "and now?", session="s")).output == "again"


async def test_a_cancelled_host_stores_the_transcript_before_the_database_closes(
    tmp_path: Path,
) -> None:
    model = Scripted(None)
    agent = motet.Agent("a", model=model)
    with trio.CancelScope() as scope:
        async with motet.open_host(tmp_path, agents=[agent]) as host:
            await host.submit("hi", session="s")
            await model.asked.wait()
            scope.cancel()
            await trio.sleep_forever()
    async with motet.open_host(tmp_path) as host:
        assert host.interrupted == ()
        assert (await host.runs())[0].status == "cancelled"


async def test_a_reset_starts_afresh_and_deletes_nothing() -> None:
    model = Scripted(say("one"), say("two"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host(check_messages=True) as host:
        await host.run(agent, "first", session="s")
        await host.reset("s")
        await host.run(agent, "second", session="s")
        assert len(await host.history("s")) == 4
    assert model.requests[1].messages == (UserMessage("second"),)


async def test_unknown_names_are_answered_with_the_nearest_known_one() -> None:
    async with motet.open_host(agents=[motet.Agent("helper")]) as host:
        with pytest.raises(motet.UnknownName, match="did you mean 'helper'"):
            await host.run("helpr", "hi")
        with pytest.raises(motet.UnknownName, match="did you mean 'read_file'"):
            host.add(motet.Agent("b", tools=["read_flie"]))
        with pytest.raises(motet.UnknownName, match="did you mean 'openai'"):
            host.add(motet.Agent("c", model="opnai:gpt"))


async def test_an_empty_input_is_refused_before_anything_is_stored() -> None:
    async with motet.open_host(agents=[motet.Agent("a")]) as host:
        with pytest.raises(motet.InputValidation):
            await host.run("a", "  \n")
        assert await host.sessions() == ()


def test_run_sync_makes_and_closes_a_host_of_its_own() -> None:
    agent = motet.Agent("a", model=Scripted(say("hello")))
    assert agent.run_sync("hi").output == "hello"


async def test_run_sync_inside_trio_is_refused_with_advice() -> None:
    with pytest.raises(RuntimeError, match=r"await agent\.run"):
        motet.Agent("a").run_sync("hi")
