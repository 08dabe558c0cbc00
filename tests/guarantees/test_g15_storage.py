"""No effect without a journal (G15): the storage fails for a while, at any moment of a turn.

The database is locked by another program, the disk is full, broken or read-only; meanwhile people
send inputs, stop runs and approve calls, and at times the power goes.
"""

# It reads the disk of a living host, and its parts.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import apsw
import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.protocols.approvals import ApprovalAnswered, ApprovalsConfig
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.events import AnyEvent, InputEnd, MessageAdded, event_name
from motet.protocols.models import ModelRequest
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import FINAL, RunInfo
from motet.protocols.storage import StorageError
from motet.runtime.testing.loop import Job

FAULTS = ("locked", "full", "io", "readonly")
WRITES = ("pay", "legacy", "ask")
MODES: tuple[QueueMode, ...] = ("followup", "steer", "steer", "collect", "interrupt")
MOST_JOBS = 4


def has_call(disk: mt.SimulatedDisk, ctx: motet.Context[Any]) -> bool:
    """Whether a reader of the database finds the call of this context."""
    reader = apsw.Connection("/motet.db", vfs=disk.vfs)
    try:
        bodies = reader.execute(  # pyright: ignore[reportUnknownMemberType]
            "SELECT body FROM steps WHERE run_id = ?", (ctx.run_id,)
        )
        return any(f'"{ctx.call_id}"' in str(body) for (body,) in bodies)
    finally:
        reader.close()


def jobs_of(rows: Sequence[ChatMessage]) -> list[str]:
    """The jobs of the newest input that have not been tried."""
    asked = max(n for n, row in enumerate(rows) if isinstance(row, UserMessage))
    tried = {
        call.arguments
        for row in rows[asked:]
        if isinstance(row, AssistantMessage)
        for call in row.calls
    }
    texts = rows[asked].text
    return [
        one for one in re.findall(r"job (\d+)", texts) if not any(f'"{one}"' in t for t in tried)
    ]


@attrs.define
class World:
    """``unjournalled``: effects whose call was not on disk when they happened.

    ``late``: how many ends were not on disk, summed over the steps of the story; ``too_late``:
    those that were not 5 seconds after the storage's return.
    """

    host: mt.SimulatedHost
    chance: Random
    unjournalled: list[str] = attrs.field(factory=list[str])
    late: int = 0
    too_late: list[str] = attrs.field(factory=list[str])
    sent: list[tuple[str, Job[Any]]] = attrs.field(factory=list[tuple[str, Job[Any]]])

    async def did(self, ctx: motet.Context[Any], what: str) -> str:
        await trio.sleep(self.chance.choice((0, 0, 0.2, 3)))
        if not self.host.ledger.cut_off and not has_call(self.host.disk, ctx):
            self.unjournalled.append(f"{ctx.call_id} {what}")
        self.host.ledger.did(ctx, what)
        await trio.sleep(self.chance.choice((0, 0, 0.2, 3)))
        return f"did {what}"

    def agent(self) -> motet.Agent[None, str]:
        agent = motet.Agent("clerk", model=mt.FunctionModel(self.answer))

        @agent.tool(effects="write")
        async def pay(ctx: motet.Context[None], what: str) -> str:
            return await self.did(ctx, what)

        @agent.tool
        async def legacy(ctx: motet.Context[None], what: str) -> str:
            return await self.did(ctx, what)

        @agent.tool(effects="write", approval=True)
        async def ask(ctx: motet.Context[None], what: str) -> str:
            return await self.did(ctx, what)

        @agent.tool(effects="read")
        async def look(ctx: motet.Context[None]) -> str:
            del ctx
            await trio.sleep(self.chance.choice((0, 1, 10)))
            return "looked"

        return agent

    def answer(self, request: ModelRequest) -> mt.Answer:
        due = jobs_of(request.messages)
        if not due:
            return mt.say("finished")
        number = int(due[0])
        answer = mt.call(WRITES[number % 3], what=due[0])
        if number % 2:
            answer = mt.call("look") + answer
        if len(due) > 1:
            answer += mt.call("pay", what=due[1])
        return answer

    # The disk

    def fail(self, way: str) -> None:
        disk = self.host.disk
        match way:
            case "locked":
                with suppress(apsw.BusyError):
                    disk.locked = True
            case "full":
                disk.room = disk.used
            case _:
                disk.broken = way

    def mend(self) -> None:
        disk = self.host.disk
        disk.locked, disk.room, disk.broken = False, None, ""

    # One step of the story

    def act(self) -> None:
        host, chance = self.host, self.chance
        self.late += len(host.host._parts.table.unsaved())
        match chance.choice(
            (
                *("send", "send", "send", "fail", "fail", "fail", "mend"),
                *("wait", "wait", "wait", "step", "step", "stop", "answer", "crash"),
            )
        ):
            case "send" if len(self.sent) < MOST_JOBS:
                number = str(len(self.sent) + 1)
                mode = chance.choice(MODES)
                session = f"s{chance.randrange(2)}"
                job = host.start_soon(None, f"job {number}", session=session, key=number, mode=mode)
                self.sent.append((number, job))
            case "fail":
                self.fail(chance.choice(FAULTS))
            case "mend":
                self.mend()
            case "wait":
                host.advance(chance.choice((0.001, 0.3, 2.0, 30.0)))
            case "stop" if chance.random() < 0.4:
                host.stop(session=f"s{chance.randrange(2)}", grace=1.0)
            case "answer":
                self.decide()
            case "crash" if chance.random() < 0.4:
                self.mend()
                host.crash()
                if chance.random() < 0.3:  # before anything of the last host has been resumed
                    self.fail(chance.choice(FAULTS))
                    host.stop(session=f"s{chance.randrange(2)}", grace=1.0)
            case _:
                host.steps(chance.randrange(1, 120))

    def decide(self) -> None:
        async def approve(host: motet.Host) -> None:
            for one in await host.approvals(state="pending"):
                with suppress(StorageError, ApprovalAnswered):
                    await host.approve(one.id, "allow-once")

        self.host.begin(approve)

    def end(self) -> None:
        self.mend()
        self.host.advance(5.0)
        self.too_late = [one.run_id for one in self.host.call(_runs) if one.unsaved]
        for _ in range(4):
            self.host.advance(70.0)
            self.decide()
            self.host.advance(5.0)
        self.host.settle()


@attrs.frozen
class Story:
    """``broken``: how it broke the law; ``effects``: how many there were; ``late``: ends."""

    broken: str
    effects: int
    late: int


def story(seed: int) -> Story:
    """Play one story."""
    chance = Random(seed)
    config = motet.HostConfig(approvals=ApprovalsConfig(hold=chance.choice((0.0, 20.0, 3600.0))))
    with mt.simulated_host(seed=seed, config=config) as host:
        world = World(host, chance)
        host.know(world.agent())
        for _ in range(chance.randrange(6, 22)):
            world.act()
        world.end()
        saved = {one.run_id: one for one in host.call(_runs)}
        host.crash()
        host.settle()
        broken = [f"{run} has ended and is not on disk" for run in world.too_late]
        broken += [
            f"{one.run_id} was {saved[one.run_id].status}, and is {one.status} on disk"
            for one in host.call(_runs)
            if one.run_id in saved and one.status != saved[one.run_id].status
        ]
        broken += host.call(_untold)
        broken += [f"no call on disk: {one}" for one in world.unjournalled]
        times = Counter(effect.what for effect in host.ledger.effects)
        broken += [f"{what} happened {count} times" for what, count in times.items() if count > 1]
        broken += host.call(_untrue, host.ledger)
    return Story("; ".join(broken), len(times), world.late)


async def _runs(host: motet.Host) -> tuple[RunInfo, ...]:
    return await host.runs(limit=200)


async def _untold(host: motet.Host) -> list[str]:
    """Runs whose end is not in the event journal exactly once, and rows that are not in it."""
    found: list[str] = []
    for session in ("s0", "s1"):
        records = await host._parts.journal.read(f"session:{session}", 0, 10_000)
        told = {(one.run_id, event_name(one.event), _about(one.event)) for one in records}
        with suppress(motet.NotFound):
            for item in await host.history(session, limit=200):
                events = {(item.run_id, *event) for event in _to_tell(item.row)}
                found += [f"{event} is told by no stream" for event in events - told]
        ends = Counter(one.run_id for one in records if isinstance(one.event, InputEnd))
        runs = [one for one in await host.runs(session=session, limit=200) if one.status in FINAL]
        found += [
            f"{one.run_id}, {one.status}, has {ends[one.run_id]} ends in the journal"
            for one in runs
            if ends[one.run_id] != 1
        ]
    return found


def _about(event: AnyEvent) -> str:
    return event.text if isinstance(event, MessageAdded) else getattr(event, "id", "")


def _to_tell(row: ChatMessage) -> tuple[tuple[str, str], ...]:
    match row:
        case AssistantMessage(text=text) if text:
            return (("message", text),)
        # A call that a stop came before need not be announced.
        case ToolMessage(call_id=call, outcome=outcome) if outcome != "cancelled_before_start":
            return (("tool.call", call), ("tool.result", call))
        case _:
            return ()


async def _untrue(host: motet.Host, ledger: mt.Ledger) -> list[str]:
    """Stored results that say what did not happen."""
    found: list[str] = []
    for session in ("s0", "s1"):
        with suppress(motet.NotFound):
            rows = [item.row for item in await host.history(session, limit=200)]
            found += _untrue_rows(rows, ledger)
    return found


def _untrue_rows(rows: Sequence[ChatMessage], ledger: mt.Ledger) -> list[str]:
    what = {
        call.id: call.arguments
        for row in rows
        if isinstance(row, AssistantMessage)
        for call in row.calls
    }
    found: list[str] = []
    for row in rows:
        if not isinstance(row, ToolMessage) or row.name == "look":
            continue
        number = re.findall(r"\d+", what[row.call_id])[0]
        times = ledger.count(number)
        if row.outcome == "done" and times != 1:
            found.append(f"{number} is done, and happened {times} times")
        if row.outcome in ("cancelled_before_start", "failed", "denied") and times:
            found.append(f"{number} is {row.outcome}, and happened: {row.text}")
    return found


def search(seeds: Iterable[int]) -> list[Story]:
    """Play these stories, up to the first that breaks the law."""
    found: list[Story] = []
    for seed in seeds:
        found.append(story(seed))
        assert not found[-1].broken, f"seed {seed}: {found[-1].broken}"
    return found


def test_an_effect_has_its_call_on_disk_and_happens_once_whatever_the_storage_does() -> None:
    """Law: at every effect of a tool, its call is on disk; after any kill it happened at most once;
    a result that says that nothing was done is true."""
    played = search(range(16))
    assert sum(one.effects for one in played) > 8
    assert sum(one.late for one in played) > 4


def left_in(tool: str, host: mt.SimulatedHost) -> motet.Agent[None, str]:
    """Have a host die while a run is in this tool; the next host does not know its agent yet."""
    agent = motet.Agent("clerk", model=mt.FunctionModel(one_call))

    @agent.tool(name=tool, effects="read" if tool == "look" else "write")
    async def work() -> str:
        await trio.sleep(10)
        return "worked"

    host.know(agent)
    host.start_soon(None, tool, session="s0", key="1")
    host.advance(1.0)
    host._agents.clear()
    host.crash()
    return agent


def one_call(request: ModelRequest) -> mt.Answer:
    *_, last = request.messages
    return mt.call(last.text) if isinstance(last, UserMessage) else mt.say("finished")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_begun_run_that_is_stopped_while_nothing_can_be_stored_is_told_as_a_whole(
    fault: str,
) -> None:
    with mt.simulated_host(seed=1) as host:
        left_in("look", host)
        world = World(host, Random(1))
        world.fail(fault)
        host.stop(session="s0", grace=1.0)
        world.mend()
        host.advance(5.0)
        (info,) = host.call(_runs)
        assert (info.status, info.unsaved) == ("cancelled", False)
        assert host.call(_untold) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_must_not_be_repeated_is_interrupted_once_the_storage_is_back(
    fault: str,
) -> None:
    with mt.simulated_host(seed=1) as host:
        agent = left_in("pay", host)
        world = World(host, Random(1))
        world.fail(fault)
        host.know(agent)
        host.advance(20.0)
        assert [one.status for one in host.call(_runs)] == ["running"]
        world.mend()
        host.advance(5.0)
        assert [one.status for one in host.call(_runs)] == ["interrupted"]
        host.settle()
        assert host.call(_untold) == []
        assert host.call(_session_is_free)


@pytest.mark.parametrize("actor", ["router/s0", "router", "sessions", "database"])
def test_an_end_that_is_not_stored_outlives_a_crash_of_the_actors_that_would_store_it(
    actor: str,
) -> None:
    agent = motet.Agent("clerk", model=mt.FunctionModel(lambda _: mt.say("finished")))
    with mt.simulated_host(seed=1, agents=[agent]) as host:
        host.start_soon(agent, "go", session="s0", key="1")
        host.call(_accepted)
        world = World(host, Random(1))
        world.fail("full")
        host.advance(2.0)
        assert [one.unsaved for one in host.call(_runs)] == [True]
        assert host.call(_crash_of, actor)
        host.advance(2.0)
        world.mend()
        host.advance(5.0)
        assert [(one.status, one.unsaved) for one in host.call(_runs)] == [("completed", False)]
        assert host.call(_untold) == []


async def _accepted(host: motet.Host) -> None:
    while not await host.runs():
        await trio.sleep(0)


async def _crash_of(host: motet.Host, actor: str) -> bool:
    return host.system.inject(f"/host/{actor}", "crash")


async def _session_is_free(host: motet.Host) -> bool:
    return (await host.run("clerk", "look", session="s0", check=False)).status == "completed"


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(8))
def test_the_law_of_the_journal_holds_on_many_stories(block: int) -> None:
    played = search(range(block * 100, block * 100 + 100))
    assert sum(one.effects for one in played) > 50


@pytest.mark.parametrize("steps", range(12, 24, 2))
def test_a_call_of_a_killed_host_is_told_though_a_stop_comes_before_its_run_goes_on(
    steps: int,
) -> None:
    agent = motet.Agent("clerk", model=mt.ScriptedModel([mt.call("look"), mt.say("finished")]))

    @agent.tool(effects="read")
    async def look() -> str:
        await trio.sleep(10)
        return "looked"

    with mt.simulated_host(agents=[agent]) as host:
        host.start_soon(None, "go", session="s0")
        host.advance(0.012)  # the intent of the call is on disk, its announcement is not
        host.crash()
        host.steps(steps)
        host.stop(session="s0", grace=1.0)
        host.settle()

        assert host.call(_untold) == []
