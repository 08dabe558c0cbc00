"""The text of a failed call for the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.classify import (
    FAILURE_LIMIT,
    FALLBACK_LIMIT,
    NO_TEXT,
    failure_text,
    fallback_text,
    result_text,
)

ID = "err_20241121_230334_abc123"


def test_a_stored_error_is_three_lines() -> None:
    assert failure_text("X", "boom", ID) == (
        f"Tool 'X' failed: boom\n[Error ID: {ID}]\n"
        f'📋 Use get_error_detail("{ID}") for complete error information'
    )
    assert len(failure_text("teradata_execute_sql", "s" * 100, ID)) == 259


@given(st.text(max_size=80), st.text(max_size=200))
def test_three_lines_and_at_most_300_code_points(tool: str, summary: str) -> None:
    """Law: whatever tool and summary are, the text has three lines and is within its limit."""
    text = failure_text(tool, summary, ID)
    assert len(text) <= FAILURE_LIMIT
    assert len(text.splitlines()) == 3


def test_a_short_error_is_shown_whole_with_its_lines() -> None:
    assert fallback_text("boom\ntrace") == "Error: boom\ntrace"
    assert fallback_text("...", "ERROR_NOT_FOUND") == "Tool error: ERROR_NOT_FOUND - ..."


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_error_without_text_says_so(text: str) -> None:
    assert fallback_text(text) == NO_TEXT == "Tool execution failed"


def test_one_long_line_is_cut_hard_and_the_rest_is_counted() -> None:
    text = fallback_text("x" * 501)
    kept, mark = text.split("...")
    assert len(text) <= FALLBACK_LIMIT
    assert mark == f" [truncated {501 - kept.count('x')} chars]"


def test_an_early_newline_is_no_place_to_cut() -> None:
    text = fallback_text("short head\n" + "y" * 600)
    assert text.startswith("Error: short head\nyyy")
    assert len(text) > 450


def test_the_last_newline_of_the_second_half_is() -> None:
    text = fallback_text("a" * 200 + "\n" + "b" * 150 + "\n" + "c" * 300)
    assert text.endswith("b... [truncated 301 chars]")


@given(st.text(), st.integers(0, 40), st.text(max_size=100))
def test_a_fallback_is_within_500_and_says_what_is_missing(
    text: str, times: int, code: str
) -> None:
    """Law: at most 500 code points; what is not marked as cut is whole."""
    shown = fallback_text(text * times, code)
    assert len(shown) <= FALLBACK_LIMIT
    if "[truncated" not in shown and (text * times).strip():
        assert shown.endswith(text * times)


def test_a_success_is_json_in_the_order_it_was_given() -> None:
    assert result_text({"b": 1, "a": [None, "x"]}) == '{"b": 1, "a": [null, "x"]}'
    assert result_text("as it is") == "as it is"
    assert result_text(object()).startswith("[unserializable result")
    assert result_text([float("nan")]) == "[null]"
