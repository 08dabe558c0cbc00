"""A world of gates that fail in every way, and of calls and inputs that need their leave (G10).

Several calls of one tool with the same arguments go on at once, each of which a gate may judge
otherwise. The actor that asks the gates, and the one that runs the calls, crash at random steps.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

import attrs
import trio

from motet.actors.agents.spec import AgentSpec
from motet.actors.hooks.chain import Hooks, HooksClient
from motet.actors.hooks.registry import HookSet
from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.run import Input, Run
from motet.actors.telemetry.error_channel import ErrorChannel, Reported
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.executor import ToolExecutor
from motet.actors.tools.tool import tool
from motet.protocols.chat import Call, JsonObject
from motet.protocols.error_records import Origin
from motet.protocols.errors import Aborted, InputValidation
from motet.protocols.hook_rules import HookFault
from motet.protocols.hooks import Abort, Allow, BeforeInput, BeforeTool, Deny, OnError
from motet.protocols.limits import Limits
from motet.protocols.sessions import LOCAL
from motet.protocols.tools import ExecuteCall
from motet.runtime import ActorDead, StartFailed, Supervision, System, open_system
from motet.runtime.testing import Fault, FaultKind, InjectedCrash, Simulation
from tests.actors.tools.stage import context_of
from tests.guarantees.law import Law, Search

HOOKS, TOOLS = "/system/hooks", "/system/tools"
TIMEOUT = 2.0
NAMES = ("0", "1", "2", "3")
STEPS = 90  # within which something crashes

Answer = Literal["allow", "deny", "abort", "abort late", "fail", "hang", "late", "nonsense"]
Asked = BeforeTool | BeforeInput
REFUSING: tuple[Answer, ...] = ("deny", "abort", "abort late")


@attrs.frozen
class Gate:
    """One hook: what it makes of each name, and whether it is to be let pass when it fails."""

    name: str
    on_error: OnError
    answers: dict[str, Answer]

    def lets(self, name: str) -> bool:
        """What G10 says, if nothing but the gates goes wrong."""
        answer = self.answers[name]
        return answer == "allow" or (answer not in REFUSING and self.on_error == "continue")


class Scene:
    """The gates of one world, their verdicts and marks so far, and what was done."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.gates = [self._gate(index) for index in range(sim.random.randrange(1, 4))]
        self.allowed: set[tuple[str, str]] = set()
        self.refused: set[str] = set()
        self.marks: set[tuple[str, str]] = set()
        self.done: set[str] = set()

    def _gate(self, index: int) -> Gate:
        chance = self.sim.random
        kinds = ("allow", "allow", "allow", *get_args(Answer))
        on_error: OnError = chance.choice(("block", "continue"))
        return Gate(f"gate {index}", on_error, {name: chance.choice(kinds) for name in NAMES})

    def hooks(self) -> HookSet:
        hooks = HookSet()
        for gate in self.gates:
            for point in ("before_tool", "before_input"):
                hooks.add(
                    point,
                    self._asks(gate),
                    on_error=gate.on_error,
                    timeout=TIMEOUT,
                    name=gate.name,
                )
        return hooks

    def _asks(self, gate: Gate) -> Callable[[Asked], Awaitable[Any]]:
        async def decide(event: Asked) -> Any:
            name, over = name_of(event), trio.current_time() + TIMEOUT
            answer = gate.answers[name]
            await trio.sleep(self.sim.random.choice((0, 0, 1)))
            if answer == "hang":
                await trio.sleep_forever()
            if answer.endswith("late"):
                with trio.CancelScope(shield=True):
                    await trio.sleep_until(over)
            return self._said(gate, name, answer)

        return decide

    def _said(self, gate: Gate, name: str, answer: Answer) -> Any:
        """Any: a gate of a user may return whatever it likes."""
        if answer == "fail":
            raise OSError("the policy cannot be read")
        if answer == "nonsense":
            return Allow  # the class
        if answer in REFUSING:
            self.refused.add(name)
            return Deny("no") if answer == "deny" else Abort("stop")
        if answer == "allow":
            self.allowed.add((gate.name, name))
        return Allow()

    def mark(self, fault: HookFault) -> None:
        assert isinstance(fault.event, BeforeTool | BeforeInput)
        self.marks.add((fault.hook, name_of(fault.event)))

    def opened(self) -> str | None:
        """What was done without a verdict on it of some gate, or a mark that the gate failed."""
        for name in sorted(self.done):
            for gate in self.gates:
                passed = gate.on_error == "continue" and (gate.name, name) in self.marks
                if (gate.name, name) not in self.allowed and not passed:
                    return f"{name} was done, and {gate} has not let it"
        # With the actor that asks them, what gates have said just now may be lost.
        wrong = sorted(self.done & self.refused) if not self.sim.struck else []
        return f"{wrong} were done, and were refused" if wrong else None


def name_of(event: Asked) -> str:
    return event.call_id if isinstance(event, BeforeTool) else event.text


class Silent(ErrorChannel):
    """A channel that is never needed: no tool fails here."""

    def __init__(self) -> None:
        super().__init__(None, lambda _run_id, _event: None)

    async def report(
        self,
        origin: Origin,
        error: object,
        code: str = "",
        detail: JsonObject | None = None,
        came: float | None = None,
    ) -> Reported:
        raise AssertionError((origin, error, code, detail, came))


async def gates(sim: Simulation) -> None:
    """Four calls, or inputs, some of them at once."""
    scene = Scene(sim)
    sim.law("G10", scene.opened)
    act = _inputs if sim.random.random() < 0.3 else _calls
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        sim.watch(system, HOOKS)
        hooks = scene.hooks()
        try:
            ref = await system.start(lambda: Hooks(hooks, scene.mark), name="hooks")
            client = HooksClient(hooks, ref, scene.mark)
            await act(scene, client, system)
        except StartFailed:
            return  # the crash was early
    expected = {name for name in NAMES if all(gate.lets(name) for gate in scene.gates)}
    if not sim.struck and scene.done != expected:
        sim.violated("G10", "gates", f"{sorted(scene.done)} were done, not {sorted(expected)}")


async def _calls(scene: Scene, client: HooksClient, system: System) -> None:
    async def act(ctx: Context[object]) -> str:
        scene.done.add(ctx.call_id)
        return "done"

    catalog = ToolCatalog()
    catalog.add("helper", [tool(act)])
    executor = await system.start(
        lambda: ToolExecutor(catalog, client, Silent(), context_of),
        name="tools",
    )

    async def one(name: str) -> None:
        request = ExecuteCall("run", "s", "helper", "local", Call(name, "act"))
        with scene.sim.may_cancel(name), suppress(ActorDead, InjectedCrash):
            result = await executor.ask(request)
            if result.ok and name not in scene.done:
                scene.sim.violated("G10", name, f"it was not run, and its result is {result}")

    await _together(scene.sim, one)


async def _inputs(scene: Scene, client: HooksClient, _system: System) -> None:
    async def one(name: str) -> None:
        run = Run(Input(name, "s", LOCAL, name), AgentSpec("helper", model="demo"), Limits())
        with scene.sim.may_cancel(name), suppress(Aborted, InputValidation):
            await RunHooks(run, client).input(name)
            scene.done.add(name)

    await _together(scene.sim, one)


async def _together(sim: Simulation, one: Callable[[str], Awaitable[None]]) -> None:
    async def later(name: str) -> None:
        await trio.sleep(sim.random.choice((0, 0, 3)))
        await one(name)

    async with trio.open_nursery() as nursery:
        for name in NAMES:
            nursery.start_soon(later, name)


def hit_one(chance: random.Random) -> Sequence[Fault]:
    """In half of the worlds something else goes wrong, too."""
    if chance.random() < 0.5:
        return ()
    kind: FaultKind = chance.choice(("crash", "crash", "kill", "stop", "cancel"))
    target = chance.choice(NAMES) if kind == "cancel" else chance.choice((HOOKS, HOOKS, TOOLS))
    return (Fault(kind, chance.randrange(1, STEPS), target),)


GATES = Law("G10", Search("G10", gates, hit_one))
