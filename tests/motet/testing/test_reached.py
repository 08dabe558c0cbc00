"""States that must be reached: by name, by condition, by the source of a test."""

from __future__ import annotations

import pytest

from motet import testing as mt
from motet.testing.reached import book_of, named_in

look = mt.sometimes  # by another name, or the plugin would wait for what these tests name


def test_a_state_that_is_reached_once_is_enough() -> None:
    with book_of():
        for number in range(5):
            assert look(number == 3, "three") == (number == 3)
        mt.assert_reached("three")


def test_a_state_that_was_never_reached_fails_and_is_named() -> None:
    with book_of():
        for number in range(5):
            look(number == 7, "seven")
            look(number > 2, "more than two")
        with pytest.raises(mt.NeverReached, match="10 times:\n  seven\n") as raised:
            mt.assert_reached()
        assert raised.value.names == ("seven",)
        mt.assert_reached()  # what was told is forgotten


def test_a_condition_without_a_name_is_called_by_its_line() -> None:
    with book_of():
        look(1 > 2)
        with pytest.raises(mt.NeverReached, match=r"look\(1 > 2\)"):
            mt.assert_reached()


def looks_nowhere() -> None:
    if len("never") == 0:
        mt.sometimes("this line")
        mt.sometimes(True, name="by word")


def test_a_line_that_never_runs_is_known_from_the_source() -> None:
    assert named_in(looks_nowhere) == ("this line", "by word")
    with book_of(looks_nowhere) as book:
        looks_nowhere()
        assert len(book.missing) == 2
        look("this line")
        assert "this line" not in book.missing


def test_a_function_without_source_names_no_states() -> None:
    assert named_in(len) == ()


def test_two_tests_have_separate_books() -> None:
    with book_of() as outer:
        look(False, "outer")
        with book_of() as inner:
            look(True, "inner")
        assert (outer.missing, inner.missing) == (("outer",), ())
