"""The one line a model sees of an error."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.describe import SUMMARY_LIMIT, error_code, summarize

CASES: dict[str, tuple[str, str]] = {
    "a hundred characters are not cut": ("a" * 100, "a" * 100),
    "one more is": ("a" * 101, "a" * 97 + "..."),
    "the newline at index 99 is no part of the line": ("a" * 99 + "\nrest", "a" * 99),
    "the limit counts the dots": ("a" * 150 + "\nrest", "a" * 97 + "..."),
    "a leading newline is skipped": ("\nreal message", "real message"),
    "so are blank lines, and spaces": ("\n \n  Traceback start\nmore", "Traceback start"),
    "a bare carriage return ends a line": ("line one\rline two", "line one"),
    "so do the separators of Unicode": ("line one\u2028line two", "line one"),
    "code points count, not bytes": ("é" * 60, "é" * 60),
    "NUL is taken out": ("nul\0 inside\0", "nul inside"),
    "a line of NULs is blank": ("\0\0\nreal", "real"),
    "a lone surrogate is replaced": ("bad \ud800 char", "bad \ufffd char"),
    "a pair of them is one character": ("\ud83d\ude00", "😀"),
    "nothing stays nothing": (" \n\t\r\n", ""),
}


@pytest.mark.parametrize(("text", "line"), CASES.values(), ids=CASES.keys())
def test_a_text_is_summed_up_by_its_first_line(text: str, line: str) -> None:
    assert summarize(text) == line


@given(st.text(st.characters(exclude_categories=())))
def test_a_summary_is_short_and_one_line_and_its_own_summary(text: str) -> None:
    """Law: len <= 100, one line, UTF-8, and summary(summary(x)) == summary(x)."""
    line = summarize(text)
    assert len(line) <= SUMMARY_LIMIT
    assert len(line.splitlines()) <= 1
    assert line.encode().decode() == line.strip() == line
    assert summarize(line) == line


@given(st.text(min_size=1), st.text())
def test_a_summary_with_a_code_obeys_the_same_laws(code: str, text: str) -> None:
    """Law: the prefix counts; whatever the code is, the summary is at most one line of 100."""
    line = summarize({"code": code, "message": text})
    assert len(line) <= SUMMARY_LIMIT
    assert len(line.splitlines()) <= 1
    assert summarize(line) == line


def test_the_code_of_an_error_object_stands_in_front() -> None:
    nested = {"success": False, "error": {"code": "SQL_ERROR", "message": "Syntax error\nQuery"}}
    assert summarize(nested) == "Code SQL_ERROR: Syntax error"
    assert summarize({"code": "SQL_ERROR", "message": "Syntax error"}, "E7").startswith("Code E7: ")
    assert summarize({"code": 42, "message": "m" * 100}) == "Code 42: " + "m" * 88 + "..."


def test_an_object_without_a_message_is_shown_as_json() -> None:
    assert summarize({"reason": "gone", "n": 1}) == '{"reason":"gone","n":1}'
    assert summarize({"error": "no disk"}) == "no disk"
    assert summarize({}) == summarize(None) == ""


def test_an_exception_without_text_is_summed_up_by_its_class() -> None:
    assert summarize(trio.TooSlowError()) == "trio.TooSlowError"
    assert summarize(PermissionError()) == "PermissionError"
    assert summarize(KeyError("name")) == "KeyError: 'name'"


def test_a_group_of_one_is_the_error_in_it_and_a_larger_one_names_all() -> None:
    one = ExceptionGroup("nursery", [ExceptionGroup("inner", [OSError("disk gone\nat 7")])])
    two = ExceptionGroup("nursery", [OSError("disk gone\nat 7"), ValueError("bad")])
    assert summarize(one) == "disk gone"
    assert summarize(two) == "disk gone; bad"


def test_an_exception_that_cannot_be_read_is_summed_up_all_the_same() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert summarize(Unreadable()).startswith(f"<{Unreadable.__module__}.")


def test_only_texts_and_integers_are_codes() -> None:
    assert error_code({"code": 7}) == "7"
    assert error_code({"code": True}) == error_code({"code": ["x"]}) == error_code("text") == ""
