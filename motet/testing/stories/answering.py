"""Draws the answers of models: their shape, their text, and the arguments of their calls.

Invariant: the first option of every choice is the simplest, so that an answer shrinks to ``ok``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
import msgspec
from hypothesis import strategies as st

from motet.actors.agents.spec import AnyAgent
from motet.actors.tools.builtin.all_tools import GROUPS, builtin_tools
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject, json_object
from motet.protocols.schema_values import filled
from motet.testing.scripted import Answer, RawCall, Step, call, cut, fail, say, slow
from motet.testing.stories.target import Faults

__all__ = [
    "Draw",
    "Line",
    "answer",
    "below",
    "between",
    "happens",
    "line",
    "one_of",
    "weighted",
]


T = TypeVar("T")

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
"""``draw`` of ``@st.composite``. Any: each strategy has its own values."""

GRAIN = 100
"""The resolution of probabilities: low, so that a choice shrinks in few tries."""


@cache
def _integers(least: int, most: int) -> st.SearchStrategy[int]:
    """Cached, since making a strategy takes longer than drawing from it."""
    return st.integers(least, most)


def between(draw: Draw, least: int, most: int) -> int:
    """A number from ``least``, the simplest, to ``most``."""
    drawn: int = draw(_integers(least, most))
    return drawn


def below(draw: Draw, ways: int) -> int:
    """A number below ``ways``; a single option takes no choice."""
    return between(draw, 0, ways - 1) if ways > 1 else 0


def one_of(draw: Draw, values: Sequence[T]) -> T:
    """One of these."""
    return values[below(draw, len(values))]


def happens(draw: Draw, chance: float) -> bool:
    """True with probability ``chance``; False is the simpler outcome."""
    return chance > 0 and below(draw, GRAIN) >= round(GRAIN * (1 - chance))


def weighted(draw: Draw, ways: Sequence[tuple[T, float]]) -> T:
    """One of these by weight; the first is the simplest."""
    left = below(draw, GRAIN) / GRAIN * sum(weight for _, weight in ways)
    for value, weight in ways:
        left -= weight
        if left < 0:
            return value
    return ways[0][0]


LineKind: TypeAlias = Literal["say", "call", "calls", "malformed"]
Trouble: TypeAlias = Literal["", "stall", "rate_limit", "server", "cut"]

SAID = ("ok", "", "NO_REPLY", "DONE", "x" * 2000, "é∂ 日本 🎼")
UNKNOWN = "no_such_tool"
STALLS = (1.0, 30.0, 400.0)
ASKED_TO_WAIT = (None, 1.0, 7.0, 1000.0)
MOST_AT_ONCE = 3


@attrs.frozen
class Line:
    """The shape of one answer, before its text and arguments are drawn.

    Attributes:
        tools: the tools to call, in this order.
        malformed: the calls are invalid.
        fault: the fault of the request.
    """

    tools: tuple[Tool, ...] = ()
    malformed: bool = False
    fault: Trouble = ""


@st.composite
def line(draw: Draw, agent: AnyAgent, faults: Faults) -> Line:
    """The shape of one answer of an agent."""
    tools = _callable(agent.tools)
    kind: LineKind = "say"
    if tools:
        kind = weighted(
            draw,
            [
                ("say", 0.25),
                ("call", 0.5),
                ("calls", 0.15),
                ("malformed", faults.malformed),
            ],
        )
    elif happens(draw, faults.malformed):
        return Line(malformed=True)
    count = 1 + one_of(draw, range(MOST_AT_ONCE)) if kind == "calls" else int(kind != "say")
    called = tuple(one_of(draw, tools) for _ in range(count))
    troubles: list[tuple[Trouble, float]] = [
        ("", 1.0),
        ("stall", faults.stall),
        ("rate_limit", faults.rate_limit),
        ("server", faults.server),
        ("cut", faults.cut),
    ]
    return Line(called, kind == "malformed", weighted(draw, troubles))


def _callable(given: Sequence[Tool | str]) -> list[Tool]:
    """The tools that an agent can call: its own, and the built-in ones that it names.

    Tools that are known only at run time, such as those of MCP servers, are left out.
    """
    found: dict[str, Tool] = {}
    for item in given:
        names = GROUPS.get(item, (item,)) if isinstance(item, str) else ()
        tools = (
            [item] if isinstance(item, Tool) else [_builtin()[n] for n in names if n in _builtin()]
        )
        found |= {tool.name: tool for tool in tools}
    return list(found.values())


@cache
def _builtin() -> dict[str, Tool]:
    return builtin_tools()


def answer(draw: Draw, shape: Line, others: Sequence[str]) -> Step:
    """Draw the text and arguments of an answer. ``others``: agents it may mention in a room."""
    said = _said(draw, shape, others)
    match shape.fault:
        case "stall":
            return slow(said, seconds=one_of(draw, STALLS))
        case "rate_limit":
            return fail(429, retry_after=one_of(draw, ASKED_TO_WAIT))
        case "server":
            return one_of(draw, [fail(503), fail(kind="connection"), fail(401)])
        case "cut":
            return cut(said, after=between(draw, 0, 4))
        case "":
            return said


def _said(draw: Draw, shape: Line, others: Sequence[str]) -> Answer:
    if shape.malformed:
        return _malformed(draw, shape.tools)
    if not shape.tools:
        return say(one_of(draw, [*SAID, *(f"@{name} go on" for name in others)]))
    answers = [call(tool.name, **_arguments(draw, tool)) for tool in shape.tools]
    return sum(answers[1:], start=answers[0])


def _malformed(draw: Draw, tools: Sequence[Tool]) -> Answer:
    """Typical invalid calls of models."""
    if not tools:
        return call(UNKNOWN)
    tool = tools[0]
    right = msgspec.json.encode(_arguments(draw, tool)).decode()
    wrong = one_of(
        draw,
        [
            (RawCall(UNKNOWN, right),),
            (RawCall(tool.name, right[:-1]),),
            (RawCall(tool.name, ""),),
            (RawCall(tool.name, "[]"),),
            (RawCall(tool.name, '{"no_such_argument": 1}'),),
            (RawCall(tool.name, right, "same"), RawCall(tool.name, right, "same")),
        ],
    )
    return Answer(calls=wrong)


def _arguments(draw: Draw, tool: Tool) -> JsonObject:
    return json_object(filled(tool.parameters, "a", partial(below, draw)))


