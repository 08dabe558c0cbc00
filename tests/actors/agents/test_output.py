"""Structured output: the schema of a declared type, and the parser of answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.actors.agents.output import OutputForm, Unreadable, form_of


class Ticket(msgspec.Struct):
    title: str
    severity: Annotated[int, motet.Range(1, 5)]
    due: date | None = None


@dataclass
class Point:
    x: int
    y: int = 0


@attrs.define
class Span:
    first: int
    last: int

    def __attrs_post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError("the last one is before the first")


class Row(TypedDict):
    id: int


class Pair(NamedTuple):
    a: int
    b: str


class Color(Enum):
    RED = "red"


class Node(msgspec.Struct):
    name: str
    parts: list[Node] = []


def form(kind: object) -> OutputForm:
    found = form_of(kind)
    assert found is not None
    return found


def refused(kind: object, text: str) -> tuple[str, ...]:
    with pytest.raises(Unreadable) as caught:
        form(kind).read(text)
    return caught.value.problems


def test_a_text_output_has_no_form() -> None:
    assert form_of(str) is None


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Ticket, '{"title": "a", "severity": 2}', Ticket("a", 2)),
        (Ticket, '{"title": "a", "severity": 2, "due": "2026-01-02"}', None),
        (Point, '{"x": 1}', Point(1)),
        (Span, '{"first": 1, "last": 2}', Span(1, 2)),
        (Row, '{"id": 3}', {"id": 3}),
        (Pair, '[1, "b"]', Pair(1, "b")),
        (Color, '"red"', Color.RED),
        (int, "5", 5),
        (bool, "true", True),
        (None, "null", None),
        (list[Point], '[{"x": 1}]', [Point(1)]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Literal["a", "b"], '"b"', "b"),
        (Point | int, "4", 4),
        (Node, '{"name": "a", "parts": [{"name": "b"}]}', Node("a", [Node("b")])),
        (Annotated[str, motet.Length(2)], '"ab"', "ab"),
    ],
)
def test_types_of_many_kinds_are_read(kind: object, text: str, value: object) -> None:
    reading = form(kind).read(text)
    assert reading.value == (value or reading.value)
    assert form(kind).read(reading.text) == reading


@pytest.mark.parametrize("kind", [Ticket, Point, int, list[Point], Color, Node, Point | int])
def test_the_schema_for_a_model_is_always_an_object(kind: object) -> None:
    told = form(kind)
    assert told.schema["type"] == "object"
    assert told.wrapped == ("answer" in str(told.schema["properties"]))
    assert told.asked.name


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Point, '```json\n{"x": 1}\n```'),
        (Point, '"{\\"x\\": 1}"'),
        (Point, '{"x": "1"}'),
        (Point, '  {"x": 1, "why": "I think so"}\n'),
        (int, '{"answer": 1}'),
        (int, '"1"'),
        (Color, "red"),
        (Literal["a"], " a "),
        (Point | str, "just words"),
    ],
)
def test_near_misses_are_accepted(kind: object, text: str) -> None:
    assert form(kind).read(text).text


def test_all_errors_are_reported_at_once() -> None:
    assert [text.partition(":")[0] for text in refused(Ticket, '{"severity": 9, "due": "x"}')] == [
        "title",
        "severity",
        "due",
    ]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Ticket, '{"title": "a', "not valid JSON: Unterminated string"),
        (Ticket, "no idea", "not valid JSON"),
        (Ticket, "", "not valid JSON"),
        (Ticket, "[]", "the answer: [] is of type array"),
        (Ticket, "[" * 5_000, "not valid JSON"),
        (Span, '{"first": 2, "last": 1}', "the answer: the last one is before the first"),
        (Literal["a", "b"], "c", 'the answer: "c" is none of the values'),
        (Point | str, '{"x": ', "not valid JSON"),
        (list[Span], '[{"first": 2, "last": 1}]', "[0]: the last one is before the first"),
    ],
)
def test_an_unreadable_answer_says_why(kind: object, text: str, said: str) -> None:
    assert said in refused(kind, text)[0]


def test_a_type_without_a_schema_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"output_type .*OutputForm"):
        form_of(dict[str, type[OutputForm]])


def test_a_pydantic_model_validates_itself() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        item: str
        count: int = pydantic.Field(ge=1)

        @pydantic.field_validator("item")  # type: ignore[untyped-decorator]
        @classmethod
        def known(cls, item: str) -> str:
            if item == "nothing":
                raise ValueError("we do not sell nothing")
            return item

    read = form(Order).read('{"item": "tea", "count": "2"}')
    assert read.value == Order(item="tea", count=2)
    assert form(list[Order]).read(f"[{read.text}]").value == [read.value]
    assert form(Order).schema["required"] == ["item", "count"]
    problems = refused(Order, '{"item": "nothing", "count": 0}')
    assert "count: 0 is not at least 1" in problems[0]
    assert "we do not sell nothing" in problems[1]


TICKETS = st.builds(
    Ticket,
    st.text(),
    st.integers(1, 5),
    st.none() | st.dates(),
)


@given(TICKETS)
def test_a_value_that_was_written_is_the_value_that_is_read(ticket: Ticket) -> None:
    """Law: reading the JSON of a value gives that value, and its text gives it again."""
    reading = form(Ticket).read(msgspec.json.encode(ticket).decode())
    assert reading.value == ticket
    assert form(Ticket).read(reading.text) == reading


@given(
    st.sampled_from([Ticket, int, list[Point], Point | str, Node, Color, Pair]),
    st.text() | st.text(alphabet='{}[]",:ax1 \n`').map(lambda text: "{" + text),
)
def test_any_text_is_read_or_refused(kind: object, text: str) -> None:
    """Law: whatever a model says, there is a value or a list of problems, and no other error."""
    try:
        reading = form(kind).read(text)
    except Unreadable:
        return
    assert form(kind).read(reading.text) == reading
