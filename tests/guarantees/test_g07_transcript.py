"""G7: the stored transcript is valid at whatever step a run is cancelled."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, ToolMessage
from motet.protocols.events import EventRecord, Terminal, ToolCall, ToolResult
from tests.scripted import Scripted, call, say


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the n-th scheduler step after it was armed."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.scope: trio.CancelScope | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is None:
            return
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()


def agent_with_tools() -> motet.Agent[None]:
    script = Scripted(call(("nap", {"n": 2}), ("nap", {"n": 1}), text="look"), say("so", " it is"))
    agent = motet.Agent("a", model=script)

    @agent.tool
    async def nap(n: int) -> str:
        try:
            await trio.sleep(n)
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
        return f"slept {n}"

    return agent


async def cancelled_run(fault: CancelAt) -> bool:
    """One run under the fault; checks all that has to hold. True when the run beat the fault."""
    records: list[EventRecord] = []
    agent = agent_with_tools()
    async with motet.open_host(agents=[agent]) as host:
        host.events.attach("session:s", records.append)
        with trio.CancelScope() as scope:
            fault.scope = scope
            await host.run(agent, "go", session="s", check=False)
        fault.scope = None
        await trio.testing.wait_all_tasks_blocked()
        runs = await host.runs()
        rows = [item.row for item in await host.history("s")] if runs else []
        assert host.status().running == host.status().queued == 0

    assert violations(rows) == (), rows
    check_events([record.event for record in records], started=bool(runs))
    if runs and runs[0].status not in ("dropped",):
        assert isinstance(rows[-1], AssistantMessage)
        results = [row for row in rows if isinstance(row, ToolMessage)]
        assert len(results) in (0, 2)
    return not scope.cancelled_caught


def check_events(seen: list[object], *, started: bool) -> None:
    """Every call event has exactly one result event, and a run exactly one terminal one."""
    calls = [event.id for event in seen if isinstance(event, ToolCall)]
    results = [event.id for event in seen if isinstance(event, ToolResult)]
    assert sorted(calls) == sorted(results)
    ends = [event for event in seen if isinstance(event, Terminal)]
    assert len(ends) <= 1
    if not started:
        assert not ends


def test_a_run_cancelled_at_any_scheduler_step_leaves_a_valid_transcript() -> None:
    """Law: wherever the caller is cancelled the transcript is valid, with one terminal event at
    most, and as many results as calls. The sweep ends when the run wins; it takes every other step,
    since ``make guarantees`` looks at all of them.
    """
    for step in range(1, 2_000, 2):
        fault = CancelAt(step)
        clock = MockClock(autojump_threshold=0)
        if trio.run(cancelled_run, fault, clock=clock, instruments=[fault]):
            assert step > 50
            return
    raise AssertionError("the run never came to its end")
