"""Draws the answers of models: their shape, their text, and the arguments of their calls.

A model repeats itself and what it was told. So an argument is a plain value of its schema, a value
of an earlier call, a reference to the result of an earlier call, or a value from a wide range; the
strategies of the project (``arguments=``) come before all of these.

Invariant: the first option of every choice is the simplest, so that an answer shrinks to ``ok``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Literal, TypeAlias

import attrs
import msgspec
from hypothesis import strategies as st

from motet.actors.agents.spec import AnyAgent
from motet.actors.tools.builtin.all_tools import GROUPS, builtin_tools
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject, json_object
from motet.protocols.schema_values import filled
from motet.testing.scripted import Answer, RawCall, Step, call, cut, fail, say, slow
from motet.testing.stories.choosing import (
    GRAIN,
    Draw,
    below,
    between,
    happens,
    one_of,
    value_of,
    weighted,
    whole,
)
from motet.testing.stories.references import literal, result_of
from motet.testing.stories.target import Faults
from motet.testing.stories.vocabulary import Vocabulary

__all__ = [
    "Line",
    "Words",
    "answer",
    "line",
    "tools_of",
]


LineKind: TypeAlias = Literal["say", "call", "calls", "malformed"]
Trouble: TypeAlias = Literal["", "stall", "rate_limit", "server", "cut"]

SAID = ("ok", "", "NO_REPLY", "DONE", "x" * 2000, "é∂ 日本 🎼")
UNKNOWN = "no_such_tool"
STALLS = (1.0, 30.0, 400.0)
ASKED_TO_WAIT = (None, 1.0, 7.0, 1000.0)
AT_ONCE = ((2, 0.6), (3, 0.25), (4, 0.1), (8, 0.05))
"""Calls of one answer with several, and their weights."""
TWINS = 0.5
"""The share of parallel calls that are all of one tool."""
EQUAL = 0.5
"""The share of these whose arguments are equal, too."""


@attrs.frozen
class Line:
    """The shape of one answer, before its text and arguments are drawn.

    Attributes:
        tools: the tools to call, in this order.
        equal: the calls have the same arguments.
        malformed: the calls are invalid.
        fault: the fault of the request.
    """

    tools: tuple[Tool, ...] = ()
    equal: bool = False
    malformed: bool = False
    fault: Trouble = ""


def line(draw: Draw, agent: AnyAgent, faults: Faults) -> Line:
    """The shape of one answer of an agent."""
    tools = tools_of(agent)
    kind: LineKind = "say"
    if tools:
        kind = weighted(
            draw,
            [("say", 0.25), ("call", 0.4), ("calls", 0.25), ("malformed", faults.malformed)],
        )
    elif happens(draw, faults.malformed):
        return Line(malformed=True)
    called: tuple[Tool, ...] = ()
    equal = False
    if kind == "calls":
        count = weighted(draw, AT_ONCE)
        called = (one_of(draw, tools),)
        if happens(draw, TWINS):
            called, equal = called * count, happens(draw, EQUAL)
        else:
            called += tuple(one_of(draw, tools) for _ in range(count - 1))
    elif kind != "say":
        called = (one_of(draw, tools),)
    troubles: list[tuple[Trouble, float]] = [
        ("", 1.0),
        ("stall", faults.stall),
        ("rate_limit", faults.rate_limit),
        ("server", faults.server),
        ("cut", faults.cut),
    ]
    return Line(called, equal, kind == "malformed", weighted(draw, troubles))


def tools_of(agent: AnyAgent) -> list[Tool]:
    """The tools that an agent can call: its own, and the built-in ones that it names.

    Tools that are known only at run time, such as those of MCP servers, are left out.
    """
    found: dict[str, Tool] = {}
    for item in agent.tools:
        names = GROUPS.get(item, (item,)) if isinstance(item, str) else ()
        tools = (
            [item] if isinstance(item, Tool) else [_builtin()[n] for n in names if n in _builtin()]
        )
        found |= {tool.name: tool for tool in tools}
    return list(found.values())


@cache
def _builtin() -> dict[str, Tool]:
    return builtin_tools()


@attrs.define(eq=False)
class Words:
    """The values that the calls of one program share.

    Attributes:
        vocabulary: the strategies of the project.
        used: the values of each argument so far, by its name.
    """

    vocabulary: Vocabulary = attrs.field(factory=Vocabulary)
    used: dict[str, list[object]] = attrs.field(factory=dict[str, list[object]])


def answer(
    draw: Draw, shape: Line, others: Sequence[str], tools: Sequence[Tool], words: Words
) -> Step:
    """Draw the text and arguments of an answer.

    ``others``: agents it may mention in a room; ``tools``: those whose results it may repeat.
    """
    said = _said(draw, shape, others, partial(_arguments, draw, tools, words))
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


Arguing: TypeAlias = Callable[[Tool], JsonObject]


def _said(draw: Draw, shape: Line, others: Sequence[str], arguments: Arguing) -> Answer:
    if shape.malformed:
        return _malformed(draw, shape.tools, arguments)
    if not shape.tools:
        return say(one_of(draw, [*SAID, *(f"@{name} go on" for name in others)]))
    if shape.equal:
        same = arguments(shape.tools[0])
        return Answer(calls=tuple((tool.name, same) for tool in shape.tools))
    answers = [call(tool.name, **arguments(tool)) for tool in shape.tools]
    return sum(answers[1:], start=answers[0])


def _malformed(draw: Draw, tools: Sequence[Tool], arguments: Arguing) -> Answer:
    """Typical invalid calls of models."""
    if not tools:
        return call(UNKNOWN)
    tool = tools[0]
    right = msgspec.json.encode(literal(arguments(tool))).decode()
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


Way: TypeAlias = Literal["plain", "used", "result", "wide"]
WIDE = 2**40
"""The bound of wide integers whose schema has none."""
WIDE_TEXT = 20


def _arguments(draw: Draw, tools: Sequence[Tool], words: Words, tool: Tool) -> JsonObject:
    """Arguments of a call that match the schema of its tool, but for the project's own."""
    own = words.vocabulary.arguments.get(tool.name, {})
    drawn = json_object(filled(tool.parameters, "a", partial(below, draw)))
    parts = json_object(tool.parameters.get("properties"))
    for name in drawn:
        if name not in own:
            drawn[name] = _varied(
                draw, name, json_object(parts.get(name)), drawn[name], tools, words
            )
            words.used.setdefault(name, []).append(drawn[name])
    return {**drawn, **{name: value_of(draw, given) for name, given in own.items()}}


_CHOSEN = frozenset({"enum", "const", "format", "pattern", "contentEncoding", "multipleOf"})
"""Words of a schema with which only :func:`filled` makes a valid value."""


def _varied(
    draw: Draw,
    name: str,
    schema: JsonObject,
    value: object,
    tools: Sequence[Tool],
    words: Words,
) -> object:
    """The value of an argument, or one with which models use it more often."""
    kind = schema.get("type")
    if kind not in ("string", "integer") or _CHOSEN & schema.keys():
        return value
    used = words.used.get(name, [])
    ways: list[tuple[Way, float]] = [("plain", 0.45)]
    if used:
        ways.append(("used", 0.2))
    if tools:
        ways.append(("result", 0.2))
    match weighted(draw, [*ways, ("wide", 0.15)]):
        case "used":
            return used[-1 - below(draw, min(len(used), GRAIN))]
        case "result":
            tool = one_of(draw, tools)
            back = weighted(draw, [(0, 0.7), (1, 0.2), (2, 0.1)])
            return result_of(tool.name, back=back, otherwise=value)
        case "wide":
            return _wide(draw, schema, text=kind == "string")
        case _:
            return value


def _wide(draw: Draw, schema: JsonObject, *, text: bool) -> object:
    """Any value within the bounds of a schema; Hypothesis knows the constants of the project."""
    if text:
        least, most = schema.get("minLength", 0), schema.get("maxLength", WIDE_TEXT)
        assert isinstance(least, int)
        assert isinstance(most, int)
        return draw(_texts(least, max(least, min(most, least + WIDE_TEXT))))
    bounds = (_bound(schema, "minimum", 1, -WIDE), _bound(schema, "maximum", -1, WIDE))
    return whole(draw, min(bounds), max(bounds))


def _bound(schema: JsonObject, word: str, step: int, otherwise: int) -> int:
    """The least or greatest integer of a schema."""
    exclusive = schema.get(f"exclusive{word.capitalize()}")
    if isinstance(exclusive, int | float):
        return int(exclusive) + step
    bound = schema.get(word)
    return int(bound) if isinstance(bound, int | float) else otherwise


@cache
def _texts(least: int, most: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), min_size=least, max_size=most)
