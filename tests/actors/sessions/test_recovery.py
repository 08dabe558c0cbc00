"""Runs that the next host resumes, on real database files (G15)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import InputValidation
from motet.protocols.events import event_name
from motet.protocols.sessions import KeyConflict, Principal
from tests.actors.rooms.talk import behind_the_host
from tests.actors.sessions.crashes import crashed, ended, opened
from tests.scripted import Scripted, Step, call, say


def ops(*steps: Step, done: list[str], stuck: str = "") -> motet.Agent[None, str]:
    """An agent whose tools note that they were run; the one named ``stuck`` never ends."""
    agent = motet.Agent("ops", model=Scripted(*steps))

    async def happens(name: str) -> str:
        if name == stuck:
            await trio.sleep_forever()
        done.append(name)
        return f"{name} done"

    @agent.tool(effects="read")
    async def look() -> str:
        return await happens("look")

    @agent.tool(effects="write")
    async def write() -> str:
        return await happens("write")

    @agent.tool(effects="write", idempotent=True)
    async def put() -> str:
        return await happens("put")

    @agent.tool
    async def undeclared() -> str:
        return await happens("undeclared")

    @agent.tool(effects="write")
    async def transfer_to_bank() -> str:
        """Named as if it handed over, which it does not."""
        return await happens("transfer_to_bank")

    return agent


async def texts(host: motet.Host, session: str = "s") -> list[str]:
    rows = [item.row for item in await host.history(session)]
    assert violations(rows) == ()
    return [row.text for row in rows]


async def test_queued_inputs_are_answered_in_their_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", ops(None, done=[])) as host:
        acks = [await host.submit(text, session="s", agent="ops") for text in ("1", "2", "3")]
        left = await crashed(tmp_path / "a")
    async with opened(left, ops(say("one"), say("two"), say("three"), done=[])) as host:
        assert [run.text for run in host.resumed] == ["1", "2", "3"]
        assert host.interrupted == ()
        assert {run.status for run in await ended(host, *(ack.run_id for ack in acks))} == {
            "completed"
        }
        assert await texts(host) == ["1", "one", "2", "two", "3", "three"]


async def test_a_new_input_comes_after_the_resumed_ones(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", ops(None, done=[])) as host:
        await host.submit("first", session="s", agent="ops")
        left = await crashed(tmp_path / "a")
    async with opened(left, ops(say("one"), say("two"), done=[])) as host:
        ack = await host.submit("second", session="s")
        await ended(host, ack.run_id)
        assert await texts(host) == ["first", "one", "second", "two"]


@pytest.mark.parametrize("stuck", ["look", "put"])
async def test_a_run_resumes_from_its_rows_and_repeats_only_idempotent_calls(
    tmp_path: Path, stuck: str
) -> None:
    done: list[str] = []
    steps = (call(("write", {})), call((stuck, {})))
    async with opened(tmp_path / "a", ops(*steps, done=done, stuck=stuck)) as host:
        ack = await host.submit("go", session="s", agent="ops")
        left = await crashed(tmp_path / "a", "tool.call", 2)
        done.clear()
    agent = ops(say("fine"), done=done)
    async with opened(left, agent) as host:
        (run,) = await ended(host, ack.run_id)
        assert (run.status, done) == ("completed", [stuck])
        assert run.usage.total_tokens == 45  # what was spent before counts
        assert await texts(host) == ["go", "", "write done", "", f"{stuck} done", "fine"]
        seen = [record.event for record in await host.events.read("session:s", 0)]
    told = [events.event_name(event) for event in seen]
    assert told.count("tool.call") == told.count("tool.result") == 2
    assert told.count("run.started") == told.count("run.resumed") == 1
    assert told.count("run.completed") == 1


@pytest.mark.parametrize("stuck", ["write", "undeclared", "transfer_to_bank"])
async def test_a_call_that_may_have_had_its_effect_interrupts_the_run(
    tmp_path: Path, stuck: str
) -> None:
    done: list[str] = []
    async with opened(tmp_path / "a", ops(call((stuck, {})), done=done, stuck=stuck)) as host:
        ack = await host.submit("go", session="s", agent="ops")
        left = await crashed(tmp_path / "a", "tool.call")
    async with opened(left, ops(say("again"), done=done)) as host:
        assert [run.run_id for run in host.interrupted] == [ack.run_id]
        assert host.resumed == ()
        rows = [item.row for item in await host.history("s")]
        assert [row.outcome for row in rows if isinstance(row, ToolMessage)] == ["unknown"]
        assert stuck in (await host.find_run(ack.run_id)).detail

        again = await host.resend(ack.run_id)
        await ended(host, again.run_id)
        twice = await host.resend(ack.run_id)
        assert (twice.status, twice.run_id) == ("duplicate", again.run_id)
        # Long ago: other keys are forgotten.
        behind_the_host(left, "UPDATE idempotency SET ts = 0")
        await host.submit("more", session="t", agent="ops", key="k")
        assert (await host.resend(ack.run_id)).status == "duplicate"
        with pytest.raises(InputValidation, match="is completed"):
            await host.resend(again.run_id)
        with pytest.raises(motet.NotFound):
            await host.resend(ack.run_id, principal=Principal("bob"))
    assert done == []


async def test_a_run_whose_caller_waited_ends_with_the_host_unless_it_has_a_key(
    tmp_path: Path,
) -> None:
    agent = ops(None, None, done=[])
    async with opened(tmp_path / "a", agent) as host, trio.open_nursery() as nursery:

        async def run(session: str, key: str | None) -> None:
            await host.run("ops", "hi", session=session, key=key)

        nursery.start_soon(run, "s", None)
        nursery.start_soon(run, "k", "key")
        left = await crashed(tmp_path / "a", "run.started", 2)
        nursery.cancel_scope.cancel()
    async with opened(left, ops(say("yes"), done=[])) as host:
        assert [run.session for run in host.interrupted] == ["s"]
        found = await host.run("ops", "hi", session="k", key="key")
        assert found.output == "yes"
        with pytest.raises(KeyConflict):
            await host.run("ops", "other", session="k", key="key")


async def test_an_input_with_deps_is_not_resumed(tmp_path: Path) -> None:
    agent = motet.Agent("deps", model=Scripted(None), deps_type=int)
    async with motet.open_host(tmp_path / "a") as host, trio.open_nursery() as nursery:

        async def run() -> None:
            await host.run(agent, "hi", deps=1, session="s", key="k")

        nursery.start_soon(run)
        left = await crashed(tmp_path / "a", "run.started")
        nursery.cancel_scope.cancel()
    async with opened(left) as host:
        (run_info,) = host.interrupted
        assert "deps" in run_info.detail


@pytest.mark.parametrize("within", [0, 0.01])
async def test_a_run_that_is_too_old_is_interrupted(tmp_path: Path, within: float) -> None:
    async with opened(tmp_path / "a", ops(None, done=[])) as host:
        await host.submit("hi", session="s", agent="ops")
        left = await crashed(tmp_path / "a")
    async with opened(left, ops(done=[]), resume_within=within) as host:
        assert [run.text for run in host.interrupted] == ["hi"]
        assert host.resumed == ()


async def test_a_session_waits_for_its_agent_and_a_stop_finds_it_there(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", ops(None, None, done=[])) as host:
        one = await host.submit("one", session="s", agent="ops")
        other = await host.submit("other", session="o", agent="ops")
        left = await crashed(tmp_path / "a", "run.started", 2)
    async with opened(left) as host:
        report = await host.stop(session="o")
        assert report.stopped == [other.run_id]  # its first host had started it
        assert (await host.find_run(one.run_id)).status in ("queued", "running")

        host.add(ops(say("there you are"), done=[]))
        (run,) = await ended(host, one.run_id)
        assert run.status == "completed"


async def test_a_begun_run_that_is_stopped_while_it_waits_keeps_its_rows(tmp_path: Path) -> None:
    done: list[str] = []
    async with opened(tmp_path / "a", ops(call(("look", {})), None, done=done)) as host:
        ack = await host.submit("go", session="s", agent="ops")
        left = await crashed(tmp_path / "a", "tool.result")
    async with opened(left) as host:
        await trio.sleep(0.02)
        await host.stop(run_id=ack.run_id)
        (run,) = await ended(host, ack.run_id)
        assert run.status == "cancelled"
        said = await texts(host)
        told = [record.event for record in await host.events.read("session:s", 0)]
    assert said[:3] == ["go", "", "look done"]
    calls = [one for one in told if isinstance(one, motet.ToolCall)]
    results = [one for one in told if isinstance(one, motet.ToolResult)]
    assert [one.id for one in calls] == [one.id for one in results]
    assert len(calls) == 1
    assert isinstance(told[-2], motet.MessageAdded)
    assert told[-2].text == said[-1]
    assert event_name(told[-1]) == "run.cancelled"


async def test_an_agent_that_never_comes_is_waited_for_only_so_long(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", ops(None, done=[])) as host:
        ack = await host.submit("hi", session="s", agent="ops")
        left = await crashed(tmp_path / "a")
    async with opened(left, resume_within=2.0) as host:
        assert [run.run_id for run in host.resumed] == [ack.run_id]
        (run,) = await ended(host, ack.run_id)
        assert run.status == "interrupted"
        assert "unknown agent 'ops'" in run.detail


async def test_a_resumed_run_keeps_its_principal(tmp_path: Path) -> None:
    roles: list[str] = []
    agent = motet.Agent("who", model=Scripted(call(("who", {}))))

    @agent.tool(effects="read")
    async def who(ctx: motet.Context[None]) -> str:
        roles.append(f"{ctx.principal.user} {ctx.principal.role}")
        if len(roles) == 1:
            await trio.sleep_forever()
        return "you"

    async with opened(tmp_path / "a", agent) as host:
        viewer = Principal("vera", "viewer")
        ack = await host.submit("hi", session="s", agent="who", principal=viewer)
        while not roles:
            await trio.sleep(0.005)
        left = await crashed(tmp_path / "a", "tool.call")
    agent.model = Scripted(say("done"))
    async with opened(left, agent) as host:
        await ended(host, ack.run_id)
    assert roles == ["vera viewer", "vera viewer"]


async def test_gates_registered_first_in_the_block_hold_for_resumed_runs(tmp_path: Path) -> None:
    done: list[str] = []
    async with opened(tmp_path / "a", ops(call(("look", {})), done=done, stuck="look")) as host:
        ack = await host.submit("go", session="s", agent="ops")
        left = await crashed(tmp_path / "a", "tool.call")
    async with opened(left, ops(say("denied"), done=done)) as host:

        @host.on("before_tool")
        async def no(event: motet.BeforeTool) -> motet.Deny:
            return motet.Deny("not today")

        await ended(host, ack.run_id)
        rows = [item.row for item in await host.history("s")]
    assert done == []
    assert [row.outcome for row in rows if isinstance(row, ToolMessage)] == ["denied"]


async def test_a_run_that_is_interrupted_twice_resumes_twice(tmp_path: Path) -> None:
    done: list[str] = []
    state = tmp_path / "a"
    scripts = [
        (call(("write", {})), call(("look", {}))),
        (call(("put", {})),),
        (say("at last"),),
    ]
    stuck, run_id = ("look", "put", ""), ""
    rows: list[ChatMessage] = []
    for number, steps in enumerate(scripts):
        async with opened(state, ops(*steps, done=done, stuck=stuck[number])) as host:
            if not run_id:
                run_id = (await host.submit("go", session="s", agent="ops")).run_id
            if number < 2:
                state = await crashed(state, "tool.call", 2 + number)
            else:
                await ended(host, run_id)
                rows = [item.row for item in await host.history("s")]
    assert done == ["write", "look", "put"]
    assert [type(row) for row in rows if not isinstance(row, ToolMessage)] == [
        UserMessage,
        *[AssistantMessage] * 4,
    ]
    assert [row.outcome for row in rows if isinstance(row, ToolMessage)] == ["done"] * 3
