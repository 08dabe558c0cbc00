"""A call that nobody has allowed has not begun, whenever its host is killed (G7, G10, G15).

A host is killed at every step, and at every change of its disk, of a turn whose calls a person has
to approve: because their tool, its condition, a hook, the policy or the call itself says so.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.transcript.grammar import violations
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import RunInfo
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Interrupted
from motet.testing.world import Setup
from tests.guarantees.branches import Branches

Kind: TypeAlias = Literal["tool", "condition", "hook", "policy", "call"]
KINDS: tuple[Kind, ...] = ("tool", "condition", "hook", "policy", "call")
CONFIG: dict[str, Any] = {"approvals": ApprovalsConfig(hold=0.4, expires=100.0)}
POLICY = (motet.PolicyRule(tool="polic*", effect="ask"),)
Decision: TypeAlias = Literal["allow-once", "deny", "stop"]
DECISIONS: tuple[Decision, ...] = ("allow-once", "deny", "stop")
"""What the person does; ``stop``: nothing, and then stop all, soon after the next host's start."""


def config() -> motet.HostConfig:
    return motet.HostConfig(policy=POLICY, **CONFIG)


def gates(host: Host) -> None:
    """A gate that is slow; it asks about one tool, and lets the others pass."""

    @host.on("before_tool", match="hook|passed", timeout=5)
    async def gate(before: motet.BeforeTool) -> motet.Allow | motet.Ask:
        await trio.sleep(0.05)
        return motet.Ask("a hook wants it") if before.name == "hook" else motet.Allow()


@attrs.define(eq=False)
class Calls:
    """The calls of one turn, with what is known of them from outside.

    Attributes:
        soon: steps after the start of the next host at which it is stopped.
        began: how often each has begun, by run and call; a dead host begins none.
        asked, allowed: calls that a person was asked about, and was asked to allow. One that asks
            by itself has begun by then, and may have done something.
    """

    host: mt.SimulatedHost
    plan: tuple[str, ...]
    soon: int = 0
    began: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    asked: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    allowed: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])

    def agent(self, name: str = "clerk") -> motet.Agent[None, str]:
        agent = motet.Agent(name, model=mt.FunctionModel(self.answer, name=f"model of {name}"))

        async def slow(_ctx: motet.Context[None], _args: object) -> bool:
            await trio.sleep(0.05)
            return True

        for kind in ("hook", "policy", "passed", "free"):
            agent.tool(effects="write", name=kind)(self.work)
        agent.tool(effects="write", approval=True, name="tool")(self.work)
        agent.tool(effects="write", approval=slow, name="condition")(self.work)
        agent.tool(effects="write", name="call")(self.careful)
        agent.tool(effects="read", name="look")(self.work)
        if name == "clerk":
            child = self.agent("child")

            @agent.tool(effects="write")
            async def delegate(ctx: motet.Context[None]) -> str:
                return (await ctx.run(child, "go")).text

            self.host.know(child)
        self.host.know(agent)
        return agent

    def answer(self, request: ModelRequest) -> mt.Answer:
        first = request.messages[0]
        assert isinstance(first, UserMessage)
        if not isinstance(request.messages[-1], UserMessage):
            return mt.say("done")
        names = ("tool",) if first.text == "go" else self.plan
        answer = mt.call(names[0])
        for name in names[1:]:
            answer += mt.call(name)
        return answer

    async def work(self, ctx: motet.Context[None]) -> str:
        if not self.host.ledger.cut_off:
            self.began[ctx.run_id, ctx.call_id] += 1
        await trio.sleep(0.05)
        return "worked"

    async def careful(self, ctx: motet.Context[None]) -> str:
        if not ctx.approved:
            raise motet.NeedsApproval("this one is dear")
        return await self.work(ctx)

    def answer_all(self, decision: Decision) -> int:
        if decision == "stop":
            return 0
        pending = self.host.call(_pending)
        for approval, run_id, call_id in pending:
            if decision != "deny":
                self.allowed.add((run_id, call_id))
            self.host.call(Host.approve, approval, decision)
        return len(pending)

    def play(self, decision: Decision) -> None:
        self.host.start(self.agent(), "do it", key="once")
        self.host.advance(0.3)
        self.answer_all(decision)
        self.host.advance(0.7)
        self.answer_all(decision)
        self.host.advance(0.5)

    def finish(self, decision: Decision) -> None:
        if decision == "stop":
            self.host.steps(self.soon)
            self.host.call(Host.stop, everything=True)
        for _ in range(4):
            self.host.advance(1)
            self.answer_all(decision)
        self.host.settle()

    def problems(self) -> list[str]:
        self.asked |= self.host.call(_asked)
        found: list[str] = []
        known = dict[tuple[str, str], ToolMessage]()
        for info in self.host.call(_runs):
            if info.status not in ("completed", "interrupted", "dropped", "cancelled"):
                found.append(f"{info.run_id} is {info.status}: {info.detail}")
        for session in {info.session for info in self.host.call(_runs)}:
            items = self.host.call(Host.history, session)
            found += violations([item.row for item in items])
            known |= {
                (item.run_id or "", item.row.call_id): item.row
                for item in items
                if isinstance(item.row, ToolMessage)
            }
        for which, row in known.items():
            found += [f"{row.name}: {one}" for one in self._problems_of(which, row)]
        if self.plan[0] in KINDS and len(self.plan) == 1:
            found += self._problems_of_one(list(known.values()))
        return found

    def _problems_of_one(self, rows: list[ToolMessage]) -> list[str]:
        """A lone call that has not begun is asked for anew; allowed, it then runs once."""
        outcomes = [row.outcome for row in rows]
        runs = self.host.call(_runs)
        if not runs or runs[0].status in ("cancelled", "dropped"):  # it was stopped, or never came
            return []
        if outcomes not in (["done"], ["denied"], ["unknown"]):
            return [f"a lone call ended as {outcomes}"]
        times = sum(self.began.values())
        if outcomes != ["unknown"] and times != (outcomes == ["done"]):
            return [f"a lone call is {outcomes[0]}, and has begun {times} times"]
        return []

    def _problems_of(self, which: tuple[str, str], row: ToolMessage) -> list[str]:
        times, found = self.began[which], list[str]()
        if times > (2 if row.name == "look" else 1):
            found.append(f"it has begun {times} times")
        if row.outcome == "done" and not times and row.name != "delegate":
            found.append("it is done, and never began")
        if row.outcome in ("denied", "cancelled_before_start") and times and row.name != "delegate":
            found.append(f"it has begun, and says {row.outcome}")
        asks = row.name in KINDS and (row.name != "call" or which in self.asked)
        if asks and row.outcome == "unknown" and not times and which not in self.allowed:
            found.append("nobody has allowed it, and nobody knows whether it began")
        return found


async def _pending(host: Host) -> list[tuple[str, str, str]]:
    found = await host.approvals(state="pending")
    return [(one.id, one.run_id, one.call_id) for one in reversed(found)]


async def _asked(host: Host) -> set[tuple[str, str]]:
    return {(one.run_id, one.call_id) for one in await host.approvals(limit=50)}


async def _runs(host: Host) -> tuple[RunInfo, ...]:
    return await host.runs(limit=50)


def at_each_step(host: mt.SimulatedHost, act: Callable[[], bool]) -> None:
    """Call ``act`` before each step, until it returns True."""

    def strike() -> None:
        if not act():
            at_each_step(host, act)

    host.loop.at(host.loop.scheduler.steps + 1, strike)


def at_steps(first: int, gap: int, host: mt.SimulatedHost, branches: Branches) -> list[int]:
    """Kill the host before its ``first``-th step from now, and each ``gap``-th from then on.

    The result has the number of its disk's changes before each step, once the world has run.
    """
    known = list[int]()

    def act() -> bool:
        known.append(host.disk.changes)
        if len(known) % gap == first % gap and branches.branch(f"step {len(known)}"):
            raise Interrupted
        return False

    at_each_step(host, act)
    return known


def at_changes(
    first: int, gap: int, host: mt.SimulatedHost, branches: Branches, known: list[int]
) -> None:
    """Cut the power before such changes of its disk. ``known``: as of :func:`at_steps`.

    The branch is in front of their step: within a commit SQLite has locks of its thread, which no
    child has.
    """
    before, numbers = host.disk.changes, iter(known[1:])

    def leave() -> None:
        raise Interrupted

    def fail() -> None:
        host._mute(True)  # pyright: ignore[reportPrivateUsage]
        host.loop.at(0, leave)

    def act() -> bool:
        at, end = host.disk.changes, next(numbers, 0)
        for change in range(at + 1, end + 1):
            number = change - before
            if number % gap == first % gap and branches.branch(f"change {number}"):
                host.disk.crash_at(change - at, fail)
                return True
        return False

    at_each_step(host, act)


Make: TypeAlias = Callable[[mt.SimulatedHost, tuple[str, ...]], Calls]


def everywhere(
    plan: tuple[str, ...],
    decision: Decision,
    *,
    gaps: tuple[int, int],
    seeds: int,
    first: int = 0,
    make: Make = Calls,
    setup: Setup | None = gates,
) -> None:
    """``gaps``: kill at each so many-th step and, in worlds of their own, change of the disk; the
    ``seeds`` share them."""
    for seed in range(seeds):
        known = list[int]()
        for gap in gaps:
            with (
                mt.simulated_host(first + seed, config=config(), setup=setup) as host,
                Branches(host) as branches,
            ):
                calls = make(host, plan)
                start = 1 + first % gap + seed * gap
                of_steps = not known
                if of_steps:
                    known = at_steps(start, gap * seeds, host, branches)
                else:
                    at_changes(start, gap * seeds, host, branches, known)
                try:
                    calls.play(decision)
                except (Interrupted, MotetError, MotetRuntimeError):
                    if not branches.is_child:
                        raise
                    host.crash()
                host.loop.at(sys.maxsize, lambda: None)
                host.disk.crash_at(None)
                calls.soon = branches.count % 5 * 9
                calls.finish(decision)
                found = calls.problems()
                assert found == [], (plan, decision, found, host.report(20))
                assert of_steps or branches.count or branches.is_child


PLANS: tuple[tuple[str, ...], ...] = (
    *((kind,) for kind in KINDS),
    ("passed",),
    ("delegate",),
    ("tool", "free"),
    ("free", "tool", "look"),
    ("look", "hook"),
    ("policy", "condition"),
)


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_a_kill_at_some_step_makes_no_call_unknown_that_was_not_allowed(
    plan: tuple[str, ...],
) -> None:
    """Law: whenever a host is killed, each call has its effect at most once, and says what is true;
    one that nobody has allowed is never unknown, and a lone one is asked for anew."""
    number = PLANS.index(plan)
    everywhere(plan, DECISIONS[number % 3], gaps=(701, 73), seeds=1, first=37 * number)


@pytest.mark.parametrize("tool", ["free", *KINDS])
def test_a_call_that_waits_for_the_storage_when_its_host_closes_begins_in_the_next(
    tool: str,
) -> None:
    """Its intent was never stored, so that it has not begun, and the host knows that."""
    with mt.simulated_host(1, config=config(), setup=gates) as host:
        calls = Calls(host, (tool,))
        host.start(calls.agent(), "do it", key="once")
        host.disk.room = host.disk.used
        host.advance(1)
        assert sum(calls.began.values()) == 0
        host.disk.room = None
        host.restart(0)
        calls.finish("allow-once")
        assert calls.problems() == []
        assert list(calls.began.values()) == [1]


@pytest.mark.sweep
@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_a_kill_at_every_step_makes_no_call_unknown_that_was_not_allowed(
    plan: tuple[str, ...], decision: Decision
) -> None:
    everywhere(plan, decision, gaps=(3, 1), seeds=4)
