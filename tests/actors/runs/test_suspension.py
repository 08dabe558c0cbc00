"""A run that waits for long is suspended, and goes on when it is answered: later, or elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.approvals import (
    ApprovalAnswered,
    ApprovalDecision,
    ApprovalsConfig,
    ListSuspended,
    ResumeRun,
)
from motet.protocols.chat import AssistantMessage, ToolMessage
from motet.protocols.config import HostConfig
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import Ack
from tests.actors.runs.ops import (
    ALICE,
    AT_ONCE,
    PATIENT,
    ended,
    ops,
    parts_of,
    pending,
    rows,
    state,
    suspended,
    told,
)
from tests.scripted import Scripted, call, say
from tests.slow_commits import SlowCommits, slow_commits


async def started(host: motet.Host, agent: motet.Agent[None, str], session: str = "s") -> Ack:
    host.add(agent)
    return await host.submit("go", session=session, agent=agent.name)


async def test_a_suspended_run_gives_a_waiting_result() -> None:
    own = ops(call(("look", {}), ("wipe", {"disk": "a"})), say("done"))
    async with motet.open_host(config=AT_ONCE, check_messages=True) as host:
        async with host.stream(own.agent, "go", session="s") as run:
            seen = [event async for event in run]
            result = await run.wait()
        (info,) = await host.approvals()
        assert seen[-1] == motet.RunWaiting((info.id,))
        assert (result.status, result.approvals) == ("waiting", (info.id,))
        with pytest.raises(motet.ApprovalPending, match=info.id) as raised:
            result.check()
        assert raised.value.approvals == (info.id,)
        assert host.status().running == 0
        await host.approve(info.id, "allow-once")
        assert (await ended(host, run.id)).status == "completed"
        stored = [item.row for item in await rows(host, "s")]
        told_of = await told(host, "s")
    assert own.ran == ["look", "wipe a"]
    assert violations(stored) == ()
    assert [event.id for event in told_of if isinstance(event, events.ToolCall)] == ["c0", "c1"]
    assert [event.id for event in told_of if isinstance(event, events.ToolResult)] == ["c0", "c1"]
    assert sum(isinstance(event, events.Terminal) for event in told_of) == 1


async def test_inputs_behind_a_suspended_run_wait_for_its_end() -> None:
    own = ops(call(("wipe", {"disk": "a"})), say("first"), say("second"))
    async with motet.open_host(config=AT_ONCE) as host:
        first = await started(host, own.agent)
        await suspended(host, first.run_id)
        second = await host.submit("and?", session="s")
        assert (second.status, second.position) == ("queued", 1)
        (info,) = await host.approvals()
        await host.approve(info.id, "deny", note="no")
        await ended(host, second.run_id)
        stored = [item.row for item in await rows(host, "s")]
    assert own.ran == []
    answers = [row.text for row in stored if isinstance(row, AssistantMessage) and not row.calls]
    assert answers == ["first", "second"]
    assert violations(stored) == ()


async def test_a_stop_ends_a_suspended_run_properly() -> None:
    own = ops(call(("look", {}), ("wipe", {"disk": "a"})))
    async with motet.open_host(config=AT_ONCE) as host:
        ack = await started(host, own.agent)
        await suspended(host, ack.run_id)
        behind = await host.submit("and?", session="s")
        report = await host.stop(session="s")
        assert report.stopped == [ack.run_id]
        assert report.dropped_inputs == [behind.run_id]
        (info,) = await host.approvals()
        assert info.state == "withdrawn"
        assert (await ended(host, ack.run_id)).status == "cancelled"
        stored, seen = [item.row for item in await rows(host, "s")], await told(host, "s")
        assert (await host.stop(session="s")).stopped == []
        assert await host.delete("s") >= len(stored)
    assert own.ran == ["look"]
    results = [row for row in stored if isinstance(row, ToolMessage)]
    assert [row.outcome for row in results] == ["done", "cancelled_before_start"]
    assert violations(stored) == ()
    assert sum(isinstance(event, events.Terminal) for event in seen) == 1
    assert events.ApprovalResolved(info.id, "cancelled", "") in seen
    ends = [event.id for event in seen if isinstance(event, events.ToolResult)]
    assert sorted(ends) == ["c0", "c1"]


async def test_an_approval_is_resolved_after_a_restart_once(tmp_path: Path) -> None:
    before = ops(call(("look", {}), ("wipe", {"disk": "a"})))
    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(before.agent, "go", session="s", check=False)
        assert result.status == "waiting"
    after = ops(say("done"))
    outcomes: list[str] = []

    async def answer(host: motet.Host, by: str, decision: ApprovalDecision) -> None:
        try:
            info = await host.approve(result.approvals[0], decision, by=by)
        except ApprovalAnswered as error:
            outcomes.append(str(error))
        else:
            outcomes.append(f"{info.state} by {info.resolved_by}")

    async with motet.open_host(state(tmp_path), config=PATIENT, agents=[after.agent]) as host:
        assert host.interrupted == ()
        assert [run.status for run in await host.runs()] == ["waiting"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, host, "alice", "allow-once")
            nursery.start_soon(answer, host, "bob", "deny")
            nursery.start_soon(answer, host, "carol", "allow-once")
        end = await ended(host, result.run_id)
        stored = [item.row for item in await rows(host, "s")]
        assert (end.status, end.usage.input_tokens) == ("completed", 20)
    allowed = any(outcome.startswith("allowed") for outcome in outcomes)
    assert any("has answered" in outcome for outcome in outcomes)
    assert after.ran == (["wipe a"] if allowed else [])
    assert before.ran == ["look"]
    assert violations(stored) == ()


async def test_a_host_that_closes_suspends_waiting_runs(tmp_path: Path) -> None:
    before = ops(call(("wipe", {"disk": "a"})))
    async with motet.open_host(state(tmp_path), config=PATIENT) as host:
        ack = await started(host, before.agent)
        (info,) = await pending(host)
    after = ops(say("done"))
    async with motet.open_host(state(tmp_path), config=PATIENT, agents=[after.agent]) as host:
        await host.approve(info.id, "allow-once")
        assert (await ended(host, ack.run_id)).status == "completed"
    assert (before.ran, after.ran) == ([], ["wipe a"])


async def test_a_suspended_run_resumes_when_its_approval_expires() -> None:
    own = ops(call(("wipe", {"disk": "a"})), say("then not"))
    config = HostConfig(approvals=ApprovalsConfig(hold=0, expires=0.2))
    async with motet.open_host(config=config) as host:
        ack = await started(host, own.agent)
        await suspended(host, ack.run_id)
        await ended(host, ack.run_id)
        stored = [item.row for item in await rows(host, "s")]
        assert [info.state for info in await host.approvals()] == ["expired"]
    assert own.ran == []
    assert stored[-1] == AssistantMessage("then not")


async def test_an_approval_expires_while_no_host_runs(tmp_path: Path) -> None:
    before = ops(call(("wipe", {"disk": "a"})))
    short = HostConfig(approvals=ApprovalsConfig(hold=0, expires=0.05))
    async with motet.open_host(state(tmp_path), config=short) as host:
        result = await host.run(before.agent, "go", session="s", check=False)
        assert result.status == "waiting"
        await trio.sleep(0)
    after = ops(say("too late"))
    async with motet.open_host(state(tmp_path), agents=[after.agent]) as host:
        assert (await ended(host, result.run_id)).status == "completed"
        assert [info.state for info in await host.approvals()] == ["expired"]
    assert (before.ran, after.ran) == ([], [])


async def test_a_run_that_ends_its_host_again_and_again_is_left_alone(tmp_path: Path) -> None:
    before = ops(call(("wipe", {"disk": "a"})))
    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(before.agent, "go", session="s", check=False)
    async with motet.open_host(state(tmp_path)) as host:
        # As if three hosts had ended while they took it up.
        suspended_runs = parts_of(host).suspended_runs
        await host.approve(result.approvals[0], "allow-once")
        for _ in range(AT_ONCE.recovery.quarantine_after):
            assert await suspended_runs.approvals.ask(ResumeRun(result.run_id)) is not None
            await suspended_runs.approvals.ask(ListSuspended())
    after = ops(say("done"))
    async with motet.open_host(state(tmp_path), agents=[after.agent]) as host:
        with trio.fail_after(60):
            while not (info := (await host.approvals())[0]).blocked:
                await trio.sleep(0.002)
        assert "each time the host ended" in info.blocked
        assert after.ran == []
        await host.approve(result.approvals[0], "allow-once")
        assert (await ended(host, result.run_id)).status == "completed"
    assert after.ran == ["wipe a"]


async def test_a_run_without_a_host_denies_what_nobody_can_answer() -> None:
    own = ops(call(("wipe", {"disk": "a"})), say("hm"))
    result = await own.agent.run("go")
    (row,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert (row.outcome, own.ran) == ("denied", [])


async def test_a_cancelled_caller_ends_its_suspended_run() -> None:
    own = ops(call(("wipe", {"disk": "a"})))
    async with motet.open_host(config=PATIENT) as host:
        async with host.stream(own.agent, "go", session="s") as run:
            (info,) = await pending(host)
        assert run.result.status == "cancelled"
        assert (await host.approvals())[0].state == "withdrawn"
        with pytest.raises(ApprovalAnswered):
            await host.approve(info.id, "allow-once")
    assert own.ran == []


async def test_an_unknown_agent_keeps_the_run_suspended(tmp_path: Path) -> None:
    before = ops(call(("wipe", {"disk": "a"})))
    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(before.agent, "go", session="s", check=False)
    after = ops(say("done"))
    async with motet.open_host(state(tmp_path)) as host:
        info = await host.approve(result.approvals[0], "allow-once")
        assert "unknown agent 'ops'" in info.blocked
        assert "host.add" in info.blocked
        assert (await host.approvals())[0].blocked == info.blocked
        host.add(after.agent)
        assert (await ended(host, result.run_id)).status == "completed"
    assert after.ran == ["wipe a"]


async def test_deps_are_given_with_the_answer_after_a_restart(tmp_path: Path) -> None:
    def agent(*steps: object) -> motet.Agent[str, str]:
        made = motet.Agent("a", model=Scripted(*steps), deps_type=str)  # type: ignore[arg-type]

        @made.tool(approval=True)
        def act(ctx: motet.Context[str]) -> str:
            return f"with {ctx.deps}"

        return made

    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(
            agent(call(("act", {}))), "go", session="s", deps="old", check=False
        )
    async with motet.open_host(state(tmp_path), agents=[agent(say("done"))]) as host:
        info = await host.approve(result.approvals[0], "allow-once")
        assert "deps" in info.blocked
        info = await host.approve(result.approvals[0], "allow-once", deps="new")
        assert info.blocked == ""
        await ended(host, result.run_id)
        stored = [i.row.text for i in await rows(host, "s") if isinstance(i.row, ToolMessage)]
        seen = await told(host, "s")
    assert stored == ["with new"]
    assert any(isinstance(event, motet.Warned) and "deps" in event.message for event in seen)


async def test_in_the_same_process_deps_and_agent_are_still_known() -> None:
    agent = motet.Agent("a", model=Scripted(call(("act", {})), say("done")), deps_type=str)

    @agent.tool(approval=True)
    def act(ctx: motet.Context[str]) -> str:
        return f"with {ctx.deps}"

    async with motet.open_host(config=AT_ONCE) as host:
        result = await host.run(agent, "go", session="s", deps="mine", check=False)
        await host.approve(result.approvals[0], "allow-once")
        await ended(host, result.run_id)
        stored = [i.row.text for i in await rows(host, "s") if isinstance(i.row, ToolMessage)]
    assert stored == ["with mine"]


async def test_a_gate_that_changes_the_arguments_meanwhile_has_them_approved_again() -> None:
    own = ops(call(("wipe", {"disk": "a"})), say("done"))
    async with motet.open_host(config=AT_ONCE) as host:
        ack = await started(host, own.agent)
        await suspended(host, ack.run_id)
        (info,) = await host.approvals()

        @host.on("before_tool", name="elsewhere")
        async def elsewhere(event: motet.BeforeTool) -> motet.Decision:
            return motet.Allow(args={"disk": "b"})

        await host.approve(info.id, "allow-once")
        (other,) = await pending(host)
        assert (other.args, own.ran) == ({"disk": "b"}, [])
        await host.approve(other.id, "allow-once")
        await ended(host, ack.run_id)
    assert own.ran == ["wipe b"]


async def test_an_answer_to_one_of_many_resumes_the_run_as_far_as_it_can() -> None:
    disks = [call(("wipe", {"disk": "a"}), ("wipe", {"disk": "b"}), ("wipe", {"disk": "c"}))]
    own = ops(*disks, say("done"))
    async with motet.open_host(config=AT_ONCE) as host:
        ack = await started(host, own.agent)
        await suspended(host, ack.run_id)
        for info in await pending(host, 3):
            await host.approve(info.id, "deny" if info.args == {"disk": "b"} else "allow-once")
        assert (await ended(host, ack.run_id)).status == "completed"
        outcomes = [i.row.outcome for i in await rows(host, "s") if isinstance(i.row, ToolMessage)]
    assert sorted(own.ran) == ["wipe a", "wipe c"]
    assert outcomes == ["done", "denied", "done"]


async def test_spending_before_a_suspension_counts_after_it(tmp_path: Path) -> None:
    limits = motet.Limits(turns=2)
    before = ops(call(("look", {})), call(("wipe", {"disk": "a"})), limits=limits)
    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(before.agent, "go", session="s", limits=limits, check=False)
        assert result.status == "limited"  # the last request is not offered tools
        before.model.then(call(("look", {})), call(("wipe", {"disk": "b"})))
        result = await host.run(
            before.agent, "go", session="s", limits=motet.Limits(turns=3), check=False
        )
        assert result.status == "waiting"
    after = ops(say("done"))
    async with motet.open_host(state(tmp_path), agents=[after.agent]) as host:
        await host.approve(result.approvals[0], "allow-once")
        end = await ended(host, result.run_id)
    assert (end.status, after.ran) == ("limited", ["wipe b"])
    assert end.usage.input_tokens == 30


async def test_the_limits_owner_and_role_of_a_suspended_run_are_kept(tmp_path: Path) -> None:
    before = ops(call(("wipe", {"disk": "a"})))
    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(before.agent, "go", session="s", principal=ALICE, check=False)
    after = motet.Agent("ops", model=Scripted(say("done")))
    seen: list[motet.Principal] = []

    @after.tool(approval=True)
    def wipe(ctx: motet.Context[None], disk: str) -> str:
        seen.append(ctx.principal)
        return disk

    async with motet.open_host(state(tmp_path), agents=[after]) as host:
        await host.approve(result.approvals[0], "allow-once", principal=ALICE)
        await ended(host, result.run_id)
    assert seen == [ALICE]


async def test_a_suspended_run_of_an_unknown_agent_can_be_stopped(tmp_path: Path) -> None:
    before = ops(call(("wipe", {"disk": "a"})))
    async with motet.open_host(state(tmp_path), config=AT_ONCE) as host:
        result = await host.run(before.agent, "go", session="s", check=False)
    async with motet.open_host(state(tmp_path)) as host:
        report = await host.stop(run_id=result.run_id)
        assert report.stopped == [result.run_id]
        assert (await ended(host, result.run_id)).status == "cancelled"
        assert violations([item.row for item in await rows(host, "s")]) == ()
        assert [info.state for info in await host.approvals()] == ["withdrawn"]


async def test_a_call_whose_approval_cannot_be_stored_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from motet.protocols import approval_tables as sql

    own = ops(call(("wipe", {"disk": "a"})), say("hm"))
    monkeypatch.setattr(sql, "ADD", "INSERT INTO nowhere VALUES (?, ?, ?)")
    async with motet.open_host(config=PATIENT) as host:
        result = await host.run(own.agent, "go")
        assert await host.approvals() == ()
    (row,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert row.outcome == "denied"
    assert "could not be put on record" in row.text
    assert own.ran == []


async def test_a_call_whose_approval_cannot_be_claimed_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from motet.protocols import approval_tables as sql

    own = ops(call(("wipe", {"disk": "a"})), say("hm"))
    monkeypatch.setattr(sql, "CLAIM", "UPDATE nowhere SET x = 1")
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.run, own.agent, "go")
        (info,) = await pending(host)
        await host.approve(info.id, "allow-once")
    assert own.ran == []


# ------------------------------------------------------- when the storage does not take the run


async def statuses(host: motet.Host) -> dict[str, str]:
    return {run.text: f"{run.status} {run.detail}".strip() for run in await host.runs(session="s")}


async def allow(host: motet.Host) -> None:
    for info in await host.approvals(state="pending"):
        await host.approve(info.id, "allow-once")


def waits_while(host: mt.SimulatedHost, slow: SlowCommits, locked: bool) -> None:
    """A run asks; before its hold is over the storage is away, and a text is sent to it."""
    host.call(submitted)
    host.advance(0.3)
    host.call(steer)
    slow.seconds, host.disk.locked = lambda: 6.0, locked
    host.advance(40)


async def steer(host: motet.Host) -> Ack:
    return await host.send("hurry", session="s")


async def submitted(host: motet.Host) -> Ack:
    return await host.submit("go", session="s", agent="ops")


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("end", ["none", "stop", "shutdown", "crash"])
def test_a_run_whose_suspension_is_not_stored_in_time_waits_all_the_same(
    locked: bool, end: str
) -> None:
    """Law: it is parked when the storage returns, here or in the next host, or a stop ends it."""
    own = ops(call(("wipe", {"disk": "a"})), *[say("done")] * 3)
    config = HostConfig(approvals=ApprovalsConfig(hold=0.5))
    with slow_commits() as slow, mt.simulated_host(1, agents=[own.agent], config=config) as host:
        waits_while(host, slow, locked)
        if end == "stop":
            host.begin(lambda live: live.stop(session="s"))
            host.advance(20)
        elif end == "shutdown":
            host.begin(lambda live: live.drain(0))
            host.advance(20)
        slow.seconds, host.disk.locked = float, False
        if end == "stop":
            host.advance(10)
            why = "stopped by local"
            assert host.call(statuses) == {"go": f"cancelled {why}", "hurry": f"dropped {why}"}
            return
        if end == "shutdown":
            host.restart(0)
        elif end == "crash":
            host.crash()
        host.advance(10)
        assert host.call(statuses) == {"go": "waiting", "hurry": "queued"}
        host.call(allow)
        host.advance(10)
        after = host.call(statuses)
        assert (after["go"], after["hurry"][:7]) == ("completed", "steered")
        assert own.ran == ["wipe a"]


def test_a_caller_is_told_the_truth_of_a_run_that_its_host_could_not_suspend() -> None:
    own = ops(call(("wipe", {"disk": "a"})), *[say("done")] * 3)
    results = list[str]()

    async def run(host: motet.Host) -> None:
        results.append((await host.run("ops", "go", session="s", check=False)).status)

    with mt.simulated_host(1, agents=[own.agent], config=PATIENT) as host:
        host.begin(run)
        host.advance(1)
        host.disk.locked = True
        host.begin(lambda live: live.drain(0))
        host.advance(20)
        host.disk.locked = False
        host.restart(0)
        host.advance(5)
        assert results == ["interrupted"]
        assert host.call(statuses) == {"go": "waiting"}
        host.call(allow)
        host.advance(5)
        assert (host.call(statuses), own.ran) == ({"go": "completed"}, ["wipe a"])


@pytest.mark.parametrize("hold", [0.0, 3_600.0])
@pytest.mark.parametrize("restarts", [False, True])
def test_an_approval_expires_by_the_clock_also_when_the_clock_is_put_forward(
    hold: float, restarts: bool
) -> None:
    """Law: once its stored time is over by the wall clock, an approval expires within seconds; a
    clock that was put back does not lengthen its life."""

    def answered(request: ModelRequest) -> mt.Step:
        asked = any(getattr(row, "calls", ()) for row in request.messages)
        return mt.say("done") if asked else mt.call("wipe")

    ran = list[str]()
    for jumps, waits in (([500.0], 110.0), ([600.0], 5.0), ([-500.0, 500.0, 600.0], 5.0)):
        agent = motet.Agent("ops", model=mt.FunctionModel(answered))

        @agent.tool(effects="write", approval=True)
        def wipe() -> str:
            ran.append("wipe")
            return "wiped"

        config = HostConfig(approvals=ApprovalsConfig(hold=hold, expires=600.0))
        with mt.simulated_host(1, agents=[agent], config=config) as host:
            host.start(agent, "go", session="s")
            host.advance(1)
            if restarts:
                host.restart(0)
                host.advance(1)
            for seconds in jumps:
                assert [info.state for info in host.call(motet.Host.approvals)] == ["pending"]
                host.loop.jump(seconds)
                host.advance(1)
            host.advance(waits)
            assert [info.state for info in host.call(motet.Host.approvals)] == ["expired"], jumps
            assert [run.status for run in host.call(motet.Host.runs)] == ["completed"]
    assert not ran
