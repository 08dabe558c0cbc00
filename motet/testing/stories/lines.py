"""Draws what models answer: calls of the tools that there are, sense and nonsense, and faults."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Literal, TypeAlias

import attrs
import msgspec
from hypothesis import strategies as st

from motet.actors.agents.spec import AnyAgent
from motet.actors.models.dialects import json_object
from motet.actors.models.schema_values import filled
from motet.actors.tools.builtin.all_tools import GROUPS, builtin_tools
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject
from motet.testing.steps import Answer, RawCall, Step, call, cut, fail, say, slow
from motet.testing.stories.chance import Draw, below, between, happens, one_of, weighted
from motet.testing.stories.odds import Faults

__all__ = ["Line", "answer", "line"]

Kind: TypeAlias = Literal["say", "call", "calls", "malformed"]
Trouble: TypeAlias = Literal["", "stall", "rate_limit", "server", "cut"]

SAID = ("ok", "", "NO_REPLY", "DONE", "x" * 2000, "é∂ 日本 🎼")
UNKNOWN = "no_such_tool"
STALLS = (1.0, 30.0, 400.0)
ASKED_TO_WAIT = (None, 1.0, 7.0, 1000.0)
MOST_AT_ONCE = 3


@attrs.frozen
class Line:
    """The shape of one answer, before its words are drawn.

    Attributes:
        tools: those that are called, in this order.
        malformed: its calls are wrong in some way.
        fault: what happens to the request.
    """

    tools: tuple[Tool, ...] = ()
    malformed: bool = False
    fault: Trouble = ""


@st.composite
def line(draw: Draw, agent: AnyAgent, faults: Faults) -> Line:
    """The shape of one answer of an agent."""
    tools = _callable(agent.tools)
    kind: Kind = "say"
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
    """What an agent can call: its own tools, and those that every host has for it to name.

    What a host knows only when it runs, as the tools of MCP servers, is left out.
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
    """The words of an answer. ``others``: whom it may call by name, in a room."""
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
    """Calls as models get them wrong."""
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
