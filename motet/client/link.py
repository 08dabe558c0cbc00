"""One connection of a client, from dialling to its end: text frames over a WebSocket.

Invariant: a link raises :class:`LinkLost` when it cannot go on, and nothing else but ``Cancelled``.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import attrs
import trio
import trio_websocket
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError
from wsproto.utilities import LocalProtocolError

from motet.client.machine import Machine
from motet.client.requests import (
    FINAL_CLOSES,
    FINAL_STATUSES,
    ClientError,
    RequestFailed,
    TurnedAway,
    Unreachable,
)
from motet.protocols.errors import ConfigError
from motet.protocols.gateway import CLOSE_POLICY, CLOSE_PROTOCOL, SUBPROTOCOL, Connected, FrameError
from motet.runtime.errors import only_error
from motet.runtime.scopes import shielded_close

OPEN_SECONDS: Final = 10.0
SEND_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 1.0
FRAME_BYTES: Final = 8_388_608
_BUFFER: Final = 65_536
_BROKEN: Final = (
    ConnectionClosed,
    LocalProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)
_TLS: Final = {"ws": False, "http": False, "wss": True, "https": True}


class LinkLost(Exception):
    """The connection has ended. ``code`` is its close code; 1006: without one."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Link(Protocol):
    """One connection to a gateway. One task sends, one receives."""

    async def send(self, text: str) -> None:
        """Raises :class:`LinkLost`, also for a peer that does not take it within 10 s."""
        ...

    async def receive(self) -> str:
        """The next frame. Raises :class:`LinkLost`."""
        ...

    async def aclose(self) -> None:
        """Close with a handshake, for at most a second, also when cancelled."""
        ...


Dial: TypeAlias = Callable[[trio.Nursery], Awaitable[Link]]
"""Makes a connection whose tasks live in the nursery. Raises ``Unreachable``, ``TurnedAway``."""


@attrs.frozen
class Address:
    """The address of a gateway."""

    host: str
    port: int
    tls: bool
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """From ``ws://HOST:PORT``, ``wss://``, or a browser's URL. Raises ``ConfigError``."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not an address of a gateway: {error}") from None
        if parts.scheme not in _TLS or not host:
            raise ConfigError(
                f"{url!r} is not an address of a gateway, such as ws://localhost:7878"
            )
        if parts.query or parts.username is not None:
            raise ConfigError("a token does not belong into an address: give it apart")
        tls = _TLS[parts.scheme]
        path = parts.path if parts.path not in ("", "/") else "/ws"
        return cls(host, port or (443 if tls else 80), tls, path)

    @property
    def authority(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"


def dialer(address: Address, context: ssl.SSLContext | None = None) -> Dial:
    """Connections to an address; ``context``: the trusted certificates."""

    async def dial(nursery: trio.Nursery) -> Link:
        try:
            with trio.fail_after(OPEN_SECONDS):
                return await over(nursery, await _stream(address, context), address)
        except trio.TooSlowError:
            raise Unreachable(f"{address.authority} did not answer in {OPEN_SECONDS:g} s") from None

    return dial


async def over(nursery: trio.Nursery, stream: trio.abc.Stream, address: Address) -> Link:
    """A WebSocket over an open stream. Raises the errors of a :data:`Dial`."""
    try:
        link: Link = await nursery.start(_live, stream, address)
        return link
    except Exception as group:
        await trio.aclose_forcefully(stream)
        error = only_error(group)
        if isinstance(error, ConnectionRejected):
            raise _rejected(error) from None
        if isinstance(error, (*_BROKEN, HandshakeError, OSError)):
            raise Unreachable(f"{address.authority} does not speak WebSocket: {error}") from None
        raise
    except BaseException:  # cancelled: no link owns the stream yet
        await trio.aclose_forcefully(stream)
        raise


async def _live(
    stream: trio.abc.Stream, address: Address, *, task_status: trio.TaskStatus[Link]
) -> None:
    """The task of the socket itself, in which a failed handshake raises."""
    link: Link | None = None
    try:
        async with trio.open_nursery() as nursery:
            socket = await trio_websocket.wrap_client_stream(
                nursery,
                cast("trio.SocketStream", stream),  # any stream does, its signature is too narrow
                address.authority,
                address.path,
                subprotocols=[SUBPROTOCOL],
                max_message_size=FRAME_BYTES,
                receive_buffer_size=_BUFFER,
            )
            link = _WebSocketLink(socket, stream)
            task_status.started(link)
            await trio.sleep_forever()
    except* _BROKEN:
        # Once there is a link, the calls on it raise. These errors include that of a ping that
        # comes while we close.
        if link is None:
            raise


async def _stream(address: Address, context: ssl.SSLContext | None) -> trio.abc.Stream:
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise Unreachable(f"cannot reach {address.authority}: {error}") from None
    if not address.tls:
        return stream
    secure = trio.SSLStream(
        stream,
        context or ssl.create_default_context(),
        server_hostname=address.host,
        https_compatible=True,
    )
    try:
        await secure.do_handshake()
    except (trio.BrokenResourceError, OSError) as error:
        await trio.aclose_forcefully(stream)
        raise Unreachable(f"no TLS with {address.authority}: {error.__cause__ or error}") from None
    except BaseException:  # cancelled
        await trio.aclose_forcefully(stream)
        raise
    return secure


def _rejected(rejected: ConnectionRejected) -> Unreachable | TurnedAway:
    said = (rejected.body or b"").decode("utf-8", "replace").strip()[:200]
    status = rejected.status_code
    if status in FINAL_STATUSES:
        return TurnedAway(status, said or "the gateway refuses the connection")
    asked = dict(rejected.headers).get(b"retry-after", b"")
    wait = float(asked) if asked.isdigit() else None
    return Unreachable(f"{said or 'the gateway refuses it'} ({status})", retry_after=wait)


@attrs.define(eq=False)
class _WebSocketLink:
    _socket: trio_websocket.WebSocketConnection
    _stream: trio.abc.Stream

    async def send(self, text: str) -> None:
        with trio.move_on_after(SEND_SECONDS) as scope:
            try:
                await self._socket.send_message(text)
            except ConnectionClosed as closed:
                raise _lost(closed) from None
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise LinkLost(1006, "the connection broke") from None
        if scope.cancelled_caught:
            raise LinkLost(1006, "the gateway takes nothing")

    async def receive(self) -> str:
        try:
            message = await self._socket.get_message()
        except ConnectionClosed as closed:
            raise _lost(closed) from None
        if isinstance(message, bytes):
            raise LinkLost(1003, "the gateway sent a binary frame")
        return message

    async def aclose(self) -> None:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await self._socket.aclose(1000)
        await trio.aclose_forcefully(self._stream)


def _lost(closed: ConnectionClosed) -> LinkLost:
    reason = closed.reason
    if reason is None:
        return LinkLost(1006, "the connection broke")
    return LinkLost(reason.code, reason.reason or reason.name.lower().replace("_", " "))


CONNECT_SECONDS: Final = 10.0
_SILENT_TICKS: Final = 2.5
_TEMPORARY: Final = frozenset({"internal"})


@attrs.frozen
class Ended:
    """The end of a connection.

    Attributes:
        held: seconds since the host accepted the connect; 0: it did not.
        retry_after: seconds that the host asks for.
        error: reconnecting is useless.
    """

    reason: str
    held: float = 0.0
    retry_after: float = 0.0
    error: ClientError | None = None


async def hold(
    dial: Dial,
    machine: Machine,
    outgoing: Callable[[], Awaitable[str]],
    accepted: Callable[[Connected], None],
) -> Ended:
    """Connect, and hold the connection; ``accepted`` is called when the host has answered.

    Cancelled, it closes with a handshake, for at most a second.
    """
    ended: Ended | None = None
    # The link's own tasks outlive the session: they read the answer to our close frame.
    async with shielded_close() as scope, trio.open_nursery() as nursery:
        with scope:
            ended = await _held(dial, nursery, machine, outgoing, accepted)
        nursery.cancel_scope.cancel()
    assert ended is not None, "a cancellation leaves at the end of the block"
    return ended


async def _held(
    dial: Dial,
    nursery: trio.Nursery,
    machine: Machine,
    outgoing: Callable[[], Awaitable[str]],
    accepted: Callable[[Connected], None],
) -> Ended:
    try:
        link = await dial(nursery)
    except TurnedAway as error:
        return Ended(str(error), error=error)
    except Unreachable as error:
        return Ended(str(error), retry_after=error.retry_after or 0.0)
    try:
        machine.opened()
        return await _Session(link, machine, accepted).run(outgoing)
    finally:
        machine.lost()
        await link.aclose()


@attrs.define(eq=False)
class _Session:
    link: Link
    machine: Machine
    accepted: Callable[[Connected], None]
    _since: float | None = None
    _ended: Ended | None = None

    async def run(self, outgoing: Callable[[], Awaitable[str]]) -> Ended:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, outgoing, nursery.cancel_scope)
            try:
                await self._read()
            except LinkLost as lost:
                self._end(self._lost(lost))
            except RequestFailed as refused:
                self._end(self._refused(refused))
            except FrameError as error:
                self._end(Ended(f"the host sent an unreadable frame: {error}", self._held()))
            nursery.cancel_scope.cancel()
        assert self._ended is not None, "reading and writing end by an error"
        return self._ended

    async def _write(self, outgoing: Callable[[], Awaitable[str]], scope: trio.CancelScope) -> None:
        while True:
            text = await outgoing()
            try:
                await self.link.send(text)
            except LinkLost as lost:
                if lost.code != 1006:
                    return  # the reader raises too, after the frames that came before
                self._end(self._lost(lost))
                scope.cancel()
                return

    async def _read(self) -> None:
        while True:
            text = None
            with trio.move_on_after(self._patience()):
                text = await self.link.receive()
            if text is None:
                raise LinkLost(1006, "the host is silent")
            self.machine.received(text)
            if self._since is None and self.machine.server is not None:
                self._since = trio.current_time()
                self.accepted(self.machine.server)

    def _patience(self) -> float:
        """The host says something at every tick of its own."""
        server = self.machine.server
        return CONNECT_SECONDS if server is None else server.limits.ping_ms * _SILENT_TICKS / 1000

    def _held(self) -> float:
        return 0.0 if self._since is None else trio.current_time() - self._since

    def _end(self, ended: Ended) -> None:
        self._ended = self._ended or ended

    def _lost(self, lost: LinkLost) -> Ended:
        error = TurnedAway(lost.code, lost.reason) if lost.code in FINAL_CLOSES else None
        return Ended(lost.reason, self._held(), error=error)

    def _refused(self, refused: RequestFailed) -> Ended:
        if refused.retryable or refused.code in _TEMPORARY:
            return Ended(str(refused), retry_after=refused.retry_after or 0.0)
        code = CLOSE_PROTOCOL if refused.code == "protocol_version" else CLOSE_POLICY
        return Ended(str(refused), error=TurnedAway(code, str(refused)))
