"""A stage for tool tests: a real executor and real hooks on a real system, and a reporter that
remembers instead of storing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from motet.actors.hooks.chain import Gate, Hooks, HooksClient, Observe, Warn
from motet.actors.hooks.registry import HookSet
from motet.actors.telemetry.error_channel import ErrorChannel, Reported
from motet.actors.tools.breakers import Breakers
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.executor import ToolExecutor
from motet.actors.tools.tool import Tool
from motet.protocols.chat import Call, JsonObject
from motet.protocols.error_records import Origin
from motet.protocols.events import AnyEvent
from motet.protocols.hook_rules import HookFault
from motet.protocols.sessions import LOCAL
from motet.protocols.tools import CallResult, ExecuteCall
from motet.runtime import ActorRef, System, open_system

AGENT = "helper"


def context_of(request: ExecuteCall) -> Context[object]:
    return Context(
        deps={"greeting": "hello"},
        run_id=request.run_id,
        session=request.session,
        agent=request.agent,
        principal=LOCAL,
        call_id=request.call.id,
        workspace=Path("/workspace"),
    )


CONTEXT = context_of(ExecuteCall("run", "session", AGENT, "local", Call("c0", "any")))


class Memory(ErrorChannel):
    """A channel that keeps its reports; ``broken`` makes it fail like a full disk."""

    def __init__(self) -> None:
        super().__init__(None, lambda _run_id, _event: None)
        self.errors: list[tuple[str, object, str]] = []
        self.details: list[JsonObject] = []
        self.broken = False

    async def report(
        self,
        origin: Origin,
        error: object,
        code: str = "",
        detail: JsonObject | None = None,
        came: float | None = None,
    ) -> Reported:
        assert origin.session_id
        assert origin.run_id
        tool = origin.tool_name
        if self.broken:
            raise OSError("no space left")
        self.errors.append((tool, error, code))
        self.details += [] if detail is None else [detail]
        return Reported(f"Tool {tool!r} failed: {error}", f"err_{len(self.errors)}", "unknown")


@attrs.frozen
class Stage:
    system: System
    executor: ActorRef[ExecuteCall]
    memory: Memory
    faults: list[HookFault]
    hooks: ActorRef[Gate | Observe] | None
    breakers: Breakers
    warned: list[AnyEvent]

    async def call(self, name: str, arguments: str | dict[str, object] = "") -> CallResult:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = Call(f"call_{name}", name, text)
        return await self.executor.ask(ExecuteCall("run", "session", AGENT, "local", call))


@asynccontextmanager
async def on_stage(
    *tools: Tool,
    hooks: HookSet | None = None,
    with_hooks_actor: bool = True,
    warn: Warn | None = None,
) -> AsyncGenerator[Stage]:
    catalog, known, memory = ToolCatalog(), hooks or HookSet(), Memory()
    faults: list[HookFault] = []
    warned: list[AnyEvent] = []
    breakers = Breakers(chance=lambda: 0.0)
    catalog.add(AGENT, tools)
    async with open_system(check_messages=True) as system:
        ref = None
        if with_hooks_actor:
            ref = await system.start(lambda: Hooks(known, warn or faults.append), name="hooks")
        executor = await system.start(
            lambda: ToolExecutor(
                catalog,
                HooksClient(known, ref),
                memory,
                context_of,
                breakers=breakers,
                warn=lambda _, event: warned.append(event),
            ),
            name="tools",
        )
        yield Stage(system, executor, memory, faults, ref, breakers, warned)
