"""What the demo model answers where an answer has a form."""

from __future__ import annotations

from datetime import date, datetime
from enum import Enum
from typing import Annotated, Literal, NamedTuple

import msgspec
import pytest

import motet
from motet.actors.agent.output.form import form_of
from motet.actors.models.demo_form import filled


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


@pytest.mark.parametrize(
    "kind",
    [
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
    ],
)
def test_the_first_value_that_fits_is_of_the_type(kind: object) -> None:
    form = form_of(kind)
    assert form is not None
    value = filled(form.schema, "it crashes at night")
    assert form.read(msgspec.json.encode(value).decode())


async def test_an_agent_of_the_demo_model_does_its_work_and_then_answers_in_the_form() -> None:
    agent = motet.Agent("a", model="demo", output_type=Ticket, tools=["shell"])
    async with motet.open_host() as host:
        result = await host.run(agent, "run true and then run date")
    assert result.output.title == "run true a"
    assert [call.name for row in result.rows for call in getattr(row, "calls", ())] == [
        "shell",
        "shell",
    ]
