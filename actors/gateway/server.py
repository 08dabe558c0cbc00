"""The gateway actor: listeners, the connections they bring, and the one timer.

Invariants: a failure in one connection never touches another one or a listener; what others than
this machine can reach is never served without a token; all sockets are closed when it stops.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import suppress

import attrs
import trio

from motet.actors.gateway.auth import bearer, check_listen, host_is_loopback, origin_allowed
from motet.actors.gateway.connection import Connection
from motet.actors.gateway.context import Books, Context, Settings
from motet.actors.gateway.edges.routes import route_of, serve_edge
from motet.actors.gateway.http import (
    BadRequest,
    Head,
    HttpConnection,
    Response,
    handshake_of,
    linger,
    page,
    plain,
    upgrade_fault,
    web_page,
)
from motet.actors.gateway.method import KEPT_FOR, MOST, Refusal
from motet.actors.gateway.metrics import looks
from motet.actors.gateway.stores import AnswerBook
from motet.actors.gateway.tls import Certificate, TlsStream
from motet.actors.gateway.websocket import serve_websocket
from motet.actors.storage.tokens import TokenBook
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.errors import ConfigError
from motet.protocols.gateway import GatewayState, GetGatewayState
from motet.protocols.host import HostApi
from motet.protocols.messages import Message
from motet.protocols.storage import StorageError
from motet.runtime import Actor, ActorDead, ActorRef, MailboxFull, StartFailed, System, handles

logger = logging.getLogger(__name__)
_SPARE_SOCKETS = 64  # for requests that are no WebSocket
KEEP_BUDGET = 1.0


async def serve(
    system: System, api: HostApi, config: GatewayConfig, tokens: TokenBook | None = None
) -> str:
    """Start the gateway of a host as the actor ``gateway``; returns the URL it listens on.

    ``tokens``: those that are stored, beside the configured ones.
    Raises :class:`ConfigError` when it may not or cannot listen there.
    """
    return (await open_gateway(system, api, config, tokens)).url


class LookAgain(Message, frozen=True, tag="gateway.look_again"):
    """The settings are others now."""


@attrs.define(eq=False)
class Served:
    """A gateway that was started, and the settings that it has, also when it is restarted.

    Attributes:
        operator: a token of the person at this machine.
        extra: tokens that it was given beside those of the host's configuration.
    """

    settings: Settings
    tokens: TokenBook | None
    operator: str | None = None
    url: str = ""
    extra: tuple[TokenConfig, ...] = ()
    ref: ActorRef[GetGatewayState | LookAgain] | None = None

    def prepared(self, config: GatewayConfig) -> Settings:
        """The settings that another configuration asks for, at the same address.

        Raises :class:`ConfigError` when nobody may listen there with them.
        """
        config = attrs.evolve(
            config, tokens=(*config.tokens, *self.extra), certificate=None, private_key=None
        )
        now, new = self.settings, Settings.of(config, self.tokens, self.operator)
        check_listen(now.host, new.tokens)
        return attrs.evolve(new, host=now.host, port=now.port, tls=now.tls)

    def renew(self) -> None:
        """Take the certificate from its files if they are others now, for new connections.

        Raises :class:`ConfigError` for files of no use; the last good certificate stays.
        """
        if self.settings.tls is not None:
            self.settings.tls.refresh()

    def adopt(self, settings: Settings) -> None:
        """Go on with other settings, soon; connections whose token is gone are closed."""
        self.settings = settings
        if self.ref is not None:
            with suppress(ActorDead, MailboxFull):  # it is restarted, or looks soon anyway
                self.ref.tell_nowait(LookAgain())


async def open_gateway(
    system: System,
    api: HostApi,
    config: GatewayConfig,
    tokens: TokenBook | None = None,
    operator: str | None = None,
    books: Books | None = None,
) -> Served:
    """As :func:`serve`, for who may change its settings later.

    ``operator``: a token that is good beside all others, for the person at this machine; ``books``:
    where it keeps what a restart must not make it forget.
    """
    served = Served(Settings.of(config, tokens, operator), tokens, operator)
    try:
        gateway = await system.start(
            lambda: Gateway(api, served.settings, tokens, lambda: served.settings, books),
            name="gateway",
        )
    except StartFailed as failed:
        if isinstance(failed.__cause__, ConfigError):
            raise failed.__cause__ from None
        raise
    state = await gateway.ask(GetGatewayState())
    # Restarted, it listens where its clients look for it, also when the port was any.
    served.settings = attrs.evolve(served.settings, port=state.addresses[0][1])
    served.url, served.ref = state.url, gateway
    return served


class Gateway(Actor[GetGatewayState | LookAgain]):
    """Serves ``motet.v1`` for a host on one port.

    Raises :class:`ConfigError` at its start when it may not or cannot listen. Stopped, it tells
    its clients (event ``shutdown``, close code 1001), within about a second.
    """

    def __init__(
        self,
        api: HostApi,
        settings: Settings | None = None,
        tokens: TokenBook | None = None,
        look: Callable[[], Settings] | None = None,
        books: Books | None = None,
    ) -> None:
        settings = settings or Settings()
        if books is None:
            self._context = Context(api, settings)
        else:
            self._context = Context(api, settings, conversations=books.conversations)
        self._books = books
        self._tokens = tokens
        self._look = look
        self._addresses: tuple[tuple[str, int], ...] = ()

    async def on_start(self) -> None:
        settings = self._context.settings
        check_listen(settings.host, settings.tokens)
        listeners = await open_listeners(settings.host, settings.port)
        self._addresses = tuple(listener.socket.getsockname()[:2] for listener in listeners)
        if self._books is not None:
            await self._recall(self._books.answers)
            self.start_soon(self._keep, self._books.answers)
        if self._tokens is not None:
            self.start_soon(self._watch, self._tokens)
        if settings.tls is not None:
            self.start_soon(self._renew, settings.tls)
        self.start_soon(self._context.watch_closing)
        self.start_soon(serve_listeners, self._context, listeners)

    async def _recall(self, answers: AnswerBook) -> None:
        """Know what was answered under a key before; without that it is done again."""
        try:
            found = await answers.read(self._context.now() - KEPT_FOR, MOST)
        except StorageError as error:
            logger.error("the answers that were given under a key cannot be read: %s", error)
        else:
            self._context.once.put(found)

    async def _keep(self, answers: AnswerBook) -> None:
        """Store what is answered under a key, soon after."""
        context = self._context
        while True:
            await context.once.news.wait()
            given = context.once.unsaved()
            try:
                await answers.keep(given, context.now() - KEPT_FOR)
            except StorageError as error:
                logger.error("what was answered under a key is not on disk: %s", error)
            else:
                context.once.saved(given)

    async def on_stop(self) -> None:
        """Waits for the disk for :data:`KEEP_BUDGET` seconds at most."""
        if self._books is not None and (given := self._context.once.unsaved()):
            with trio.move_on_after(KEEP_BUDGET), suppress(StorageError):
                await self._books.answers.keep(given, self._context.now() - KEPT_FOR)

    async def _watch(self, tokens: TokenBook) -> None:
        """A change of the tokens takes effect at once; one made by another program, at a tick."""
        leave = tokens.watch(self._context.recheck)
        try:
            while True:
                await trio.sleep(self._context.settings.limits.ping_ms / 1000)
                await tokens.refresh()
        finally:
            leave()

    async def _renew(self, certificate: Certificate) -> None:
        """Go on with another certificate as soon as its files have been replaced."""
        told = ""
        while True:
            await trio.sleep(self._context.settings.limits.ping_ms / 1000)
            try:
                if await trio.to_thread.run_sync(certificate.refresh):
                    logger.info("new connections have another certificate")
                told = ""
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    logger.error("the last good certificate stays: %s", told)

    @handles(LookAgain)
    async def look_again(self, _message: LookAgain) -> None:
        if self._look is not None:
            self._context.adopt(self._look())

    @handles(GetGatewayState)
    async def state(self, _request: GetGatewayState) -> GatewayState:
        context = self._context
        return GatewayState(
            addresses=self._addresses,
            connections=len(context.connections),
            evicted=context.evicted,
            failed=context.failed,
            refused_connects=context.refused_connects,
            secure=context.settings.tls is not None,
        )


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on an address, in brackets or not. Raises :class:`ConfigError`."""
    name = host.removeprefix("[").removesuffix("]")
    try:
        return await trio.open_tcp_listeners(port, host=name)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "the port is in use; choose another, or 0 for any"
        else:
            hint = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host!r}, port {port}: {hint}") from error


async def serve_listeners(context: Context, listeners: list[trio.SocketListener]) -> None:
    """Serve until cancelled; then close all connections and listeners."""

    async def handle(stream: trio.SocketStream) -> None:
        tls = context.settings.tls
        client = stream if tls is None else TlsStream(stream, tls.context)
        await serve_stream(context, client, _peer(stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_beat, context)
        await trio.serve_listeners(handle, listeners, handler_nursery=nursery)


async def _beat(context: Context) -> None:
    while True:
        await trio.sleep(context.settings.limits.ping_ms / 1000)
        context.beat()


def _peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return "gone"


async def serve_stream(context: Context, stream: trio.abc.HalfCloseableStream, peer: str) -> None:
    """Serve one client from its first byte to its last. Raises only what cancels it."""
    if context.open_sockets >= context.settings.limits.connections + _SPARE_SOCKETS:
        await trio.aclose_forcefully(stream)
        return
    context.open_sockets += 1
    try:
        await _serve_stream(context, stream, peer)
    except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass
    except* Exception as errors:
        context.failed += 1
        logger.error("serving %s failed", peer, exc_info=errors)
    finally:
        context.open_sockets -= 1
        await trio.aclose_forcefully(stream)


async def _serve_stream(context: Context, stream: trio.abc.HalfCloseableStream, peer: str) -> None:
    http = HttpConnection(stream)
    alive = True
    while alive:
        try:
            head = await http.next_head()
        except BadRequest as error:
            await http.refuse(error.response)
            break
        if head is None:
            return
        edge = route_of(head)
        if edge is not None:
            alive = await serve_edge(context, http, head, peer, edge)
            continue
        if not head.wants_websocket():
            alive = await http.respond(page(head, {**looks(context, head, peer), **web_page()}))
            continue
        refused = _upgrade_refused(context, head, peer)
        if refused is None:
            await _websocket(context, stream, head, peer)
            return
        alive = await http.respond(refused)
    await linger(stream)


async def _websocket(
    context: Context, stream: trio.abc.HalfCloseableStream, head: Head, peer: str
) -> None:
    context.websockets += 1
    try:
        await serve_websocket(
            stream,
            handshake_of(head),
            subprotocol=head.offers_subprotocol(),
            frame_limit=context.settings.limits.frame,
            session=Connection(context, peer, bearer(head.headers)),
        )
    finally:
        context.websockets -= 1


def _upgrade_refused(context: Context, head: Head, peer: str) -> Response | None:
    """Why this client may not open a WebSocket, or None."""
    fault = upgrade_fault(head)
    if fault is not None:
        return fault
    settings, host = context.settings, head.headers.get("host", "")
    if not origin_allowed(head.headers.get("origin"), host, settings.allowed_origins):
        return plain(403, "Pages of this origin may not connect: see gateway.allowed_origins.")
    if not settings.tokens.has_tokens() and not host_is_loopback(host):
        return plain(403, "Without a token this gateway is for localhost only.")
    wait = context.refused_for(peer)
    if wait > 0:
        seconds = str(max(1, round(wait)))
        return plain(429, "Too many failed connects.", ("retry-after", seconds))
    if context.websockets >= settings.limits.connections:
        return plain(503, "Too many connections.", ("retry-after", "5"))
    token = bearer(head.headers)
    if token is not None:
        try:
            context.authenticate(token, peer)
        except Refusal as refusal:
            return plain(401, str(refusal), ("www-authenticate", "Bearer"))
    return None
