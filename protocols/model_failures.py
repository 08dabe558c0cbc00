"""Translates exceptions of SDKs to :class:`ModelFailure`: one pure mapping for all providers.

Most SDKs come from one generator and share the shape of their exceptions (``status_code``,
``body``, ``response.headers``); those of the others are similar. The attributes are read by these
names, so that no SDK is imported.

The error codes in the body win over the HTTP status, because the same 400 may mean a bad request, a
full context or an empty account. An empty account may be visible only in the text of the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TypeAlias, cast

import msgspec

from motet.protocols.chat import json_object
from motet.protocols.models import ModelFailure

Now: TypeAlias = Callable[[], datetime]

MESSAGE_LIMIT = 300

KIND_OF_WORD = {
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "billing_error": "quota",
    "context_length_exceeded": "context_exhausted",
    "request_too_large": "context_exhausted",
    "exceed_context_size_error": "context_exhausted",
    "overloaded_error": "overloaded",
    "engine_overloaded": "overloaded",
    "server_overloaded": "overloaded",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "authentication_error": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "timeout_error": "timeout",
    "api_error": "server",
    "server_error": "server",
    "RESOURCE_EXHAUSTED": "rate_limit",
    "UNAUTHENTICATED": "auth",
    "PERMISSION_DENIED": "auth",
    "UNAVAILABLE": "overloaded",
    "DEADLINE_EXCEEDED": "timeout",
    "INTERNAL": "server",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "ResponsibleAIPolicyViolation": "content_filter",
    "not_found_error": "bad_request",
    "invalid_request_error": "bad_request",
}
"""The kind for the ``code``, ``type`` or ``status`` in an error's body."""

KIND_OF_STATUS = {
    401: "auth",
    402: "quota",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_exhausted",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}

CONTEXT_WORDS = re.compile(
    r"context.{0,3}(length|window|size|limit)|maximum context|(prompt|input)( is)? too long"
    r"|too many (input |prompt )?tokens|exceeds? the (model'?s )?(maximum|limit of) .{0,30}tokens"
    r"|request too large",
    re.I,
)
QUOTA_WORDS = re.compile(
    r"credit balance is too low|exceeded your current quota|insufficient (funds|credits?|balance)",
    re.I,
)

FILTER_WORDS = re.compile(
    r"content (filtering|management) policy|(prompt|input|request|output) (was|has been) flagged"
    r"|your input was flagged|flagged as potentially violating|content filter was triggered",
    re.I,
)
AUTH_WORDS = re.compile(r"API key (not valid|not found|expired)|invalid API key", re.I)
"""Google reports a wrong key as a bad request."""


class Wording(msgspec.Struct, frozen=True):
    """The body of an error: message; code, type and status; seconds to wait."""

    message: str = ""
    words: tuple[str, ...] = ()
    wait: float | None = None


def failure_of(error: Exception, *, now: Now, started: bool = False) -> ModelFailure | None:
    """The failure for an exception; None when the exception is a bug, not a provider's failure.

    ``started``: the answer had begun, so that a lost connection is a ``cut``. ``now`` is called
    only when the provider gives a date for the retry.
    """
    if isinstance(error, ModelFailure):
        return error
    names = {base.__name__ for base in type(error).__mro__}
    if names & {"APITimeoutError", "TimeoutException"}:
        return ModelFailure("the provider did not answer in time", kind="timeout")
    if names & {"APIConnectionError", "TransportError"}:
        return lost_connection(error, started=started)
    if names & {"APIError", "APIStatusError"}:
        return refusal(error, now)
    if "ModelAPIError" in names:  # of pydantic-ai: its cause, the SDK's error, is more precise
        cause = error.__cause__
        known = (
            failure_of(cause, started=started, now=now) if isinstance(cause, Exception) else None
        )
        return known or refusal(error, now)
    if "UserError" in names:  # of pydantic-ai: the model does not support the request
        return ModelFailure(one_line(str(error)), kind="bad_request")
    if "ContentFilterError" in names:  # of pydantic-ai
        return ModelFailure(one_line(str(error)), kind="content_filter")
    unreadable = names & {"UnknownApiResponseError", "UnexpectedModelBehavior"}
    broken = (json.JSONDecodeError, UnicodeDecodeError, msgspec.DecodeError)
    if unreadable or isinstance(error, broken):
        return ModelFailure(f"the answer could not be read: {one_line(str(error))}", kind="server")
    return None


def lost_connection(error: Exception, *, started: bool) -> ModelFailure:
    if started:
        return ModelFailure("the connection was lost in the middle of the answer", kind="cut")
    cause = error.__cause__ or error
    reason = one_line(str(cause)) or type(cause).__name__
    return ModelFailure(f"no connection: {reason}", kind="connection")


def refusal(error: Exception, now: Now) -> ModelFailure:
    """A failure that the provider reported, by status or inside the stream."""
    status = getattr(error, "status_code", getattr(error, "code", None))
    body: object = getattr(error, "body", getattr(error, "details", None))
    # An error inside a stream has the status 200 of the stream.
    known = status if isinstance(status, int) and status >= 400 else None
    wait = retry_after(headers_of(error), now)
    asked: object = getattr(error, "retry_after", None)
    if wait is None and isinstance(asked, int | float):
        wait = float(asked)
    return refused(known, body, str(error), wait)


def refused(
    status: int | None, body: object, said: str = "", wait: float | None = None
) -> ModelFailure:
    """The failure for a status and an error's body; ``said`` is used if the body has no message."""
    wording = wording_of(body)
    message = one_line(wording.message or said or "the provider reported an error")
    return ModelFailure(
        f"HTTP {status}: {message}" if status else message,
        kind=kind_of(status, wording),
        status=status,
        retry_after=wording.wait if wait is None else wait,
    )


def wording_of(body: object) -> Wording:
    """Read an error's body: ``{"error": {...}}``, the inner object alone, or plain text."""
    if isinstance(body, str):
        return Wording(body)
    outer = json_object(body)
    inner = json_object(outer.get("error", outer)) or {"message": outer.get("error")}
    message = inner.get("message")
    words = (inner.get("code"), inner.get("type"), inner.get("status"))
    return Wording(
        message if isinstance(message, str) else "",
        tuple(word for word in words if isinstance(word, str)),
        delay_in(inner.get("details")),
    )


def delay_in(details: object) -> float | None:
    """Google's ``retryDelay`` in the details of an error, such as ``7.5s``."""
    # The cast holds since a JSON decoder made the list.
    items = cast("list[object]", details) if isinstance(details, list) else []
    delays = (json_object(item).get("retryDelay") for item in items)
    texts = (delay for delay in delays if isinstance(delay, str))
    return next((number(text.removesuffix("s")) for text in texts), None)


def headers_of(error: Exception) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    # The cast holds since both SDKs use one HTTP library, whose headers map str to str.
    return cast("Mapping[str, str]", headers) if isinstance(headers, Mapping) else {}


def kind_of(status: int | None, wording: Wording) -> str:
    """The kind of a failure: by the text, else the error code, else the status."""
    if wording.wait is not None and "RESOURCE_EXHAUSTED" in wording.words:
        return "rate_limit"  # Google calls the limit per minute a quota, too
    if AUTH_WORDS.search(wording.message):
        return "auth"
    said = {KIND_OF_WORD[word] for word in wording.words if word in KIND_OF_WORD}
    if "content_filter" in said or FILTER_WORDS.search(wording.message):
        return "content_filter"
    if "quota" in said or QUOTA_WORDS.search(wording.message):
        return "quota"
    refused = status is None or status in {400, 413, 422, 429}
    if "context_exhausted" in said or (refused and CONTEXT_WORDS.search(wording.message)):
        return "context_exhausted"
    for word in wording.words:
        kind = KIND_OF_WORD.get(word)
        # Some gateways report every failure as "invalid_request_error", also a 401 or 429.
        if kind is not None and not (kind == "bad_request" and status in KIND_OF_STATUS):
            return kind
    return kind_of_status(status)


def kind_of_status(status: int | None) -> str:
    if status in KIND_OF_STATUS:
        return KIND_OF_STATUS[status]
    return "bad_request" if status is not None and 400 <= status < 500 else "server"


def retry_after(headers: Mapping[str, str], now: Now) -> float | None:
    """Seconds to wait by the headers: ``retry-after-ms``, else seconds or an HTTP date."""
    milliseconds = number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now()).total_seconds())


def number(text: str | None) -> float | None:
    """A finite number that is not negative, else None."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def one_line(text: str) -> str:
    """The text on one line, truncated to fit a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= MESSAGE_LIMIT else flat[: MESSAGE_LIMIT - 1] + "…"
