"""A client's unanswered requests, over any number of connections, and its errors. Pure.

Invariants: requests are sent, and sent again, in the order in which they were made; one that was
sent is sent again only if the host carries it out once all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
from msgspec import UNSET

from motet.client.states import REQUEST, RequestEvent, RequestState, next_state
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from motet.protocols.errors import MotetError
from motet.protocols.gateway import RequestFrame, encode


class ClientError(MotetError):
    """Root of a client's own errors, one class for each reaction of its caller."""


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
    """No connection can be made now. ``retry_after``: seconds that the gateway asks for."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TurnedAway(ClientError):
    """The gateway refuses this client, which does not come back by itself.

    ``code`` is the close code of the WebSocket, or the status of the HTTP answer.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason or 'the gateway closed the connection'} ({code})")
        self.code = code
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection ended before the answer came: the request may have been carried out.

    Raised only for requests that are not safe to send twice.
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
"""After these close codes, the next connection would end in the same way."""

FINAL_STATUSES: Final = frozenset({400, 401, 403, 404, 405, 426})


URGENT: Final = frozenset({"runs.stop", "ping"})
"""These overtake other requests, here as in the gateway."""

_REPEATABLE: Final = URGENT | {
    "approvals.resolve",
    "escalations.resolve",
    "rooms.export",
    "rooms.history",
    "rooms.people",
    "rooms.summary",
    "rooms.set",
    "runs.wait",
    "sessions.history",
    "status",
}


@attrs.define(eq=False)
class Pending:
    """One request. ``settled`` is called once, when :attr:`error` or :attr:`result` is there.

    Raises ``TypeError`` for parameters that have no form in JSON.
    """

    id: str
    method: str
    params: JsonObject
    settled: Callable[[], None]
    text: str = attrs.field(init=False)
    state: RequestState = attrs.field(init=False, default="waiting")
    result: object = attrs.field(init=False, default=None)
    error: ClientError | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.text = encode(RequestFrame(self.id, self.method, self.params))

    @property
    def urgent(self) -> bool:
        return self.method in URGENT

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent twice: it has an idempotency key, or it only reads."""
        reads = self.method.endswith((".list", ".get"))
        return "key" in self.params or reads or self.method in _REPEATABLE

    def send(self) -> None:
        self._become("send")

    def requeue(self) -> None:
        self._become("requeue")

    def settle(self, result: object, error: ClientError | None = None) -> None:
        if self.state != "done":
            self._become("settle")
            self.result, self.error = result, error
            self.settled()

    def _become(self, event: RequestEvent) -> None:
        self.state = next_state(REQUEST, self.state, event, self.method)


@attrs.define(eq=False)
class Requests:
    """The unanswered requests of one client, in order."""

    _pending: dict[str, Pending] = attrs.field(init=False, factory=dict[str, Pending])

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, pending: Pending) -> None:
        self._pending[pending.id] = pending

    def pop(self, request_id: str) -> Pending | None:
        return self._pending.pop(request_id, None)

    def due(self, window: int) -> list[Pending]:
        """The requests to send now, with at most ``window`` ordinary ones unanswered."""
        sent = [one for one in self._pending.values() if one.state == "sent"]
        free = window - sum(not one.urgent for one in sent)
        found: list[Pending] = []
        for one in self._pending.values():
            if one.state == "sent" or (free <= 0 and not one.urgent):
                continue
            free -= not one.urgent
            found.append(one)
        return found

    def disconnected(self) -> None:
        """Sent requests are to be sent again, or fail."""
        for one in tuple(self._pending.values()):
            if one.state != "sent":
                continue
            if one.repeatable:
                one.requeue()
                continue
            del self._pending[one.id]
            why = f"the connection ended before {one.method} was answered"
            one.settle(None, ConnectionLost(why))

    def fail(self, error: ClientError) -> None:
        for one in tuple(self._pending.values()):
            one.settle(None, error)
        self._pending.clear()
