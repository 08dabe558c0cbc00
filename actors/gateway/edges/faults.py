"""Errors of the edges: a status, and a body in the shape that clients of OpenAI read.

Invariant: ``x-should-retry`` tells a client whether it may send the same request again, so that no
client library starts a run a second time by itself after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from motet.actors.gateway.http import Response
from motet.actors.gateway.method import error_body

_STATUS: Final[Mapping[str, int]] = {
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_agent": 404,
    "key_conflict": 409,
    "already_answered": 409,
    "session_busy": 409,
    "queue_full": 429,
    "rate_limited": 429,
    "limit_reached": 429,
    "overloaded": 503,
    "unavailable": 503,
    "internal": 500,
}
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: str
    param: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorInfo


class Fault(Exception):
    """A request that is refused, or a run without an answer. ``param``: the field that is wrong."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.retry, self.retry_after = retry, retry_after

    @property
    def answer(self) -> ErrorAnswer:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return ErrorAnswer(
            ErrorInfo(str(self), _TYPES.get(self.status, kind), self.code, self.param)
        )

    def response(self, *headers: tuple[str, str]) -> Response:
        sent = [*headers, ("x-should-retry", "true" if self.retry else "false")]
        if self.retry_after is not None:
            sent.append(("retry-after", str(max(1, round(self.retry_after)))))
        if self.status == 401:
            sent.append(("www-authenticate", "Bearer"))
        body = msgspec.json.encode(self.answer).decode()
        return Response(self.status, body, "application/json", tuple(sent))


def bad_request(message: str, param: str | None = None, code: str = "invalid_params") -> Fault:
    return Fault(400, code, message, param=param)


def fault_of(error: Exception) -> Fault:
    """The fault for an exception; the details of an unexpected one go to the log only."""
    if isinstance(error, Fault):
        return error
    body = error_body(error)
    message = body.message
    if body.error_id is not UNSET:
        message = f"{message} ({body.error_id})"
    return Fault(
        _STATUS.get(body.code, 400),
        body.code,
        message,
        retry=body.retryable is True,
        retry_after=None if body.retry_after_ms is UNSET else body.retry_after_ms / 1000,
    )
