"""Arguments from raw text: repaired where the intent is clear, else refused with all problems."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.actors.tools.arguments import (
    ArgumentError,
    Arguments,
    ForeignArguments,
    from_schema,
    preview,
)
from motet.actors.tools.tool import Range, tool
from motet.protocols.chat import JsonObject
from motet.protocols.stable_json import shortened


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


def everything(
    unit: str,
    limit: Annotated[int, Range(1, 200)] = 50,
    ratio: float = 0.5,
    flag: bool = False,
    level: Literal["error", "info"] = "error",
    words: list[str] | None = None,
    point: Point | None = None,
    counts: dict[str, int] | None = None,
    either: int | str = 0,
    path: Path | None = None,
    anything: object = None,
) -> None:
    del unit, limit, ratio, flag, level, words, point, counts, either, path, anything


DESCRIBED = tool(everything).accepts
assert isinstance(DESCRIBED, Arguments)
ARGUMENTS = DESCRIBED
FOREIGN = from_schema(
    {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1},
            "size": {"type": ["number", "null"]},
            "mode": {"enum": ["fast", "slow"]},
            "names": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 3},
            "code": {"type": "string", "pattern": "^[a-z]+$"},
            "broken": {"type": "string", "pattern": "(?<n"},
            "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
            "exotic": {"oneOf": [{"type": "array"}, {"type": "array", "uniqueItems": True}]},
        },
        "required": ["count"],
    }
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FOREIGN_NAMES = ("count", "size", "mode", "names", "code", "broken", "options", "exotic")
NAMES = st.sampled_from([*ARGUMENTS.parameters, *FOREIGN_NAMES, "unti"])
CHECKS = st.sampled_from([ARGUMENTS, FOREIGN])


@pytest.mark.parametrize("text", ["", "  \n", "{}", "null", '"{}"', '""'])
def test_no_arguments_come_in_several_spellings(text: str) -> None:
    assert from_schema({}).parse(text) == {}


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"limit": "7"}, {"limit": 7}),
        ({"limit": 7.0}, {"limit": 7}),
        ({"flag": "true"}, {"flag": True}),
        ({"ratio": "0.25"}, {"ratio": 0.25}),
        ({"words": '["a", "b"]'}, {"words": ["a", "b"]}),
        ({"point": '{"x": "3"}'}, {"point": {"x": 3, "y": 0.0}}),
        ({"words": "null"}, {"words": None}),
        ({"either": "5"}, {"either": "5"}),
        ({"anything": '["a"]'}, {"anything": '["a"]'}),
    ],
)
def test_a_near_miss_is_repaired_and_a_valid_value_unchanged(
    sent: JsonObject, meant: JsonObject
) -> None:
    assert ARGUMENTS.parse(json.dumps({"unit": "u", **sent})) == {"unit": "u", **meant}


def test_an_object_quoted_as_a_string_is_unquoted() -> None:
    assert ARGUMENTS.parse(json.dumps(json.dumps({"unit": "u"}))) == {"unit": "u"}


def test_a_replacement_by_a_gate_is_not_repaired() -> None:
    with pytest.raises(ArgumentError, match="limit: Expected `int`, got `str`"):
        ARGUMENTS.check({"unit": "u", "limit": "7"}, strict=True)


def test_every_problem_is_named_at_once_with_what_was_expected() -> None:
    sent = '{"limti": 1, "limit": 500, "level": "warn", "words": ["a", 2], "point": {"x": "many"}}'
    with pytest.raises(ArgumentError) as caught:
        ARGUMENTS.parse(sent)
    assert caught.value.problems == (
        "unknown parameter 'limti'; did you mean 'limit'?",
        'missing parameter \'unit\'; expected {"type": "string"}',
        'limit: Expected `int` <= 200; expected {"type": "integer", "minimum": 1, "maximum": 200}',
        'level: Invalid enum value \'warn\'; expected {"enum": ["error", "info"]}',
        "words[1]: Expected `str`, got `int`; expected "
        '{"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}',
        "point.x: Expected `int`, got `str`; expected "
        '{"anyOf": [{"title": "Point", "type": "object", "properties": {"x": {"type": "integer"}, '
        '"y": {"type": "number", "default": 0.0}}, "required": ["x"]}, {"type": "null"}]}',
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"unit": "u"', "the text ends too early, after 12 characters"),
        ('{"unit" "u"}', "Expecting ':' delimiter at character 8, just before '\"u\"}'"),
        ("{'unit': 'u'}", "Expecting property name enclosed in double quotes at character 1"),
        ('{"unit": NaN}', "invalid character"),
        ('{"unit": 1e999}', "out of range"),
        ('{"unit": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "must be one JSON object, not a JSON array"),
        ("7", "must be one JSON object, not a JSON number"),
        ('"hello"', "Expecting value at character 0, just before 'hello'"),
    ],
)
def test_broken_json_is_reported_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        ARGUMENTS.parse(text)
    assert said in str(caught.value)


class Touchy(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        raise KeyError("touchy")


def test_an_exception_of_a_users_own_type_is_a_problem_of_the_argument() -> None:
    def take(touchy: Touchy) -> None: ...

    with pytest.raises(ArgumentError, match="touchy: 'touchy'"):
        tool(take).accepts.parse('{"touchy": {"x": 1}}')


class Asking(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        raise OSError("postgres://u:hunter2hunter2@h/db does not answer \ud800")


def test_the_text_of_a_check_of_the_tools_own_is_redacted() -> None:
    def take(asking: Asking) -> None: ...

    with pytest.raises(ArgumentError, match=r"asking: \[secret:database-url:.*does not") as caught:
        tool(take).accepts.parse('{"asking": {"x": 1}}')
    assert "hunter2" not in str(caught.value).encode().decode()


def test_a_foreign_schema_is_checked_and_near_misses_are_repaired() -> None:
    sent: JsonObject = {"count": "2", "size": None, "names": '["a"]', "options": {"deep": "true"}}
    accepted = FOREIGN.parse(json.dumps({**sent, "exotic": [1, 1], "broken": "(", "more": 1}))
    meant = {"count": 2, "size": None, "names": ["a"], "options": {"deep": True}}
    assert accepted == {**meant, "exotic": [1, 1], "broken": "(", "more": 1}
    with pytest.raises(ArgumentError, match=r"exotic: \[1\] fits more than one choice"):
        FOREIGN.parse('{"count": 1, "exotic": [1]}')
    with pytest.raises(ArgumentError) as caught:
        FOREIGN.parse(
            '{"count": 0, "mode": "medium", "names": ["", ""], "code": "A", "options": 1}'
        )
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "count",
        "mode",
        "names[0]",
        "names[1]",
        "code",
        "options",
    ]


def test_a_preview_is_never_refused() -> None:
    assert preview('{"text": "abcdef", "list": [1, 2, 3], "n": 5}', 3) == {
        "tex": "abc",
        "lis": "[1,",
        "n": 5,
    }
    assert preview("{broken", 3) == {"arguments": "{br"}
    deep = '{"a": ' + "[" * 900 + "]" * 900 + "}"
    assert preview(deep, 3) in ({"arguments": '{"a'}, {"a": "[[["})


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.booleans())
@example({"a": [1e15, 1e15]}, True)
def test_a_short_text_needs_no_cut_in_its_preview(value: JsonObject, dense: bool) -> None:
    """Law: a preview has the values of the text, each cut to the limit, also where the text is so
    short that nobody looks at them one by one."""
    text = json.dumps(value, ensure_ascii=dense, separators=(",", ":") if dense else None)
    try:
        read = msgspec.json.decode(text, type=JsonObject)
    except msgspec.DecodeError:  # half of a surrogate pair
        return
    limit = 8 * len(text)
    assert preview(text, limit) == shortened(read, limit) == read


@given(CHECKS, st.dictionaries(NAMES, JSON) | JSON)
def test_any_json_value_is_accepted_or_refused_as_an_argument_error(
    arguments: Arguments | ForeignArguments, value: object
) -> None:
    """Law: parse(any JSON text) returns an object or raises ArgumentError, nothing else."""
    with suppress(ArgumentError):
        arguments.parse(json.dumps(value))


@given(CHECKS, st.text(alphabet=st.characters(codec=None)))
def test_any_text_is_accepted_or_refused_as_an_argument_error(
    arguments: Arguments | ForeignArguments, text: str
) -> None:
    """Law: the same for any text, lone surrogates included."""
    with suppress(ArgumentError):
        arguments.parse(text)


@given(CHECKS, st.dictionaries(NAMES, JSON))
def test_checking_is_idempotent(arguments: Arguments, value: JsonObject) -> None:
    """Law: check(check(x)) = check(x), strictly too; and what was checked has Python values."""
    try:
        once = arguments.parse(json.dumps(value))
    except ArgumentError:
        return
    assert arguments.check(once) == once
    assert arguments.check(once, strict=True) == once
    arguments.typed(once)


SMALL = st.integers(-(2**63), 2**63 - 1)
VALID: dict[str, st.SearchStrategy[object]] = {
    "limit": st.integers(1, 200),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
    "level": st.sampled_from(["error", "info"]),
    "words": st.none() | st.lists(st.text()),
    "point": st.none() | st.fixed_dictionaries({"x": SMALL, "y": st.floats(0, 1)}),
    "counts": st.none() | st.dictionaries(st.text(), SMALL),
    "either": SMALL | st.text(),
}


@given(st.fixed_dictionaries({"unit": st.text()}, optional=VALID))
def test_valid_arguments_are_unchanged(value: JsonObject) -> None:
    """Law: parse(dumps(x)) = x for x that fits the schema."""
    assert ARGUMENTS.parse(json.dumps(value)) == value
