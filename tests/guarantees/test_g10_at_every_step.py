"""G10 with a fault at every step of the scheduler: the gates crash, are killed, stopped or delayed,
and whoever waits for their verdict is cancelled. What is executed was allowed, at every moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from motet.actors.agents.spec import AgentSpec
from motet.actors.hooks.chain import Hooks, HooksClient
from motet.actors.hooks.registry import HookSet
from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.run import Input, Run
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.executor import ToolExecutor
from motet.actors.tools.tool import tool
from motet.protocols.chat import Call
from motet.protocols.errors import Aborted, InputValidation
from motet.protocols.hooks import Allow, BeforeInput, BeforeTool, Decision, Deny, Verdict
from motet.protocols.limits import Limits
from motet.protocols.sessions import LOCAL
from motet.protocols.tools import ExecuteCall
from motet.runtime import StartFailed, Supervision, open_system
from motet.runtime.testing import FaultKind, Simulation, World
from motet.runtime.testing.sweep import sweep
from tests.actors.tools.stage import context_of
from tests.guarantees.worlds.gates import Silent

HOOKS = "/system/hooks"
NAMES = ("allowed 0", "denied 1", "failing 2", "allowed 3")


class Verdicts:
    """A chain of two gates, and what they allowed so far, each by itself."""

    def __init__(self) -> None:
        self.given: list[set[str]] = [set(), set()]

    def gate(self, index: int) -> Callable[[BeforeTool | BeforeInput], Awaitable[Decision]]:
        async def decide(event: BeforeTool | BeforeInput) -> Decision:
            name = event.call_id if isinstance(event, BeforeTool) else event.text
            await trio.sleep(index)
            if name.startswith("failing") and index:
                raise OSError("the policy cannot be read")
            if name.startswith("denied"):
                return Deny("no")
            self.given[index].add(name)
            return Allow()

        return decide

    def hooks(self) -> HookSet:
        hooks = HookSet()
        for index in range(2):
            hooks.add("before_tool", self.gate(index), timeout=3)
            hooks.add("before_input", self.gate(index), timeout=3)
        return hooks

    def opened(self, executed: set[str]) -> str | None:
        """What is executed and was not allowed by every gate."""
        wrong = executed - (self.given[0] & self.given[1])
        return f"executed without a verdict: {sorted(wrong)}" if wrong else None


async def calls(sim: Simulation) -> None:
    """Four calls at once through one executor."""
    verdicts, executed = Verdicts(), set[str]()
    sim.law("G10", lambda: verdicts.opened(executed))

    async def act(ctx: Context[object]) -> str:
        executed.add(ctx.call_id)
        return "done"

    catalog = ToolCatalog()
    catalog.add("helper", [tool(act)])
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system)
        sim.may_hit(HOOKS)
        hooks = verdicts.hooks()
        try:
            ref = await system.start(lambda: Hooks(hooks, _ignore), name="hooks")
            executor = await system.start(
                lambda: ToolExecutor(catalog, HooksClient(hooks, ref), Silent(), context_of),
                name="tools",
            )
        except StartFailed:
            return  # the fault was early

        async def one(name: str) -> None:
            with sim.may_cancel(name):
                request = ExecuteCall("run", "s", "helper", "local", Call(name, "act"))
                result = await executor.ask(request)
                assert result.ok == (name in executed)

        async with trio.open_nursery() as nursery:
            for name in NAMES:
                nursery.start_soon(one, name)


async def inputs(sim: Simulation) -> None:
    """Four runs at the gates of their inputs."""
    verdicts, admitted = Verdicts(), set[str]()
    sim.law("G10", lambda: verdicts.opened(admitted))
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system)
        sim.may_hit(HOOKS)
        hooks = verdicts.hooks()
        try:
            ref = await system.start(lambda: Hooks(hooks, _ignore), name="hooks")
        except StartFailed:
            return  # the fault was early
        client = HooksClient(hooks, ref)

        async def one(name: str) -> None:
            run = Run(Input(name, "s", LOCAL, name), AgentSpec("helper", model="demo"), Limits())
            with sim.may_cancel(name):
                try:
                    text = await RunHooks(run, client).input(name)
                except (Aborted, InputValidation):
                    return
                admitted.add(str(text))

        async with trio.open_nursery() as nursery:
            for name in NAMES:
                nursery.start_soon(one, name)


def _ignore(_fault: object) -> None:
    pass


@pytest.mark.parametrize("world", [calls, inputs])
@pytest.mark.parametrize("fault", ["crash", "kill", "stop", "cancel", "delay"])
def test_no_fault_at_any_step_opens_a_gate(world: World[object], fault: FaultKind) -> None:
    """Law: at every step of every schedule, executed is a subset of what all gates allowed."""
    report = sweep(world, fault, seeds=range(2))
    report.check()
    assert report.struck > 20


@pytest.mark.parametrize("world", [calls, inputs])
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_the_sweep_finds_a_client_that_takes_silence_for_consent(
    world: World[object], fault: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(_client: HooksClient, *_: object) -> Verdict:
        return Verdict(Allow())

    monkeypatch.setattr(HooksClient, "_silence", careless)
    (finding,) = sweep(world, fault).findings
    assert "executed without a verdict" in finding.broken[0]
