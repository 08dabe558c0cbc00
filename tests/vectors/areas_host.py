"""A whole host with a failure, and the tools that it shows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from trio.testing import MockClock

import motet
from motet.actors.storage.connection import Connection
from motet.actors.storage.error_spool import SPILL_FILE
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.errors import AgentError
from motet.protocols.events import AnyEvent, Warned, event_name
from motet.protocols.hooks import BeforeTool, Decision, Deny
from motet.protocols.models import Model, ModelEvent, ModelFailure, ModelRequest
from tests.faulty import Fault, FaultyMemory
from tests.scripted import Scripted, call, say
from tests.vectors.areas_hooks import hook, is_hook
from tests.vectors.cases import Facts, Given, NotUnderstood
from tests.vectors.compare import AnyOf
from tests.vectors.logs import kept_logs

GateFn = Callable[[BeforeTool], Awaitable[Decision]]
_GOES_ON = AnyOf(("Ok", "continues"))
_SEED_EVENTS = {"run.failed": "turn failed", "run.completed": "turn completed"}


def strategy(given: Given) -> Facts:
    """Seed 001's table, as one run of a host shows it."""
    point = given.text("point")
    if is_hook(given):
        return hook(given)
    if point.startswith("memory"):
        clock = MockClock(autojump_threshold=0)
        return trio.run(_broken_memory, point.partition(".")[2], "limit_s" in given, clock=clock)
    if "session_store" in given:
        return trio.run(broken_table, "messages", "NEW.role = 'assistant'")
    if "store" in given:
        return trio.run(broken_table, "agent_errors", "true")
    if point.startswith("llm"):
        return _failed_model(ModelFailure("the model failed", kind="unavailable"))
    if given.get("input") == {} or given.get("input") == "":
        return trio.run(_run, Scripted(), "")
    if point.startswith("event") or "subscriber" in given:
        return trio.run(_run, Scripted(say("done")), "go")
    if point.startswith("tool") or "timeout" in given or "limit_s" in given:
        return _hanging_tool()
    if "policy" in given:
        return _one_call("t", "", ["t"], gate=_broken_policy)
    if "requires" in given:
        return _denied(given.text("call"), given.text("requires"))
    if "in runtime" in given.text("raises"):
        return _failed_model(KeyError(given.text("raises")))
    if "raises" in given:
        return _one_call("t", given.text("raises"), ["t"])
    if "call" in given:
        listed = [key for key in ("available", "tools", "registered") if key in given]
        return _one_call(given.text("call"), "", given.texts(listed[0]) if listed else ["t"])
    raise NotUnderstood(str(given))


async def _broken_policy(_call: BeforeTool) -> Decision:
    raise RuntimeError("the policy cannot be read")


def _denied(name: str, needed: str) -> Facts:
    async def refuse(_call: BeforeTool) -> Decision:
        return Deny(f"tool '{name}' requires '{needed}'")

    return _one_call(name, "", [name], gate=refuse)


def failing_model(_given: Given) -> Facts:
    """A model that cannot choose the next step: no tool is to blame."""
    facts = _failed_model(ModelFailure("the model failed", kind="unavailable"))
    return {"counted": bool(facts["calls"]), "propagates": facts["raised"]}


def advertised(name: str, errors: int) -> bool:
    """Whether the tool is offered to a session after so many failed calls."""

    async def ask() -> bool:
        model = Scripted(*[call(("fails", {}))] * errors, say("done"))
        agent = motet.Agent("a", model=model, tools=[_failing("fails", "boom")])
        async with _quiet_host() as (host, _):
            await host.run(agent, "go")
        return any(spec.name == name for spec in model.requests[-1].tools)

    return trio.run(ask)


def executed_calls(calls: list[tuple[str, JsonObject]]) -> Facts:
    """How often the tools of one batch of calls really ran, and what the model was given."""
    ran: list[JsonObject] = []

    def tool_named(name: str) -> Tool:
        async def run(_ctx: object, args: JsonObject) -> object:
            ran.append(args)
            return "done"

        return Tool(name=name, description="", parameters={"type": "object"}, run=run)

    async def ask() -> list[str]:
        tools = [tool_named(name) for name in dict.fromkeys(name for name, _ in calls)]
        model = Scripted(call(*[(name, args) for name, args in calls]), say("done"))
        async with _quiet_host() as (host, _):
            await host.run(motet.Agent("a", model=model, tools=tools), "go")
        rows = model.requests[-1].messages
        return [row.text for row in rows if isinstance(row, ToolMessage)]

    texts = trio.run(ask)
    return {"executed": len(ran), "calls": len(calls), "first": texts[0], "second": texts[1]}


# One run


@asynccontextmanager
async def _quiet_host(
    state: str | None = None,
) -> AsyncGenerator[tuple[motet.Host, list[str]]]:
    """A host, and the levels of what it logs, which is not printed."""
    with kept_logs() as logs:
        async with motet.open_host(state) as host:
            yield host, logs


def _failing(name: str, message: str) -> Tool:
    async def fails() -> str:
        raise RuntimeError(message)

    return tool(fails, name=name, description="fails")


class _Broken:
    """A model with a bug in it."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        raise self.error
        yield


def _failed_model(error: Exception) -> Facts:
    clock = MockClock(autojump_threshold=0)  # the retries of a model wait
    return trio.run(_run, _Broken(error), "go", clock=clock)


def _one_call(name: str, message: str, known: list[str], gate: GateFn | None = None) -> Facts:
    """A model calls ``name`` of tools that fail with ``message``; a gate may be asked first."""
    names = {tool_name(one): _failing(tool_name(one), message) for one in known}
    asked = name if name not in known else tool_name(name)
    return trio.run(_call, asked, list(names.values()), gate, clock=MockClock(autojump_threshold=0))


def tool_name(name: str) -> str:
    """A dotted name as tools can have it."""
    return name.replace(".", "_")


def _hanging_tool() -> Facts:
    async def hangs() -> None:
        await trio.sleep_forever()

    hanging = [tool(hangs, name="t", description="hangs", timeout=1)]
    return trio.run(_call, "t", hanging, None, clock=MockClock(autojump_threshold=0))


async def _call(name: str, tools: list[Tool], gate: GateFn | None) -> Facts:
    model = Scripted(call((name, {})), say("went on"))
    async with _quiet_host() as (host, _):
        if gate is not None:
            host.on("before_tool")(gate)
        result = await host.run(motet.Agent("a", model=model, tools=tools), "go", check=False)
    (row,) = (row for row in result.rows if isinstance(row, ToolMessage))
    return {
        "success": row.outcome == "done",
        "output": {"error": row.text},
        "output_text": row.text,
        "turn": _GOES_ON if result.output == "went on" else result.status,
        "outcome": row.outcome,
    }


async def _broken_memory(broken: str, hangs: bool) -> Facts:
    fault: Fault = "hangs" if hangs else OSError(f"the memory refuses to {broken}")
    memory = FaultyMemory(read_fault=fault) if broken == "read" else FaultyMemory(None, fault)
    model = Scripted(say("went on"))
    agent = motet.Agent("a", model=model, memory=True)
    with kept_logs() as logs:
        async with motet.open_host(memory=memory) as host:
            async with host.stream(agent, "go") as run:
                seen = [event async for event in run]
            result = run.result
    return {
        "turn": _GOES_ON if result.output == "went on" else f"Err({result.detail})",
        "log": next((level for level in ("error", "warning") if level in logs), "none"),
        "context": [] if "<extra_context>" not in model.requests[0].system else ["something"],
        "warned": [event.source for event in seen if isinstance(event, Warned)],
    }


async def broken_table(table: str, where: str) -> Facts:
    """A run with a failing tool on a database that refuses rows of one table."""
    trigger = f"BEFORE INSERT ON {table} WHEN {where} BEGIN SELECT raise(ABORT, 'refused'); END"
    model = Scripted(call(("t", {})), say("went on"))
    agent = motet.Agent("a", model=model, tools=[_failing("t", "boom")])
    with TemporaryDirectory() as folder:
        async with _quiet_host(folder) as (host, logs):
            other = Connection(str(Path(folder, "motet.db")))
            other.run(f"CREATE TRIGGER refuse {trigger}")
            other.close()
            Path(folder, SPILL_FILE).mkdir()  # which would take an error in place of the database
            result = await host.run(agent, "go", check=False)
    (row,) = (row for row in result.rows if isinstance(row, ToolMessage))
    return {
        "turn": _GOES_ON if result.output == "went on" else f"Err({result.detail})",
        "text": row.text,
        "log": next((level for level in ("error", "warning") if level in logs), "none"),
    }


async def _run(model: Model, text: str) -> Facts:
    raised: AgentError | None = None
    seen: list[AnyEvent] = []
    calls = 0
    async with _quiet_host() as (host, _):
        agent = motet.Agent("a", model=model)
        try:
            async with host.stream(agent, text) as run:
                seen = [event async for event in run]
            calls = len(run.result.errors)
            raised = run.result.error
        except AgentError as error:
            raised = error
    return {
        "turn": _GOES_ON if raised is None else f"Err({type(raised).__name__})",
        "raised": "" if raised is None else f"AgentError.{type(raised).__name__}",
        "cause_chained": raised is not None and raised.__cause__ is not None,
        "events": [_SEED_EVENTS[n] for event in seen if (n := event_name(event)) in _SEED_EVENTS],
        "calls": calls,
    }
