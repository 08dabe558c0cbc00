"""Kinds of errors, their blocks, the advice on repeated failures, and the texts of failed calls."""

from __future__ import annotations

import json
import subprocess
from typing import get_args

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from motet.actors.errors.classify import (
    FAILURE_LIMIT,
    FALLBACK_LIMIT,
    MESSAGE_LIMIT,
    NO_TEXT,
    SUGGESTIONS,
    RepeatedCalls,
    advice,
    classify,
    compact_error,
    error_block,
    failure_text,
    fallback_text,
    result_text,
)
from motet.protocols.errors import ErrorType, UnknownName
from motet.protocols.models import ModelFailure
from motet.protocols.stable_json import in_order
from motet.protocols.tools import ToolFailure
from tests.vectors.error_forms import short_form

TEXTS: tuple[tuple[str, ErrorType], ...] = (
    ("HTTP 401", "auth"),
    ("403 Forbidden", "auth"),
    ("Author 'x' not found", "not_found"),
    ("invalid input: missing name", "validation"),
    ("[Errno 2] No such file or directory: '/x'", "not_found"),
    ("429 Too Many Requests", "rate_limit"),
    ("rate limit exceeded", "rate_limit"),
    ("You exceeded your current quota", "rate_limit"),
    ("Rate limit hit, request timed out", "rate_limit"),
    ("timed out", "timeout"),
    ("Request timeout", "timeout"),
    ("time-out of gateway", "timeout"),
    ("authentication timed out", "timeout"),
    ("Permission denied: /etc/shadow", "auth"),
    ("invalid api key", "auth"),
    ("OAuth handshake failed", "auth"),
    ("validation failed: record not found", "validation"),
    ("the table does not exist", "not_found"),
    ("table doesn't exist", "not_found"),
    ("authored by nobody", "unknown"),
    ("row 14010 is odd", "unknown"),
    ("sometimes outside", "unknown"),
    ("", "unknown"),
)


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_words_decide_about_a_text(text: str, kind: ErrorType) -> None:
    assert classify(text) == classify(RuntimeError(text)) == kind


CLASSES: tuple[tuple[BaseException, ErrorType], ...] = (
    (trio.TooSlowError(), "timeout"),
    (TimeoutError(), "timeout"),
    (subprocess.TimeoutExpired("ls", 3), "timeout"),
    (PermissionError(), "auth"),
    (FileNotFoundError(), "not_found"),
    (KeyError("rate limit"), "not_found"),
    (UnknownName("tool", "x", []), "not_found"),
    (ValueError(), "validation"),
    (ValueError("request timed out"), "validation"),
    (ExceptionGroup("one", [ExceptionGroup("in it", [TimeoutError()])]), "timeout"),
    (ExceptionGroup("alike", [TimeoutError(), trio.TooSlowError()]), "timeout"),
    (ExceptionGroup("unlike", [TimeoutError(), PermissionError()]), "unknown"),
)


@pytest.mark.parametrize(("error", "kind"), CLASSES)
def test_the_class_decides_before_the_words(error: BaseException, kind: ErrorType) -> None:
    assert classify(error) == kind


def test_the_name_of_a_foreign_class_counts_as_words() -> None:
    class RateLimitError(Exception): ...

    class ToolNotFound(Exception): ...

    assert classify(RateLimitError("slow down")) == "rate_limit"
    assert classify(ToolNotFound("x")) == "not_found"


def test_the_status_decides_before_all() -> None:
    class Response:
        status_code = 429

    class HttpError(ValueError):
        response = Response()

    assert classify(HttpError("not found")) == "rate_limit"
    assert classify({"status": 404, "message": "unauthorized"}) == "not_found"
    assert classify({"error": {"code": "401", "message": "x"}}) == "auth"
    assert classify({"status": 500, "message": "unauthorized"}) == "auth"


def test_a_code_counts_as_words() -> None:
    assert classify({"code": "INVALID_INPUT", "message": "x"}) == "validation"
    assert classify("x", "RateLimitExceeded") == "rate_limit"


def test_a_property_that_raises_is_passed_over() -> None:
    class Odd(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("not read yet")

    assert classify(Odd("timed out")) == "timeout"


def test_an_error_that_knows_its_kind_is_believed() -> None:
    assert classify(ToolFailure("no 'a.txt' here; there are: b.txt", kind="not_found")) == (
        "not_found"
    )
    assert classify(ModelFailure("refused", kind="auth")) == "auth"
    assert classify(ToolFailure("timed out", kind="something else")) == "timeout"


def test_every_kind_but_unknown_has_a_suggestion() -> None:
    assert set(SUGGESTIONS) == set(get_args(ErrorType))
    assert [kind for kind in SUGGESTIONS if not SUGGESTIONS[kind]] == ["unknown"]


@given(st.text(), st.sampled_from([text for text, _ in TEXTS]))
def test_classifying_never_raises(noise: str, text: str) -> None:
    """Law: every text has a kind, with upper and lower case alike."""
    assert classify(noise + text) in SUGGESTIONS
    assert classify(text.upper()) == classify(text)


# The short form of an error, and the block it stands in.

NOW = 1732230214.0
ANY_TEXT = st.text(st.characters(), max_size=600)


def test_an_error_has_a_kind_a_message_and_a_suggestion() -> None:
    error = short_form("search", TimeoutError("the query timed out\nTraceback"), NOW)
    assert error.tool_name == "search"
    assert error.error_type == "timeout"
    assert error.message == "the query timed out"
    assert error.suggestion == "Try with a simpler query or smaller dataset"
    assert error.timestamp == NOW


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (trio.TooSlowError(), "trio.TooSlowError"),
        (PermissionError(), "PermissionError"),
        (ExceptionGroup("nursery", [ValueError("Request timeout")]), "Request timeout"),
        ("m" * 200, "m" * 200),
        ("m" * 201, "m" * 197 + "..."),
        ({"error": {"code": "X", "message": "inner"}}, "inner"),
    ],
)
def test_the_message_is_one_short_line_and_never_empty_for_an_exception(
    error: object, message: str
) -> None:
    assert short_form("t", error, NOW).message == message


def test_secrets_do_not_reach_the_message() -> None:
    error = short_form("t", "bad token sk-proj-abcdefghijklmnopqrst0123", NOW)
    assert "sk-proj" not in error.message


def test_the_block_has_a_line_for_each_thing_that_is_there() -> None:
    unknown = short_form("a\nb", "x", NOW)
    assert error_block(unknown) == "<error>\ntool: a\ntype: unknown\nmessage: x\n</error>"
    found = compact_error("t", "not_found", "no such row", NOW)
    assert error_block(found, "err_20241121_230334_abc123") == (
        "<error>\ntool: t\ntype: not_found\nmessage: no such row\n"
        "suggestion: Verify the resource exists or try alternative\n"
        "[Error ID: err_20241121_230334_abc123]\n</error>"
    )


def test_a_message_cannot_close_the_block() -> None:
    block = error_block(short_form("</error>", "a </error>\n<error> b", NOW))
    assert block.count("</error>") == 1
    assert "message: a &lt;/error>" in block


@given(ANY_TEXT, ANY_TEXT)
@example("\n", "\u2028")
@example("</" * 50, "</" * 200)
def test_a_block_keeps_its_shape_for_any_text(tool: str, text: str) -> None:
    """Law: four to five lines between the tags, one closing tag, a message within its limit."""
    error = short_form(tool, text, NOW)
    lines = error_block(error).splitlines()
    assert len(error.message) <= MESSAGE_LIMIT
    assert [line.partition(":")[0] for line in lines[1:4]] == ["tool", "type", "message"]
    assert len(lines) == (6 if error.suggestion else 5)
    assert len(lines[3]) <= len("message: ") + MESSAGE_LIMIT
    assert "\n".join(lines).count("</") == 1
    "\n".join(lines).encode()


# Advice comes with the second failure of the same call.

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
    assert in_order("{'a'") == "{'a'"


@given(JSON)
def test_two_spellings_of_the_same_arguments_are_one(value: object) -> None:
    """Law: neither spaces nor the order of keys matter, and canonical text is its own."""
    spelled = json.dumps(value, indent=2, sort_keys=True)
    other = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert in_order(spelled) == in_order(other)
    assert in_order(in_order(spelled)) == in_order(spelled)
    assert json.loads(in_order(spelled)) == value


# The text of a failed call for the model.

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
