"""A host in a world of its own, as a test drives it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.chat import ToolMessage
from motet.protocols.config import HostConfig, ShellConfig, ToolsConfig
from motet.protocols.errors import RunCancelled
from motet.protocols.rooms import RoomMessage
from motet.protocols.sessions import RunInfo
from motet.protocols.storage import StorageError
from motet.testing.processes import answers


def slow_agent(*steps: mt.Answer) -> motet.Agent:
    """An agent with a tool that takes a minute, and is given two seconds."""
    agent = motet.Agent("t", model=mt.ScriptedModel(steps or [mt.call("slow"), mt.say("late")]))

    @agent.tool(timeout=2)
    async def slow() -> str:
        await trio.sleep(60)
        return "never"

    return agent


async def run_of(host: Host, run_id: str) -> RunInfo:
    return await host.find_run(run_id)


@pytest.mark.parametrize("end", [pytest.fail, pytest.skip])
def test_a_tool_that_ends_the_test_has_not_failed(end: Callable[[str], NoReturn]) -> None:
    agent = motet.Agent("t", model=mt.ScriptedModel([mt.call("pay"), mt.say("paid")]))

    @agent.tool
    async def pay() -> str:
        end("nobody may pay")

    with pytest.raises(RunCancelled, match="the host is closing"), mt.simulated_host() as host:
        host.run(agent, "go")


def test_a_run_takes_virtual_time() -> None:
    with mt.simulated_host() as host:
        result = host.run(slow_agent(), "go")
        assert (result.output, result.errors[0].kind, host.now()) == ("late", "timeout", 2.0)
        host.advance(60)
        assert host.now() == 62.0


def test_the_delay_that_a_provider_asks_for_is_kept() -> None:
    agent = motet.Agent("t", model=mt.ScriptedModel([mt.fail(429, retry_after=7), mt.say("ok")]))
    with mt.simulated_host() as host:
        assert host.run(agent, "go").output == "ok"
        assert host.now() >= 7


def test_the_same_calls_give_the_same_trace_and_another_seed_another_one() -> None:
    def story(seed: int) -> tuple[str, list[str]]:
        with mt.simulated_host(seed) as host:
            host.start(slow_agent(), "hello", user="ann")
            host.steps(10)
            host.crash()
            host.settle()
            ids = [sent.run_id or "" for sent in host.history.sent]
            return host.trace.hash, ids

    assert story(4) == story(4)
    assert story(4) != story(5)


@pytest.mark.parametrize("steps", [0, 3, 8, 20, 80])
def test_an_input_on_disk_is_answered_or_reported_as_interrupted_after_a_crash(steps: int) -> None:
    with mt.simulated_host(steps) as host:
        ack = host.start(slow_agent(), "hello", user="ann", key="k")
        host.steps(steps)
        host.crash()
        host.settle()
        run = host.call(run_of, ack.run_id)
        assert run.status in ("completed", "interrupted")
        again = host.start(slow_agent(), "hello", user="ann", key="k")
        assert (again.run_id, again.status) == (ack.run_id, "duplicate")


def test_actions_of_a_crashed_host_are_invisible() -> None:
    with mt.simulated_host() as host:
        host.start(slow_agent(), "hello")
        host.steps(15)
        seen, requests = len(host.history.events), len(host.history.asked)
        before = host.now()
        host.crash()
        assert host.now() == before
        news = host.history.events[seen:]
        assert len(host.history.asked) == requests
        assert not [one for one in news if one.record.event.__class__.__name__ == "RunEnded"]


def test_a_stop_reports_the_stopped_runs_and_is_in_the_history() -> None:
    with mt.simulated_host() as host:
        ack = host.start(slow_agent(), "hello", user="ann")
        host.steps(12)
        assert host.stop(session="main", user="ann").stopped == [ack.run_id]
        assert host.history.stops[0].report.stopped == [ack.run_id]
        with pytest.raises(motet.NotFound):
            host.stop(run_id=ack.run_id, user="bob")


def test_a_room_is_there_again_after_a_crash() -> None:
    first = motet.Agent("first", model=mt.ScriptedModel([mt.say("one"), mt.say("two")]))
    with mt.simulated_host() as host:
        room = host.room(motet.Room("hall", members=[first], speakers=motet.mentions()))
        host.post(room.name, "@first who is there?", user="ann")
        host.settle()
        host.crash()
        assert [said.text for said in host.call(_said)] == ["@first who is there?", "one"]


async def _said(host: Host) -> tuple[RoomMessage, ...]:
    room = await host.open_room("hall")
    return await room.history()


def test_a_hook_of_setup_is_there_after_a_crash_too() -> None:
    heard: list[str] = []

    def prepare(host: Host) -> None:
        @host.on("run_end")
        async def note(event: motet.RunEnd) -> None:
            heard.append(event.output)

    agent = motet.Agent("t", model=mt.ScriptedModel([mt.say("one"), mt.say("two")]))
    with mt.simulated_host(setup=prepare) as host:
        host.run(agent, "go")
        host.crash()
        host.run(agent, "go")
    assert heard == ["one", "two"]


def test_a_stuck_call_names_the_waiting_tasks() -> None:
    async def waits(host: Host) -> None:
        await trio.sleep_forever()

    with mt.simulated_host() as host, pytest.raises(mt.Stuck, match="waits"):
        host.call(waits)


def test_a_tool_that_is_a_plain_function_runs_without_a_thread() -> None:
    agent = motet.Agent("t", model=mt.ScriptedModel([mt.call("add", a=1, b=2), mt.say("done")]))

    @agent.tool
    def add(a: int, b: int) -> int:
        return a + b

    with mt.simulated_host() as host:
        result = host.run(agent, "go")
    assert [row.text for row in result.rows if isinstance(row, ToolMessage)] == ["3"]


def test_a_tool_starts_a_declared_program() -> None:
    script = [mt.call("shell", command="git status"), mt.say("done")]
    agent = motet.Agent("t", model=mt.ScriptedModel(script), tools=["group:shell"])
    config = HostConfig(tools=ToolsConfig(shell=ShellConfig(mode="unsafe")))
    with mt.simulated_host(config=config) as host:
        host.processes.program("git", answers("nothing to commit"))
        result = host.run(agent, "go")
        assert "nothing to commit" in str(result.rows)
        assert not host.processes.running


def test_a_stop_drops_no_refused_input() -> None:
    with mt.simulated_host() as host:
        with pytest.raises(motet.InputValidation) as kept:
            host.start(slow_agent(), "  ")
        with pytest.raises(motet.UnknownName) as kept_too:
            host.call(_submit_to_nobody)
        report = host.stop(session="main")
        assert report.dropped_inputs == []
        assert kept.tb is not None, "the error is held, and with it all that its frames hold"
        assert kept_too.tb is not None


async def _submit_to_nobody(host: Host) -> None:
    await host.submit("hello", session="main", agent="nobody")


def _a_life(words: str, *, crash: bool = False) -> tuple[str, list[int], list[str]]:
    """The trace of a world, the changes of its disk, and the texts that are in its database."""
    agent = motet.Agent("helper", model=mt.ScriptedModel([mt.say(words)] * 3))
    changes: list[int] = []
    with mt.simulated_host(seed=3) as host:
        host.run(agent, words)
        changes.append(host.disk.changes)
        if crash:
            host.crash()
        host.restart()
        host.run(agent, words)
        changes.append(host.disk.changes)
        rows = [row for rows in mt.snapshot(host).transcripts.values() for row in rows]
        return host.trace.hash, changes, [row.row.text for row in rows]


def test_a_world_finds_nothing_of_the_worlds_before_it_though_it_has_their_connection() -> None:
    first = _a_life("hello", crash=True)
    assert first == _a_life("hello", crash=True)
    assert _a_life("other")[2] == ["other"] * 4


@pytest.mark.parametrize("way", ["io", "readonly", "full"])
def test_a_disk_that_fails_at_the_end_of_a_world_harms_no_later_one(way: str) -> None:
    expected = _a_life("hello")
    agent = motet.Agent("helper", model=mt.ScriptedModel([mt.say("hello")]))
    with mt.simulated_host() as host:
        if way == "full":
            host.disk.room = host.disk.used
        else:
            host.disk.broken = way
        with pytest.raises(StorageError):
            host.start(agent, "lost")
    assert _a_life("hello") == expected


def test_the_disk_of_a_world_that_has_ended_can_be_read_by_a_host_in_another_one() -> None:
    agent = motet.Agent("helper", model=mt.ScriptedModel([mt.say("hello")]))
    with mt.simulated_host() as ended:
        ended.run(agent, "hello")
    _a_life("other")
    with ended.disk.location() as location, closing(location.connect()) as connection:
        assert connection.run("SELECT count(*) FROM messages") == ((2,),)
        assert connection.run("PRAGMA integrity_check") == (("ok",),)
