"""All problems of a JSON value, in one list."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.chat import JsonObject
from motet.protocols.errors import SchemaError
from motet.protocols.json_schema import compiled, problems

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TICKET: JsonObject = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 3},
        "severity": {"type": "integer", "minimum": 1, "maximum": 5},
        "kind": {"enum": ["bug", "wish"]},
        "due": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "steps": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["title", "severity"],
    "additionalProperties": False,
}
WRONG: JsonObject = {
    "title": "ab",
    "kind": "bog",
    "due": "soon",
    "steps": ["a", 2, "c"],
    "sverity": 1,
}


def test_all_problems_have_their_paths() -> None:
    found = problems(WRONG, TICKET)
    assert [problem.partition(":")[0] for problem in found] == [
        "severity",
        "title",
        "kind",
        "due",
        "steps[1]",
        "steps",
        "sverity",
    ]
    assert found[0] == (
        'severity: is missing; expected {"type": "integer", "minimum": 1, "maximum": 5}'
    )
    assert found[-1] == "sverity: there is no such name; did you mean 'severity'?"


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        ([], {"type": "object"}, "the answer: [] is of type array"),
        (None, {"type": "string"}, "the answer: null is of type null"),
        (True, {"type": "integer"}, "the answer: true is of type boolean"),
        (1, {"enum": [True]}, "the answer: 1 is none of the values"),
        (3, {"const": 4}, "the answer: 3 is none of the values"),
        (4, {"type": ["string", "null"]}, "the answer: 4 is of type integer"),
        (5.5, {"type": "number", "exclusiveMaximum": 5}, "the answer: 5.5 is not below 5"),
        ("x", {"type": "string", "pattern": "^a"}, 'the answer: "x" does not match'),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, "a: 1 is of type integer"),
        ([1, "b"], {"prefixItems": [{"type": "null"}, {}]}, "[0]: 1 is of type integer"),
        ({"a": {}}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "the answer: "),
        ("x", {"allOf": [{"type": "string"}, {"minLength": 2}]}, "the answer: it has 1 characters"),
    ],
)
def test_each_keyword_of_a_schema_is_checked(value: object, schema: JsonObject, said: str) -> None:
    (found,) = problems(value, schema)
    assert found.startswith(said)


def test_the_problems_are_those_of_the_nearest_choice() -> None:
    bug: JsonObject = {
        "type": "object",
        "properties": {"type": {"enum": ["bug"]}, "at": {"type": "string"}},
        "required": ["type", "at"],
    }
    wish: JsonObject = {
        "type": "object",
        "properties": {"type": {"enum": ["wish"]}, "who": {"type": "string"}},
        "required": ["type", "who"],
    }
    assert problems({"type": "wish"}, {"anyOf": [bug, wish]}) == (
        'who: is missing; expected {"type": "string"}',
    )


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("5", {"type": "integer"}),
        ("true", {"type": "boolean"}),
        ("1", {"enum": [1, 2]}),
        (2, {"type": "number"}),
        (2, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ("anything", {}),
        ("(", {"type": "string", "pattern": "("}),
        ("x", {"$ref": "#/$defs/missing"}),
    ],
)
def test_values_that_would_be_repaired_and_unknown_keywords_are_no_problems(
    value: object, schema: JsonObject
) -> None:
    assert problems(value, schema) == ()


def test_a_schema_that_refers_to_itself_is_followed() -> None:
    tree: JsonObject = {
        "$ref": "#/$defs/Tree",
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "parts": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                },
                "required": ["name"],
            },
            "Self": {"$ref": "#/$defs/Self"},
        },
    }
    value = {"name": "a", "parts": [{"name": "b", "parts": [{"name": 1}]}]}
    assert problems(value, tree) == (
        'parts[0].parts[0].name: 1 is of type integer; expected {"type": "string"}',
    )
    assert problems(value, {**tree, "$ref": "#/$defs/Self"}) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_any_value_is_checked_without_an_error(value: object) -> None:
    """Law: each problem is one line of text, whatever the value is."""
    for problem in problems(value, {"properties": {"due": TICKET}, **TICKET}):
        assert problem
        assert "\n" not in problem


def chain(count: int, word: str, last: JsonObject) -> JsonObject:
    """A schema whose ends double with each of its definitions."""
    links = {f"a{n}": {word: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{count}": last}}


NAMES_THAT_BACKTRACK: JsonObject = {"^(a+)+$": True}
LONG_NAME = {"a" * 40 + "b": 1}
BOMBS: list[tuple[JsonObject, object]] = [
    ({"pattern": "^(a+)+$"}, "a" * 40 + "b"),
    ({"propertyNames": {"pattern": "^(a+)+$"}}, LONG_NAME),
    ({"patternProperties": NAMES_THAT_BACKTRACK, "additionalProperties": False}, LONG_NAME),
    ({"patternProperties": NAMES_THAT_BACKTRACK, "unevaluatedProperties": False}, LONG_NAME),
    (chain(40, "allOf", {"type": "integer"}), 1),
    (chain(40, "anyOf", {"type": "integer"}), "x"),
    ({**chain(25, "anyOf", {"properties": {"b": True}}), "unevaluatedProperties": False}, {"a": 1}),
    ({**chain(25, "allOf", {"prefixItems": [True]}), "unevaluatedItems": False}, [1, 2]),
    (chain(300, "allOf", {"type": "integer"}), 1),
    ({"$ref": "#", "unevaluatedProperties": False}, {"a": 1}),
    ({"allOf": [{"$ref": "#"}] * 30}, 1),
    ({"not": {"$ref": "#"}}, 1),
    ({"$dynamicAnchor": "x", "allOf": [{"$dynamicRef": "#x"}]}, {"a": 1}),
    ({"uniqueItems": True}, [{"a": number} for number in range(2_000)]),
    ({"prefixItems": [True], "unevaluatedItems": {"type": "integer"}}, list(range(5_000))),
    ({"items": {f"k{number}": 1 for number in range(10_000)}}, list(range(2_000))),
    ({"items": {"oneOf": [True, {"title": "x" * 100_000}]}}, list(range(2_000))),
    ({"enum": [str(number) for number in range(10_000)]}, "x"),
    ({"multipleOf": 0.1}, 10**400),
    ({"format": "email"}, "a@" * 20_000),
    ({"$id": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a+)+$"}, "a" * 40 + "b"),
]


@pytest.mark.parametrize(("schema", "value"), BOMBS)
def test_a_check_of_a_hostile_schema_takes_a_bounded_number_of_steps(
    schema: JsonObject, value: object
) -> None:
    """Each of these would take the library hours, or end it with an exception."""
    found, problems = compiled(schema).read(value)
    assert found is value or problems
    assert all(len(line) < 2_000 for line in problems)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "must be an object, not of type null"),
        ({"type": "strin"}, "at type: "),
        ({"properties": {"a": {"required": "b"}}}, "at properties.a.required"),
        ({"$ref": "https://schemas.example/x.json"}, "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
        ({"$ref": "other.json#/a"}, "nothing is fetched"),
        ({"$ref": "#/$defs/missing"}, "leads to nothing in it"),
        ({"$schema": "https://schemas.example/dialect"}, "its dialect is not known"),
        ({"minimum": float("nan")}, "it cannot be read"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "$ref": 5}, "$ref must be a text"),
        ({"title": "x" * 300_000}, "larger than 128 KiB"),
        ({"enum": [{"a": number} for number in range(2_000)]}, "unlike items"),
        ({"$ref": "#/const", "const": {"$schema": DRAFT, "pattern": "^(a+)+$"}}, "dialect of its"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema: object, why: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(why)):
        compiled(schema)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    for depth in (61, 5_000):
        schema: JsonObject = {}
        for _ in range(depth):
            schema = {"not": schema}
        with pytest.raises(SchemaError, match="nested"):
            compiled(schema)


def test_a_schema_of_an_older_dialect_is_read_as_that() -> None:
    older: list[JsonObject] = [
        {"minimum": 1, "exclusiveMinimum": True},
        {"$schema": "http://json-schema.org/draft-07/schema#", "exclusiveMinimum": 1},
        {"$schema": "https://json-schema.org/draft-07/schema", "exclusiveMinimum": 1},
    ]
    assert all(
        compiled(schema).problems(1) and not compiled(schema).problems(2) for schema in older
    )
    assert compiled({"items": [{"type": "string"}]}).problems([1])


def test_a_reference_that_leads_back_is_followed_to_the_end_of_the_value() -> None:
    deep: JsonObject = {"type": "array", "items": {"$ref": "#"}}
    value: object = 5
    for _ in range(30):
        value = [value]
    assert compiled(deep).problems(value) == (
        f'{"[0]" * 30}: 5 is of type integer; expected {{"type": "array", "items": '
        '{"$ref": "#"}}',
    )


def test_only_a_few_problems_are_told() -> None:
    problems = compiled({"items": {"type": "string"}}).problems(list(range(1_000)))
    assert len(problems) == 11
    assert problems[-1] == "and there are more problems"


@given(JSON, JSON)
def test_any_value_is_a_schema_or_is_refused(schema: object, value: object) -> None:
    """Law: no schema and no value raise anything but ``SchemaError``, and only the schema does."""
    wanted = {"properties": schema, "items": schema, "anyOf": [schema], "enum": schema}
    for word, part in wanted.items():
        with suppress(SchemaError):
            check = compiled({word: part})
            check.read(value)
            check.read([value, {"a": value}])


def test_the_library_is_not_imported_before_its_first_use() -> None:
    program = "import sys, motet.actors.host, motet.cli.app; print('jsonschema' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"
