"""G10: a gated action runs only after an allow verdict for that very call; no fault opens a gate.

Faults come from the gates themselves (they raise, hang, answer late, answer nonsense, cancel
themselves) and from the Hooks actor (it is missing, stopped or crashed at any time).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.hooks.chain import AT_ONCE, Observe
from motet.actors.hooks.registry import HookSet
from motet.actors.tools.tool import Tool, tool
from motet.protocols.hook_rules import HookFault
from motet.protocols.hooks import (
    Abort,
    AfterTool,
    Allow,
    Ask,
    BeforeTool,
    Decision,
    Deny,
    OnError,
    Respond,
)
from motet.protocols.sessions import LOCAL
from tests.actors.tools.stage import Stage, on_stage

TIMEOUT = 2.0

BOMB = AfterTool("run", "session", "helper", LOCAL, "call", "bomb", {}, True, "", 0.0)


def crash(_fault: HookFault) -> None:
    """A host whose own mark of a fault fails: a bug that crashes the Hooks actor."""
    raise RuntimeError("the event log is gone")


async def allow(_event: BeforeTool) -> Any:
    return Allow()


async def allow_slowly(_event: BeforeTool) -> Any:
    await trio.sleep(1)
    return Allow()


async def replace(event: BeforeTool) -> Any:
    return Allow(event.args)


async def deny(_event: BeforeTool) -> Any:
    return Deny("no")


async def ask(_event: BeforeTool) -> Any:
    return Ask("may it?")


async def respond(_event: BeforeTool) -> Any:
    return Respond("instead")


async def abort(_event: BeforeTool) -> Any:
    return Abort("stop")


async def abort_late(_event: BeforeTool) -> Any:
    with trio.CancelScope(shield=True):
        await trio.sleep(TIMEOUT + 0.1)
    return Abort("stop")


async def fail(_event: BeforeTool) -> Any:
    raise OSError("policy server unreachable")


async def hang(_event: BeforeTool) -> Any:
    await trio.sleep_forever()


async def allow_late(_event: BeforeTool) -> Any:
    with trio.CancelScope(shield=True):
        await trio.sleep(TIMEOUT + 0.1)
    return Allow()


async def nothing(_event: BeforeTool) -> Any:
    return None


async def nonsense(_event: BeforeTool) -> Any:
    return Allow


async def cancel_itself(_event: BeforeTool) -> Any:
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.lowlevel.checkpoint()
        return Allow()


ALLOWING = [allow, allow_slowly, replace]
REFUSING = [deny, ask, respond, abort, abort_late]
FAULTY = [fail, hang, allow_late, nothing, nonsense, cancel_itself]


@attrs.frozen
class Declared:
    """A gate as it is registered."""

    fn: Callable[[BeforeTool], Awaitable[Any]]
    on_error: OnError
    only: str

    def lets(self, name: str) -> bool:
        """What G10 says of this gate and a call of this tool."""
        if self.only not in (name, "*") or self.fn in ALLOWING:
            return True
        return self.fn in FAULTY and self.on_error == "continue"


@attrs.frozen
class Disaster:
    """What happens to the Hooks actor, and when."""

    what: Literal["none", "missing", "stopped", "crashed"]
    seconds: float


GATES = st.lists(
    st.builds(
        Declared,
        st.sampled_from([*ALLOWING, *REFUSING, *FAULTY]),
        st.sampled_from(["block", "continue"]),
        st.sampled_from(["*", "act", "move"]),
    ),
    max_size=3,
)
DISASTERS = st.builds(
    Disaster,
    st.sampled_from(["none", "missing", "stopped", "crashed"]),
    st.floats(0, 9).map(lambda seconds: round(seconds, 1)),
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["act", "move"]), st.integers(0, 3)), min_size=1, max_size=5
)


def hooks_of(gates: list[Declared]) -> HookSet:
    hooks = HookSet()
    for gate in gates:
        hooks.add("before_tool", gate.fn, on_error=gate.on_error, match=gate.only, timeout=TIMEOUT)
    hooks.add("after_tool", explode, match="bomb")
    return hooks


async def explode(_event: AfterTool) -> None:
    raise OSError


def recording(name: str, executed: set[int]) -> Tool:
    async def run(index: int) -> str:
        executed.add(index)
        return "done"

    return tool(run, name=name)


def disaster_at(stage: Stage, disaster: Disaster) -> Callable[[], Awaitable[None]]:
    async def strike() -> None:
        if stage.hooks is None or disaster.what == "none":
            return
        await trio.sleep(disaster.seconds)
        if disaster.what == "stopped":
            await stage.hooks.stop(grace=0)
        elif disaster.what == "crashed":
            await stage.hooks.tell(Observe(BOMB))

    return strike


@settings(max_examples=settings().max_examples * 4)  # one gate alone must decide at times
@given(GATES, DISASTERS, CALLS)
def test_what_is_executed_was_allowed(
    gates: list[Declared], disaster: Disaster, calls: list[tuple[str, int]]
) -> None:
    """Law: executed is a subset of allowed; without a disaster the two are equal."""
    allowed = {
        index for index, (name, _) in enumerate(calls) if all(gate.lets(name) for gate in gates)
    }
    ungated = {
        index
        for index, (name, _) in enumerate(calls)
        if not any(gate.only in (name, "*") for gate in gates)
    }
    executed: set[int] = set()

    async def call_later(stage: Stage, index: int, name: str, seconds: int) -> None:
        await trio.sleep(seconds)
        result = await stage.call(name, {"index": index})
        assert result.ok or result.outcome == "denied"
        assert result.ok or "Permission denied: " in result.text

    async def main() -> None:
        hooks, actor = hooks_of(gates), disaster.what != "missing"
        warn = crash if disaster.what == "crashed" else None
        tools = [recording(name, executed) for name in ("act", "move")]
        async with (
            on_stage(*tools, hooks=hooks, with_hooks_actor=actor, warn=warn) as stage,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(disaster_at(stage, disaster))
            for index, (name, seconds) in enumerate(calls):
                nursery.start_soon(call_later, stage, index, name, seconds)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert executed <= allowed
    assert executed >= ungated
    if disaster.what == "none":
        assert executed == allowed


async def counted(stage: Stage, executed: set[int], *, times: int = 1) -> int:
    for index in range(times):
        await stage.call("act", {"index": index})
    return len(executed)


def gated(fn: Callable[[BeforeTool], Awaitable[Any]], on_error: OnError = "block") -> HookSet:
    return hooks_of([Declared(fn, on_error, "*")])


async def test_a_host_without_a_hooks_actor_denies_what_is_gated() -> None:
    executed: set[int] = set()
    act = recording("act", executed)
    async with on_stage(act, hooks=gated(allow, "continue"), with_hooks_actor=False) as stage:
        assert await counted(stage, executed) == 0
    async with on_stage(act, with_hooks_actor=False) as stage:
        assert await counted(stage, executed) == 1


async def test_a_stopped_hooks_actor_denies_and_never_opens_again() -> None:
    executed: set[int] = set()
    hooks = gated(allow, "continue")
    async with on_stage(recording("act", executed), hooks=hooks) as stage:
        assert stage.hooks is not None
        await stage.hooks.stop()
        assert await counted(stage, executed, times=20) == 0


async def test_no_number_of_faults_opens_a_gate() -> None:
    """There is no breaker that disables a gate which fails again and again."""
    executed: set[int] = set()
    async with on_stage(recording("act", executed), hooks=gated(fail)) as stage:
        assert await counted(stage, executed, times=100) == 0
        assert len(stage.faults) == 100


async def test_a_gate_that_ignores_its_cancellation_denies(autojump_clock: MockClock) -> None:
    async def stuck(_event: BeforeTool) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        return Allow()

    executed: set[int] = set()
    async with on_stage(recording("act", executed), hooks=gated(stuck)) as stage:
        assert await counted(stage, executed) == 0
    del autojump_clock


async def test_an_overloaded_hooks_actor_denies_whom_it_cannot_serve(
    autojump_clock: MockClock,
) -> None:
    """Those it serves in time are allowed by the declared time-out, the others by nobody."""
    executed: set[int] = set()
    texts: list[str] = []

    async def call(index: int) -> None:
        texts.append((await stage.call("act", {"index": index})).text)

    async with on_stage(recording("act", executed), hooks=gated(hang, "continue")) as stage:
        async with trio.open_nursery() as nursery:
            for index in range(AT_ONCE + 6):
                nursery.start_soon(call, index)
        assert len(executed) == AT_ONCE
        denied = "Permission denied: its gates gave no verdict (AskTimeout)"
        assert sorted(texts) == [denied] * 6 + ["done"] * AT_ONCE
    del autojump_clock


async def test_a_run_cancelled_at_the_gate_runs_nothing() -> None:
    executed: set[int] = set()
    async with on_stage(recording("act", executed), hooks=gated(hang, "continue")) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.call, "act", '{"index": 0}')
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert executed == set()


async def test_a_verdict_holds_for_one_call_only() -> None:
    asked: list[str] = []

    async def first_only(event: BeforeTool) -> Decision:
        asked.append(event.call_id)
        return Allow() if len(asked) == 1 else Deny("once is enough")

    executed: set[int] = set()
    async with on_stage(recording("act", executed), hooks=gated(first_only)) as stage:
        assert await counted(stage, executed, times=3) == 1
        assert len(asked) == 3


async def test_observers_that_cannot_be_told_are_logged_and_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executed: set[int] = set()
    hooks = HookSet()
    hooks.add("after_tool", explode)
    async with on_stage(recording("act", executed), hooks=hooks) as stage:
        assert stage.hooks is not None
        await stage.hooks.stop()
        assert (await stage.call("act", {"index": 0})).ok
    assert [record.message for record in caplog.records] == ["hook not asked"]
