"""In any order of events, a tool runs at most once, and only when it was allowed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import attrs
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.approvals import ApprovalAnswered, ApprovalInfo, ApprovalsConfig
from motet.protocols.chat import ToolMessage
from motet.protocols.config import HostConfig
from motet.protocols.events import ApprovalResolved, Terminal, ToolCall, ToolResult
from tests.actors.runs.ops import parts_of
from tests.scripted import Scripted, call, say

CALLS = ("a", "b", "c")
What: TypeAlias = Literal["allow", "deny", "expire", "stop", "restart", "wait", "input"]


@attrs.frozen
class Step:
    """Something that happens: to which call, and whether what came before had time to end."""

    what: What
    which: int = 0
    settled: bool = True


@attrs.define
class World:
    """One session on one state directory, in one host after the other."""

    state: Path
    in_order: bool
    ran: list[str] = attrs.field(factory=list[str])
    allowed: set[str] = attrs.field(factory=set[str])
    begun: bool = False
    run_id: str = ""

    def agent(self) -> motet.Agent[None, str]:
        """Asks for its three calls once, and then talks."""
        first = [] if self.begun else [call(*(("act", dict[str, object](name=n)) for n in CALLS))]
        agent = motet.Agent("ops", model=Scripted(*first, *[say("ok")] * 20))

        @agent.tool(approval=True, effects="write" if self.in_order else "read")
        async def act(name: str) -> str:
            await trio.lowlevel.checkpoint()
            self.ran.append(name)
            return name

        return agent

    async def begin(self, host: motet.Host) -> None:
        if not self.begun:
            self.run_id = (await host.submit("go", session="s", agent="ops")).run_id
            with trio.fail_after(60):
                while len(await host.approvals()) < len(CALLS):
                    await trio.sleep(0.001)
            self.begun = True

    async def do(self, host: motet.Host, step: Step) -> bool:
        """Take a step; whether the host has to be another one now."""
        found = sorted(await host.approvals(), key=lambda info: str(info.args))
        info = found[step.which]
        match step.what:
            case "allow" | "deny":
                await self.answer(host, info, allow=step.what == "allow")
            case "expire":
                pending = parts_of(host).services.pending_approvals  # no clock here can be moved on
                if info.id in pending.deadlines:
                    pending.deadlines[info.id] = trio.current_time()
                    pending.changed.set()
            case "stop":
                await host.stop(session="s")
            case "input":
                await host.submit("and?", session="s", agent="ops")
            case "wait":
                await trio.sleep(0.002)
            case "restart":
                return True
        if step.settled:
            await trio.sleep(0.001)
        return False

    async def answer(self, host: motet.Host, info: ApprovalInfo, *, allow: bool) -> None:
        try:
            settled = await host.approve(info.id, "allow-once" if allow else "deny")
        except ApprovalAnswered:
            return
        if settled.state == "allowed":
            self.allowed.add(str(info.args["name"]))

    async def play(self, steps: list[Step], hold: float) -> None:
        config = HostConfig(approvals=ApprovalsConfig(hold=hold))
        left = list(steps)
        while True:
            agents = [self.agent()]
            async with motet.open_host(self.state, config=config, agents=agents) as host:
                await self.begin(host)
                over = False
                while left and not over:
                    over = await self.do(host, left.pop(0))
                if not over:
                    await self.settle(host)
                    await self.check(host)
                    return

    async def settle(self, host: motet.Host) -> None:
        """Deny what is left, and wait until all is quiet."""
        with trio.fail_after(60):
            while True:
                for info in await host.approvals(state="pending"):
                    await self.answer(host, info, allow=False)
                busy = ("queued", "running", "waiting")
                if not any(run.status in busy for run in await host.runs(session="s")):
                    return
                await trio.sleep(0.002)

    async def check(self, host: motet.Host) -> None:
        assert len(self.ran) == len(set(self.ran))
        assert set(self.ran) <= self.allowed
        rows = [item.row for item in await host.history("s", limit=200)]
        assert violations(rows) == ()
        done = [r.text for r in rows if isinstance(r, ToolMessage) and r.outcome == "done"]
        assert sorted(done) == sorted(self.ran)
        if self.in_order:
            assert self.ran == sorted(self.ran)
        events = await host.events.read("session:s", 0, 1_000)
        mine = [record.event for record in events if record.run_id == self.run_id]
        assert sum(isinstance(event, Terminal) for event in mine) == 1
        announced = [event.id for event in mine if isinstance(event, ToolCall)]
        reported = [event.id for event in mine if isinstance(event, ToolResult)]
        assert len(announced) == len(set(announced)) == len(CALLS)
        assert sorted(announced) == sorted(reported)
        told = [event.id for event in mine if isinstance(event, ApprovalResolved)]
        assert sorted(told) == sorted(info.id for info in await host.approvals())


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["allow", "allow", "allow", "deny", "expire", "restart", "wait", "input"]),
        st.integers(0, len(CALLS) - 1),
        st.booleans(),
    ),
    max_size=8,
)
stops = st.lists(st.just(Step("stop")), max_size=1)
EXPIRING = [Step("expire", 2, settled=False), Step("expire", 0, settled=False)]


@settings(max_examples=15)
@example((EXPIRING, [Step("stop")], []), False, 0.0)  # approvals expire while a stop ends the run
@given(st.tuples(steps, stops, steps), st.booleans(), st.sampled_from([0.0, 3_600.0]))
def test_at_most_once_and_only_after_allow(
    program: tuple[list[Step], list[Step], list[Step]], in_order: bool, hold: float
) -> None:
    """Law: each call runs at most once, and only if its approval was allowed; the transcript is
    valid and says what was done; each call has one published begin and end, the run one end, each
    approval one resolution."""
    before, stop, after = program
    with TemporaryDirectory() as folder:
        world = World(Path(folder, "state"), in_order)
        trio.run(world.play, [*before, *stop, *after], hold)
