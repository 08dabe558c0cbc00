"""The six kinds of errors."""

from __future__ import annotations

import subprocess
from typing import get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.classify import SUGGESTIONS, classify
from motet.actors.tools.tool import ToolFailure
from motet.protocols.errors import ErrorType, UnknownName
from motet.protocols.models import ModelFailure

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
