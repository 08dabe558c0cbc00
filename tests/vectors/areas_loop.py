"""The area of the loop as a host shows it: its stages, what fails in them, requests too long."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio
from msgspec.structs import replace
from trio.testing import MockClock

import motet
from motet.actors.tools.tool import Tool, tool
from motet.actors.transcript.summary import HEADER
from motet.actors.transcript.window import ContextWindow
from motet.protocols import events
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.hooks import Allow, BeforeTool, Decision, Deny
from motet.protocols.model_failures import Wording, kind_of
from motet.protocols.models import ModelEvent, ModelFailure, ModelRequest
from tests.actors.runs.histories import rows_of
from tests.scripted import Scripted, Step, call, say
from tests.vectors.areas_host import broken_table
from tests.vectors.cases import Facts, Given, NotUnderstood
from tests.vectors.compare import AnyOf
from tests.vectors.logs import kept_logs

T = TypeVar("T")
OVERFLOW = "HTTP 400: prompt is too long"


def stages(given: Given) -> Facts:
    """One run, and what came of its stages."""
    if "signal" in given:
        return _timed(_signalled, given.text("signal"))
    if "llm_error" in given or "compaction" in given:
        return _timed(_overflowing, given)
    if "tool" in given or "lazy" in given:
        return _timed(_called, given)
    if "flush_error" in given:
        refused = "true" if given.get("flush_error") else "false"
        turn = trio.run(broken_table, "steps", refused)["turn"]
        return {"run": turn}
    if "finalize" in given.text("error"):
        turn = trio.run(broken_table, "messages", "NEW.role = 'assistant'")["turn"]
        went_on = isinstance(turn, AnyOf)
        return {"error": not went_on, "result": "present" if went_on else "none"}
    if "used" in given:
        return _window(given.text("used"))
    raise NotUnderstood(str(given))


def _timed(scenario: Callable[[T], Awaitable[Facts]], given: T) -> Facts:
    return trio.run(scenario, given, clock=MockClock(autojump_threshold=0))


# Signals: the first stage of an iteration is the model, those behind it are its calls, in a row.


@attrs.define
class _Stages:
    """Counts how often each stage was entered; one of them asks the run to end."""

    name = "staged"
    verb: str
    at: int
    of: int
    run: motet.RunStream | None = None
    began: trio.Event = attrs.field(factory=trio.Event)
    entered: Counter[int] = attrs.field(factory=Counter[int])
    script: Scripted = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        calls = [("stage", _number(number)) for number in range(2, self.of + 1)]
        self.script = Scripted(*([call(*calls)] if calls else []), say("done"))

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        await self.enter(1)
        async with self.script.request(request) as parts:
            yield parts

    async def enter(self, number: int) -> str:
        await self.began.wait()
        assert self.run is not None
        self.entered[number] += 1
        if number == self.at and self.verb == "abort":
            self.run.cancel()
            await trio.sleep_forever()
        elif number == self.at and self.verb == "break":
            self.run.cancel("after_turn")
        return "left"


def _number(number: int) -> JsonObject:
    return {"number": number}


async def _signalled(signal: str) -> Facts:
    found = re.fullmatch(r"(abort|break|continue) from stage (\d+) of (\d+)", signal)
    if found is None:
        raise NotUnderstood(signal)
    model = _Stages(found[1], int(found[2]), int(found[3]))
    stage = tool(model.enter, name="stage", description="a stage", effects="write")
    agent = motet.Agent("a", model=model, tools=[stage])
    async with motet.open_host() as host, host.stream(agent, "go") as run:
        model.run = run
        model.began.set()
        ends = sum([isinstance(event, events.Terminal) async for event in run])
    entered = {f"stage{number}": model.entered[number] for number in range(1, model.of + 1)}
    return {**entered, "finalize": ends, "exit": run.result.status}


# Requests that are too long


@attrs.define
class _Overflowed:
    """Reads pages, is then asked too much so many times, and can sum up or can't."""

    name = "overflowed"
    failure: ModelFailure
    times: int
    sums_up: bool
    pages: int = 8
    asked: list[ModelRequest] = attrs.field(factory=list[ModelRequest])

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        async with Scripted(self._answer(request)).request(request) as parts:
            yield parts

    def _answer(self, request: ModelRequest) -> Step:
        if not request.tools:
            broken = ModelFailure("no summary", kind="bad_request", status=400)
            return say("Pages were read.") if self.sums_up else broken
        self.asked.append(request)
        if len(self.asked) <= self.pages:
            return call(("read", {"page": len(self.asked)}))
        return self.failure if self.retries < self.times else say("done")

    @property
    def retries(self) -> int:
        """How often the request that was too long has been sent again."""
        return len(self.asked) - self.pages - 1


async def _overflowing(given: Given) -> Facts:
    said = given.text("llm_error", OVERFLOW)
    status = re.search(r"\b[45]\d\d\b", said)
    code = int(status[0]) if status else None
    failure = ModelFailure(said, kind=kind_of(code, Wording(said)), status=code)
    times = given.number("overflow_retries_before") + 1
    model = _Overflowed(failure, times, given.get("compaction", "ok") == "ok")

    def read(page: int) -> str:
        return f"page {page} " * 100

    agent = motet.Agent("a", model=model, tools=[read])
    with kept_logs():
        async with motet.open_host() as host:
            result = await host.run(agent, "Read.", check=False)
    return {
        "signal": "continue" if result.status == "completed" else "abort",
        "overflow_retries": model.retries,
        "history": "compacted" if HEADER in model.asked[-1].messages[0].text else "whole",
        "error": result.detail,
    }


def _window(used: str) -> Facts:
    """What a view does of a conversation that takes such a share of the window."""
    number = re.search(r"\d+", used)
    if number is None:
        raise NotUnderstood(used)
    beside = {">": 1, "<": -1}.get(used.strip()[0], 0)
    share = (int(number[0]) + beside) / 100
    view = ContextWindow(rows_of("uct" + "ua" * 20, 9_000), window=100_000)
    whole = replace(view, window=0).prepare(())
    view = view.calibrated(whole, int(share * view.window))
    sent = view.prepare(())
    return {
        "share": share,
        "prune": int(sent.estimated < whole.estimated),
        "compact": int(view.plan(sent, ()) is not None),
    }


# Names


async def _called(given: Given) -> Facts:
    """A model calls a tool that the agent has or lacks; a gate is asked about those denied."""
    asked = given.text("tool", given.text("lazy"))
    denied = given.texts("denied") or [given.text("denied")]
    ran: list[str] = []

    def named(name: str) -> Tool:
        def run() -> str:
            ran.append(name)
            return "done"

        return tool(run, name=name, description="a tool")

    names = [*given.texts("allowed"), *filter(None, [given.text("lazy")])]
    model = Scripted(call((asked, {})), say("done"))
    agent = motet.Agent("a", model=model, tools=[named(name) for name in names])
    async with motet.open_host() as host:

        @host.on("before_tool")
        async def _(event: BeforeTool) -> Decision:
            return Deny(f"{event.name} is denied") if event.name in denied else Allow()

        result = await host.run(agent, "go")
    (row,) = (row for row in result.rows if isinstance(row, ToolMessage))
    return {"allowed": ran == [asked], "reason": row.text}
