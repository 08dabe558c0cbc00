"""One client: a reader, a writer, a replayer, and a task for each request in flight.

Invariants: only the writer awaits the socket's send (closing comes after it ended); the reader
goes on while requests are stuck, so that a stop always gets through; a client that does not take
a frame in time is cut off. Every failure here ends this connection only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs
import trio
from msgspec import UnsetType
from trio_websocket import ConnectionClosed
from wsproto.utilities import LocalProtocolError

from motet.actors.gateway import methods
from motet.actors.gateway.context import Context
from motet.actors.gateway.method import Answer, Caller, Refusal, error_body
from motet.actors.gateway.methods import Behalf
from motet.actors.gateway.outbox import Outbox, size_of
from motet.actors.gateway.requests import Requests, said_in
from motet.actors.gateway.streams import Streams
from motet.actors.gateway.websocket import Ending, FrameSocket
from motet.protocols import gateway as wire
from motet.protocols.errors import NotFound
from motet.protocols.events import EventRecord, Shutdown, Tick
from motet.protocols.host import Expected
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.rates import TokenBucket

# The first frame of a connection: which protocol, and who.
#
# Invariant: nothing but ``connect`` is answered before the client is known; a client that is
# turned away is told why, and nothing of it stays but the count of its failures.


_CLOSE_CODES: Final[Mapping[wire.ErrorCode, int]] = {
    "protocol_version": wire.CLOSE_PROTOCOL,
    "limit_reached": wire.CLOSE_OVERLOADED,
}


@attrs.frozen
class Admitted:
    """A client that is known now, and counted: :meth:`Context.leave` takes it back.

    ``bearer`` is whose token it has, ``principal`` whom it acts for: another one for a bridge.
    """

    request_id: str
    bearer: Principal
    principal: Principal
    token_digest: str | None
    resume: Mapping[str, int]


class TurnedAway(Exception):
    """The client gets ``frame``, then the connection is closed with ``code``."""

    def __init__(self, request_id: str, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.frame = wire.failed(request_id, error_body(refusal))
        self.code = _CLOSE_CODES.get(refusal.code, wire.CLOSE_POLICY)
        self.reason: str = refusal.code


def admit(context: Context, message: str, peer: str, header_token: str | None) -> Admitted:
    """Judge the first frame. Raises :class:`TurnedAway`."""
    request_id = ""
    try:
        frame = wire.decode_request(message)
        request_id = frame.id
        params = _connect_params(frame)
        bearer, token_digest = context.authenticate(params.auth.token or header_token, peer)
        principal = bearer
        if params.auth.as_user is not None:
            principal = on_behalf(context, bearer, token_digest, params.auth.as_user)
        context.enter(bearer.user)
    except wire.FrameError as error:
        raise TurnedAway(error.request_id, Refusal("bad_frame", str(error))) from None
    except Refusal as refusal:
        raise TurnedAway(request_id, refusal) from None
    return Admitted(request_id, bearer, principal, token_digest, params.resume)


def on_behalf(
    context: Context, bearer: Principal, token_digest: str | None, user: str
) -> Principal:
    """Whom a bridge acts for, never as an admin. Raises :class:`Refusal` for other tokens."""
    if not context.impersonates(token_digest):
        raise Refusal(
            "forbidden", "`as_user` is for the tokens of bridges, which have `impersonate`"
        )
    return Principal(user, "operator" if bearer.role == "admin" else bearer.role)


def _connect_params(frame: wire.RequestFrame) -> wire.ConnectParams:
    if frame.method != "connect":
        raise Refusal("connect_first", f"the first frame is `connect`, not {frame.method!r}")
    try:
        params = wire.decode_params(frame.params, wire.ConnectParams)
    except wire.FrameError as error:
        raise Refusal("invalid_params", str(error)) from None
    if not params.protocol.min <= wire.PROTOCOL <= params.protocol.max:
        raise Refusal(
            "protocol_version",
            f"this server speaks protocol {wire.PROTOCOL}, the client "
            f"{params.protocol.min} to {params.protocol.max}",
        )
    return params


logger = logging.getLogger(__name__)
_PATIENCE = 100  # refused frames at once, and per minute, before the connection is closed
_ANSWERS_HELD = 64  # answers that a client has not taken before its next frame is read


class Connection:
    """A session of :func:`motet.actors.gateway.websocket.serve_websocket`.

    ``token`` is that of the HTTP request, if it had one; ``peer`` the client's address.
    """

    def __init__(self, context: Context, peer: str, token: str | None = None) -> None:
        self._context = context
        self._peer = peer
        self._token = token
        self._principal: Principal = LOCAL
        self._bearer: Principal = LOCAL
        self._token_digest: str | None = None
        self._outbox = Outbox(context.settings.limits)
        self._requests = Requests(context.settings.limits)
        self._noted: dict[int, Expected] = {}
        self._patience = TokenBucket(_PATIENCE / 60, _PATIENCE)
        self._nursery: trio.Nursery
        self._socket: FrameSocket
        self._streams: Streams
        self._ending: Ending | None = None
        self._writing = False
        self._told = False
        self._pinging = False
        self._wake = trio.Event()
        self._written = trio.Event()

    # -- life ------------------------------------------------------------------------------------

    async def run(self, socket: FrameSocket) -> None:
        """Serve the client until it goes, is sent away or cut off. Raises nothing of its own."""
        try:
            await self._run(socket)
        except* (
            ConnectionClosed,
            LocalProtocolError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
        ):
            pass  # the client went; wsproto says the second when it went against the protocol
        except* Exception as errors:
            self._context.failed += 1
            logger.error("a connection from %s failed", self._peer, exc_info=errors)
            self._ending = Ending(wire.CLOSE_INTERNAL, "internal error", broken=self._writing)

    async def _run(self, socket: FrameSocket) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery, self._socket = nursery, socket
            nursery.start_soon(self._write, socket)
            admitted = await self._admitted(socket)
            if admitted is not None:
                try:
                    await self._serve(admitted, socket, nursery)
                finally:
                    self._context.leave(admitted.bearer.user)
            if self._ending is None:
                nursery.cancel_scope.cancel()
            else:
                await trio.sleep_forever()  # the writer sends what is queued, then cancels

    async def _admitted(self, socket: FrameSocket) -> Admitted | None:
        """Read the first frame; None: the client is turned away."""
        limits = self._context.settings.limits
        message: str | bytes | None = None
        with trio.move_on_after(limits.connect_ms / 1000):
            message = await socket.get_message()
        if message is None:
            self.close(wire.CLOSE_CONNECT_TIMEOUT, "no connect in time")
            return None
        text = self._text(message, limits.connect_frame)
        if text is None:
            return None
        try:
            return admit(self._context, text, self._peer, self._token)
        except TurnedAway as away:
            self.answer(away.frame)
            self.close(away.code, away.reason)
            return None

    async def _serve(self, admitted: Admitted, socket: FrameSocket, nursery: trio.Nursery) -> None:
        self._principal, self._bearer = admitted.principal, admitted.bearer
        self._token_digest = admitted.token_digest
        context = self._context
        self._streams = Streams(
            context.api,
            context.hub,
            self._outbox,
            self._stir,
            context.settings.limits,
            admitted.principal,
            self._straight,
        )
        context.connections.add(self)
        try:
            nursery.start_soon(self._streams.run)
            await self._resume(admitted)
            await self._read(socket, nursery)
        finally:
            context.connections.discard(self)
            self._noted.clear()
            self._streams.close()

    async def _resume(self, admitted: Admitted) -> None:
        """Answer the connect, with where each stream stands that the client had."""
        states: dict[str, wire.StreamState] = {}
        starts: list[Callable[[], None]] = []
        for stream, after in admitted.resume.items():
            try:
                states[stream], start = await self._streams.subscribe(stream, after)
                starts.append(start)
            except NotFound:
                states[stream] = wire.StreamState(0, 0, resumed=False, reason="not_found")
            except Refusal:
                states[stream] = wire.StreamState(0, 0, resumed=False, reason="limit_reached")
        self.answer(wire.ok(admitted.request_id, self._welcome(states)))
        for start in starts:
            start()

    def _welcome(self, states: dict[str, wire.StreamState]) -> wire.Connected:
        status = self._context.api.status()
        return wire.Connected(
            protocol=wire.PROTOCOL,
            server=wire.ServerInfo(status.version, status.instance, self._context.now()),
            principal=wire.PrincipalInfo(self._principal.user, self._principal.role),
            methods=methods.allowed(self._principal.role),
            limits=self._context.settings.limits,
            streams=states,
        )

    def ending(self) -> Ending:
        """How to close the socket; without a reason of its own the server is going away."""
        if self._ending is not None:
            return self._ending
        told = wire.encode(wire.event_frame(self._notice(Shutdown())))
        farewell = None if self._told else told
        return Ending(wire.CLOSE_GOING_AWAY, "server going away", farewell, self._writing)

    def close(self, code: int, reason: str) -> None:
        """Write the answers that are queued, then close."""
        if self._ending is None:
            self._ending = Ending(code, reason)
            self._outbox.seal()
        self._stir()

    def evict(self) -> None:
        """Cut the client off: it does not take what it is sent."""
        self._context.evicted += 1
        self._ending = Ending(wire.CLOSE_OVERLOADED, "slow consumer", broken=True)
        self._nursery.cancel_scope.cancel()

    # -- reading ---------------------------------------------------------------------------------

    async def _read(self, socket: FrameSocket, nursery: trio.Nursery) -> None:
        while self._ending is None:
            while self._outbox.answers >= _ANSWERS_HELD:
                self._written = trio.Event()
                await self._written.wait()
            text = self._text(await socket.get_message(), self._context.settings.limits.frame)
            if text is not None:
                self._handle(text, nursery)

    def _text(self, message: str | bytes, limit: int) -> str | None:
        """The message if it may be one; else the connection closes."""
        if isinstance(message, bytes):
            self.close(wire.CLOSE_UNSUPPORTED, "text frames only")
        elif size_of(message) > limit:
            self.close(wire.CLOSE_TOO_LARGE, f"frame above {limit} bytes")
        else:
            return message
        return None

    def _handle(self, message: str, nursery: trio.Nursery) -> None:
        request_id = ""
        try:
            frame = wire.decode_request(message)
            request_id = frame.id
            at_once = self._requests.admit(frame)
            self._note(frame)
            if at_once:
                nursery.start_soon(self._perform, frame)
        except wire.FrameError as error:
            self._refuse(error.request_id, Refusal("bad_frame", str(error)))
        except Refusal as error:
            self._refuse(request_id, error)

    def _note(self, frame: wire.RequestFrame) -> None:
        """Note an input as it is read, so that a stop which is read after it covers it (G2)."""
        said = said_in(frame)
        if said is not None:
            with suppress(Refusal):  # it is said when the request is carried out
                principal, (session, sender) = self._caller(frame).principal, said
                expect = self._context.api.expect
                self._noted[id(frame)] = expect(session, sender=sender, principal=principal)

    def _refuse(self, request_id: str, refusal: Refusal) -> None:
        self.answer(wire.failed(request_id, error_body(refusal)))
        self._lose_patience()

    def _lose_patience(self) -> None:
        if self._patience.take(trio.current_time()) > 0:
            self.close(wire.CLOSE_RATE, "too many refused requests")

    async def _perform(self, frame: wire.RequestFrame) -> None:
        answer, code = Answer(None), "ok"
        try:
            caller = self._caller(frame, self._noted.pop(id(frame), None))
            answer = await methods.call(caller, frame)
            text = wire.encode(wire.ok(frame.id, answer.result))
        except Exception as error:
            body = error_body(error)
            text = wire.encode(wire.failed(frame.id, body))
            code = body.code
            if code == "rate_limited":
                self._lose_patience()
        known = frame.method if frame.method in methods.METHODS else "unknown"
        self._context.requests[known, code] += 1
        self._outbox.answer(text, lambda: self._over(frame))
        self._stir()
        if answer.then is not None:
            answer.then()

    def _caller(self, frame: wire.RequestFrame, expected: Expected | None = None) -> Caller:
        """Whom the request is for. Raises :class:`Refusal`."""
        principal = self._principal
        if not isinstance(frame.as_user, UnsetType):
            principal = on_behalf(self._context, self._bearer, self._token_digest, frame.as_user)
        return Behalf(principal, self._context, self._streams, expected)

    def _over(self, frame: wire.RequestFrame) -> None:
        for waiting in self._requests.over(frame):
            if self._ending is None:
                self._nursery.start_soon(self._perform, waiting)

    # -- writing ---------------------------------------------------------------------------------

    def answer(self, frame: wire.ResponseFrame) -> None:
        """Queue an answer."""
        self._outbox.answer(wire.encode(frame))
        self._stir()

    def _stir(self) -> None:
        self._wake.set()

    def _straight(self, frames: bytes) -> bool:
        """Send frames at once if nothing is before them; false: they have to be queued."""
        if self._outbox.bytes or self._writing or self._ending is not None:
            return False
        sent = self._socket.send_now(frames)
        if sent == "a part":
            self._stir()
        return sent != "nothing"

    async def _write(self, socket: FrameSocket) -> None:
        timeout = self._context.settings.limits.send_timeout_ms / 1000
        while True:
            entries = self._outbox.take()
            if entries or socket.owes:
                with trio.move_on_after(timeout) as scope:
                    self._writing = True
                    await socket.send(b"".join([entry.bytes() for entry in entries]))
                    self._writing = False
                if scope.cancelled_caught:
                    self.evict()
                for entry in entries:
                    if entry.written is not None:
                        entry.written()
                self._written.set()
            elif self._ending is None:
                self._wake = trio.Event()
                await self._wake.wait()
            else:
                self._nursery.cancel_scope.cancel()
                return

    # -- the gateway's timer ---------------------------------------------------------------------

    def beat(self) -> None:
        """Once a tick: is the client there, its token good, and where do its streams stand?"""
        self.recheck()
        if self._token_digest is None and self._context.needs_token():
            self.close(wire.CLOSE_REVOKED, "a token is wanted now")
        if self._pinging:
            self.evict()
        elif self._ending is None:
            self._pinging = True
            self._nursery.start_soon(self._ping)
            tick = self._notice(Tick(self._streams.heads()))
            self._outbox.notice(wire.encode(wire.event_frame(tick)))
            self._stir()

    def farewell(self) -> None:
        """Tell the client that the host shuts down; what it has going may still end."""
        if self._ending is None:
            self._told = True
            self._outbox.notice(wire.encode(wire.event_frame(self._notice(Shutdown()))))
            self._stir()

    def recheck(self) -> None:
        """Close the connection if its token is not good any more, or for somebody else now."""
        digest = self._token_digest
        if digest is not None and self._context.find(digest) != self._bearer:
            self.close(wire.CLOSE_REVOKED, "token revoked")

    async def _ping(self) -> None:
        await self._socket.ping()
        self._pinging = False

    def _notice(self, event: Tick | Shutdown) -> EventRecord:
        return EventRecord(stream=wire.SYSTEM_STREAM, event=event, ts=self._context.now())
