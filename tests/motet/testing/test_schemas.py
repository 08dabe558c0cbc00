"""Arguments drawn from schemas: right ones, and near misses."""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.protocols.json_schema import problems
from motet.testing.choices import choices_of
from motet.testing.schemas import DEFECTS, Defect, arguments, near_arguments


class Line(msgspec.Struct):
    text: Annotated[str, motet.Length(1, 20)]
    number: Annotated[int, motet.Range(1, 200)]
    next: Line | None = None


@motet.tool
def everything(
    name: Annotated[str, motet.Pattern("^[a-z]{2,4}$")],
    kind: Literal["bug", "wish"],
    lines: Annotated[list[Line], motet.Length(1, 4)],
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None,
    ratio: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5,
    labels: dict[str, list[bool]] = {},  # noqa: B006  (a default that is shown, never changed)
    either: int | str | None = None,
) -> str:
    """Takes everything."""
    return "ok"


@motet.tool
def nothing() -> str:
    """Takes nothing."""
    return "ok"


@motet.tool
def one(text: str) -> str:
    """Takes a text."""
    return "ok"


TOOLS = [everything, nothing, one]


@given(st.integers(0, 2), st.data())
def test_valid_arguments_are_accepted(which: int, data: st.DataObject) -> None:
    """Law: a tool takes whatever is drawn from its schema."""
    tool = TOOLS[which]
    drawn = arguments(tool.parameters, choices_of(data.draw)())
    assert tool.accepts.parse(msgspec.json.encode(drawn).decode()) is not None


@given(st.integers(0, 2), st.sampled_from(DEFECTS), st.integers(0, 2**32))
def test_near_arguments_are_invalid(which: int, defect: Defect, seed: int) -> None:
    """Law: what has a defect has a problem by the schema."""
    tool = TOOLS[which]
    drawn = near_arguments(tool.parameters, defect, Random(seed).randrange)
    if drawn is not None:
        assert problems(drawn, tool.parameters)


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_has_a_place_in_a_tool_with_all_kinds_of_parameters(defect: Defect) -> None:
    found = [near_arguments(everything.parameters, defect, Random(n).randrange) for n in range(99)]
    assert None not in found
    assert len({repr(one) for one in found}) > 10


def test_a_tool_without_parameters_can_only_get_an_extra_argument() -> None:
    found = [near_arguments(nothing.parameters, defect, lambda _: 0) for defect in DEFECTS]
    assert found == [None, None, {"extra": "a"}, None]


def test_the_first_choices_make_the_simplest_arguments() -> None:
    assert arguments(everything.parameters, lambda _: 0) == {
        "name": "aa",
        "kind": "bug",
        "lines": [{"text": "a", "number": 1}],
    }
    assert near_arguments(one.parameters, "wrong_type", lambda _: 0) == {"text": None}
