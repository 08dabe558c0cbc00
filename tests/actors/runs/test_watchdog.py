"""A run that makes no progress says so, and what it waits on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.errors.log import logger
from motet.actors.runs.run import Input, Run
from motet.actors.runs.table import RunTable
from motet.actors.sessions.router import CHECK_EVERY, watch
from motet.protocols import events
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.config import HostConfig
from motet.protocols.events import AnyEvent
from motet.protocols.limits import WatchdogConfig
from motet.protocols.run import Progress
from motet.protocols.sessions import LOCAL
from tests.actors.runs.ops import ops, pending
from tests.paced import Paced
from tests.scripted import Scripted, call, say

CONFIG = HostConfig(watchdog=WatchdogConfig(stalled=20), approvals=ApprovalsConfig(hold=3_600))


async def stalls(host: motet.Host, session: str = "s") -> list[events.RunStalled]:
    records = await host.events.read(f"session:{session}", 0)
    return [one.event for one in records if isinstance(one.event, events.RunStalled)]


async def test_a_stuck_tool_is_named_once_and_again_after_progress(
    autojump_clock: MockClock,
) -> None:
    release = trio.Event()
    agent = motet.Agent("a", model=Scripted(call(("slow", {}), ("quick", {})), None))

    @agent.tool
    async def slow() -> str:
        await release.wait()
        return "at last"

    @agent.tool
    async def quick() -> str:
        return "done"

    async with motet.open_host(agents=[agent], config=CONFIG) as host:
        await host.submit("go", session="s")
        await trio.sleep(50)
        (stalled,) = await stalls(host)
        assert stalled.waits_on == "the tool slow"
        assert 20 <= stalled.seconds <= 23
        release.set()
        await trio.sleep(50)
        assert [one.waits_on for one in await stalls(host)] == ["the tool slow", "the model"]
    del autojump_clock


async def test_a_run_that_cleans_up_for_long_says_that_it_was_stopped(
    autojump_clock: MockClock,
) -> None:
    agent = motet.Agent("a", model=Scripted(call(("stubborn", {}))))

    @agent.tool
    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async with motet.open_host(agents=[agent], config=CONFIG) as host:
        ack = await host.submit("go", session="s")
        await trio.sleep(1)
        report = await host.stop(session="s", newest=True)
        assert report.still_running == [ack.run_id]
        await trio.sleep(50)
        (stalled,) = await stalls(host)
        assert stalled.waits_on == "the clean-up of the tool stubborn, since it was stopped"
    del autojump_clock


async def test_who_waits_for_a_person_is_not_stalled_and_who_waits_for_a_child_says_so_once(
    autojump_clock: MockClock,
) -> None:
    own = ops(call(("wipe", {"disk": "a"})), say("done"))
    worker, lead_model = Paced(), Scripted(name="lead")
    lead_model.then(
        call(("spawn", {"agent": "worker", "task": "90 long"})), say("I wait"), say("x")
    )
    lead = motet.Agent("lead", model=lead_model, tools=["group:agents"])
    async with motet.open_host(agents=[own.agent, worker.agent(), lead], config=CONFIG) as host:
        await host.submit("go", session="s", agent="ops")
        await host.submit("go", session="t", agent="lead")
        await pending(host)
        await trio.sleep(60)
        assert await stalls(host) == []
        (stalled,) = await stalls(host, "t")
        assert stalled.waits_on == "its sub-agents"
    del autojump_clock


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="stalled must be seconds"):
        WatchdogConfig(stalled=seconds)


SIGNS = st.sampled_from(
    [
        events.Activity("waiting_model"),
        events.ToolCall("c", "t", {}),
        events.ToolResult("c", "t", True, "done", "", 1.0),
        events.TextDelta(0, 0, "x"),
    ]
)


@given(st.lists(st.tuples(SIGNS, st.floats(0, 30))))
def test_a_stall_is_said_once_for_each_time_without_progress(
    steps: list[tuple[AnyEvent, float]],
) -> None:
    """Law: it is said exactly when the last sign is as old as the limit, and once for each sign."""
    progress, now = Progress(), 0.0
    for event, pause in steps:
        progress.note(event, now)
        last = now
        now += pause
        stalls = now >= last + 10
        assert (progress.stalled(now, 10) is not None) == stalls
        progress.announced = stalls
        assert progress.stalled(now + 1, 10) is None or not progress.announced
    assert progress.waits_on(stopping=False)


Act: TypeAlias = Literal["sign", "start", "ask", "answer", "end"]
ACTS: Sequence[Act] = get_args(Act)
LIMIT = 20.0
NOBODY: motet.Agent[None] = motet.Agent("nobody")


class Watched:
    """Runs under the watchdog, its announcements, and the silences of runs: name, begin, end."""

    def __init__(self) -> None:
        self.table = RunTable()
        self.said: list[tuple[str, float]] = []
        self.silences: list[tuple[str, float, float]] = []
        self._since: dict[str, float] = {}

    async def announce(self, run: Run, _: AnyEvent) -> None:
        self.said.append((run.id, trio.current_time()))

    def act(self, act: Act, name: str) -> None:
        run = self.table.runs.get(name)
        if run is None and act == "start":
            run = Run(Input(name, name, LOCAL, ""), NOBODY, NOBODY.limits)
            self.table.runs[name] = run
            run.move("restore")
            run.move("start")
        if run is None:
            return
        self.heard(name)
        event: AnyEvent
        match act:
            case "ask":
                event = events.ApprovalRequested("1", "", "", {}, "", "", 0.0)
            case "answer":
                event = events.ApprovalResolved("1", "allow", "")
            case _:
                event = events.TextDelta(0, 0, "x")
        self.table.note(name, event)
        if act == "end":
            del self.table.runs[name]
        elif not run.progress.approvals:
            self._since[name] = trio.current_time()

    def heard(self, name: str) -> None:
        """The silence of a run is over, if there is one."""
        since = self._since.pop(name, None)
        if since is not None:
            self.silences.append((name, since, trio.current_time()))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ACTS), st.sampled_from("abc"), st.sampled_from([0.0, 0.3, 7.0, 30.0])
        ),
        max_size=20,
    )
)
def test_no_stall_is_announced_late_however_runs_come_and_go(
    steps: list[tuple[Act, str, float]],
) -> None:
    """Law: a silence that is longer than allowed is announced once, within ``CHECK_EVERY`` of the
    moment at which it is, whatever happens in other runs; and no other one is.
    """
    world = Watched()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            log = logger("motet.run")
            nursery.start_soon(watch, world.table, LIMIT, world.announce, log)
            for act, name, pause in steps:
                world.act(act, name)
                await trio.sleep(pause)
            await trio.sleep(LIMIT + 2 * CHECK_EVERY)
            for name in "abc":
                world.heard(name)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    for name, begin, end in world.silences:
        due = begin + LIMIT
        found = [at for one, at in world.said if one == name and begin <= at <= end]
        assert found or end <= due + CHECK_EVERY, (name, begin, end)
        assert all(due <= at <= due + CHECK_EVERY for at in found if at > begin), (name, found)
    long = [silence for silence in world.silences if silence[2] >= silence[1] + LIMIT]
    assert len(world.said) <= len(long)
    for name, at in world.said:
        assert any(one == name and begin + LIMIT <= at <= end for one, begin, end in long)
