"""One text for equal arguments, another for different ones."""

from __future__ import annotations

import json
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.stable_json import call_key, canonical, stable_json

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text(max_size=5)
keys = st.text(max_size=3)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e-7, "1.5e-7"),
        (1e-5, "0.00001"),
        (2**70, "1180591620717411303424"),
        (nan, "NaN"),
        ("<a & b>", '"\\u003ca \\u0026 b\\u003e"'),
        ({"é": 1, "a": [None, True]}, '{"a":[null,true],"é":1}'),
    ],
)
def test_each_value_has_the_text_that_other_languages_give_it(value: object, text: str) -> None:
    assert stable_json(value) == text


@given(values)
def test_the_text_means_the_value(value: object) -> None:
    """Law: decoding gives an equal value back."""
    assert json.loads(stable_json(value)) == value


@given(st.dictionaries(keys, values, max_size=4))
def test_order_and_spaces_make_no_difference(fields: dict[str, object]) -> None:
    """Law: whatever the order of keys and the layout, the text is one."""
    turned = dict(reversed(fields.items()))
    assert canonical(json.dumps(fields, indent=1)) == canonical(json.dumps(turned))


@given(st.text(max_size=30))
def test_text_that_is_not_json_is_compared_as_it_is(text: str) -> None:
    """Law: canonical text never fails, and what is broken is only equal to itself."""
    made = canonical(text)
    try:
        json.loads(text or "{}")
    except ValueError:
        assert made == text
    assert len(call_key("look", text)) == 32


def test_the_last_of_two_equal_keys_counts_as_it_does_for_the_tool() -> None:
    assert canonical('{"a": 1, "a": 2}') == '{"a":2}'


def test_half_a_character_and_too_deep_a_nest_are_arguments_too() -> None:
    deep = "[" * 100_000
    assert canonical(deep) == deep
    assert call_key("look", '"\\ud800"') != call_key("look", '"\\ud801"')


def test_no_arguments_are_the_empty_object_and_tools_are_told_apart() -> None:
    assert call_key("look", "") == call_key("look", " {} ") != call_key("find", "{}")
