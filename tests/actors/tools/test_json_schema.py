"""All problems of a JSON value, in one list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.json_schema import problems
from motet.protocols.chat import JsonObject

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
        "steps",
        "steps[1]",
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
