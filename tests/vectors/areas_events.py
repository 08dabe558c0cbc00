"""The order in which a run tells of itself, by a run of a whole host in virtual time."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import attrs
import msgspec
import trio
from trio.testing import MockClock

import motet
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.errors import InputValidation
from motet.protocols.events import (
    Activity,
    AnyEvent,
    MessageAdded,
    TextDelta,
    ToolCall,
    ToolResult,
    event_name,
)
from motet.protocols.models import ModelEvent, ModelRequest, Usage, UsageReport
from tests.scripted import Scripted, Step, call, say
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood
from tests.vectors.compare import InOrder
from tests.vectors.logs import kept_logs

_ANSWERS = {
    "text": (0, ""),
    "tool call": (1, ""),
    "text + tool call": (1, "One moment."),
    "two tool calls": (2, ""),
}
_WINDOW, _PAGES = 100_000, 8
_PHASES = {"waiting_model": "thinking", "tool": "tool_exec"}


def order(given: Given) -> Facts:
    """The events of a run in the words of the seed, and the pauses between them."""
    clock = MockClock(autojump_threshold=0)
    if "input" in given:
        return trio.run(_guarded, given.text("input"), given.get("action", "warn"), clock=clock)
    if "usage" in given:
        return {MAIN: InOrder(trio.run(_filled, given.text("usage"), clock=clock))}
    if "llm" not in given:
        raise NotUnderstood(str(given))
    waits = [(given.seconds(f"{name}_tool_ms") or 0) / 1000 for name in ("first", "second")]
    steps = [_step(text) for text in given.texts("llm")]
    told = trio.run(_events, steps, waits, clock=clock)
    ends = [name[-1] for name in told if name.startswith("tool.result ")]
    return {MAIN: InOrder(told), "results_end": ends}


def _step(text: str) -> Step:
    if text not in _ANSWERS:
        raise NotUnderstood(text)
    calls, said = _ANSWERS[text]
    if not calls:
        return say("It is done.")
    return call(*(("wait", _arguments(index)) for index in range(calls)), text=said)


def _arguments(index: int) -> JsonObject:
    return {"index": index}


async def _events(steps: list[Step], waits: list[float]) -> list[str]:
    async def wait(index: int) -> str:
        await trio.sleep(waits[index])
        return "waited"

    agent = motet.Agent("a", model=Scripted(*steps), tools=[wait])
    told: list[str] = []
    async with (
        motet.open_host(agents=[agent]) as host,
        host.stream(agent, "go") as run,
    ):
        last = trio.current_time()
        async for event in run:
            if (pause := round((trio.current_time() - last) * 1000)) > 0:
                told.append(f"({pause} ms pass, nothing is sent)")
            last = trio.current_time()
            told += _names(event)
    return told


async def _guarded(text: str, action: object) -> Facts:
    """An input that the guard looks at; what the sender is told when it is not taken."""
    told: list[str] = []
    refused = ""
    agent = motet.Agent("a", model=Scripted(say("It is done.")))
    config = msgspec.convert({"guard": action}, HostConfig)
    with kept_logs():
        async with motet.open_host(config=config, agents=[agent]) as host:
            host.events.attach("session:s", lambda record: told.extend(_names(record.event)))
            try:
                await host.run(agent, text, session="s")
            except InputValidation as error:
                refused = str(error)
    return {MAIN: InOrder(told), "refused": refused}


@attrs.define
class _Reader:
    """Reads pages; the provider counts a share of the window for one of its requests."""

    name = "reader"
    tokens: int
    asked: int = 0

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        async with Scripted(self._answer(request)).request(request) as parts:
            yield parts

    def _answer(self, request: ModelRequest) -> Step:
        if not request.tools:
            return say("Pages were read.")
        self.asked += 1
        if self.asked > _PAGES:
            return say("All is read.")
        read = call(("read", {"page": self.asked}))
        assert isinstance(read, list)
        counted = UsageReport(Usage(self.tokens if self.asked == _PAGES else 100, 10))
        return [counted if isinstance(part, UsageReport) else part for part in read]


async def _filled(usage: str) -> list[str]:
    found = re.search(r"\d*\.?\d+", usage)
    if found is None:
        raise NotUnderstood(usage)
    share = float(found[0]) + (-0.01 if re.search("below|under", usage) else 0.01)

    def read(page: int) -> str:
        return f"page {page} " * 100

    model = _Reader(round(share * _WINDOW))
    agent = motet.Agent("a", model=model, tools=[read], window=_WINDOW)
    async with motet.open_host() as host, host.stream(agent, "Read.") as run:
        return [name async for event in run for name in _names(event)]


def _names(event: AnyEvent) -> list[str]:
    """An event in the seed's words; of calls with and without their place in the answer."""
    match event:
        case Activity(phase=phase):
            return [f"activity:{_PHASES.get(phase, phase)}"]
        case TextDelta():
            return ["chunk*"]
        case MessageAdded(role="assistant"):
            return ["block.reply"]
        case ToolCall(index=index) | ToolResult(index=index):
            return [event_name(event), f"{event_name(event)} {index + 1}"]
        case _:
            return [event_name(event)]
