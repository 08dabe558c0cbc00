"""One HTTP request to an edge: its user, its body, its run, and the answer.

Invariants: a page of another site gets nothing, and where there are tokens nobody gets anything
without one (G16); a request counts as a connection of its user while it is answered; a client that
does not take its answer is cut off, and never holds up a run; after a failure, ``x-should-retry``
says whether the same request may be sent again, so that no client library starts a run twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Final, Literal, TypeVar

import attrs
import h11
import msgspec
import trio
from msgspec import UNSET

from motet.actors.gateway.auth import Identity, may
from motet.actors.gateway.context import Context
from motet.actors.gateway.edges.run_events import EventsLost, RunEvents
from motet.actors.gateway.http import Head, HttpConnection, Response
from motet.actors.gateway.method import Refusal, error_body
from motet.protocols.admission import Place, bearer, host_is_loopback, origin_allowed
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.errors import NotFound
from motet.protocols.events import AnyEvent
from motet.protocols.host import HostApi
from motet.protocols.openai_wire import Part
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import FINAL, Principal, Role
from motet.runtime.outside import fresh_hex

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
    "storage_unavailable": 503,
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


B = TypeVar("B")
BODY_BYTES: Final = 1_048_576
SESSION_LENGTH: Final = 200
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_KEY: Final = "idempotency-key"
_LISTED: Final = 200


class ClientGone(Exception):
    """The client has closed its connection, or was cut off: no answer is possible any more."""


def text_of(content: str | Sequence[Part] | None) -> str:
    """The text of a message. Raises :class:`Fault` for parts that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    strange = next((part.type for part in content if part.type != "text"), None)
    if strange is not None:
        raise bad_request(f"Parts of type {strange!r} are not taken here, only text.", "messages")
    return "".join(part.text for part in content)


def identify(context: Context, head: Head, place: Place, needed: Role) -> Identity:
    """The user of a request. Raises :class:`Fault`, :class:`Refusal`."""
    host, settings = head.headers.get("host", ""), context.settings
    if not origin_allowed(head.headers.get("origin"), host, settings.allowed_origins):
        raise Fault(403, "forbidden", "Pages of this origin may not ask: gateway.allowed_origins.")
    if not context.needs_token() and not host_is_loopback(host):
        raise Fault(403, "forbidden", "Without a token this gateway is for localhost only.")
    token = bearer(head.headers)
    if context.needs_token() and token is None:
        raise Refusal("unauthorized", "send a token of this gateway: Authorization: Bearer mtt_...")
    identity = context.authenticate(token, place.address)
    place.known()
    user = head.headers.get("x-as-user")
    if user is not None:
        identity = context.on_behalf_of(identity, user[:SESSION_LENGTH])
    role = identity.principal.role
    if not may(role, needed):
        raise Fault(403, "forbidden", f"This is for role {needed}, the token has {role}.")
    return identity


@attrs.define(eq=False)
class Exchange:
    """A request and its answer.

    Attributes:
        tail: the rest of the path, after the edge's.
        begun: the answer is a stream of events, and has begun.
    """

    context: Context
    http: HttpConnection
    head: Head
    identity: Identity
    tail: str = ""
    begun: bool = attrs.field(init=False, default=False)
    _answered: bool = attrs.field(init=False, default=False)
    _headers: list[tuple[str, str]] = attrs.field(init=False, factory=list["tuple[str, str]"])
    _events: RunEvents | None = attrs.field(init=False, default=None)
    _scope: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)

    @property
    def api(self) -> HostApi:
        return self.context.api

    @property
    def principal(self) -> Principal:
        return self.identity.principal

    @property
    def key(self) -> str | None:
        """The idempotency key: with one, a client can ask for the answer again."""
        return self.head.headers.get(_KEY) or None

    # -- the request ---------------------------------------------------------------------------

    async def body(self, kind: type[B]) -> B:
        """Raises :class:`Fault`, and ``BadRequest`` when it cannot be read at all."""
        given = self.head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != "application/json":
            raise Fault(415, "invalid_params", "The body has to be application/json.")
        length = self.head.headers.get("content-length", "0")
        if length.isdigit() and int(length) > BODY_BYTES:
            raise Fault(413, "invalid_params", f"The body is above {BODY_BYTES} bytes.")
        data = await self.http.read_body(BODY_BYTES)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            raise bad_request(f"{error}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"The body is not a JSON object: {error}.") from None

    # -- the run -------------------------------------------------------------------------------

    @asynccontextmanager
    async def submitted(
        self, text: str, session: str, agent: str | None, mode: QueueMode, key: str | None
    ) -> AsyncGenerator[RunEvents]:
        """Submit an input, and follow its run. Raises the errors of ``HostApi.submit``."""
        await self.context.spend_input(self.principal, "chat.send", key)
        expected = self.api.expect(session, principal=self.principal)
        events = RunEvents(self.api.events, session, expected.run_id)
        try:
            ack = await self.api.submit(
                text,
                session=session,
                agent=agent,
                mode=mode,
                principal=self.principal,
                key=key,
                expected=expected,
            )
            if ack.run_id != events.run_id:
                await events.replay(ack.run_id)
            self.follow(events)
            yield events
        finally:
            events.close()

    def follow(self, events: RunEvents) -> None:
        """Answer with the events of this run; the gateway's timer wakes them."""
        self._events = events
        self.name(events.session, events.run_id)

    def name(self, session: str, run_id: str) -> None:
        """Name session and run in the head of the answer."""
        safe = session if session.isascii() and session.isprintable() else ""
        self._headers += [("x-session", safe)] if safe else []
        self._headers.append(("x-request-id", run_id))

    async def approvals(
        self, session: str, state: Literal["pending"] | None = None
    ) -> tuple[ApprovalInfo, ...]:
        return await self.api.approvals(
            session=session, state=state, limit=_LISTED, principal=self.principal
        )

    async def event(self, events: RunEvents, timeout: float = float("inf")) -> AnyEvent | None:
        """The next event of the run; None after ``timeout``. Meanwhile the client is kept alive.

        Raises :class:`Fault` when the client is too slow for the events, and when the run has ended
        without an event about it.
        """
        until, was_over = trio.current_time() + timeout, False
        while True:
            try:
                found = await events.next(until - trio.current_time())
            except EventsLost:
                self.context.counts.total["evicted"] += 1
                raise Fault(503, "fell_behind", "Events were lost: see the session.") from None
            if found is not None or trio.current_time() >= until:
                return found
            if self.begun:
                await self._write(KEEP_ALIVE)
            info = await self.api.find_run(events.run_id, principal=self.principal)
            if was_over:
                raise Fault(
                    503, "unavailable", f"The run has ended as {info.status}; see its session."
                )
            was_over = info.status in FINAL

    # -- the answer ----------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin a stream of events."""
        await self._in_time(lambda: self.http.begin(EVENT_STREAM, *self.headers))
        self.begun = True

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        origin = self.head.headers.get("origin")
        return (*self._headers, *(cors(origin) if origin is not None else ()))

    def mark_answered(self) -> None:
        """The rest of the answer follows: a client that goes away now does not stop the run."""
        self._answered = True

    async def send(self, *events: object) -> None:
        """Send events, each a struct or a text."""
        lines = (
            one.encode() if isinstance(one, str) else msgspec.json.encode(one) for one in events
        )
        data = b"".join(b"data: " + line + b"\n\n" for line in lines)
        if data:
            await self._write(data)

    async def finish(self) -> bool:
        """End the stream; true when another request may follow."""
        return await self.http.finish()

    async def respond(self, body: object) -> bool:
        """Answer in one piece, as JSON."""
        text = msgspec.json.encode(body).decode()
        return await self.http.respond(Response(200, text, "application/json", self.headers))

    async def _write(self, data: bytes) -> None:
        await self._in_time(lambda: self.http.send(h11.Data(data=data)))

    async def _in_time(self, write: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(self.context.settings.limits.send_timeout_ms / 1000) as scope:
            await write()
        if scope.cancelled_caught:
            self.context.counts.total["evicted"] += 1
            raise ClientGone

    # -- the client ----------------------------------------------------------------------------

    async def while_connected(self, run_id: str, work: Callable[[], Awaitable[bool]]) -> bool:
        """Answer while the client is there. Raises :class:`ClientGone`.

        A client that closes the connection stops the run, unless the request is answered, or had a
        key, with which the answer can be asked for again. A client that is only slow is cut off,
        and the run goes on.
        """
        answer: bool | None = None
        failure: Exception | None = None
        closed = False

        async def watch_client(scope: trio.CancelScope) -> None:
            nonlocal closed
            await self.http.gone()
            closed = True
            scope.cancel()

        # A failure is caught inside of the nursery, which would wrap it in a group, and would hide
        # it behind the cancellation when the client goes at the same time.
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_client, nursery.cancel_scope)
                try:
                    answer = await work()
                except Exception as error:
                    failure = error
                nursery.cancel_scope.cancel()
        if answer is not None:
            return answer
        closed = closed or isinstance(failure, trio.BrokenResourceError)
        if closed and self.key is None and not self._answered:
            with suppress(NotFound):  # it has ended meanwhile
                await self.api.stop(run_id=run_id, principal=self.principal, grace=0.0)
        if closed or failure is None:
            raise ClientGone
        raise failure

    # -- the gateway's timer -------------------------------------------------------------------

    def tick(self) -> None:
        self.recheck()
        if self._events is not None:
            self._events.wake()

    def recheck(self) -> None:
        """Send nothing more once the token is not valid any more, or another user's."""
        if not self.context.holds(self.identity):
            self._scope.cancel()

    def announce_shutdown(self) -> None:
        """A host that shuts down lets its runs end: they are still answered."""

    def announce_storage(self, reason: str) -> None:
        """An answer that is being streamed has no place for it; a new request is refused."""


_EXPOSED = "x-session, x-request-id, x-should-retry, retry-after"


def cors(origin: str) -> tuple[tuple[str, str], ...]:
    """The headers with which a browser lets a page of another host read the answer."""
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", _EXPOSED),
        ("vary", "origin"),
    )


def new_session(edge: str, agent: str, user: str, key: str | None) -> str:
    """A fresh session; for a request with a key, the one that its repetitions find."""
    name = (
        fresh_hex(8) if key is None else sha256(msgspec.json.encode((user, key))).hexdigest()[:16]
    )
    return f"{edge}:{agent[:100]}:{name}"
