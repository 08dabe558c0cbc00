"""Pages of lines and of items: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.actors.tools.results import (
    UNIT_LIMIT,
    InvalidLimit,
    InvalidOffset,
    is_array,
    page,
    units,
)

TEXTS = st.lists(
    st.sampled_from(["", "a", "é\n", "\r", "日本語" * 3000, "x" * UNIT_LIMIT, "\n", "\u2028", "🙂"])
    | st.text(max_size=20),
    max_size=12,
).map("".join)


def test_text_is_paged_by_lines() -> None:
    second = page(units("a\nb\nc", "text"), 1, 1)
    assert (second.text, second.returned, second.total, second.has_more) == ("b\n", 1, 3, True)


def test_an_array_is_paged_by_its_items_one_a_line() -> None:
    text = json.dumps([{"n": n, "t": "x\ny"} for n in range(1500)], indent=2)
    assert is_array(text)
    first, last = page(units(text, "json"), 0, 100, 50_000), page(units(text, "json"), 1450, 100)
    assert (first.returned, first.total, first.has_more) == (100, 1500, True)
    assert json.loads(first.text.splitlines()[99]) == {"n": 99, "t": "x\ny"}
    assert (last.returned, last.has_more) == (50, False)


def test_numbers_of_any_size_stay_as_they_were_written() -> None:
    assert units("[1e400, 12345678901234567890123, 1.10]", "json") == [
        "1e400\n", "12345678901234567890123\n", "1.10\n"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", "[1", "[1] x", " x", '"["', "[" * 5000])
def test_what_is_no_array_is_text(text: str) -> None:
    assert not is_array(text)


def test_the_end_is_an_empty_page_and_what_is_outside_is_refused() -> None:
    three = units("a\nb\nc", "text")
    assert page(three, 3).returned == 0
    assert page([], 0).total == 0
    for outside in (-1, 4):
        with pytest.raises(InvalidOffset, match="from 0 to 3"):
            page(three, outside)
    with pytest.raises(InvalidLimit):
        page(three, 0, 0)


@given(TEXTS, st.integers(1, 7), st.integers(UNIT_LIMIT, 3 * UNIT_LIMIT))
@example("é" * UNIT_LIMIT, 1, UNIT_LIMIT)
def test_pages_read_to_the_end_are_the_whole_text(text: str, limit: int, room: int) -> None:
    """Law: every page fits and makes progress, and the pages joined are the text."""
    pieces, read, offset = units(text, "text"), "", 0
    while offset < len(pieces):
        found = page(pieces, offset, limit, room)
        assert 1 <= found.returned <= limit
        assert len(found.text.encode()) <= room
        read, offset = read + found.text, found.next_offset
    assert read == text


@given(st.lists(st.text(max_size=30) | st.integers() | st.just("é" * UNIT_LIMIT), max_size=20))
def test_items_read_to_the_end_are_the_array(items: list[object]) -> None:
    """Law: the lines of an array's view are its items."""
    view = "".join(units(json.dumps(items), "json"))
    assert [json.loads(line) for line in view.split("\n")[:-1]] == items
