"""A whole host whose one run passes every point: a call, its result, an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio
from msgspec.structs import replace

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import Call, ToolMessage
from motet.protocols.hooks import AfterModel, AnyHookEvent, BeforeModel, OnError, Point, Replace
from tests.scripted import Scripted, call, say

Hook = Callable[[Any], Awaitable[Any]]
WENT_ON = "completed: done"


def returning(value: object) -> Hook:
    async def hook(_event: AnyHookEvent) -> object:
        return value

    return hook


async def raising(_event: AnyHookEvent) -> None:
    raise OSError("the policy cannot be read")


async def hanging(_event: AnyHookEvent) -> None:
    await trio.sleep_forever()


def new_request(event: BeforeModel) -> Replace:
    return Replace(request=replace(event.request, system="Be kind."))


def broken_request(event: BeforeModel) -> Replace:
    orphan = ToolMessage("no-call", "act", "result")
    return Replace(request=replace(event.request, messages=(*event.request.messages, orphan)))


def twice_the_same_call(event: AfterModel) -> Replace:
    same = Call("c0", "act")
    return Replace(response=replace(event.response, calls=(same, same)))


def computed(fn: Callable[[Any], object]) -> Hook:
    async def hook(event: AnyHookEvent) -> object:
        return fn(event)

    return hook


@attrs.frozen
class Happened:
    """The end of a run, with its warnings, requests and effects."""

    outcome: str
    result: motet.RunResult
    model: Scripted
    marks: list[str]
    executed: int
    seen: list[events.AnyEvent]


async def turn(point: Point, hook: Hook, on_error: OnError | None = None) -> Happened:
    model = Scripted()
    helper = motet.Agent("helper", model=Scripted(say("helped"), name="helper"))
    agent = motet.Agent("a", model=model, tools=[helper.as_tool()])
    executed: list[str] = []

    @agent.tool
    def act() -> str:
        executed.append("act")
        return "acted"

    alone = motet.HostConfig(approvals=motet.ApprovalsConfig(ask=False))
    async with motet.open_host(config=alone, check_messages=True) as host:
        if point in ("before_compact", "after_compact"):
            await talk_until_it_is_too_long(host, agent, model)
        if point in ("before_child", "after_child"):
            model.then(call(("helper", {"task": "help"})))
        model.then(call(("act", {})), say("do", "ne"), say("really done"), say("enough"))
        register(host, point, hook, on_error=on_error, timeout=2, name="h")
        async with host.stream(agent, "go", session="s") as run:
            seen = [event async for event in run]
        result = await run.wait()
        assert violations([row.row for row in await host.history("s")]) == ()
        again = await host.runs(session="s")
    assert again[0].status == result.status
    marks = [e.message for e in seen if isinstance(e, events.Warned) and e.source == "hook"]
    said = result.output or f"{type(result.error).__name__}: {result.error}"
    return Happened(f"{result.status}: {said}", result, model, marks, len(executed), seen)


async def talk_until_it_is_too_long(
    host: motet.Host, agent: motet.Agent[None], model: Scripted
) -> None:
    """Three turns that fill three quarters of the window; next, the model summarises them."""
    for _ in range(3):
        model.then(say("long ago " * 40))
        await host.run(agent, "long, long ago " * 24, session="s")
    agent.window = 700
    model.requests.clear()
    model.then(say("The sum of it: they spoke of what was long ago."))


def register(host: motet.Host, point: Point, hook: Hook, **options: Any) -> None:
    """Registers a hook against its types: a return value is checked at run time."""
    on: Any = host.on
    on(point, **options)(hook)
