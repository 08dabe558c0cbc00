"""A world in which a stop comes at some step, whatever the runs do: its ledger, and the laws.

The ledger knows which tools have begun and ended, and when the stop came. The agents are stateless:
the last row of a request says what to answer, so that any order of inputs is possible.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, Self, TypeAlias, cast

import attrs
import msgspec
import trio

import motet
from motet import testing as mt
from motet.actors.gateway.context import Context, Settings
from motet.actors.host import Host
from motet.actors.runs.output import FINAL_ANSWER
from motet.actors.runs.run import Run
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.host import HostApi
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.sessions import RunInfo, StopReport
from motet.runtime.testing.loop import EPOCH, Interrupted
from tests.actors.gateway.fakes import connected
from tests.scripted import call, say

Way: TypeAlias = Literal[
    "everything", "session", "newest", "run", "sender", "own", "close", "crash"
]
"""Of whom: ``sender`` and ``own`` are EVE's, all of hers or her newest run, in a group.

``crash``: the power is cut, and a stop of everything comes soon after the start of the next host.
"""
Door: TypeAlias = Literal["python", "method", "chat"]
"""Through which it comes: ``Host.stop``, ``runs.stop`` or a text in a chat, over a gateway."""
GROUP = "agent:main:tcp:group:den"
EVE, FAY = "eve", "fay"
NEVER_BEGAN = frozenset({"cancelled_before_start", "denied", "answered", "failed"})
GATED = ("ask", "denied")
"""A gate has denied the child of a call that has begun."""
CHUNK = 3
"""Parts of an answer that arrive at once."""


@attrs.define
class Chunky:
    """Calls the tools that the last input names, and then says something, in chunks of parts.

    ``asked``: the requests that it is at, each with the step in which it began.
    """

    name: str = "chunky"
    steps: Callable[[], int] = lambda: 0
    asked: dict[object, int] = attrs.field(factory=dict[object, int])

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self.asked[key := object()] = self.steps()
        try:
            async with self._answered(request) as parts:
                yield parts
        finally:
            del self.asked[key]

    @asynccontextmanager
    async def _answered(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        last = next(row for row in reversed(request.messages) if not _is_hint(row))
        step = say("one ", "two ", "three ", "four ", "five ", "six")
        if isinstance(last, UserMessage) and request.tools:
            names = [word for word in last.text.split() if word.startswith(("!", "+"))]
            if names:
                step = call(*[_call(word) for word in names], text="I will, ")
            elif request.tools[-1].name == FINAL_ANSWER:
                step = call((FINAL_ANSWER, {"length": "long"}))  # it has to be repaired
        elif request.tools and request.tools[-1].name == FINAL_ANSWER:
            repaired = isinstance(last, ToolMessage) and last.name == FINAL_ANSWER
            step = call((FINAL_ANSWER, {"length": 1 if repaired else "long"}))
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
    """One world.

    Attributes:
        session: of which a stop is, unless it is of everything.
        hosts: how many are killed, one after the other.
        ticks: steps that were taken for no other reason than that somebody should take one.
        stopped: ids of the runs that a stop was of when it came; ``waiting``: those not begun.
        spared: what a stop is not of: ids of the live runs of others, and of summaries.
        models: by the names of their agents.
    """

    host: mt.SimulatedHost
    way: Way
    door: Door = "python"
    session: str = "main"
    hosts: int = 1
    ticks: int = 0
    began: dict[tuple[str, str], int] = attrs.field(factory=dict[tuple[str, str], int])
    ended: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    struck: int = 0
    struck_at: float = 0.0
    stopped: set[str] = attrs.field(factory=set[str])
    waiting: set[str] = attrs.field(factory=set[str])
    spared: set[str] = attrs.field(factory=set[str])
    models: dict[str, Chunky] = attrs.field(factory=dict[str, Chunky])
    late_requests: list[str] = attrs.field(factory=list[str])
    wrong: list[str] = attrs.field(factory=list[str])

    # ------------------------------------------------------------------ the agents

    def agent(self, name: str = "main", **options: Any) -> motet.Agent[None]:
        tools: list[motet.Tool | str | Callable[..., object]] = [
            motet.tool(effects="read")(self.nap),
            motet.tool(idempotent=True)(self.again),
            motet.tool(effects="read", approval=True)(self.peek),
            self.stubborn,
            self.shielded,
            self.fails,
            self.nested,
            self.thread,
            self.make,
        ]
        if name == "main":
            tools.append("group:agents")
        model = self.models[name] = Chunky(f"model of {name}", self._asked)
        agent: motet.Agent[None] = motet.Agent(name, model=model, tools=tools, **options)
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

    def _asked(self) -> int:
        step = self.host.loop.scheduler.steps
        if self.struck:
            self.late_requests.append(f"step {step}")
        return step

    def working(self, ctx: motet.Context[None]) -> _Work:
        return _Work(self, (ctx.run_id, ctx.call_id))

    async def nap(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            await trio.sleep(1)
        return "rested"

    async def again(self, ctx: motet.Context[None]) -> str:
        return await self.nap(ctx)

    async def peek(self, ctx: motet.Context[None]) -> str:
        return await self.nap(ctx)

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

    async def nested(self, ctx: motet.Context[None]) -> str:
        with self.working(ctx):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 1)
                try:
                    await trio.sleep(1)
                except trio.Cancelled:
                    raise OSError("one of its tasks fails") from None
        return "done"

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

    async def tick(self, _host: Host) -> None:
        """Take steps while everybody sleeps, so that a stop can come in the middle of that."""
        for _ in range(50):
            if self.struck:
                return
            await trio.sleep(0.05)
            self.ticks += 1

    def strike(self) -> None:
        """The stop is sent now, between two steps."""
        if self.way in ("close", "crash"):
            self.note()
            raise Interrupted
        self.host.loop.start_here(self._stop, name="stop")

    def note(self, target: str = "") -> None:
        """The stop comes in this step: these runs are there."""
        table = self.host.host._parts.table  # pyright: ignore[reportPrivateUsage]
        self.struck, self.struck_at = self.host.loop.scheduler.steps, self.host.now()
        for run in table.runs.values():
            caller = run.lineage.caller
            if run.state == "entered":  # that is its end; it is being stored
                continue
            if self._is_meant(run, target) or (caller is not None and caller[0] in self.stopped):
                self.stopped.add(run.id)
                waits = run.state in ("arriving", "queued", "offered")
                self.waiting |= {run.id} if waits else set()
            elif run.author != EVE:
                self.spared.add(run.id)
            if self.way == "newest" and not run.admission:  # the summary after a run: no run
                self.spared.add(run.id)

    async def _stop_again(self, host: Host) -> None:
        self.stopped.clear()
        self.waiting.clear()
        self.late_requests.clear()
        self.note()
        await host.stop(everything=True)

    def _is_meant(self, run: Run, target: str) -> bool:
        match self.way:
            case "everything" | "close" | "crash":
                return True
            case "session" | "newest":
                return run.session == self.session
            case "sender" | "own":
                return run.session == self.session and run.author == EVE
            case "run":
                return run.id == target

    async def _stop(self) -> None:
        table = self.host.host._parts.table  # pyright: ignore[reportPrivateUsage]
        active = table.active(self.session, "")
        target = active.id if active is not None else "run_none"
        with suppress(NotFound):
            report = await self._through_door(target)
            if self.way == "everything" and not report.still_running:
                for name, model in self.models.items():
                    if any(step <= self.struck for step in model.asked.values()):
                        self.wrong.append(f"the model of {name} is still asked after the stop")

    async def _through_door(self, target: str) -> StopReport:
        named: dict[Way, dict[str, Any]] = {
            "everything": {"everything": True},
            "session": {"session": self.session},
            "newest": {"session": self.session, "newest": True},
            "run": {"run_id": target},
            "sender": {"session": self.session, "sender": EVE},
            "own": {"session": self.session, "newest": True, "sender": EVE},
        }
        if self.door == "python":
            self.note(target)
            return await self.host.host.stop(**named[self.way])
        # Noted when the host hears of it, since the way there takes steps.
        context = Context(cast(HostApi, _Noting(self, target)), Settings())
        async with connected(context) as client:
            if self.door == "chat":
                said = {
                    "everything": "/stopall",
                    "sender": "/stopall",
                    "run": f"/stop {target}",
                }.get(self.way, "stop")
                sender = EVE if self.way in ("sender", "own") else ""
                answer = await client.result(
                    "chat.send", session=self.session, text=said, sender=sender, key="k"
                )
                return msgspec.convert(answer["report"], StopReport)
            params = {"all": True} if self.way == "everything" else named[self.way]
            return msgspec.convert(await client.result("runs.stop", **params, key="k"), StopReport)

    def reopen(self, soon: int) -> None:
        """The host is closed, as by SIGTERM, and another one opens its state; or the power is cut,
        so often, and a stop comes ``soon`` steps after."""
        if self.way == "crash":
            self.host.crash()
            for _ in range(self.hosts - 1):
                self.host.advance(0.1)
                self.host.crash()
            self.host.steps(soon)
            self.host.call(self._stop_again)
            return
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
        traces = {trace.run_id: trace for trace in self.host.call(Host.traces, limit=200)}
        for info in infos.values():
            self._check_run(info)
            trace = traces.get(info.run_id)
            if trace is not None and trace.status != info.status:
                self.wrong.append(f"{info.run_id} is {info.status}, its trace {trace.status}")
        sessions = {info.session for info in infos.values()}
        for session in sessions:
            rows = self.host.call(Host.history, session)
            for broken in violations([item.row for item in rows]):
                self.wrong.append(f"{session}: {broken}")
            for item in rows:
                if isinstance(item.row, ToolMessage):
                    self._check_call((item.run_id or "", item.row.call_id), item.row)
        self._check_events(sessions)
        late = any(info.created >= EPOCH + self.struck_at for info in infos.values())
        if self.late_requests and not (late or self.spared or self.way == "close"):
            self.wrong.append(f"a model was asked after the stop: {self.late_requests}")
        if left := self.host.processes.running:
            self.wrong.append(f"still running: {left}")
        assert not self.wrong, "; ".join(self.wrong)

    def _check_run(self, info: RunInfo) -> None:
        if "internal error" in info.detail:
            self.wrong.append(f"{info.run_id} has failed: {info.detail}")
        if info.run_id in self.spared and info.status in ("cancelled", "dropped"):
            self.wrong.append(f"{info.run_id} is another's, and is {info.status}: {info.detail}")
        if info.run_id not in self.stopped or self.way == "close":
            return
        ends = {"cancelled", "dropped", "completed", "limited"}
        if info.status not in ends:
            self.wrong.append(f"{info.run_id} was stopped, and is {info.status}: {info.detail}")
        if info.run_id in self.waiting and info.status == "completed":
            self.wrong.append(f"{info.run_id} was waiting when the stop came, and was answered")

    def _check_call(self, which: tuple[str, str], row: ToolMessage) -> None:
        run_id = which[0]
        if row.outcome == "unknown":
            if self.way not in ("crash", "close"):
                self.wrong.append(
                    f"{row.name} of {which} was stopped, and nobody knows how it ended"
                )
            return
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

    def _check_events(self, sessions: set[str]) -> None:
        """One result for each call that was told of, and one end for each run."""
        open_calls: set[tuple[str, str]] = set()
        for record in self.host.call(_told, sessions):
            match record.event:
                case events.ToolCall(id=id):
                    open_calls.add((record.run_id or "", id))
                case events.ToolResult(id=id):
                    open_calls.discard((record.run_id or "", id))
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
        # A host whose power is cut is taken apart in the same world, where its tasks take some more
        # steps: of these the next host knows nothing, and must not.
        if not self.world.host.trace.muted:
            self.world.began.setdefault(self.which, self.world.host.loop.scheduler.steps)

    def __exit__(self, *_: object) -> None:
        self.world.ended.add(self.which)


@attrs.frozen(eq=False)
class _Noting:
    """The host of a gateway; the world learns in which step a stop reaches it."""

    world: Stops
    target: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world.host.host, name)

    async def stop(self, **named: Any) -> StopReport:
        self.world.note(self.target)
        return await self.world.host.host.stop(**named)


async def _told(host: Host, sessions: set[str]) -> list[events.EventRecord]:
    """The journal of these sessions, also of what the last host had not told."""
    return [
        record
        for session in sessions
        for record in await host.events.read(f"session:{session}", 0, limit=1_000)
    ]


async def _runs(host: Host) -> tuple[RunInfo, ...]:
    return tuple(await host.runs(limit=200))
