"""What a client of a gateway raises: one class for each thing that its caller can do about it."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from motet.protocols import gateway as wire
from motet.protocols.errors import MotetError


class ClientError(MotetError):
    """Root of what a client raises on its own account."""


class RequestFailed(ClientError):
    """The host answered a request with an error.

    Attributes:
        code: one of :data:`motet.protocols.gateway.ErrorCode`, or of a later version.
        retryable: the same request can succeed later, after ``retry_after`` seconds if given.
        error_id: finds the cause in the host's log.
    """

    def __init__(self, body: wire.ErrorBody) -> None:
        super().__init__(body.message)
        self.code = body.code
        self.retryable = body.retryable is True
        self.retry_after = None if body.retry_after_ms is UNSET else body.retry_after_ms / 1000
        self.error_id = None if body.error_id is UNSET else body.error_id


class Unreachable(ClientError):
    """No connection can be made, or not now; ``retry_after`` seconds are asked for, if given."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TurnedAway(ClientError):
    """The gateway does not want this client, which does not come back by itself.

    ``code`` is the close code of the WebSocket, or the status of the HTTP answer.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason or 'the gateway closed the connection'} ({code})")
        self.code = code
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection ended before the answer came. The request may have been carried out or not.

    Raised only for requests that nothing makes safe to send twice.
    """


class ClientClosed(ClientError):
    """The client was used outside of its ``async with`` block."""


FINAL_CLOSES: Final = frozenset(
    {
        wire.CLOSE_DONE,
        wire.CLOSE_UNSUPPORTED,
        wire.CLOSE_POLICY,
        wire.CLOSE_TOO_LARGE,
        wire.CLOSE_PROTOCOL,
        wire.CLOSE_REVOKED,
        wire.CLOSE_RATE,
    }
)
"""After these, coming back would end in the same way."""

FINAL_STATUSES: Final = frozenset({400, 401, 403, 404, 405, 426})
