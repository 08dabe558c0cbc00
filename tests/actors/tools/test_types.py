"""The types of arguments: each has a schema, is accepted, and reaches the function."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, cast
from uuid import UUID

import annotated_types
import attrs
import jsonschema  # type: ignore[import-untyped]
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.agents.output import form_of
from motet.actors.tools.arguments import ArgumentError, Arguments, from_schema
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject
from tests.actors.tools.stage import CONTEXT


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclass
class Box:
    corner: Point
    size: int = 1
    tags: list[str] = field(default_factory=list[str])


@attrs.frozen
class Crate:
    name: str
    boxes: tuple[Box, ...] = ()


class Options(TypedDict):
    deep: bool
    depth: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str


class Address(pydantic.BaseModel):
    street: str = pydantic.Field(min_length=1)
    zip: int = pydantic.Field(ge=1000, le=99999, alias="zipCode")


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None
    homes: list[Address] = []
    friends: list[Person] = []


SENT: list[tuple[object, object, object]] = [
    (Color, "red", Color.RED),
    (Literal["a", 1], 1, 1),
    (Point, {"x": 1}, Point(1)),
    (Box, {"corner": {"x": 1}, "tags": ["t"]}, Box(Point(1), 1, ["t"])),
    (
        Crate,
        {"name": "c", "boxes": [{"corner": {"x": 2}}]},
        Crate("c", (Box(Point(2)),)),
    ),
    (Options, {"deep": True}, {"deep": True}),
    (Pair, [1, "r"], Pair(1, "r")),
    (tuple[int, str], [1, "r"], (1, "r")),
    (set[int], [1, 2], {1, 2}),
    (dict[str, list[Point]], {"a": [{"x": 1}]}, {"a": [Point(1)]}),
    (dict[int, str], {"7": "a"}, {7: "a"}),
    (int | str | None, None, None),
    (date, "2026-11-21", date(2026, 11, 21)),
    (datetime, "2026-11-21T07:05:01", datetime(2026, 11, 21, 7, 5, 1)),
    (timedelta, "PT5M", timedelta(minutes=5)),
    (bytes, "aGk=", b"hi"),
    (Decimal, "1.10", Decimal("1.10")),
    (UUID, "12345678123456781234567812345678", UUID(int=0x12345678123456781234567812345678)),
    (Path, "a/b", Path("a/b")),
    (list[Path], ["a"], [Path("a")]),
    (object, {"any": [1]}, {"any": [1]}),
    (Any, [None], [None]),
    (Address, {"street": "s", "zipCode": 1234}, Address(street="s", zipCode=1234)),
    (Address | None, None, None),
    (
        list[Person],
        [{"name": "p", "born": "2000-01-02", "friends": [{"name": "q"}]}],
        [Person(name="p", born=date(2000, 1, 2), friends=[Person(name="q")])],
    ),
    (Annotated[int, pydantic.Field(ge=1, description="a number")], 3, 3),
    (Annotated[str, annotated_types.Len(1, 3), "a word"], "abc", "abc"),
]


def tool_of(kind: object) -> tuple[Tool, list[object]]:
    """A tool with one parameter of this type, and the list of its calls."""
    seen: list[object] = []

    async def take(value: object) -> None:
        seen.append(value)

    take.__annotations__["value"] = kind
    return tool(take), seen


@pytest.mark.parametrize(("kind", "sent", "meant"), SENT, ids=[str(one[0])[-40:] for one in SENT])
async def test_a_value_fits_its_schema_and_arrives_as_its_type(
    kind: object, sent: object, meant: object
) -> None:
    made, seen = tool_of(kind)
    jsonschema.Draft202012Validator.check_schema(made.parameters)
    jsonschema.validate({"value": sent}, made.parameters)
    args = made.accepts.parse(json.dumps({"value": sent}))
    assert made.accepts.check(args, strict=True) == args
    await made.run(CONTEXT, args)
    assert seen == [meant]
    assert type(seen[0]) is type(meant)


@pytest.mark.parametrize(("kind", "sent", "meant"), SENT, ids=[str(one[0])[-40:] for one in SENT])
def test_accepted_arguments_are_json_and_a_quoted_container_is_unquoted(
    kind: object, sent: object, meant: object
) -> None:
    del meant
    accepts = tool_of(kind)[0].accepts
    args = accepts.parse(json.dumps({"value": sent}))
    assert json.loads(json.dumps(args)) == args
    if isinstance(sent, dict | list) and kind is not object and kind is not Any:
        assert accepts.parse(json.dumps({"value": json.dumps(sent)})) == args


def test_all_problems_of_a_pydantic_model_are_reported_at_once() -> None:
    accepts = tool_of(list[Person])[0].accepts
    wrong = [{"name": 1, "born": "never", "homes": [{"street": "", "zipCode": 7}]}]
    with pytest.raises(ArgumentError) as caught:
        accepts.parse(json.dumps({"value": wrong}))
    places = [problem.split(":")[0] for problem in caught.value.problems]
    assert places == [
        "value[0].name",
        "value[0].born",
        "value[0].homes[0].street",
        "value[0].homes[0].zipCode",
    ]
    assert "; expected {" in caught.value.problems[-1]
    assert "pydantic.dev" not in str(caught.value)


def test_constraints_of_other_libraries_are_described_and_checked() -> None:
    async def take(
        count: Annotated[int, annotated_types.Interval(ge=1, lt=9)],
        words: list[Annotated[str, pydantic.Field(max_length=3, pattern="^[a-z]+$")]],
        note: Annotated[str, "what it is for"] | None = None,
    ) -> None:
        del count, words, note

    made = tool(take)
    properties = made.parameters["properties"]
    assert properties == {
        "count": {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        "words": {
            "type": "array",
            "items": {"type": "string", "maxLength": 3, "pattern": "^[a-z]+$"},
        },
        "note": {
            "anyOf": [{"type": "string", "description": "what it is for"}, {"type": "null"}],
            "default": None,
        },
    }
    with pytest.raises(ArgumentError) as caught:
        made.accepts.parse('{"count": 9, "words": ["abcd"]}')
    assert len(caught.value.problems) == 2


def test_a_field_as_a_default_is_refused_with_a_remedy() -> None:
    async def take(count: int = pydantic.Field(5, ge=1)) -> None:
        del count

    with pytest.raises(TypeError, match=r"parameter 'count': put Field\(\.\.\.\) into Annotated"):
        tool(take)


@dataclass
class Votes:
    by_answer: dict[bool, int]


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (dict[bool, int], "bool"),
        (dict[None, str], "none"),
        (dict[Annotated[bool, "yes"], int], "bool"),
        (list[dict[str, dict[tuple[int, int], str]]], "tuple"),
        (Votes | None, "bool"),
    ],
)
def test_a_dict_whose_keys_no_text_can_be_is_refused_where_it_is_declared(
    hint: Any, kind: str
) -> None:
    async def take(votes: Any) -> str:
        return str(votes)

    async def give() -> Any: ...

    take.__annotations__["votes"] = hint
    give.__annotations__["return"] = hint
    wrong = rf"a dict with keys of type {kind}; .*use str, or a list of pairs"
    with pytest.raises(TypeError, match=rf"tool take: parameter 'votes' .*{wrong}"):
        tool(take)
    with pytest.raises(TypeError, match=rf"tool give: it returns {wrong}"):
        tool(give)
    with pytest.raises(TypeError, match=rf"output_type .*{wrong}"):
        form_of(hint)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        (int, "1", 1),
        (float, "1.5", 1.5),
        (Color, "red", Color.RED),
        (date, "2026-11-27", date(2026, 11, 27)),
        (int | None, "3", 3),
        (str | bool, "true", "true"),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_a_dict_whose_keys_texts_can_be_is_read(key: Any, text: str, value: object) -> None:
    async def take(votes: Any) -> Any:
        return votes

    take.__annotations__["votes"] = take.__annotations__["return"] = dict[key, int]
    made = tool(take)
    accepts = cast(Arguments, made.accepts)
    typed = accepts.typed(accepts.parse(json.dumps({"votes": {text: 4}})))
    assert typed == {"votes": {value: 4}}


class Counter:
    """A thing that can be called."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, by: int = 1) -> int:
        """Count on.

        Args:
            by: how far.
        """
        self.count += by
        return self.count

    def plain(self, by: int) -> int:
        return self.count - by


async def read(path: str, *, root: Path) -> str:
    """Read a file."""
    return str(root / path)


@pytest.mark.parametrize(
    ("fn", "args", "name", "result"),
    [
        (Counter(), {"by": 2}, "Counter", 2),
        (Counter().plain, {"by": 2}, "plain", -2),
        (partial(read, root=Path("/srv")), {"path": "a"}, "read", "/srv/a"),
    ],
)
async def test_methods_partials_and_objects_are_functions_too(
    fn: Callable[..., object], args: JsonObject, name: str, result: object
) -> None:
    made = tool(fn)
    assert made.name == name
    properties = cast("Mapping[str, object]", made.parameters["properties"])
    assert list(properties) == list(args)
    assert await made.run(CONTEXT, args) == result


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MADE = {str(kind): tool_of(kind)[0] for kind, _, _ in SENT}
KINDS = st.sampled_from(sorted(MADE))
LIKELY = st.sampled_from([sent for _, sent, _ in SENT]) | JSON


@given(KINDS, LIKELY)
def test_a_schema_accepts_what_was_accepted(kind: str, value: object) -> None:
    """Law: arguments that passed the check are valid by the schema for the model."""
    made = MADE[kind]
    with suppress(ArgumentError):
        args = made.accepts.parse(json.dumps({"value": value}))
        jsonschema.validate(args, made.parameters)
        from_schema(made.parameters).check(args, strict=True)
        assert made.accepts.check(args, strict=True) == args
        assert isinstance(made.accepts, Arguments)
        made.accepts.typed(args)


def test_all_problems_of_one_argument_are_reported_at_once() -> None:
    accepts = tool_of(Box)[0].accepts
    wrong: JsonObject = {"corner": {"x": "many", "y": []}, "size": 1.5, "tags": ["a", 2]}
    with pytest.raises(ArgumentError) as caught:
        accepts.check({"value": wrong})
    places = [problem.split(":")[0] for problem in caught.value.problems]
    assert places == ["value.corner.x", "value.corner.y", "value.size", "value.tags[1]"]
