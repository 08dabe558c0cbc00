"""A call that needs an approval waits for a person, and does what the person says (G10)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.sessions import resumption
from motet.actors.storage.session_runs import RunTables
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.approvals import (
    ApprovalAnswered,
    ApprovalDecision,
    ApprovalsConfig,
    NeedsApproval,
)
from motet.protocols.chat import ToolMessage
from motet.protocols.config import HostConfig
from motet.protocols.errors import InputValidation, NotFound
from tests.actors.runs.ops import (
    ALICE,
    AT_ONCE,
    BOB,
    PATIENT,
    ended,
    ops,
    parts_of,
    pending,
    rows,
    suspended,
    told,
)
from tests.scripted import Scripted, call, say


async def test_an_allowed_call_runs_once_and_is_published() -> None:
    own = ops(call(("restart", {"unit": "ssh"})), say("done"))
    async with motet.open_host(config=PATIENT, check_messages=True) as host:
        async with host.stream(own.agent, "go", session="s") as run:
            async for event in run:
                if isinstance(event, motet.ApprovalRequested):
                    assert own.ran == []
                    assert (event.tool, event.args) == ("restart", {"unit": "ssh"})
                    await host.approve(event.id, "allow-once", by="alice")
        assert run.result.check().output == "done"
        (info,) = await host.approvals()
        seen = await told(host, "s")
    assert own.ran == ["restart ssh"]
    assert (info.state, info.resolved_by, info.args_hash) == ("allowed", "alice", info.args_hash)
    assert info.used is not None
    order = [type(event).__name__ for event in seen]
    assert order[3:7] == ["ToolCall", "ApprovalRequested", "ApprovalResolved", "ToolResult"]


async def test_a_denied_call_is_not_run_and_the_model_reads_why() -> None:
    own = ops(call(("restart", {"unit": "ssh"})), say("well"))
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(_answer, host, "deny", "not at noon")
        result = await host.run(own.agent, "go", session="s")
    assert own.ran == []
    (row,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert row.outcome == "denied"
    assert row.text == "Permission denied: denied by local, who says: not at noon"


async def _answer(host: motet.Host, decision: ApprovalDecision, note: str = "") -> None:
    (info,) = await pending(host)
    await host.approve(info.id, decision, note=note)


async def test_of_two_answers_at_once_one_wins_and_the_other_raises() -> None:
    own = ops(call(("restart", {"unit": "ssh"})), say("done"))
    outcomes: list[str] = []

    async def answer(host: motet.Host, id: str, decision: ApprovalDecision, by: str) -> None:
        try:
            info = await host.approve(id, decision, by=by)
            outcomes.append(f"{info.resolved_by} {info.state}")
        except ApprovalAnswered as error:
            outcomes.append(str(error))

    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.run, own.agent, "go")
        (info,) = await pending(host)
        async with trio.open_nursery() as both:
            both.start_soon(answer, host, info.id, "allow-once", "alice")
            both.start_soon(answer, host, info.id, "deny", "bob")
    won = next(outcome for outcome in outcomes if "has answered" not in outcome)
    lost = next(outcome for outcome in outcomes if "has answered" in outcome)
    assert lost.startswith(f"{won.split()[0]} has answered {info.id} with ")
    assert own.ran == (["restart ssh"] if won == "alice allowed" else [])


async def test_the_same_answer_again_changes_nothing() -> None:
    own = ops(call(("restart", {"unit": "ssh"})), say("done"))
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.run, own.agent, "go")
        (info,) = await pending(host)
        first = await host.approve(info.id, "allow-once", by="alice")
        again = await host.approve(info.id, "allow-once", by="bob")
        assert (again.resolved_by, again.resolved) == (first.resolved_by, first.resolved)
        with pytest.raises(InputValidation, match="not a decision"):
            await host.approve(info.id, "yes")  # type: ignore[arg-type]  # what a caller may do
    assert own.ran == ["restart ssh"]


async def test_a_tool_can_ask_for_this_very_call() -> None:
    agent = motet.Agent("a", model=Scripted(call(("pay", {"usd": 900})), say("paid")))
    seen: list[bool] = []

    @agent.tool
    def pay(ctx: motet.Context[None], usd: int) -> str:
        seen.append(ctx.approved)
        if usd > 100 and not ctx.approved:
            raise NeedsApproval(f"{usd} dollars are much")
        return f"{usd} paid"

    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(_answer, host, "allow-once")
        result = await host.run(agent, "go")
        (info,) = await host.approvals()
    assert result.output == "paid"
    assert (info.reason, info.asked_by) == ("900 dollars are much", ("call",))
    assert seen == [False, True]


async def test_a_tool_that_asks_although_it_is_approved_fails_with_a_hint() -> None:
    agent = motet.Agent("a", model=Scripted(call(("pay", {})), say("hm")))

    @agent.tool
    def pay() -> str:
        raise NeedsApproval

    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(_answer, host, "allow-once")
        result = await host.run(agent, "go")
    assert "see ctx.approved" in result.errors[0].text


@pytest.mark.parametrize(
    ("verdict", "asks"),
    [(False, False), (True, True), (RuntimeError("broken"), True), ("no", True), (None, True)],
)
async def test_a_condition_that_fails_or_says_nothing_asks(verdict: object, *, asks: bool) -> None:
    agent = motet.Agent("a", model=Scripted(call(("act", {"n": 1})), say("ok")))

    async def condition(ctx: motet.Context[None], args: dict[str, object]) -> bool:
        args.clear()  # of its copy
        if isinstance(verdict, Exception):
            raise verdict
        return verdict  # type: ignore[return-value]  # what a program may do

    @agent.tool(approval=condition)
    def act(n: int) -> str:
        return f"done {n}"

    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        if asks:
            nursery.start_soon(_answer, host, "allow-once")
        result = await host.run(agent, "go", session="s")
        assert len(await host.approvals()) == asks
    assert [row.text for row in result.rows if isinstance(row, ToolMessage)] == ["done 1"]


async def test_a_gate_can_ask_and_what_another_replaced_is_what_is_shown_and_run() -> None:
    agent = motet.Agent("a", model=Scripted(call(("act", {"n": 1})), say("ok")))

    @agent.tool
    def act(n: int) -> str:
        return f"done {n}"

    async with motet.open_host(config=PATIENT) as host:

        @host.on("before_tool", name="doubt")
        async def doubt(event: motet.BeforeTool) -> motet.Decision:
            return motet.Ask("I would not")

        @host.on("before_tool", name="more")
        async def more(event: motet.BeforeTool) -> motet.Decision:
            return motet.Allow(args={"n": 7})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer, host, "allow-once")
            result = await host.run(agent, "go", session="s")
        (info,) = await host.approvals()
    assert (info.args, info.reason, info.asked_by) == (
        {"n": 7},
        "hook doubt: I would not",
        ("hook doubt",),
    )
    assert [row.text for row in result.rows if isinstance(row, ToolMessage)] == ["done 7"]


async def test_always_is_for_one_tool_agent_user_and_asker_and_can_be_revoked() -> None:
    twice = [call(("restart", {"unit": "a"})), say("ok")]
    own = ops(*twice, call(("restart", {"unit": "b"})), say("ok"), *twice, *twice)
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(_answer, host, "allow-always")
        await host.run(own.agent, "go", session="s", principal=ALICE)
        await host.run(own.agent, "go", session="s", principal=ALICE)
        assert own.ran == ["restart a", "restart b"]
        (grant,) = await host.grants(principal=ALICE)
        assert (grant.agent, grant.tool, grant.user, grant.asker) == (
            "ops",
            "restart",
            "alice",
            "tool",
        )
        # It is nothing to others, and they cannot take it away.
        assert await host.grants(principal=BOB) == ()
        with pytest.raises(NotFound):
            await host.revoke(grant.id, principal=BOB)
        nursery.start_soon(_answer, host, "deny")
        await host.run(own.agent, "go", session="t", principal=BOB)
        await host.revoke(grant.id, principal=ALICE)
        nursery.start_soon(_answer, host, "deny")
        await host.run(own.agent, "go", session="s", principal=ALICE)
    assert len(own.ran) == 2


@pytest.mark.parametrize("decision", ["deny", "expire"])
@pytest.mark.parametrize("why", ["a grant", "its condition", "the policy"])
async def test_a_call_that_was_not_allowed_does_not_run_though_nobody_asks_any_more(
    why: str, decision: str
) -> None:
    """Its run is suspended meanwhile, so that its gates are asked again with the answer there."""
    ran, asks = list[int](), [True]
    model = Scripted(call(("act", {"n": 1}), ("act", {"n": 2})), say("ok"))
    agent = motet.Agent("a", model=model)

    @agent.tool(approval=False if why == "the policy" else lambda _ctx, _args: asks[0])
    async def act(n: int) -> str:
        ran.append(n)
        return f"done {n}"

    rules = (motet.PolicyRule(tool="act", effect="ask"),) if why == "the policy" else ()
    config = attrs.evolve(AT_ONCE, policy=rules)
    async with motet.open_host(config=config, agents=[agent]) as host:
        run_id = (await host.submit("go", session="s", agent="a")).run_id
        second, first = sorted(await pending(host, 2), key=lambda info: -int(str(info.args["n"])))
        await suspended(host, run_id)
        match why:
            case "a grant":
                await host.approve(first.id, "allow-always")
            case "its condition":
                asks[0] = False
            case _:
                await host.reload(AT_ONCE)
        if decision == "deny":
            await host.approve(second.id, "deny")
        else:
            waits = parts_of(host).services.pending_approvals
            waits.deadlines[second.id] = trio.current_time()
            waits.changed.set()
        if why != "a grant":
            await host.approve(first.id, "allow-once")
        await ended(host, run_id)
        states = {info.id: info.state for info in await host.approvals()}
    assert states[second.id] == ("denied" if decision == "deny" else "expired")
    assert ran == [1]


async def test_a_gate_asks_though_the_tool_asks_no_more() -> None:
    turn = [call(("restart", {"unit": "a"})), say("ok")]
    own = ops(*turn, *turn)
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(_answer, host, "allow-always")
        await host.run(own.agent, "go", session="s")

        @host.on("before_tool", name="doubt")
        async def doubt(event: motet.BeforeTool) -> motet.Decision:
            return motet.Ask("now it is night")

        nursery.start_soon(_answer, host, "deny")
        await host.run(own.agent, "go", session="s")
        assert (await host.approvals())[0].asked_by == ("hook doubt",)
    assert own.ran == ["restart a"]


async def test_an_approval_that_nobody_answers_expires_which_is_no_denial(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 1
    own = ops(call(("restart", {"unit": "ssh"})), say("later then"))
    config = HostConfig(approvals=ApprovalsConfig(hold=3_600, expires=600))
    async with motet.open_host(config=config) as host, trio.open_nursery() as nursery:
        results: list[motet.RunResult[str]] = []

        async def run() -> None:
            results.append(await host.run(own.agent, "go", session="s"))

        nursery.start_soon(run)
        await pending(host)
        mock_clock.jump(601)
        while not results:
            await trio.sleep(0.001)
        (info,) = await host.approvals()
        seen = await told(host, "s")
        with pytest.raises(ApprovalAnswered, match="has expired at"):
            await host.approve(info.id, "allow-once")
    assert own.ran == []
    assert (info.state, info.resolved_by) == ("expired", None)
    (row,) = [row for row in results[0].rows if isinstance(row, ToolMessage)]
    assert "nobody has answered" in row.text
    assert events.ApprovalResolved(info.id, "expired", "") in seen


async def test_waiting_costs_neither_the_tool_s_time_nor_the_run_s(mock_clock: MockClock) -> None:
    mock_clock.rate = 1
    limits = motet.Limits(wall=50)
    own = ops(call(("restart", {"unit": "ssh"})), say("done"), limits=limits)

    async def late(host: motet.Host) -> None:
        (info,) = await pending(host)
        mock_clock.jump(1_000)
        await host.approve(info.id, "allow-once")

    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(late, host)
        result = await host.run(own.agent, "go", check=False)
    assert (result.status, own.ran) == ("completed", ["restart ssh"])


async def test_all_of_a_batch_are_asked_for_and_siblings_run_meanwhile() -> None:
    own = ops(call(("wipe", {"disk": "a"}), ("look", {}), ("wipe", {"disk": "b"})), say("done"))
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(
            host.run,
            own.agent,
            "go",
        )
        first, second = await pending(host, 2)
        while own.ran != ["look"]:
            await trio.sleep(0.001)
        await host.approve(second.id, "allow-once")
        await host.approve(first.id, "deny")
    assert own.ran == ["look", "wipe b"]


async def test_calls_that_write_are_asked_for_together_and_done_in_order() -> None:
    a, b, c = [("restart", dict[str, object](unit=unit)) for unit in "abc"]
    own = ops(call(a, b, c, ("look", {})), say("done"))
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.run, own.agent, "go")
        first, second, third = await pending(host, 3)
        await host.approve(third.id, "allow-once")
        await host.approve(second.id, "deny")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert own.ran == []
        await host.approve(first.id, "allow-once")
    assert own.ran == ["restart a", "restart c", "look"]


async def test_a_stop_withdraws_what_a_run_has_asked_for() -> None:
    own = ops(call(("look", {}), ("wipe", {"disk": "a"})))
    async with motet.open_host(config=PATIENT) as host:
        host.add(own.agent)
        ack = await host.submit("go", session="s", agent="ops")
        (info,) = await pending(host)
        report = await host.stop(session="s")
        assert report.stopped == [ack.run_id]
        (after,) = await host.approvals()
        seen, stored = await told(host, "s"), [item.row for item in await rows(host, "s")]
        with pytest.raises(ApprovalAnswered, match="was withdrawn"):
            await host.approve(info.id, "allow-once")
    assert after.state == "withdrawn"
    assert own.ran == ["look"]
    assert violations(stored) == ()
    assert events.ApprovalResolved(info.id, "cancelled", "") in seen
    assert sum(isinstance(event, events.Terminal) for event in seen) == 1
    calls = sum(isinstance(event, events.ToolCall) for event in seen)
    assert calls == sum(isinstance(event, events.ToolResult) for event in seen) == 2


store_end = RunTables._end  # pyright: ignore[reportPrivateUsage]


def resolutions(seen: list[motet.AnyEvent]) -> list[tuple[str, str]]:
    """The approvals that were published as resolved, each with its decision."""
    return [(e.id, e.decision) for e in seen if isinstance(e, events.ApprovalResolved)]


async def test_an_answer_while_a_stopped_run_ends_is_its_one_resolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = ops(call(("wipe", {"disk": "a"}), ("wipe", {"disk": "b"})))
    async with motet.open_host(config=PATIENT) as host:
        host.add(own.agent)
        await host.submit("go", session="s", agent="ops")
        first, second = await pending(host, 2)

        async def answered(*args: Any) -> Any:
            await host.approve(first.id, "deny")
            return await store_end(*args)

        monkeypatch.setattr(RunTables, "_end", answered)
        await host.stop(session="s")
        states = {info.id: info.state for info in await host.approvals()}
        seen = await told(host, "s")
    assert states == {first.id: "denied", second.id: "withdrawn"}
    assert resolutions(seen) == [(first.id, "deny"), (second.id, "cancelled")]


async def test_a_check_for_answers_on_disk_leaves_the_end_of_a_run_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = ops(call(("wipe", {"disk": "a"})))

    async def looked_at(*args: Any) -> Any:
        found = await store_end(*args)
        await trio.sleep(0.1)
        return found

    monkeypatch.setattr(RunTables, "_end", looked_at)
    monkeypatch.setattr(resumption, "WATCH_EVERY", 0.001)
    async with motet.open_host(config=PATIENT) as host:
        host.add(own.agent)
        await host.submit("go", session="s", agent="ops")
        (info,) = await pending(host)
        await host.stop(session="s")
        seen = await told(host, "s")
    assert resolutions(seen) == [(info.id, "cancelled")]


async def test_approvals_of_another_user_do_not_exist() -> None:
    own = ops(call(("restart", {"unit": "a"})), say("ok"))
    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        host.add(own.agent)
        await host.submit("go", session="s", agent="ops", principal=ALICE)
        (info,) = await pending(host)
        assert await host.approvals(principal=BOB) == ()
        with pytest.raises(NotFound):
            await host.approve(info.id, "allow-once", principal=BOB)
        assert len(await host.approvals(principal=ALICE)) == 1
        nursery.cancel_scope.cancel()
    assert own.ran == []


async def test_a_call_is_denied_where_nobody_can_be_asked() -> None:
    own = ops(call(("restart", {"unit": "a"})), say("ok"))
    alone = HostConfig(approvals=ApprovalsConfig(ask=False))
    async with motet.open_host(config=alone) as host:
        result = await host.run(own.agent, "go")
        assert await host.approvals() == ()
    (row,) = [row for row in result.rows if isinstance(row, ToolMessage)]
    assert row.text.startswith("Permission denied: a person has to decide, and nobody can be asked")
    assert own.ran == []


async def test_the_approval_of_a_child_is_answered_while_its_caller_waits() -> None:
    own = ops(call(("restart", {"unit": "a"})), say("child done"))
    lead = motet.Agent(
        "lead",
        model=Scripted(call(("ops", {"task": "do it"})), say("fine"), name="lead"),
        tools=[own.agent.as_tool(description="ops")],
    )
    at_once = HostConfig(approvals=ApprovalsConfig(hold=0))
    async with motet.open_host(config=at_once) as host, trio.open_nursery() as nursery:
        nursery.start_soon(_answer, host, "allow-once")
        result = await host.run(lead, "go")
    assert (result.output, own.ran) == ("fine", ["restart a"])


async def test_while_a_child_waits_its_caller_s_time_stands_still(mock_clock: MockClock) -> None:
    mock_clock.rate = 1
    own = ops(call(("restart", {"unit": "a"})), say("child done"))
    asks = own.agent.as_tool(description="ops", timeout=30)
    model = Scripted(call(("ops", {"task": "do it"})), say("fine"), name="lead")
    lead = motet.Agent("lead", model=model, tools=[asks], limits=motet.Limits(wall=50))

    async def late(host: motet.Host) -> None:
        (info,) = await pending(host)
        mock_clock.jump(1_000)
        await host.approve(info.id, "allow-once")

    async with motet.open_host(config=PATIENT) as host, trio.open_nursery() as nursery:
        nursery.start_soon(late, host)
        result = await host.run(lead, "go")
    assert (result.output, own.ran) == ("fine", ["restart a"])


async def test_an_approval_tells_what_the_model_gave_if_a_hook_has_changed_it() -> None:
    it = ops(call(("restart", {"unit": "ssh"})), say("done"), call(("wipe", {"disk": "a"})))
    async with motet.open_host(config=AT_ONCE, agents=[it.agent]) as host:

        @host.on("before_tool", match="restart")
        async def louder(event: motet.BeforeTool) -> motet.Allow:
            return motet.Allow(args={**event.args, "unit": "sshd"})

        await host.submit("go", session="s", agent="ops")
        (changed,) = await pending(host)
        await host.approve(changed.id, "allow-once")
        await host.submit("go on", session="t", agent="ops")
        (plain,) = await pending(host)
    assert (changed.args, changed.proposed) == ({"unit": "sshd"}, {"unit": "ssh"})
    assert (plain.args, plain.proposed) == ({"disk": "a"}, None)
