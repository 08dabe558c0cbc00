"""One WebSocket client: its first frame, its requests and its end.

A connection has a reader, a writer (the only task that waits for the socket), a task that replays
past events (:mod:`.streams`), and a task for each running request. Invariants: nothing but
``connect`` is answered before the client is known; the reader goes on while requests are stuck, so
that a stop always gets through; a client that does not take a frame in time is cut off. A failure
here ends this connection only.
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
from motet.actors.gateway.auth import Identity
from motet.actors.gateway.context import Context
from motet.actors.gateway.method import Refusal, error_body
from motet.actors.gateway.methods import Answer, Caller
from motet.actors.gateway.outbox import Outbox, size_of
from motet.actors.gateway.requests import Requests, input_of
from motet.actors.gateway.streams import Streams
from motet.actors.gateway.websocket import Ending, FrameSocket
from motet.protocols import gateway as wire
from motet.protocols.admission import Place
from motet.protocols.errors import NotFound
from motet.protocols.events import EventRecord, Shutdown, StorageChanged, Tick
from motet.protocols.host import Expected
from motet.protocols.sessions import LOCAL
from motet.runtime.rates import TokenBucket

_ANSWERS_HELD: Final = 64
"""Answers that a client has not taken before its next frame is read."""


class Writer:
    """``sending``: frames are being written."""

    def __init__(self, limits: wire.Limits) -> None:
        self.outbox = Outbox(limits)
        self.sending = False
        self._timeout = limits.send_timeout_ms / 1000
        self._socket: FrameSocket | None = None
        self._wake = trio.Event()
        self._written = trio.Event()

    @property
    def is_cut_off(self) -> bool:
        """Whether a frame was cut off in its middle: not even a close frame can follow."""
        return self._socket is not None and self._socket.is_cut_off

    def answer(self, text: str, written: Callable[[], None] | None = None) -> None:
        """Queue an answer; ``written`` is called when it is on its way to the client."""
        self.outbox.answer(text, written)
        self.wake()

    def notice(self, frame: wire.EventFrame) -> None:
        """Queue a frame about the connection itself, if there is room."""
        self.outbox.notice(wire.encode(frame))
        self.wake()

    def wake(self) -> None:
        """The outbox got something."""
        self._wake.set()

    def close(self) -> None:
        """Write only the answers that are queued."""
        self.outbox.seal()
        self.wake()

    def send_now(self, frames: bytes) -> bool:
        """Send frames without waiting if none are queued; false: they have to be queued."""
        if self._socket is None or self.outbox.bytes or self.sending or self.outbox.sealed:
            return False
        sent = self._socket.send_now(frames)
        if sent == "a part":
            self.wake()
        return sent != "nothing"

    async def room_for_answers(self) -> None:
        """Wait until the client has taken most of its answers."""
        while self.outbox.answers >= _ANSWERS_HELD:
            self._written = trio.Event()
            await self._written.wait()

    async def run(self, socket: FrameSocket) -> None:
        """Write until closed. Raises ``trio.TooSlowError`` for a client that takes nothing."""
        self._socket = socket
        while True:
            entries = self.outbox.take()
            if entries or socket.owes:
                with trio.fail_after(self._timeout):
                    self.sending = True
                    await socket.send(b"".join([entry.bytes() for entry in entries]))
                    self.sending = False
                for entry in entries:
                    if entry.written is not None:
                        entry.written()
                self._written.set()
            elif self.outbox.sealed:
                return
            else:
                self._wake = trio.Event()
                await self._wake.wait()


logger = logging.getLogger(__name__)
_REFUSALS: Final = 100
"""Refused frames at once, and per minute, before the connection is closed."""
_FRAMES_UNKNOWN: Final = 20
"""Frames of a client before its ``connect``, at once and for each second."""
_CLOSE_CODES: Final[Mapping[wire.ErrorCode, int]] = {
    "protocol_version": wire.CLOSE_PROTOCOL,
    "limit_reached": wire.CLOSE_OVERLOADED,
    "overloaded": wire.CLOSE_OVERLOADED,
}


@attrs.frozen
class Admitted:
    """A client whose first frame was accepted. It counts as a connection of the bearer."""

    request_id: str
    identity: Identity
    resume: Mapping[str, int]


class ConnectRefused(Exception):
    """The client gets ``frame``, then the connection is closed with ``code``."""

    def __init__(self, request_id: str, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.frame = wire.failed(request_id, error_body(refusal))
        self.code = _CLOSE_CODES.get(refusal.code, wire.CLOSE_POLICY)
        self.reason: str = refusal.code


def admit(context: Context, message: str, peer: str, header_token: str | None) -> Admitted:
    """Judge the first frame. Raises :class:`ConnectRefused`.

    The caller has to end with :meth:`Context.remove_connection`.
    """
    request_id = ""
    try:
        frame = wire.decode_request(message)
        request_id = frame.id
        params = _connect_params(frame)
        identity = context.authenticate(params.auth.token or header_token, peer)
        if params.auth.as_user is not None:
            identity = context.on_behalf_of(identity, params.auth.as_user)
        context.add_connection(identity.bearer.user)
    except wire.FrameError as error:
        refusal = Refusal("bad_frame", str(error))
        raise ConnectRefused(error.request_id, refusal) from None
    except Refusal as refusal:
        raise ConnectRefused(request_id, refusal) from None
    return Admitted(request_id, identity, params.resume)


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


class Connection:
    """A session of :func:`motet.actors.gateway.websocket.serve_websocket`.

    ``token`` is that of the HTTP request, if it had one.
    """

    def __init__(self, context: Context, place: Place, token: str | None = None) -> None:
        self._context = context
        self._place = place
        self._token = token
        self._identity = Identity(LOCAL, LOCAL, None)
        self._writer = Writer(context.settings.limits)
        self._requests = Requests(context.settings.limits)
        self._expected: dict[int, Expected] = {}
        self._refusals = TokenBucket(_REFUSALS / 60, _REFUSALS)
        self._frames = TokenBucket(_FRAMES_UNKNOWN, _FRAMES_UNKNOWN, trio.current_time())
        self._is_known = False
        self._nursery: trio.Nursery
        self._socket: FrameSocket
        self._streams: Streams
        self._ending: Ending | None = None
        self._shutdown_announced = False
        self._ping_unanswered = False

    def spend(self, frames: int, size: int) -> float:
        """See ``Session``. A client that is not known yet has a budget of its own: with one for
        its address, it could keep out all who come from there.
        """
        now = trio.current_time()
        if not self._is_known:
            return self._frames.spend(frames, now)
        return self._context.spend_frames(self._identity.bearer.user, frames, size, now)

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
            self._context.counts.total["failed"] += 1
            logger.error("a connection from %s failed", self._place.address, exc_info=errors)
            self._ending = Ending(
                wire.CLOSE_INTERNAL, "internal error", broken=self._writer.is_cut_off
            )

    async def _run(self, socket: FrameSocket) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery, self._socket = nursery, socket
            nursery.start_soon(self._write, socket)
            admitted = await self._admitted(socket)
            if admitted is not None:
                try:
                    await self._serve(admitted, socket, nursery)
                finally:
                    self._context.remove_connection(admitted.identity.bearer.user)
            if self._ending is None:
                nursery.cancel_scope.cancel()
            else:
                await trio.sleep_forever()  # the writer sends what is queued, then cancels

    async def _admitted(self, socket: FrameSocket) -> Admitted | None:
        """Read the first frame; None: the client is refused."""
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
            admitted = admit(self._context, text, self._place.address, self._token)
            self._place.known()
            return admitted
        except ConnectRefused as refused:
            self._answer(refused.frame)
            self.close(refused.code, refused.reason)
            return None

    async def _serve(self, admitted: Admitted, socket: FrameSocket, nursery: trio.Nursery) -> None:
        self._identity, context = admitted.identity, self._context
        self._is_known = True
        self._streams = Streams(
            context.api,
            context.hub,
            self._writer.outbox,
            self._writer.wake,
            context.settings.limits,
            admitted.identity.principal,
            self._writer.send_now,
        )
        context.connections.add(self)
        try:
            nursery.start_soon(self._streams.run)
            await self._resume(admitted)
            await self._read(socket, nursery)
        finally:
            context.connections.discard(self)
            self._expected.clear()
            self._streams.close()

    async def _resume(self, admitted: Admitted) -> None:
        """Answer the connect, with the state of each stream that the client had."""
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
        self._answer(wire.ok(admitted.request_id, self._welcome(states)))
        if reason := self._context.api.status().storage:
            self.announce_storage(reason)
        for start in starts:
            start()

    def _welcome(self, states: dict[str, wire.StreamState]) -> wire.Connected:
        status, principal = self._context.api.status(), self._identity.principal
        return wire.Connected(
            protocol=wire.PROTOCOL,
            server=wire.ServerInfo(status.version, status.instance, self._context.now()),
            principal=wire.PrincipalInfo(principal.user, principal.role),
            methods=methods.allowed(principal.role),
            limits=self._context.settings.limits,
            streams=states,
        )

    def ending(self) -> Ending:
        """How to close the socket; without a reason of its own the server is going away."""
        if self._ending is not None:
            return self._ending
        shutdown = wire.encode(self._event(Shutdown()))
        last_frame = None if self._shutdown_announced else shutdown
        return Ending(
            wire.CLOSE_GOING_AWAY, "server going away", last_frame, self._writer.is_cut_off
        )

    def close(self, code: int, reason: str) -> None:
        """Write the answers that are queued, then close."""
        if self._ending is None:
            self._ending = Ending(code, reason)
            self._writer.close()

    def evict(self) -> None:
        """Cut the client off: it does not take what it is sent."""
        self._context.counts.total["evicted"] += 1
        self._ending = Ending(wire.CLOSE_OVERLOADED, "slow consumer", broken=True)
        self._writer.close()
        self._nursery.cancel_scope.cancel()

    # -- reading ---------------------------------------------------------------------------------

    async def _read(self, socket: FrameSocket, nursery: trio.Nursery) -> None:
        while self._ending is None:
            await self._writer.room_for_answers()
            text = self._text(await socket.get_message(), self._context.settings.limits.frame)
            if text is not None:
                self._handle(text, nursery)

    def _text(self, message: str | bytes, limit: int) -> str | None:
        """The message as text; None: it is refused, and the connection closes."""
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
            self._expect(frame)
            if at_once:
                nursery.start_soon(self._perform, frame)
        except wire.FrameError as error:
            self._refuse(error.request_id, Refusal("bad_frame", str(error)))
        except Refusal as error:
            self._refuse(request_id, error)

    def _expect(self, frame: wire.RequestFrame) -> None:
        """Announce an input as it is read, so that a stop which is read after it covers it (G2)."""
        found = input_of(frame)
        if found is not None:
            with suppress(Refusal):  # raised again when the request is carried out
                principal, (session, sender) = self._caller(frame).principal, found
                expect = self._context.api.expect
                self._expected[id(frame)] = expect(session, sender=sender, principal=principal)

    def _refuse(self, request_id: str, refusal: Refusal) -> None:
        self._answer(wire.failed(request_id, error_body(refusal)))
        self._count_refusal()

    def _count_refusal(self) -> None:
        if self._refusals.take(trio.current_time()) > 0:
            self.close(wire.CLOSE_RATE, "too many refused requests")

    async def _perform(self, frame: wire.RequestFrame) -> None:
        if self._ending is not None and self._ending.code == wire.CLOSE_REVOKED:
            return
        answer, code = Answer(None), "ok"
        try:
            caller = self._caller(frame, self._expected.pop(id(frame), None))
            answer = await methods.call(caller, frame)
            text = wire.encode(wire.ok(frame.id, answer.result))
        except Exception as error:
            body = error_body(error)
            text = wire.encode(wire.failed(frame.id, body))
            code = body.code
            if code == "rate_limited":
                self._count_refusal()
        known = frame.method if frame.method in methods.METHODS else "unknown"
        self._context.counts.requests[known, code] += 1
        self._writer.answer(text, lambda: self._over(frame))
        if answer.when_queued is not None:
            answer.when_queued()

    def _caller(self, frame: wire.RequestFrame, expected: Expected | None = None) -> Caller:
        """On behalf of whom the request is. Raises :class:`Refusal`."""
        identity = self._identity
        if not isinstance(frame.as_user, UnsetType):
            identity = self._context.on_behalf_of(identity, frame.as_user)
        return Caller(identity.principal, self._context, self._streams, expected)

    def _over(self, frame: wire.RequestFrame) -> None:
        for waiting in self._requests.over(frame):
            if self._ending is None:
                self._nursery.start_soon(self._perform, waiting)

    # -- writing ---------------------------------------------------------------------------------

    def _answer(self, frame: wire.ResponseFrame) -> None:
        self._writer.answer(wire.encode(frame))

    async def _write(self, socket: FrameSocket) -> None:
        try:
            await self._writer.run(socket)
        except trio.TooSlowError:
            self.evict()
        else:
            self._nursery.cancel_scope.cancel()

    # -- the gateway's timer ---------------------------------------------------------------------

    def tick(self) -> None:
        """Check the token, ping the client, and tell it the heads of its streams."""
        self.recheck()
        if self._ping_unanswered:
            self.evict()
        elif self._ending is None:
            self._ping_unanswered = True
            self._nursery.start_soon(self._ping)
            self._writer.notice(self._event(Tick(self._streams.heads())))

    def announce_shutdown(self) -> None:
        """Tell the client that the host shuts down; its runs may still end."""
        if self._ending is None:
            self._shutdown_announced = True
            self._writer.notice(self._event(Shutdown()))

    def announce_storage(self, reason: str) -> None:
        """Tell the client why nothing can be stored now; empty: it can again."""
        if self._ending is None:
            self._writer.notice(self._event(StorageChanged(reason)))

    def recheck(self) -> None:
        """Close the connection if its token gives other rights now, or one is wanted now."""
        if not self._context.holds(self._identity):
            token = self._identity.token_digest
            self.close(
                wire.CLOSE_REVOKED, "a token is wanted now" if token is None else "token revoked"
            )

    async def _ping(self) -> None:
        await self._socket.ping()
        self._ping_unanswered = False

    def _event(self, event: Tick | Shutdown | StorageChanged) -> wire.EventFrame:
        record = EventRecord(stream=wire.SYSTEM_STREAM, event=event, ts=self._context.now())
        return wire.event_frame(record)
