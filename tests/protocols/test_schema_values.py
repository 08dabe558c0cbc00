"""Values that fit a schema, and what the demo model answers where an answer has a form."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest

import motet
from motet.actors.agents.output import form_of
from motet.protocols.schema_values import filled


class Ticket(msgspec.Struct):
    title: Annotated[str, motet.Length(3, 10)]
    kind: Literal["bug", "wish"]
    severity: Annotated[int, motet.Range(1, 5)]
    steps: Annotated[list[str], motet.Length(2)]
    seen: Annotated[datetime, msgspec.Meta(tz=True)]
    due: date | None = None


class Tree(msgspec.Struct):
    name: str
    parts: list[Tree]


class Pair(NamedTuple):
    a: float
    b: bool


class Color(Enum):
    RED = "red"


KINDS: list[object] = [
    Ticket,
    Tree,
    Pair,
    Color,
    list[Ticket],
    dict[str, int],
    Ticket | None,
    Annotated[int, msgspec.Meta(gt=7)],
    Annotated[float, msgspec.Meta(lt=-2)],
    date,
    None,
    tuple[int, str],
    Annotated[float, msgspec.Meta(gt=0, lt=1, multiple_of=0.25)],
    Annotated[int, msgspec.Meta(multiple_of=7, ge=10)],
    Annotated[str, motet.Pattern("^[a-z]{3,5}-[0-9]+$")],
    Annotated[dict[str, int], motet.Length(2, 3)],
    dict[Annotated[str, motet.Pattern("^k[0-9]+$")], float],
    set[Literal["a", "b"]],
    dict[int, str | None],
    Annotated[bytes, motet.Length(5)],
    Decimal,
    UUID,
    timedelta,
    object,
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_simplest_value_is_of_the_type(kind: object) -> None:
    form = form_of(kind)
    assert form is not None
    value = filled(form.schema, "it crashes at night")
    assert form.read(msgspec.json.encode(value).decode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_value_is_of_the_type_too(kind: object) -> None:
    form = form_of(kind)
    assert form is not None
    for seed in range(100):
        value = filled(form.schema, "a", Random(seed).randrange)
        assert form.read(msgspec.json.encode(value).decode())


async def test_an_agent_with_the_demo_model_works_and_gives_a_structured_answer() -> None:
    agent = motet.Agent("a", model="demo", output_type=Ticket, tools=["shell"])
    async with motet.open_host() as host:
        result = await host.run(agent, "run true and then run date")
    assert result.output.title == "run true a"
    assert [call.name for row in result.rows for call in getattr(row, "calls", ())] == [
        "shell",
        "shell",
    ]
