"""The order in which a run tells of itself, by a run of a whole host in virtual time."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import motet
from motet.protocols.chat import JsonObject
from motet.protocols.events import (
    Activity,
    AnyEvent,
    MessageAdded,
    TextDelta,
    ToolCall,
    ToolResult,
    event_name,
)
from tests.scripted import Scripted, Step, call, say
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood, NotYet
from tests.vectors.compare import InOrder

_ANSWERS = {
    "text": (0, ""),
    "tool call": (1, ""),
    "text + tool call": (1, "One moment."),
    "two tool calls": (2, ""),
}
_PHASES = {"waiting_model": "thinking", "tool": "tool_exec"}


def order(given: Given) -> Facts:
    """The events of a run in the words of the seed, and the pauses between them."""
    if "llm" not in given:
        raise NotYet("the input guard and compactions have tests of their own")
    waits = [(given.seconds(f"{name}_tool_ms") or 0) / 1000 for name in ("first", "second")]
    steps = [_step(text) for text in given.texts("llm")]
    told = trio.run(_events, steps, waits, clock=MockClock(autojump_threshold=0))
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
