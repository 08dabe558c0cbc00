"""No call happens that a person has not allowed, whatever else happens meanwhile (G10, G15).

People approve, deny, grant and revoke, two of them at once; they send, resend, stop and delete;
the policy is reloaded and gates change arguments; a member of a room, a sub-agent and an agent that
takes over ask, too; the disk is full or locked, and the host is killed or restarted.
"""

# It reads the disk of a living host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import apsw
import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.transcript.grammar import violations
from motet.protocols.approvals import ApprovalAnswered, ApprovalDecision, ApprovalsConfig
from motet.protocols.chat import AssistantMessage, ToolMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.queueing import QueueMode
from motet.protocols.storage import StorageError
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Job

ACTS = (
    *("say", "say", "say", "post", "answer", "answer", "answer", "answer", "both", "wait", "wait"),
    *("steps", "steps", "crash", "power", "restart", "stop", "stop run", "delete", "reload"),
    *("resend", "full", "locked", "free", "revoke", "expire", "answer and stop"),
    "answer and delete",
)
TOOLS = ("pay", "edit", "cond", "plain", "pay", "edit", "delegate", "transfer_to_other")
ASKS = ("pay", "edit")
"""Tools that always ask: by declaration, and by a gate that changes their arguments, too."""
MODES: tuple[QueueMode, ...] = ("followup", "steer", "collect", "interrupt")
POLICIES = {
    "none": (),
    "ask": (motet.PolicyRule(tool="plai*", effect="ask"),),
    "deny": (motet.PolicyRule(tool="pa*", effect="deny"),),
}
DECISIONS: tuple[ApprovalDecision, ...] = (
    *("allow-once", "allow-once", "allow-once"),
    *("deny", "allow-always"),
)
CHANGED = 1_000
LOST = (MotetError, MotetRuntimeError, StorageError)


def config(policy: str, hold: float = 0.4) -> motet.HostConfig:
    return motet.HostConfig(
        policy=POLICIES[policy], approvals=ApprovalsConfig(hold=hold, expires=30.0)
    )


def gates(host: Host) -> None:
    """One changes the arguments of a call, the other asks a person about it."""

    @host.on("before_tool", match="edit", timeout=5)
    async def change(before: motet.BeforeTool) -> motet.Allow:
        await trio.sleep(0.02)
        return motet.Allow(args={"n": int(str(before.args["n"])) + CHANGED})

    @host.on("before_tool", match="edit", timeout=5)
    async def ask(before: motet.BeforeTool) -> motet.Ask:
        del before
        return motet.Ask("look at it")


@attrs.define(eq=False)
class World:
    """``effects``: of each call, by run and call. ``policy``: in force; it may be older while a
    reload goes on. ``may_lose``: the disk has failed, so that a kill may take back a stop, and
    events may be gone.
    """

    host: mt.SimulatedHost
    chance: Random
    effects: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    sent: list[str] = attrs.field(factory=list[str])
    runs: list[str] = attrs.field(factory=list[str])
    stopped: set[str] = attrs.field(factory=set[str])
    wrong: list[str] = attrs.field(factory=list[str])
    revoked: bool = False
    policy: str = "none"
    hold: float = 0.4
    may_lose: bool = False
    room: motet.Room | None = None

    # The agents

    def agent(self, name: str = "ops") -> motet.Agent[None, str]:
        others = [self.agent("other")] if name == "ops" else []
        model = mt.FunctionModel(self.answer, name=f"model of {name}")
        agent = motet.Agent(name, model=model, handoffs=others)
        for tool in ("pay", "edit", "cond", "plain"):
            approval: Any = {"pay": True, "cond": _is_even}.get(tool, False)
            agent.tool(effects="write", name=tool, approval=approval)(self.work_of(tool))
        if name == "ops":
            child = self.agent("child")
            self.room = motet.Room("hall", members=[child], mode=self.chance.choice(MODES))

            @agent.tool(effects="write")
            async def delegate(ctx: motet.Context[None], n: int) -> str:
                return (await ctx.run(child, f"!{self.chance.choice(ASKS)} {n}")).text

        self.host.know(agent)
        return agent

    def work_of(self, tool: str) -> Callable[..., Awaitable[str]]:
        async def work(ctx: motet.Context[None], n: int) -> str:
            if not self.host.history.cut_off:
                self.check_effect(ctx, tool, n)
            await trio.sleep(self.chance.choice((0, 0.05, 0.3)))
            return f"{tool} {n}"

        return work

    def answer(self, request: ModelRequest) -> mt.Step:
        rows, known = request.messages, {tool.name for tool in request.tools}
        at = max((i for i, row in enumerate(rows) if _is_input(row)), default=0)
        called = any(isinstance(row, AssistantMessage) and row.calls for row in rows[at:])
        wanted = [] if called else re.findall(r"!(\w+) (\d+)", rows[at].text)
        calls = [mt.call(tool, **_args(tool, n)) for tool, n in wanted if tool in known]
        if not calls:
            return mt.slow(mt.say("done"), seconds=0.05)
        whole = calls[0]
        for one in calls[1:]:
            whole += one
        return mt.slow(whole, seconds=0.05)

    # The laws

    def read(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        reader = apsw.Connection("/motet.db", vfs=self.host.disk.vfs)
        try:
            return list(reader.execute(sql, values))  # pyright: ignore[reportUnknownMemberType]
        finally:
            reader.close()

    def check_effect(self, ctx: motet.Context[None], tool: str, n: int) -> None:
        self.effects[ctx.run_id, ctx.call_id] += 1
        about = f"{tool} {n} of {ctx.run_id}"
        found = self.read(
            "SELECT state, used IS NOT NULL, json_extract(args, '$.n') FROM approvals "
            "WHERE run_id = ? AND call_id = ?",
            ctx.run_id,
            ctx.call_id,
        )
        granted = self.revoked or self.read("SELECT 1 FROM approval_grants WHERE tool = ?", tool)
        asks = tool in ASKS or (tool == "cond" and n % 2 == 0)
        asks = asks or (tool == "plain" and self.policy == "ask")
        if tool == "pay" and self.policy == "deny":
            self.wrong.append(f"{about} is forbidden since a reload")
        if asks and ("allowed", 1, n) not in found and not granted:
            self.wrong.append(f"{about} was not allowed: {found}")
        if any(state != "allowed" and shown == n for state, _, shown in found):
            self.wrong.append(f"{about} was refused: {found}")
        if not self.read("SELECT 1 FROM runs WHERE run_id = ?", ctx.run_id):
            self.wrong.append(f"{about} belongs to a deleted session")
        if ctx.run_id in self.stopped:
            self.wrong.append(f"{about} was stopped")

    def check_end(self) -> None:
        wrong, live = self.wrong, "('queued', 'running', 'waiting')"
        wrong += [f"doubled: {call}" for call, times in self.effects.items() if times > 1]
        wrong += [
            f"lives: {run}" for run in self.read(f"SELECT * FROM runs WHERE status IN {live}")
        ]
        for table in ("steps", "approvals"):
            left = self.read(f"SELECT * FROM {table} WHERE run_id NOT IN (SELECT run_id FROM runs)")
            wrong += [f"{table} of no run: {one}" for one in left]
        pending = self.read("SELECT id, run_id FROM approvals WHERE state = 'pending'")
        wrong += [f"nobody can answer {one}" for one in pending]
        for (session,) in self.read("SELECT DISTINCT session FROM messages"):
            rows = [item.row for item in self.host.call(Host.history, session, limit=500)]
            wrong += [f"{session}: {one}" for one in violations(rows)]
        for run_id, body in self.read("SELECT run_id, body FROM messages WHERE role = 'tool'"):
            self._check_row(run_id, json.loads(body))
        if not self.may_lose:
            self._check_events()

    def _check_row(self, run_id: str, row: dict[str, str]) -> None:
        outcome, name = row.get("outcome", "done"), row["name"]
        happened = self.effects[run_id, row["call_id"]]
        about = f"{name} of {run_id} says {outcome}"
        if name in ("delegate", "transfer_to_other"):
            return
        if happened and outcome in ("denied", "cancelled_before_start"):
            self.wrong.append(f"{about}, and has happened")
        if not happened and outcome == "done":
            self.wrong.append(f"{about}, and has not happened")
        if not happened and outcome == "unknown" and name in ASKS:
            sql = "SELECT 1 FROM approvals WHERE run_id = ? AND call_id = ? AND state = 'allowed'"
            if not self.read(sql, run_id, row["call_id"]):
                self.wrong.append(f"{about}, and nobody had allowed it")

    def _check_events(self) -> None:
        """Each approval of a run that is there is asked for once, and settled once."""
        told = Counter(
            self.read(
                "SELECT event, json_extract(data, '$.id') FROM events JOIN runs USING (run_id) "
                "WHERE stream = 'session:' || session AND event LIKE 'approval.%'"
            )
        )
        for (approval,) in self.read("SELECT id FROM approvals"):
            times = told["approval.requested", approval], told["approval.resolved", approval]
            if times != (1, 1):
                self.wrong.append(f"{approval} was asked and settled {times} times")

    # The story

    def act(self, act: str) -> None:
        host, chance = self.host, self.chance
        place = chance.choice(("a", "a", "b"))
        match act:
            case "say":
                named = [chance.choice(TOOLS) for _ in range(chance.choice((1, 1, 2, 3)))]
                number = len(self.sent) * 10
                text = " ".join(f"!{tool} {number + i}" for i, tool in enumerate(named))
                self.sent.append(f"{place} {text}")
                self.say(len(self.sent) - 1, chance.choice(MODES))
            case "resend" if self.sent:
                self.say(chance.randrange(len(self.sent)), None)
            case "post":
                self.post(chance.choice(ASKS), chance.randrange(99))
            case "answer" | "answer and stop" | "answer and delete":
                job = self.begin(self._answer)
                host.steps(chance.randrange(12))
                if act == "answer and stop":
                    self.stop(session=place)
                elif act == "answer and delete":
                    self.do(deleting(place))
                self.wait(job)
            case "both":
                self.do(self._both)
            case "wait":
                host.advance(chance.choice((0.01, 0.1, 0.5, 2)))
            case "steps":
                host.steps(chance.randrange(1, 90))
            case "expire":
                host.advance(31)
            case "crash" | "power" | "restart":
                self.end_host(act)
            case "stop":
                self.stop(session=place)
            case "stop run" if self.runs:
                self.stop(run_id=chance.choice(self.runs))
            case "delete":
                self.do(deleting(place))
            case "reload":
                self.reload(chance.choice(list(POLICIES)))
            case "full":
                host.disk.room, self.may_lose = host.disk.used, True
            case "locked":
                self.may_lose = True
                with suppress(apsw.BusyError):
                    host.disk.locked = True
            case "revoke":
                self.revoked = True
                self.do(self._revoke)
            case _:
                self.free()

    def reload(self, policy: str) -> None:
        async def reload(host: Host) -> None:
            self.policy = "none"  # in between, the one or the other may hold
            await host.reload(config(policy, self.hold))
            if not self.host.history.cut_off:
                self.policy = policy

        self.do(reload)

    def end_host(self, how: str) -> None:
        self.free()
        self.policy = "none"  # the next host has the configuration of the first
        if self.may_lose:
            self.stopped.clear()  # a stop's record may have waited for the disk
        match how:
            case "crash":
                self.host.crash()
            case "power":
                with mt.power_cut(self.host, self.chance.randrange(1, 14)):
                    self.host.advance(0.4)
            case _:
                self.host.restart(self.chance.choice((0, 0.1, 1)))

    def say(self, number: int, mode: QueueMode | None) -> None:
        place, text = self.sent[number].split(" ", 1)

        async def say(host: Host) -> None:
            key = f"k{number}"
            ack = await host.submit(text, session=place, agent="ops", key=key, mode=mode)
            self.runs.append(ack.run_id)

        self.do(say)

    def stop(self, **which: str) -> None:
        async def stop(host: Host) -> None:
            report = await host.stop(**which)  # type: ignore[arg-type]
            if not self.host.history.cut_off:
                self.stopped |= set(report.stopped)

        self.do(stop)

    def post(self, tool: str, n: int) -> None:
        assert self.room is not None
        room = self.host.room(self.room)
        self.do(lambda _: room.post(f"!{tool} {n}", user="ann"))

    async def _answer(self, host: Host) -> None:
        if pending := await host.approvals(state="pending"):
            one = self.chance.choice(pending)
            await host.approve(one.id, self.chance.choice(DECISIONS))

    async def allow(self, host: Host) -> None:
        for one in await host.approvals(state="pending"):
            await host.approve(one.id, "allow-once")

    async def _both(self, host: Host) -> None:
        """Two people answer one approval at once, and differ."""
        if not (pending := await host.approvals(state="pending")):
            return
        one, late = self.chance.choice(pending), list[str]()

        async def decide(decision: ApprovalDecision) -> None:
            try:
                await host.approve(one.id, decision)
            except ApprovalAnswered:
                late.append(decision)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(decide, "allow-once")
            nursery.start_soon(decide, "deny")
        if len(late) != 1:
            self.wrong.append(f"of two answers {late} came too late")

    async def _revoke(self, host: Host) -> None:
        for grant in await host.grants():
            await host.revoke(grant.id)

    def begin(self, what: Callable[[Host], Awaitable[object]]) -> Job[None]:
        async def quietly(host: Host) -> None:
            with suppress(*LOST):
                await what(host)

        return self.host.begin(quietly)

    def do(self, what: Callable[[Host], Awaitable[object]]) -> None:
        self.wait(self.begin(what))

    def wait(self, job: Job[None]) -> None:
        """Wait for it, unless it waits for the disk."""
        if self.host.disk.room is None and not self.host.disk.locked:
            self.host.loop.wait(job)
        else:
            self.host.advance(0.2)

    def free(self) -> None:
        self.host.disk.room, self.host.disk.locked = None, False

    def finish(self) -> None:
        self.free()
        for _ in range(12):
            self.host.advance(3)
            for _ in range(3):
                self.do(self._answer)
        self.host.advance(40)
        # A run that three hosts in a row have ended with waits for its person, who may have nothing
        # to answer, since it has never asked: then a stop ends it (G14).
        table = self.host.host._parts.table
        for left in [one for one in table.all_suspended() if one.blocked]:
            self.stop(run_id=left.id)
        self.host.settle()


def deleting(place: str) -> Callable[[Host], Awaitable[object]]:
    return lambda host: host.delete(place)


def _is_input(row: object) -> bool:
    return isinstance(row, UserMessage) and not row.note


def _args(tool: str, n: str) -> dict[str, int]:
    return {} if tool == "transfer_to_other" else {"n": int(n)}


async def _is_even(_ctx: motet.Context[None], args: dict[str, Any]) -> bool:
    await trio.sleep(0.02)
    return int(args["n"]) % 2 == 0


def told(seed: int) -> tuple[World, list[str]]:
    """The world after a random story, and the story."""
    chance = Random(seed)
    acts = [chance.choice(ACTS) for _ in range(chance.randrange(5, 25))]
    hold = (0.4, 0.4, 8.0)[seed % 3]
    with mt.simulated_host(seed, config=config("none", hold), setup=gates) as host:
        world = World(host, chance, hold=hold)
        world.agent()
        assert world.room is not None
        host.room(world.room)
        for act in acts:
            world.act(act)
        world.finish()
        world.check_end()
        return world, acts


@pytest.mark.parametrize("tool", ["pay", "plain"])
def test_a_call_that_waits_is_judged_by_the_rules_of_a_reload_that_came_meanwhile(
    tool: str,
) -> None:
    """A call that was allowed, or waits for its turn behind one, may be forbidden before it begins,
    or a person may have to be asked about it first."""
    with mt.simulated_host(1, config=config("none", 60.0), setup=gates) as host:
        world = World(host, Random(1))
        world.agent()
        host.start(None, f"!pay 1 !{tool} 2", session="a")
        host.advance(1)
        world.reload("deny" if tool == "pay" else "ask")
        for _ in range(2):
            world.do(world.allow)
            host.advance(1)
        assert world.wrong == []
        rows = [item.row for item in host.call(Host.history, "a")]
        second = [row for row in rows if isinstance(row, ToolMessage)][1]
        assert (second.outcome, sum(world.effects.values())) == ("denied", int(tool != "pay"))


@pytest.mark.parametrize("part", range(3))
def test_nothing_happens_that_nobody_has_allowed(part: int) -> None:
    """Law: a call has its effect at most once, while its run is there and was not stopped; if it
    needs an approval, only with one for just these arguments, or a grant; of two answers one
    counts. In the end all runs have ended, no approval waits, each was asked and settled once, and
    each result says what happened."""
    for seed in range(part * 3, part * 3 + 3):
        world, acts = told(seed)
        assert world.wrong == [], (seed, acts)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_in_many_worlds_nothing_happens_that_nobody_has_allowed(part: int) -> None:
    for seed in range(1_000 + part * 100, 1_100 + part * 100):
        world, acts = told(seed)
        assert world.wrong == [], (seed, acts)
