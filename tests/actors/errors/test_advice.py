"""Advice comes with the second failure of the same call."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.classify import RepeatedCalls, advice, canonical

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_the_same_failing_call_twice_in_a_row_is_advised_against() -> None:
    calls, first = RepeatedCalls().failed("t", '{"a": 1, "b": 2}')
    calls, second = calls.failed("t", '{"b":2,"a":1}')
    _, third = calls.failed("t", '{"a":1,"b":2}')
    assert first == ""
    assert "failed 2 times in a row" in second
    assert "failed 3 times in a row" in third


def test_other_arguments_or_a_success_start_afresh() -> None:
    calls, _ = RepeatedCalls().failed("t", '{"a": 1}')
    assert calls.failed("t", '{"a": 2}')[1] == ""
    assert calls.succeeded("t").failed("t", '{"a": 1}')[1] == ""


def test_calls_of_other_tools_in_between_hide_nothing() -> None:
    calls, _ = RepeatedCalls().failed("t", "{}")
    calls, other = calls.succeeded("u").failed("u", "{}")
    assert other == ""
    assert calls.failed("t", "{}")[1] == advice(2)


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    calls, _ = RepeatedCalls().failed("t", '{"a": \ud800')
    assert calls.failed("t", '{"a": \ud800')[1] == advice(2)
    assert canonical("{'a'") == "{'a'"


@given(JSON)
def test_two_spellings_of_the_same_arguments_are_one(value: object) -> None:
    """Law: neither spaces nor the order of keys matter, and canonical text is its own."""
    spelled = json.dumps(value, indent=2, sort_keys=True)
    other = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert canonical(spelled) == canonical(other)
    assert canonical(canonical(spelled)) == canonical(spelled)
    assert json.loads(canonical(spelled)) == value
