"""One request to an edge: who asks, what, and how the answer gets to them.

Invariants: a page of another site gets nothing, and nobody gets anything without a token where
there are some (G16); a request counts as a connection of its user as long as it is answered; a
client that does not take what it is sent is cut off, and never holds up a run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Final, TypeVar

import attrs
import h11
import msgspec
import trio

from motet.actors.gateway.auth import bearer, host_is_loopback, may, origin_allowed
from motet.actors.gateway.connection import on_behalf
from motet.actors.gateway.context import Context
from motet.actors.gateway.edges.watching import Fault, FellBehind, Watch, watch, wrong
from motet.actors.gateway.http import Head, HttpConnection, Response
from motet.actors.gateway.method import Refusal
from motet.protocols.errors import NotFound
from motet.protocols.events import AnyEvent
from motet.protocols.host import HostApi
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import FINAL, Principal, Role
from motet.runtime.outside import fresh_hex

B = TypeVar("B")
BODY_BYTES: Final = 1_048_576
SESSION_LENGTH: Final = 200
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_KEY: Final = "idempotency-key"


class Gone(Exception):
    """The client has closed its connection, or was cut off: nothing can be answered any more."""


@attrs.frozen
class Asker:
    """``bearer``: whose token it is; ``principal``: for whom, another one for a bridge."""

    bearer: Principal
    principal: Principal
    token_digest: str | None


def asker_of(context: Context, head: Head, peer: str, needed: Role) -> Asker:
    """Raises :class:`Fault`, :class:`Refusal`."""
    host, settings = head.headers.get("host", ""), context.settings
    if not origin_allowed(head.headers.get("origin"), host, settings.allowed_origins):
        raise Fault(403, "forbidden", "Pages of this origin may not ask: gateway.allowed_origins.")
    if not context.needs_token() and not host_is_loopback(host):
        raise Fault(403, "forbidden", "Without a token this gateway is for localhost only.")
    wait = context.refused_for(peer)
    if wait > 0:
        raise Fault(429, "rate_limited", "Too many failed connects.", retry_after=wait)
    token = bearer(head.headers)
    if context.needs_token() and token is None:
        raise Refusal("unauthorized", "send a token of this gateway: Authorization: Bearer mtt_...")
    holder, token_digest = context.authenticate(token, peer)
    principal, user = holder, head.headers.get("x-as-user")
    if user is not None:
        principal = on_behalf(context, holder, token_digest, user[:SESSION_LENGTH])
    if not may(principal.role, needed):
        raise Fault(403, "forbidden", f"This is for role {needed}, the token has {principal.role}.")
    return Asker(holder, principal, token_digest)


@attrs.define(eq=False)
class Exchange:
    """``tail``: what follows the path of the edge.

    ``answered``: all that the client gets of the run is on its way; set before the last of it.
    """

    context: Context
    http: HttpConnection
    head: Head
    asker: Asker
    tail: str = ""
    begun: bool = attrs.field(init=False, default=False)
    answered: bool = attrs.field(init=False, default=False)
    _headers: list[tuple[str, str]] = attrs.field(init=False, factory=list["tuple[str, str]"])
    _watch: Watch | None = attrs.field(init=False, default=None)
    _scope: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)

    @property
    def api(self) -> HostApi:
        return self.context.api

    @property
    def principal(self) -> Principal:
        return self.asker.principal

    @property
    def key(self) -> str | None:
        """Under which the request may be sent again; without one nobody can ask for the answer."""
        return self.head.headers.get(_KEY) or None

    # What is asked

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
            raise wrong(f"{error}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise wrong(f"The body is no JSON object: {error}.") from None

    # The run

    @asynccontextmanager
    async def submitted(
        self, text: str, session: str, agent: str | None, mode: QueueMode, key: str | None
    ) -> AsyncGenerator[Watch]:
        """Have a text answered, and watch the run. Raises what ``submit`` raises."""
        self.context.spend_message(self.principal.user)
        expected = self.api.expect(session, principal=self.principal)
        events = watch(self.api.events, session, expected.run_id)
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
                await events.from_its_beginning(ack.run_id)
            self.follow(events, session)
            yield events
        finally:
            events.close()

    def follow(self, events: Watch, session: str) -> None:
        """Answer with these events, which the gateway's timer may interrupt."""
        self._watch = events
        self.name(session, events.run_id)

    def name(self, session: str, run_id: str) -> None:
        """Say in the head of the answer what it is an answer of."""
        safe = session if session.isascii() and session.isprintable() else ""
        self._headers += [("x-session", safe)] if safe else []
        self._headers.append(("x-request-id", run_id))

    async def event(self, events: Watch, timeout: float = float("inf")) -> AnyEvent | None:
        """The next event of the run; None after ``timeout``. Meanwhile the client is kept alive.

        Raises :class:`Fault` when the client is too slow for the events, and when the run has ended
        and nothing has told of it.
        """
        until, was_over = trio.current_time() + timeout, False
        while True:
            try:
                found = await events.next(until - trio.current_time())
            except FellBehind:
                self.context.evicted += 1
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

    # The answer

    async def begin(self) -> None:
        """Begin a stream of events."""
        await self._in_time(lambda: self.http.begin(EVENT_STREAM, *self.headers))
        self.begun = True

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        origin = self.head.headers.get("origin")
        return (*self._headers, *(cors(origin) if origin is not None else ()))

    async def tell(self, *events: object) -> None:
        """Send events, each a struct or text as it stands."""
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
            self.context.evicted += 1
            raise Gone

    # The client

    async def attended(self, run_id: str, work: Callable[[], Awaitable[bool]]) -> bool:
        """Answer while the client is there. Raises :class:`Gone`.

        Who closes the connection means to stop the run, unless the request is answered, or had a
        key, by which its answer can be asked for again. One that is only slow is cut off, and the
        run goes on.
        """
        answer: bool | None = None
        failure: Exception | None = None
        left = False

        async def look(scope: trio.CancelScope) -> None:
            nonlocal left
            await self.http.gone()
            left = True
            scope.cancel()

        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look, nursery.cancel_scope)
                try:
                    answer = await work()
                except Exception as error:
                    failure = error
                nursery.cancel_scope.cancel()
        if answer is not None:
            return answer
        left = left or isinstance(failure, trio.BrokenResourceError)
        if left and self.key is None and not self.answered:
            await self._stop(run_id)
        if left or failure is None:
            raise Gone
        raise failure

    async def _stop(self, run_id: str) -> None:
        with suppress(NotFound):  # it has ended meanwhile
            await self.api.stop(run_id=run_id, principal=self.principal, grace=0.0)

    # The gateway's timer

    def beat(self) -> None:
        self.recheck()
        if self._watch is not None:
            self._watch.wake()

    def recheck(self) -> None:
        """Nothing more is told once the token is good no more, or for somebody else."""
        token = self.asker.token_digest
        if token is None:
            good = not self.context.needs_token()
        else:
            good = self.context.find(token) == self.asker.bearer
        if not good:
            self._scope.cancel()

    def farewell(self) -> None:
        """A host that shuts down lets its runs end: they are still answered."""


def cors(origin: str) -> tuple[tuple[str, str], ...]:
    """What a browser needs to let a page of another host read the answer."""
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", "x-session, x-request-id"),
        ("vary", "origin"),
    )


def new_session(edge: str, agent: str, user: str, key: str | None) -> str:
    """A fresh one; for a request with a key the one that its repetitions find."""
    name = (
        fresh_hex(8) if key is None else sha256(msgspec.json.encode((user, key))).hexdigest()[:16]
    )
    return f"{edge}:{agent[:100]}:{name}"
