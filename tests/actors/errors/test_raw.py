"""Anything that went wrong as a JSON object."""

from __future__ import annotations

import math
import tracemalloc
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.describe import DEPTH_LIMIT, serialize_error, to_json_types

any_text = st.text(st.characters(exclude_categories=()))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(any_text | st.integers(), inner),
    max_leaves=20,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(values)
def test_every_value_becomes_an_object_that_strict_json_takes(value: object) -> None:
    """Law: the result survives a strict encoder and decoder unchanged."""
    made = serialize_error(value)
    assert msgspec.json.decode(msgspec.json.encode(made)) == made


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_an_object_stays_as_it_is(value: dict[str, object]) -> None:
    """Law: raw_error(x) == x for a JSON object."""
    assert serialize_error(value) == value


@given(any_text.filter(lambda text: not text.lstrip().startswith("{")))
def test_a_text_is_wrapped_once(text: str) -> None:
    """Law: the only key is the message, and it is the text itself, control characters included."""
    made = serialize_error(text)
    assert list(made) == ["message"]
    if text.isascii():
        assert made == {"message": text}


@pytest.mark.parametrize("text", ["nul\0", "vt\x0b", "\x1b[31mred\x1b[0m", '"x"', "", "{not json"])
def test_what_is_no_object_is_a_message(text: str) -> None:
    assert serialize_error(text) == {"message": text}


def test_a_text_that_is_a_json_object_is_that_object() -> None:
    assert serialize_error(' {"code": 7, "message": "boom"}') == {"code": 7, "message": "boom"}
    assert serialize_error('{"n": NaN}') == {"message": '{"n": NaN}'}
    assert serialize_error("{" * 5_000) == {"message": "{" * 5_000}


def test_an_exception_keeps_type_causes_and_traceback() -> None:
    def fail() -> None:
        try:
            raise OSError("disk gone")
        except OSError as error:
            raise ValueError("cannot save") from error

    with pytest.raises(ValueError, match="cannot save") as caught:
        fail()
    made = serialize_error(caught.value, "E7")
    assert made["code"] == "E7"
    assert (made["message"], made["type"]) == ("cannot save", "ValueError")
    assert made["causes"] == [{"message": "disk gone", "type": "OSError"}]
    assert "in fail" in cast("str", made["traceback"])


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_huge_message_is_not_copied_into_the_traceback(letter: str) -> None:
    message = (letter * 79 + "\n") * 12_500
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(message) from OSError(message)
    tracemalloc.start()
    try:
        made = serialize_error(caught.value)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made["message"] == message
    assert made["causes"] == [{"message": message, "type": "OSError"}]
    assert cast("str", made["traceback"]).endswith("...\n")
    assert kept < 100_000, "the message is the exception's own, and not copied"


def test_a_group_lists_its_errors_and_a_group_of_one_is_opened() -> None:
    two = serialize_error(ExceptionGroup("several", [OSError("a"), ValueError("b")]))
    assert [e["message"] for e in cast("list[dict[str, str]]", two["errors"])] == ["a", "b"]
    assert serialize_error(ExceptionGroup("one", [OSError("a")]))["type"] == "OSError"


def test_a_chain_of_causes_may_be_cyclic() -> None:
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert serialize_error(first)["causes"] == [{"message": "second", "type": "OSError"}]


def test_what_json_cannot_hold_is_text() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no")

    made = to_json_types(
        {"nan": math.nan, "bytes": b"\xff!", "big": 1 << 5_000, 3: Silent(), "set": {1}}
    )
    assert made == {
        "nan": "nan",
        "bytes": "\ufffd!",
        "big": "<integer of 5001 bits>",
        "3": f"<{Silent.__module__}.{Silent.__qualname__} without text>",
        "set": [1],
    }


def test_cyclic_and_explosive_values_end() -> None:
    cyclic: list[object] = []
    cyclic.append(cyclic)
    assert "<cut>" in msgspec.json.encode(to_json_types(cyclic)).decode()
    explosive: object = "x"
    for _ in range(DEPTH_LIMIT - 1):
        explosive = [explosive, explosive]
    assert len(msgspec.json.encode(to_json_types(explosive))) < 2_000_000
