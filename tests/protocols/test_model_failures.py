"""From an SDK's exceptions to kinds of failure."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols import model_failures
from motet.protocols.chat import JsonObject
from motet.protocols.model_failures import retry_after
from motet.protocols.models import ModelFailure
from tests.late import Late

if TYPE_CHECKING:
    import anthropic
    import openai
    from google.genai import errors as google
    from pydantic_ai import exceptions as pydantic_ai
else:
    anthropic, openai = Late("anthropic"), Late("openai")
    google, pydantic_ai = Late("google.genai.errors"), Late("pydantic_ai.exceptions")

REQUEST = httpx2.Request("POST", "http://localhost/v1")
NOW = datetime(2026, 11, 21, 7, 0, 0, tzinfo=UTC)
KINDS = {
    "auth",
    "rate_limit",
    "quota",
    "timeout",
    "connection",
    "context_exhausted",
    "bad_request",
    "overloaded",
    "server",
    "cut",
    "content_filter",
}

failure_of = partial(model_failures.failure_of, now=lambda: datetime.now(UTC))


def now() -> datetime:
    return NOW


def refused(status: int, body: object = None, **headers: str) -> ModelFailure:
    """What a status with this body means, through the SDK's own exception."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(status, headers=names, request=REQUEST)
    failure = failure_of(
        openai.APIStatusError("the SDK's words", response=response, body=body), now=now
    )
    assert failure is not None
    return failure


def said(message: str = "", **words: str) -> JsonObject:
    return {"error": {"message": message, **words}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "bad_request"),
        (401, "auth"),
        (402, "quota"),
        (403, "auth"),
        (404, "bad_request"),
        (408, "timeout"),
        (409, "server"),
        (413, "context_exhausted"),
        (422, "bad_request"),
        (429, "rate_limit"),
        (500, "server"),
        (502, "server"),
        (503, "overloaded"),
        (529, "overloaded"),
    ],
)
def test_a_status_alone_has_a_kind(status: int, kind: str) -> None:
    failure = refused(status)
    assert (failure.kind, failure.status) == (kind, status)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, said("You exceeded your current quota", code="insufficient_quota"), "quota"),
        (400, said("Your credit balance is too low", type="invalid_request_error"), "quota"),
        (400, said("no", code="context_length_exceeded"), "context_exhausted"),
        (
            400,
            said("prompt is too long: 210000 tokens > 200000", type="invalid_request_error"),
            "context_exhausted",
        ),
        (
            400,
            said("input length and `max_tokens` exceed context limit", type="x"),
            "context_exhausted",
        ),
        (
            429,
            said("Request too large for m: Limit 10, Requested 20", code="rate_limit_exceeded"),
            "context_exhausted",
        ),
        (400, {"message": "maximum context length is 8192"}, "context_exhausted"),
        (400, said("Azure's content management policy", code="content_filter"), "content_filter"),
        (400, said("no", code="content_policy_violation"), "content_filter"),
        (
            400,
            said("Output blocked by content filtering policy", type="invalid_request_error"),
            "content_filter",
        ),
        (403, said("Requires moderation, and your input was flagged"), "content_filter"),
        (400, said("Invalid value for 'content': no text"), "bad_request"),
        (401, said("no", type="invalid_request_error"), "auth"),
        (500, said("no", type="api_error"), "server"),
        (529, said("Overloaded", type="overloaded_error"), "overloaded"),
        (404, said("no such model", type="not_found_error"), "bad_request"),
        (500, said("context window code crashed", type="api_error"), "server"),
        (502, "<html>Bad gateway</html>", "server"),
        (400, ["odd"], "bad_request"),
        (400, {"error": "plain words"}, "bad_request"),
    ],
)
def test_the_providers_error_code_wins_over_the_status(
    status: int, body: object, kind: str
) -> None:
    assert refused(status, body).kind == kind


def test_an_error_inside_a_stream_is_classified_by_its_code() -> None:
    response = httpx2.Response(200, request=REQUEST)
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    failure = failure_of(anthropic.APIStatusError("no", response=response, body=body), started=True)
    assert failure is not None
    assert (failure.kind, failure.status, str(failure)) == ("overloaded", None, "Overloaded")


GOOGLE_LIMIT = {
    "error": {
        "code": 429,
        "message": "You exceeded your current quota.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "Help"}, {"@type": "RetryInfo", "retryDelay": "7.5s"}],
    }
}


@pytest.mark.parametrize(
    ("status", "body", "kind", "wait"),
    [
        (429, GOOGLE_LIMIT, "rate_limit", 7.5),
        (429, said("You exceeded your current quota.", status="RESOURCE_EXHAUSTED"), "quota", None),
        (400, said("API key not valid.", status="INVALID_ARGUMENT"), "auth", None),
        (400, said("Invalid value.", status="INVALID_ARGUMENT"), "bad_request", None),
        (503, said("Overloaded", status="UNAVAILABLE"), "overloaded", None),
        (403, said("No.", status="PERMISSION_DENIED"), "auth", None),
    ],
)
def test_an_error_of_google_is_read_by_its_status_and_details(
    status: int, body: JsonObject, kind: str, wait: float | None
) -> None:
    failure = failure_of(google.ClientError(status, body))
    assert failure is not None
    assert (failure.kind, failure.status, failure.retry_after) == (kind, status, wait)


def test_an_error_of_pydantic_ai_is_classified_by_its_cause_or_itself() -> None:
    error = pydantic_ai.ModelHTTPError(429, "m", said("Slow down."), retry_after=3.0)
    own = failure_of(error)
    assert own is not None
    assert (own.kind, own.retry_after, str(own)) == ("rate_limit", 3.0, "HTTP 429: Slow down.")
    error.__cause__ = openai.APITimeoutError(REQUEST)
    caused = failure_of(error)
    assert caused is not None
    assert caused.kind == "timeout"


def test_an_error_chunk_without_a_code_is_the_servers() -> None:
    failure = failure_of(openai.APIError("it broke", REQUEST, body={"message": "it broke"}))
    assert failure is not None
    assert (failure.kind, failure.status) == ("server", None)


@pytest.mark.parametrize(
    ("failed", "started", "kind"),
    [
        (lambda: openai.APITimeoutError(REQUEST), False, "timeout"),
        (lambda: httpx2.ReadTimeout("slow"), True, "timeout"),
        (lambda: openai.APIConnectionError(request=REQUEST), False, "connection"),
        (lambda: openai.APIConnectionError(request=REQUEST), True, "cut"),
        (lambda: httpx2.RemoteProtocolError("gone"), True, "cut"),
        (lambda: json.JSONDecodeError("bad", "x", 0), True, "server"),
    ],
)
def test_errors_of_the_connection_have_kinds(
    failed: Callable[[], Exception], started: bool, kind: str
) -> None:
    failure = failure_of(failed(), started=started)
    assert failure is not None
    assert failure.kind == kind


def test_the_cause_of_a_failed_connection_is_named() -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = OSError("name not known")
    assert str(failure_of(error)) == "no connection: name not known"


def test_a_bug_is_no_failure_of_the_provider() -> None:
    assert failure_of(AttributeError("oops")) is None


def test_a_failure_stays_what_it_is() -> None:
    failure = ModelFailure("no", kind="cut")
    assert failure_of(failure) is failure


def test_a_message_is_one_line_of_bounded_length() -> None:
    message = str(refused(500, said("a\n" * 1000)))
    assert message.startswith("HTTP 500: a a")
    assert len(message) < 320
    assert "\n" not in message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "9", "retry-after-ms": "300"}, 0.3),
        ({"retry-after": "Sat, 21 Nov 2026 07:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 06:00:00 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 2026 07:00:30 -0000"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "inf", "retry-after": "2"}, 2.0),
        ({}, None),
    ],
)
def test_the_time_to_wait_is_read_in_all_its_forms(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers, now) == seconds


def test_the_time_to_wait_is_part_of_the_failure() -> None:
    assert refused(429, retry_after="7").retry_after == 7.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(st.integers(100, 599), json_values, st.text(max_size=20))
def test_every_answer_of_a_server_has_a_kind(status: int, body: object, wait: str) -> None:
    """Law: every status, body and header gives a known kind and a wait of no less than 0."""
    response = httpx2.Response(status, headers=[(b"retry-after", wait.encode())], request=REQUEST)
    failure = failure_of(openai.APIStatusError("no", response=response, body=body), now=now)
    assert failure is not None
    assert failure.kind in KINDS
    assert failure.retry_after is None or failure.retry_after >= 0
