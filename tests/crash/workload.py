"""The workload of the crash test: people, a model that plans ahead, and tools with effects.

All that must not be believed of the database is written beside it, by single appends that outlive
a SIGKILL: which inputs were acknowledged, and which effects have happened. Inputs say what is to
be done with them (``3/17 rwp`` is input 17 of session 3: read, write, then calls in parallel), so
that every life of the host asks for the same effects under the same names.

In the sessions ``m0`` to ``m9`` texts meet: they steer runs, wait, are collected, interrupt, and
wait for a person inside of runs that are suspended. Their model does what all texts of its turn
say, in their order, so that each effect belongs to one text.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeAlias

import msgspec
import trio

import motet
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.queueing import QueueMode

PLANS = ("", "r", "w", "rw", "wr", "p", "pw", "i", "ri", "a", "wa", "rrr")
BATCHES = {
    "r": ("read",),
    "w": ("write",),
    "i": ("put",),
    "a": ("delete",),
    "p": ("read", "write", "read", "put"),
}
INPUT = re.compile(r"(\d+/\d+) ([a-z]*)$")
HEARD = re.compile(r"^\[(?:carl|dora)\] words (\d+)$", re.MULTILINE)
MIXED = re.compile(r"<(m\d+/\d+)>([rwia]*)")
MIXED_PLANS = ("", "a", "a", "r", "w", "ra", "aw", "wa", "i", "aa")
MODES: tuple[QueueMode, ...] = ("steer", "steer", "steer", "followup", "collect", "interrupt")
Answering: TypeAlias = Callable[[ModelRequest], list[ModelEvent]]
ONCE = ("write", "delete")
"""Tools whose effect may not happen twice."""


class Diary:
    """A file of lines, each appended at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


class Planner:
    """A model: it does what the last input says, one batch of calls for each letter."""

    def __init__(self, random: Random, answer: Answering | None = None, name: str = "p") -> None:
        self._random, self.name = random, name
        self._answer = answer or _answer

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        await trio.sleep(self._random.expovariate(1 / 0.005))
        yield _parts(self._answer(request))


def _answer(request: ModelRequest) -> list[ModelEvent]:
    rows = request.messages
    at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note)
    found = INPUT.search(rows[at].text)
    done = sum(1 for row in rows[at:] if isinstance(row, AssistantMessage) and row.calls)
    end: list[ModelEvent] = [UsageReport(Usage(10, 5))]
    if found is None or done >= len(found[2]):
        said = f"answer to {found[1]}" if found else "I have heard it"
        return [TextPart(said), *end, Finished("stop")]
    calls: list[ModelEvent] = []
    for index, name in enumerate(BATCHES[found[2][done]]):
        args = msgspec.json.encode({"effect": f"{found[1]}.{done}.{index}"}).decode()
        calls += [CallStart(index, f"c{done}_{index}", name), CallArguments(index, args)]
    return [*calls, *end, Finished("tool_calls")]


def _mixed(request: ModelRequest) -> list[ModelEvent]:
    rows = request.messages
    at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note)
    texts = [row.text for row in rows[at:] if isinstance(row, UserMessage)]
    asked = [(str(name), str(plan)) for text in texts for name, plan in MIXED.findall(text)]
    done = sum(1 for row in rows[at:] if isinstance(row, AssistantMessage) and row.calls)
    wanted = [(f"{name}.{i}", letter) for name, plan in asked for i, letter in enumerate(plan)]
    end: list[ModelEvent] = [UsageReport(Usage(10, 5))]
    if done >= len(wanted):
        return [TextPart(f"answer to {len(asked)} texts"), *end, Finished("stop")]
    effect, letter = wanted[done]
    args = msgspec.json.encode({"effect": effect}).decode()
    name = BATCHES[letter][0]
    calls: list[ModelEvent] = [CallStart(0, f"c{done}", name), CallArguments(0, args)]
    return [*calls, *end, Finished("tool_calls")]


async def _parts(events: list[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    for event in events:
        await trio.lowlevel.checkpoint()
        yield event


def listener(random: Random, effects: Diary, name: str = "cat") -> motet.Agent[None, str]:
    """A member of a room: it asks for an approval of much that it hears, and says what it heard."""
    agent = motet.Agent(name, model=Planner(random, _heard, f"model of {name}"))

    @agent.tool(effects="write", approval=True)
    async def delete(ctx: motet.Context[None], effect: str) -> str:
        await trio.sleep(random.expovariate(1 / 0.005))
        effects.write(f"delete {ctx.run_id} {effect}")
        return "done"

    return agent


def _heard(request: ModelRequest) -> list[ModelEvent]:
    rows = request.messages
    at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note)
    texts = [row.text for row in rows[at:] if isinstance(row, UserMessage)]
    words = [number for text in texts for number in HEARD.findall(text)]
    end: list[ModelEvent] = [UsageReport(Usage(10, 5))]
    asked = any(isinstance(row, AssistantMessage) and row.calls for row in rows[at:])
    if asked or not words or int(words[0]) % 3 == 0:
        return [TextPart(f"heard {' '.join(words) or 'nothing'}"), *end, Finished("stop")]
    args = msgspec.json.encode({"effect": words[0]}).decode()
    calls: list[ModelEvent] = [CallStart(0, "c0", "delete"), CallArguments(0, args)]
    return [*calls, *end, Finished("tool_calls")]


def worker(
    random: Random, effects: Diary, name: str = "worker", *, mixed: bool = False
) -> motet.Agent[None, str]:
    """An agent whose tools write down what they do; a kill may come before, between and after.

    ``mixed``: for sessions in which texts meet.
    """
    agent = motet.Agent(name, model=Planner(random, _mixed, "m") if mixed else Planner(random))

    async def happens(tool: str, effect: str) -> str:
        await trio.sleep(random.expovariate(1 / 0.005))
        effects.write(f"{tool} {effect}")
        await trio.sleep(random.expovariate(1 / 0.005))
        return f"{tool} {effect}"

    @agent.tool(effects="read")
    async def read(effect: str) -> str:
        return await happens("read", effect)

    @agent.tool(effects="write")
    async def write(effect: str) -> str:
        return await happens("write", effect)

    @agent.tool(effects="write", idempotent=True)
    async def put(effect: str) -> str:
        return await happens("put", effect)

    @agent.tool(effects="write", approval=True)
    async def delete(effect: str) -> str:
        return await happens("delete", effect)

    return agent


def plans(seed: int, session: int) -> Iterator[str]:
    """The inputs of one person, the same in every life of the host."""
    random = Random(f"{seed}/{session}")
    number = 0
    while True:
        yield f"{session}/{number} {random.choice(PLANS)}"
        number += 1


def mixed_plans(seed: int, session: int) -> Iterator[tuple[str, str, QueueMode, float]]:
    """Key, text and mode of the inputs of a person, and the seconds after which the next follows.

    Every twelfth pause is followed by a stop: see ``Life.mix``.
    """
    random = Random(f"{seed}/m{session}")
    number = 0
    while True:
        key = f"m{session}/{number}"
        text = f"<{key}>{random.choice(MIXED_PLANS)}"
        yield key, text, random.choice(MODES), random.choice((0.0, 0.01, 0.05, 0.3))
        number += 1
