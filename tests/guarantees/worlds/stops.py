"""A world in which a stop comes at some step, whatever the runs do: its ledger, and the laws.

The ledger knows which tools have begun and ended, and when the stop came. The agents are stateless:
the last row of a request says what to answer, so that any order of inputs is possible.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, Self, TypeAlias

import attrs
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.config import HostConfig
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.sessions import RunInfo, StopReport
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Interrupted
from tests.scripted import call, say

Way: TypeAlias = Literal["everything", "session", "newest", "close"]
NEVER_BEGAN = frozenset({"cancelled_before_start", "denied", "answered", "failed"})
GATED = ("ask", "denied")
"""A gate has denied the child of a call that has begun."""
CHUNK = 3
"""Parts of an answer that arrive at once."""


@attrs.define
class Chunky:
    """Calls the tools that the last input names, and then says something, in chunks of parts."""

    name: str = "chunky"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        last = next(row for row in reversed(request.messages) if not _is_hint(row))
        step = say("one ", "two ", "three ", "four ", "five ", "six")
        if isinstance(last, UserMessage) and request.tools:
            names = [word for word in last.text.split() if word.startswith(("!", "+"))]
            if names:
                step = call(*[_call(word) for word in names], text="I will, ")
        assert isinstance(step, list)
        send, receive = trio.open_memory_channel[list[ModelEvent]](0)

        async def feed() -> None:
            async with send:
                for at in range(0, len(step), CHUNK):
                    await trio.sleep(0.01)
                    await send.send(step[at : at + CHUNK])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            yield _Parts(receive)
            nursery.cancel_scope.cancel()


class _Parts:
    """The parts of the chunks, without a checkpoint between those of one chunk."""

    def __init__(self, chunks: trio.MemoryReceiveChannel[list[ModelEvent]]) -> None:
        self._chunks = chunks
        self._parts: list[ModelEvent] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        if not self._parts:
            try:
                self._parts = await self._chunks.receive()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
        return self._parts.pop(0)


def _is_hint(row: object) -> bool:
    return isinstance(row, UserMessage) and row.note == "hint"


def _call(word: str) -> tuple[str, dict[str, object]]:
    """``!nap`` calls a tool; ``+nap`` has a child in the background call it."""
    if word.startswith("+"):
        return "spawn", {"agent": "child", "task": f"!{word[1:]}"}
    return word[1:], {}


@attrs.define(eq=False)
class Stops:
    """One world. ``stopped``: the ids of the runs that were live when the stop came."""

    host: mt.SimulatedHost
    way: Way
    began: dict[tuple[str, str], int] = attrs.field(factory=dict[tuple[str, str], int])
    ended: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    struck: int = 0
    stopped: set[str] = attrs.field(factory=set[str])
    waiting: set[str] = attrs.field(factory=set[str])
    reports: list[StopReport] = attrs.field(factory=list[StopReport])
    wrong: list[str] = attrs.field(factory=list[str])

    # ------------------------------------------------------------------ the agents

    def agent(self, name: str = "main", **options: Any) -> motet.Agent[None]:
        tools: list[motet.Tool | str | Callable[..., object]] = [
            motet.tool(effects="read")(self.nap),
            self.stubborn,
            self.shielded,
            self.fails,
            self.thread,
            self.make,
        ]
        if name == "main":
            tools.append("group:agents")
        agent: motet.Agent[None] = motet.Agent(
            name,
            model=Chunky(f"model of {name}"),
            tools=tools,
            **options,
        )
        agent.tool(approval=True)(self.wipe)
        if name == "main":
            child = self.agent("child")

            @agent.tool
            async def ask(ctx: motet.Context[None]) -> str:
                with self.working(ctx):
                    result = await ctx.run(child, "!nap")
                return result.text

            self.host.know(child)
        self.host.know(agent)
        return agent

    def working(self, ctx: motet.Context[None]) -> _Work:
        return _Work(self, (ctx.run_id, ctx.call_id))

    async def nap(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            await trio.sleep(1)
        return "rested"

    async def stubborn(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                return "done all the same"
        return "done"

    async def shielded(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx), trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "done"

    async def fails(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            try:
                await trio.sleep(1)
            finally:
                raise OSError("its clean-up fails")

    def thread(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            return "computed"

    async def make(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            await ctx.open_process(["make"])
            await ctx.run_process(["make"], capture_stdout=True)
        return "made"

    async def wipe(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            await trio.sleep(0.1)
        return "wiped"

    # ------------------------------------------------------------------ the stop

    def strike(self) -> None:
        """The stop is sent now, between two steps."""
        if self.way == "close":
            self._note()
            raise Interrupted
        self.host.loop.start_here(self._stop, name="stop")

    def _note(self) -> None:
        """The stop comes in this step: these runs are there."""
        table = self.host.host._parts.table  # pyright: ignore[reportPrivateUsage]
        self.struck = self.host.loop.scheduler.steps
        for run in table.runs.values():
            if self.way in ("session", "newest") and run.session != "main":
                continue
            self.stopped.add(run.id)
            self.waiting |= {run.id} if run.state in ("arriving", "queued", "offered") else set()

    async def _stop(self) -> None:
        host = self.host.host
        self._note()
        if self.way == "everything":
            report = await host.stop(everything=True)
        else:
            report = await host.stop(session="main", newest=self.way == "newest")
        self.reports.append(report)

    def reopen(self) -> None:
        """The host is closed, as by SIGTERM, and another one opens its state."""
        life = self.host._life  # pyright: ignore[reportPrivateUsage]
        assert life is not None
        self.host.loop.cancel([life])
        self.host._jobs.clear()  # pyright: ignore[reportPrivateUsage]
        self.host._boot()  # pyright: ignore[reportPrivateUsage]

    # ------------------------------------------------------------------ the laws

    def check(self) -> None:
        """Each run has ended as the law says, and each call says what became of it."""
        self.host.advance(1)  # events are published in batches
        infos = {info.run_id: info for info in self.host.call(_runs)}
        for info in infos.values():
            self._check_run(info)
        for session in {info.session for info in infos.values()}:
            rows = self.host.call(Host.history, session)
            for broken in violations([item.row for item in rows]):
                self.wrong.append(f"{session}: {broken}")
            for item in rows:
                if isinstance(item.row, ToolMessage):
                    self._check_call((item.run_id or "", item.row.call_id), item.row)
        self._check_events()
        if left := self.host.processes.running:
            self.wrong.append(f"still running: {left}")
        assert not self.wrong, "; ".join(self.wrong)

    def _check_run(self, info: RunInfo) -> None:
        if "internal error" in info.detail:
            self.wrong.append(f"{info.run_id} has failed: {info.detail}")
        if info.run_id not in self.stopped or self.way == "close":
            return
        ends = {"cancelled", "dropped", "completed", "limited"}
        if info.status not in ends:
            self.wrong.append(f"{info.run_id} was stopped, and is {info.status}: {info.detail}")
        if info.run_id in self.waiting and info.session == "main" and info.status == "completed":
            self.wrong.append(f"{info.run_id} was waiting when the stop came, and was answered")

    def _check_call(self, which: tuple[str, str], row: ToolMessage) -> None:
        run_id = which[0]
        if which not in self.began:
            known = row.name in ("spawn", "subagents", "ask")
            if row.outcome not in NEVER_BEGAN and not known:
                self.wrong.append(f"{row.name} of {which} never began, and says {row.outcome}")
            return
        at = self.began[which]
        if row.outcome in NEVER_BEGAN - {"failed"} and (row.name, row.outcome) != GATED:
            self.wrong.append(f"{row.name} of {which} has begun, and says {row.outcome}")
        if self.struck and run_id in self.stopped and at > self.struck and self.way != "close":
            self.wrong.append(f"{row.name} of {which} began after the stop")
        if which not in self.ended and row.outcome == "done":
            self.wrong.append(f"{row.name} of {which} has not ended, and says done")

    def _check_events(self) -> None:
        """One result for each call that was told of, and one end for each run."""
        open_calls: set[tuple[str, str]] = set()
        for record in self.host.history.events:
            match record.record.event:
                case events.ToolCall(id=id):
                    open_calls.add((record.record.run_id or "", id))
                case events.ToolResult(id=id):
                    open_calls.discard((record.record.run_id or "", id))
                case _:
                    pass
        if open_calls and self.way != "close":
            self.wrong.append(f"calls without a result event: {open_calls}")


@attrs.define(eq=False)
class _Work:
    """Notes that a tool begins, and that it ends, however it does."""

    world: Stops
    which: tuple[str, str]

    def __enter__(self) -> None:
        self.world.began.setdefault(self.which, self.world.host.loop.scheduler.steps)

    def __exit__(self, *_: object) -> None:
        self.world.ended.add(self.which)


async def _runs(host: Host) -> tuple[RunInfo, ...]:
    return tuple(await host.runs(limit=200))


# ---------------------------------------------------------------------- gates

Gate: TypeAlias = Callable[[object], Awaitable[motet.Allow]]


async def _slow(_: object) -> motet.Allow:
    await trio.sleep(0.2)
    return motet.Allow()


async def _swallows(_: object) -> motet.Allow:
    with suppress(trio.Cancelled):
        await trio.sleep(0.2)
    return motet.Allow()


async def _shields(_: object) -> motet.Allow:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.2)
    return motet.Allow()


async def _raises(_: object) -> motet.Allow:
    try:
        await trio.sleep(0.2)
    except trio.Cancelled:
        raise OSError("the gate fails in its clean-up") from None
    return motet.Allow()


GATES: dict[str, Gate] = {
    "slow": _slow,
    "swallows": _swallows,
    "shields": _shields,
    "raises": _raises,
}


def gated(point: str, kind: str) -> Callable[[Host], None]:
    """Registers the gate with each new host."""

    def setup(host: Host) -> None:
        host.on(point, timeout=5)(GATES[kind])  # type: ignore[call-overload]

    return setup


# ---------------------------------------------------------------------- one play

Story: TypeAlias = Callable[[Stops, motet.Agent[None]], None]


def config(hold: float = 3600.0) -> HostConfig:
    return HostConfig(approvals=ApprovalsConfig(hold=hold, expires=7200.0))


def play(
    story: Story,
    way: Way,
    step: int,
    seed: int,
    *,
    setup: Callable[[Host], None] | None = None,
    hold: float = 3600.0,
    **options: Any,
) -> bool:
    """Play the story with a stop before ``step``; whether that was before its end."""
    with mt.simulated_host(seed, config=config(hold), setup=setup) as host:
        host.processes.program("make", mt.answers("made", after=0.5))
        world = Stops(host, way)
        agent = world.agent(**options)
        host.loop.at(host.loop.scheduler.steps + step, world.strike)
        host.begin(_tick)
        try:
            story(world, agent)
            host.advance(2)
        except Interrupted:
            world.reopen()
        except (MotetError, MotetRuntimeError):
            if not world.struck:
                raise
        host.loop.at(sys.maxsize, lambda: None)
        host.advance(2)
        while pending := host.call(_pending):
            for approval in pending:
                host.call(Host.approve, approval, "deny")
            host.advance(2)
        host.settle()
        try:
            world.check()
        except AssertionError as error:
            error.add_note(f"way {way}, step {step}, seed {seed}\n{host.report(25)}")
            raise
        return bool(world.struck)


async def _tick(_host: Host) -> None:
    """Takes steps while everybody sleeps, so that a stop can come in the middle of that."""
    for _ in range(50):
        await trio.sleep(0.05)


async def _pending(host: Host) -> list[str]:
    return [one.id for one in await host.approvals() if one.state == "pending"]


def everywhere(
    story: Story,
    way: Way,
    *,
    seeds: range = range(1),
    every: int = 7,
    setup: Callable[[Host], None] | None = None,
    hold: float = 3600.0,
    **options: Any,
) -> int:
    """Play it with a stop at every ``every``-th step; returns how many stops struck."""
    struck = 0
    for seed in seeds:
        step = 1 + seed % every
        while play(story, way, step, seed, setup=setup, hold=hold, **options):
            struck += 1
            step += every
    return struck
