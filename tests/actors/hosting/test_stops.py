"""Stops: by whom, how often, and the transcript afterwards."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.command_texts import stop_text
from motet.protocols.errors import NotFound
from motet.protocols.sessions import StopReport
from tests.scripted import Scripted, call, say


def hanging(clean_up: float = 0.0) -> motet.Agent[None]:
    """An agent whose tool never ends by itself, and takes a while to clean up."""
    agent = motet.Agent("a", model=Scripted(*[call(("hang", {}))] * 3))

    @agent.tool
    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(clean_up)

    return agent


async def rows_of(host: motet.Host, session: str = "s") -> list[ChatMessage]:
    rows = [item.row for item in await host.history(session)]
    assert violations(rows) == ()
    return rows


async def stops(host: motet.Host, run_id: str, callers: int, grace: float) -> list[StopReport]:
    reports: list[StopReport] = []

    async def stop() -> None:
        reports.append(await host.stop(run_id=run_id, grace=grace))

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(stop)
    return reports


async def test_of_a_hundred_stops_one_reports_it_stopped_and_all_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[hanging(clean_up=3)]) as host:
        ack = await host.submit("go", session="s")
        await wait_all_tasks_blocked()
        began = trio.current_time()
        reports = await stops(host, ack.run_id, 100, grace=5)
        assert trio.current_time() - began == 3
    assert all(report.still_running == [] for report in reports)
    assert Counter(len(report.stopped) for report in reports) == {1: 1, 0: 99}
    assert Counter(len(report.already_stopping) for report in reports) == {0: 1, 1: 99}


async def test_a_second_stop_reports_the_clean_up_of_the_first(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[hanging(clean_up=3)]) as host:
        ack = await host.submit("go", session="s")
        await wait_all_tasks_blocked()
        first = await host.stop(session="s", grace=1)
        (line,) = first.held_by
        assert line.startswith(f"{ack.run_id}: tool 'hang' has not ended yet: it is in hang, test_")
        assert first == StopReport(still_running=[ack.run_id], held_by=[line])
        assert await host.stop(everything=True, grace=1) == StopReport(
            already_stopping=[ack.run_id], still_running=[ack.run_id], held_by=[line]
        )
        assert await host.stop(run_id=ack.run_id) == StopReport(already_stopping=[ack.run_id])
        with pytest.raises(NotFound):
            await host.stop(run_id=ack.run_id)


async def test_a_stop_names_the_gate_that_it_waits_for(autojump_clock: MockClock) -> None:
    async with motet.open_host(agents=[hanging()]) as host:

        @host.on("before_tool", timeout=60)
        async def think(_: motet.BeforeTool) -> motet.Allow:
            with trio.CancelScope(shield=True):
                await trio.sleep(30)
            return motet.Allow()

        ack = await host.submit("go", session="s")
        await wait_all_tasks_blocked()
        report = await host.stop(session="s", grace=1)
        (line,) = report.held_by
        assert line.startswith(f"{ack.run_id}: hook ")
        assert "think' has not ended yet: it is in think, test_stops.py line " in line
        await host.stop(session="s", grace=60)
        rows = await rows_of(host)
    assert (rows[2].text, rows[3].text) == (
        "Cancelled before it started: nothing was done.",
        "[Stopped by user]",
    )


MOMENTS = (events.InputAccepted, events.Activity, events.TextDelta)


async def test_a_stop_at_the_end_of_a_run_loses_nothing() -> None:
    """Law: whenever a stop comes, the run ends once, with its input and an end in the transcript,
    and the stop either finds nothing or says what has come of it; then the session goes on.
    """
    agent = motet.Agent("a", model=Scripted(*[say("one ", "two")] * 101))
    ends: Counter[str] = Counter()
    async with motet.open_host(agents=[agent]) as host:
        for seed in range(100):
            random, session = Random(seed), f"s{seed}"
            moment, steps = random.choice(MOMENTS), random.randrange(6)
            async with host.stream(agent, "go", session=session) as run:
                ended = await stopped_at(host, run, moment, steps)
            ends[run.result.status] += 1
            assert ended == [f"run.{run.result.status}"]
            assert host.status().running == 0
            first, last = await rows_of(host, session)
            assert first == UserMessage("go")
            assert isinstance(last, AssistantMessage)
            assert (last.note == "stopped") is (run.result.status == "cancelled")
        assert (await host.run(agent, "again", session="s0")).output == "one two"
    assert ends["completed"]
    assert ends["cancelled"]


async def stopped_at(
    host: motet.Host, run: motet.RunStream, moment: type[object], steps: int
) -> list[str]:
    """The names of the events that end the run, which is stopped some steps after a moment."""
    ends: list[str] = []

    async def stop() -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        try:
            report = await host.stop(run_id=run.id)
        except NotFound:
            return
        assert report == StopReport(stopped=[run.id])

    async with trio.open_nursery() as nursery:
        async for event in run:
            if isinstance(event, moment):
                nursery.start_soon(stop)
                moment = type(None)
            if isinstance(event, events.Terminal):
                ends.append(events.event_name(event))
    return ends


async def last_row(host: motet.Host) -> ChatMessage:
    return (await rows_of(host))[-1]


async def test_only_a_stop_by_a_person_is_recorded_as_one() -> None:
    """What ends with who waits, or with the host, no user has stopped."""
    agent = hanging()
    async with motet.open_host() as host:
        async with host.stream(agent, "go", session="s") as run:
            await wait_all_tasks_blocked()
            run.cancel()
            await run.wait()
        assert (await last_row(host)).text == "[Stopped by user]"
        async with host.stream(agent, "go", session="s") as run:
            await wait_all_tasks_blocked()
        assert run.result.detail == "its caller has gone"
        assert (await last_row(host)).text == "[Stopped: its caller has gone]"
        async with host.stream(agent, "go", session="s") as run:
            await wait_all_tasks_blocked()
            run.cancel("after_turn")
            await host.stop(session="s")
        assert run.result.detail == "stopped by local"


async def test_a_stop_after_the_turn_is_the_callers() -> None:
    agent = motet.Agent("a", model=Scripted(call(("look", {}))))
    go = trio.Event()

    @agent.tool
    async def look() -> str:
        await go.wait()
        return "seen"

    async with motet.open_host() as host, host.stream(agent, "go", session="s") as run:
        await wait_all_tasks_blocked()
        run.cancel("after_turn")
        go.set()
        result = await run.wait()
        rows = await rows_of(host)
    assert (result.status, result.detail) == ("cancelled", "cancelled by the caller")
    assert [row.text for row in rows] == ["go", "", "seen", "[Stopped by user]"]


async def test_the_end_of_the_host_is_no_stop_by_the_user(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path, agents=[hanging()]) as host:
        await host.submit("go", session="s")
        await wait_all_tasks_blocked()
    async with motet.open_host(tmp_path) as host:
        assert (await last_row(host)).text == "[Stopped: the host is closing]"
        assert (await host.runs())[0].detail == "the host is closing"


def test_the_text_of_a_stop_names_runs_that_were_stopping_already() -> None:
    report = StopReport(["r1"], ["r2", "r3"], ["r4"], ["r3"])
    assert stop_text(report) == (
        "1 stopped; 2 already stopping; 1 dropped from the queue; 1 still cleaning up: r3"
    )
    assert stop_text(StopReport()) == "Nothing was running."


def test_ctrl_c_inside_a_tool_ends_the_host_without_a_wait() -> None:
    """Its stores may be gone first: the end of a run that nothing can store is not waited for."""
    agent = motet.Agent("a", model=Scripted(call(("interrupted", {}))))

    @agent.tool
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    async def main() -> None:
        async with motet.open_host(agents=[agent]) as host:
            await host.run(agent, "go", session="s", check=False)

    clock = MockClock(autojump_threshold=0)
    began = clock.current_time()
    with pytest.raises(KeyboardInterrupt):
        trio.run(main, clock=clock)
    assert clock.current_time() - began < 1
