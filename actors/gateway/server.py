"""The gateway actor: its listeners, their connections, and one timer for all of them.

Invariants: a failure in one connection never touches another one or a listener; without a token
only this machine is served; all sockets are closed when the actor stops.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from motet.actors.gateway.auth import check_listen
from motet.actors.gateway.connection import Connection
from motet.actors.gateway.context import Context, LiveSettings, Settings
from motet.actors.gateway.edges.routes import route_of, serve_edge
from motet.actors.gateway.http import (
    HEAD_SECONDS,
    BadRequest,
    Head,
    HttpConnection,
    Response,
    handshake_of,
    linger,
    page,
    plain,
    refused,
    upgrade_fault,
    web_page,
)
from motet.actors.gateway.idempotency import KEPT_FOR, MOST
from motet.actors.gateway.method import Refusal
from motet.actors.gateway.monitoring import monitoring_pages
from motet.actors.gateway.tls import Certificate, TlsStream
from motet.actors.gateway.websocket import serve_websocket
from motet.actors.storage.tokens import TokenBook
from motet.protocols.admission import (
    Place,
    bearer,
    client_address,
    host_is_loopback,
    is_in,
    origin_allowed,
    read_proxy_header,
)
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.errors import ConfigError
from motet.protocols.gateway import GatewayState, GetGatewayState
from motet.protocols.gateway_stores import GatewayStores, IdempotencyStore
from motet.protocols.host import HostApi
from motet.protocols.storage import StorageError
from motet.protocols.tokens import Operator
from motet.runtime import Actor, ActorRef, StartFailed, System, handles
from motet.runtime.outside import steady_time

logger = logging.getLogger(__name__)
SAVE_SECONDS = 1.0
LAST_SECONDS = 0.5
"""For answers to clients that came before the end."""


@attrs.define(eq=False)
class Served:
    """A gateway that was started, and the settings with which the actor is restarted.

    Attributes:
        operator: a token of the person at this machine.
        extra: tokens given at the start that are not in the host's configuration.
    """

    ref: ActorRef[GetGatewayState]
    url: str
    live: LiveSettings
    tokens: TokenBook | None
    operator: Operator | None
    extra: tuple[TokenConfig, ...]

    def prepared(self, config: GatewayConfig) -> Settings:
        """The settings of another configuration, at the same address.

        Raises :class:`ConfigError` when it may not listen there with them.
        """
        config = attrs.evolve(
            config, tokens=(*config.tokens, *self.extra), certificate=None, private_key=None
        )
        now, new = self.live.settings, Settings.of(config, self.tokens, self.operator)
        check_listen(now.host, new.tokens)
        return attrs.evolve(new, host=now.host, port=now.port, tls=now.tls)

    def renew(self) -> None:
        """Read the certificate again if its files have changed, for new connections.

        Raises :class:`ConfigError` for unusable files; the last good certificate stays.
        """
        if self.live.settings.tls is not None:
            self.live.settings.tls.refresh()


async def open_gateway(
    system: System,
    api: HostApi,
    config: GatewayConfig,
    tokens: TokenBook | None = None,
    operator: Operator | None = None,
    stores: GatewayStores | None = None,
    extra: tuple[TokenConfig, ...] = (),
) -> Served:
    """Start the gateway of a host as the actor ``gateway``.

    ``tokens``: the stored ones, beside those of the configuration; ``operator``: one more, for the
    person at this machine; ``stores``: the state that survives a restart; ``extra``: as of
    :class:`Served`. Raises :class:`ConfigError` when it may not or cannot listen there.
    """
    live = LiveSettings(Settings.of(config, tokens, operator))
    try:
        gateway = await system.start(lambda: Gateway(api, live, tokens, stores), name="gateway")
    except StartFailed as failed:
        if isinstance(failed.__cause__, ConfigError):
            raise failed.__cause__ from None
        raise
    state = await gateway.ask(GetGatewayState())
    # Restarted, it listens where its clients look for it, also when the port was any.
    live.adopt(attrs.evolve(live.settings, port=state.addresses[0][1]))
    return Served(gateway, state.url, live, tokens, operator, extra)


class Gateway(Actor[GetGatewayState]):
    """Serves ``motet.v1`` for a host on one port.

    Raises :class:`ConfigError` at its start when it may not or cannot listen. Stopped, it tells
    its clients (event ``shutdown``, close code 1001), within about a second.
    """

    def __init__(
        self,
        api: HostApi,
        live: LiveSettings,
        tokens: TokenBook | None = None,
        stores: GatewayStores | None = None,
    ) -> None:
        settings = live.settings
        if stores is None:
            self._context = Context(api, settings)
        else:
            self._context = Context(api, settings, conversations=stores.conversations)
        self._store = None if stores is None else stores.idempotency
        self._tokens = tokens
        self._live = live
        self._addresses: tuple[tuple[str, int], ...] = ()

    async def on_start(self) -> None:
        settings = self._context.settings
        check_listen(settings.host, settings.tokens)
        listeners = await open_listeners(settings.host, settings.port, settings.sockets)
        self._addresses = tuple(listener.socket.getsockname()[:2] for listener in listeners)
        if self._store is not None:
            await self._restore(self._store)
            self.start_soon(self._save, self._store)
        if settings.tls is not None:
            self.start_soon(self._renew, settings.tls)
        self.start_soon(self._watch)
        self.start_soon(self._context.announce_shutdown)
        self.start_soon(self._context.announce_storage)
        self.start_soon(serve_listeners, self._context, listeners)

    async def _restore(self, store: IdempotencyStore) -> None:
        """Get the answers of the last host back; without them a resend is carried out again."""
        try:
            found = await store.load(steady_time() - KEPT_FOR, MOST)
        except StorageError as error:
            logger.error("the answers that were given under a key cannot be read: %s", error)
        else:
            self._context.idempotency.restore(found)

    async def _save(self, store: IdempotencyStore) -> None:
        """Store new answers soon after they were given."""
        answers = self._context.idempotency
        while True:
            await answers.changed.wait()
            unsaved = answers.unsaved()
            try:
                await store.save(unsaved, steady_time() - KEPT_FOR)
            except StorageError as error:
                logger.error("the answer for an idempotency key is not on disk: %s", error)
            else:
                answers.saved(unsaved)

    async def on_stop(self) -> None:
        """Waits for the disk for :data:`SAVE_SECONDS` at most."""
        if self._store is not None and (unsaved := self._context.idempotency.unsaved()):
            with trio.move_on_after(SAVE_SECONDS), suppress(StorageError):
                await self._store.save(unsaved, steady_time() - KEPT_FOR)

    async def _watch(self) -> None:
        """Changes of settings and tokens take effect at once; one by another program, at a tick."""
        context, tokens = self._context, self._tokens
        ends = [self._live.watch(lambda: context.reconfigure(self._live.settings))]
        if tokens is not None:
            ends.append(tokens.watch(context.recheck))
        context.reconfigure(self._live.settings)  # they may have changed since it was made
        try:
            while True:
                await trio.sleep(context.settings.limits.ping_ms / 1000)
                if tokens is not None:
                    await tokens.refresh()
        finally:
            for end in ends:
                end()

    async def _renew(self, certificate: Certificate) -> None:
        """Use a new certificate as soon as its files have been replaced."""
        logged = ""
        while True:
            await trio.sleep(self._context.settings.limits.ping_ms / 1000)
            try:
                if await trio.to_thread.run_sync(certificate.refresh):
                    logger.info("new connections have another certificate")
                logged = ""
            except ConfigError as error:
                if str(error) != logged:
                    logged = str(error)
                    logger.error("the last good certificate stays: %s", logged)

    @handles(GetGatewayState)
    async def state(self, _request: GetGatewayState) -> GatewayState:
        context = self._context
        return GatewayState(
            addresses=self._addresses,
            connections=len(context.connections),
            evicted=context.counts.total["evicted"],
            failed=context.counts.total["failed"],
            refused_connects=context.counts.total["refused_connect"],
            secure=context.settings.tls is not None,
        )


async def open_listeners(
    host: str, port: int, sockets: Sequence[int] = ()
) -> list[trio.SocketListener]:
    """Listen on an address, in brackets or not, or on sockets. Raises :class:`ConfigError`."""
    if sockets:
        # Copies: the sockets stay open between two lives of the gateway, and their clients wait.
        try:
            copies = [socket.socket(fileno=os.dup(one)) for one in sockets]
            return [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in copies]
        except (OSError, ValueError) as error:
            raise ConfigError(f"gateway.sockets {list(sockets)}: {error}") from error
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
    """Serve until cancelled; then close the listeners, and all connections.

    A client that came before that gets its first answer still, within :data:`LAST_SECONDS`: a proxy
    would answer 502 in its place.
    """

    async def handle(stream: trio.SocketStream) -> None:
        await serve_stream(context, stream, _peer(stream))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tick, context)
        try:
            await trio.serve_listeners(handle, listeners, handler_nursery=nursery)
        finally:
            with trio.move_on_after(LAST_SECONDS, shield=True):
                while len(context.newcomers):
                    await trio.sleep(LAST_SECONDS / 100)
            context.newcomers.clear()


async def _tick(context: Context) -> None:
    while True:
        await trio.sleep(context.settings.limits.ping_ms / 1000)
        context.tick()


def _peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return "gone"


async def serve_stream(context: Context, stream: trio.abc.HalfCloseableStream, peer: str) -> None:
    """Serve one client from its first byte to its last. Raises only what cancels it."""
    counts = context.counts
    with counts.opened("socket"), trio.CancelScope(shield=True) as scope:
        place = context.newcomers.enter(peer, scope.cancel)
        try:
            client = await _unwrapped(context, stream, place)
            await _serve_stream(context, client, place, scope)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass
        except* Exception as errors:
            counts.total["failed"] += 1
            logger.error("serving %s failed", peer, exc_info=errors)
        finally:
            place.leave()
            await trio.aclose_forcefully(stream)


async def _unwrapped(
    context: Context, stream: trio.abc.HalfCloseableStream, place: Place
) -> trio.abc.HalfCloseableStream:
    """The stream of the client itself: behind the header of a proxy, and in TLS."""
    settings = context.settings
    if settings.proxy_protocol and is_in(place.address, settings.proxies):

        async def receive(most: int) -> bytes:
            return bytes(await stream.receive_some(most))

        try:
            with trio.fail_after(HEAD_SECONDS):
                place.move(await read_proxy_header(receive) or place.address)
        except ValueError as error:
            logger.warning("proxy %s: %s", place.address, error)
            raise trio.BrokenResourceError from error
    tls = settings.tls
    if tls is None or not isinstance(stream, trio.SocketStream):
        return stream
    return TlsStream(stream, tls.context)


async def _serve_stream(
    context: Context, stream: trio.abc.HalfCloseableStream, place: Place, scope: trio.CancelScope
) -> None:
    """``scope``: shields the wait for the first request, and the page that it asks for."""
    http, peer = HttpConnection(stream), place.address
    alive = True
    while alive:
        try:
            head = await http.next_head()
        except BadRequest as error:
            await http.refuse(error.response)
            break
        if head is None:
            return
        forwarded, proxies = head.headers.get("x-forwarded-for", ""), context.settings.proxies
        # Of each request: a proxy sends those of several clients on one connection.
        place.move(client_address(peer, forwarded, proxies))
        edge = route_of(head)
        if edge is not None:
            scope.shield = False
            alive = await serve_edge(context, http, head, place, edge)
            continue
        if not head.wants_websocket():
            pages = {**monitoring_pages(context, head, place.address), **web_page()}
            alive = await http.respond(page(head, pages))
            scope.shield = False
            continue
        scope.shield = False
        refusal = _upgrade_refused(context, head, place.address)
        if refusal is None:
            with context.counts.opened("websocket"):
                await serve_websocket(
                    stream,
                    handshake_of(head),
                    subprotocol=head.offers_subprotocol(),
                    frame_limit=context.settings.limits.frame,
                    session=Connection(context, place, bearer(head.headers)),
                )
            return
        alive = await http.respond(refusal)
    await linger(stream)


def _upgrade_refused(context: Context, head: Head, peer: str) -> Response | None:
    """Why this client may not open a WebSocket, or None."""
    fault = upgrade_fault(head)
    if fault is not None:
        return fault
    settings, host = context.settings, head.headers.get("host", "")
    if not origin_allowed(head.headers.get("origin"), host, settings.allowed_origins):
        return plain(403, "Pages of this origin may not connect: see gateway.allowed_origins.")
    if not context.needs_token() and not host_is_loopback(host):
        return plain(403, "Without a token this gateway is for localhost only.")
    if context.is_full():
        return plain(503, "Too many connections.", ("retry-after", "5"))
    token = bearer(head.headers)
    try:
        if token is not None:
            context.authenticate(token, peer)
    except Refusal as refusal:
        return refused(refusal)
    return None
