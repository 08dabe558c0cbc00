"""The state that all connections of one gateway share: settings, limits, counts.

Invariant: nothing here awaits but for the host's end, so that a check and the action after it are
one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal, Protocol, TypeAlias

import attrs
import trio

from motet.actors.gateway.auth import (
    Identity,
    JoinedTokens,
    StaticTokens,
    TokenStore,
    WithOperator,
    token_entry,
)
from motet.actors.gateway.hub import Hub
from motet.actors.gateway.idempotency import Idempotency, MemoryConversations
from motet.actors.gateway.method import Refusal
from motet.actors.gateway.tls import Certificate, tls_of
from motet.actors.storage.tokens import TokenBook, digest
from motet.protocols.admission import Network, Newcomers, counted_as, networks_of
from motet.protocols.config import GatewayConfig, split_listen
from motet.protocols.gateway import Limits
from motet.protocols.gateway_stores import Conversations
from motet.protocols.host import HostApi
from motet.protocols.session_keys import is_internal
from motet.protocols.sessions import LOCAL, Principal, Role
from motet.protocols.tokens import Operator
from motet.runtime.outside import steady_time, wall_time
from motet.runtime.rates import SlidingWindows, TokenBuckets

_NEWCOMERS: Final = 256  # connections whose clients are not known yet
_SAVED: Final = 2.0  # seconds of a budget that can be spent at once
Open: TypeAlias = Literal["socket", "websocket", "edge"]
Total: TypeAlias = Literal["evicted", "failed", "refused_connect"]


class Attached(Protocol):
    """A connected client, as the gateway's timer sees it."""

    def tick(self) -> None: ...

    def recheck(self) -> None:
        """Tokens have changed."""
        ...

    def announce_shutdown(self) -> None:
        """The host begins to shut down."""
        ...

    def announce_storage(self, reason: str) -> None:
        """Nothing can be stored now, because of ``reason``; empty: it can again."""
        ...


@attrs.frozen
class Settings:
    """The settings of one gateway.

    Attributes:
        tokens: without any, only this machine is served, as the admin ``local``.
        allowed_origins: origins of other hosts whose pages may connect: ``https://a.example``.
        proxies: networks whose word about a client's address counts.
        tls: None: clear text.
    """

    host: str = "127.0.0.1"
    port: int = 7878
    tokens: TokenStore = attrs.field(factory=StaticTokens)
    allowed_origins: tuple[str, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    tls: Certificate | None = None
    proxies: tuple[Network, ...] = ()
    proxy_protocol: bool = False
    sockets: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        config: GatewayConfig,
        stored: TokenBook | None = None,
        operator: Operator | None = None,
    ) -> Settings:
        """The settings of a configuration. Raises :class:`ConfigError`.

        ``stored`` and ``operator``: tokens beside those of the configuration.
        """
        host, port = split_listen(config.listen)
        tokens: TokenStore = StaticTokens(
            token_entry(item.token, item.user, item.role, impersonate=item.impersonate)
            for item in config.tokens
        )
        if stored is not None:
            tokens = JoinedTokens(tokens, stored)
        if operator is not None:
            tokens = WithOperator(tokens, digest(operator.token), operator.required)
        limits = Limits(
            connections=config.connections,
            connections_per_user=config.connections_per_user,
            messages_per_min=config.messages_per_minute,
            frames_per_sec=config.frames_per_second,
            bytes_per_sec=config.bytes_per_second,
        )
        proxies, headers = networks_of(config.trusted_proxies), config.proxy_protocol
        origins, tls = config.allowed_origins, tls_of(config)
        own = host, port, tokens, origins, limits, tls, proxies, headers
        return cls(*own, config.sockets)


@attrs.define(eq=False)
class LiveSettings:
    """The settings of a gateway now; they outlive its restarts."""

    settings: Settings
    _watchers: dict[object, Callable[[], None]] = attrs.field(
        init=False, factory=dict[object, "Callable[[], None]"]
    )

    def adopt(self, settings: Settings) -> None:
        """Go on with other settings, in this step (G16)."""
        self.settings = settings
        for changed in tuple(self._watchers.values()):
            changed()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each change; returns a function that ends this."""
        place = object()
        self._watchers[place] = changed
        return lambda: self._watchers.pop(place, None) and None


@attrs.frozen(eq=False)
class Counts:
    """Gauges of what is open, and totals since the start.

    Attributes:
        open: a ``socket`` is any TCP connection; a ``websocket``, or an ``edge`` request that is
            being answered, is on one of them.
        total: ``evicted`` clients were cut off since they took nothing; ``failed`` connections have
            ended by a fault of the host; a ``refused_connect`` had a wrong token.
        requests: answered ones by method and error code, or ``ok``.
    """

    open: Counter[Open] = attrs.field(factory=Counter[Open])
    total: Counter[Total] = attrs.field(factory=Counter[Total])
    requests: Counter[tuple[str, str]] = attrs.field(factory=Counter["tuple[str, str]"])

    @contextmanager
    def opened(self, kind: Open) -> Generator[None]:
        """Count one for the length of the block."""
        self.open[kind] += 1
        try:
            yield
        finally:
            self.open[kind] -= 1


@attrs.define(eq=False)
class Context:
    """``now``: Unix seconds, for tokens and frames; waiting goes by trio's clock."""

    api: HostApi
    settings: Settings
    now: Callable[[], float] = wall_time
    conversations: Conversations = attrs.field(factory=MemoryConversations, kw_only=True)
    connections: set[Attached] = attrs.field(init=False, factory=set[Attached])
    counts: Counts = attrs.field(init=False, factory=Counts)
    hub: Hub = attrs.field(init=False)
    idempotency: Idempotency = attrs.field(init=False)
    _messages: TokenBuckets = attrs.field(init=False)
    _frames: TokenBuckets = attrs.field(init=False)
    _bytes: TokenBuckets = attrs.field(init=False)
    newcomers: Newcomers = attrs.field(init=False, factory=lambda: Newcomers(_NEWCOMERS))
    _failures: SlidingWindows[str] = attrs.field(init=False)
    _users: Counter[str] = attrs.field(init=False, factory=Counter[str])

    def __attrs_post_init__(self) -> None:
        limits = self.settings.limits
        self.hub = Hub(self.api.events)
        self.idempotency = Idempotency(steady_time)
        self._messages = TokenBuckets(limits.messages_per_min / 60, limits.message_burst)
        self._budget_frames(limits)
        self._failures = SlidingWindows(limits.connect_failures_ms / 1000)

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings; counts are kept where the limit is the same."""
        limits, before = settings.limits, self.settings.limits
        self.settings = settings
        if limits.messages_per_min != before.messages_per_min:
            self._messages = TokenBuckets(limits.messages_per_min / 60, limits.message_burst)
        budget = limits.frames_per_sec, limits.bytes_per_sec
        if budget != (before.frames_per_sec, before.bytes_per_sec):
            self._budget_frames(limits)
        self.recheck()

    def _budget_frames(self, limits: Limits) -> None:
        self._frames = TokenBuckets(limits.frames_per_sec, _SAVED * limits.frames_per_sec)
        self._bytes = TokenBuckets(limits.bytes_per_sec, _SAVED * limits.bytes_per_sec)

    # -- who asks ------------------------------------------------------------------------------

    def needs_token(self) -> bool:
        return self.settings.tokens.has_tokens()

    def holds(self, identity: Identity) -> bool:
        """Whether a client may go on: its token, if it has one, gives it the same rights still."""
        token, now = identity.token_digest, self.now()
        if token is None:
            return not self.needs_token()
        tokens = self.settings.tokens
        kept = identity.bridge <= tokens.impersonates(token, now)
        return kept and tokens.find(token, now) == identity.bearer

    def authenticate(self, token: str | None, peer: str) -> Identity:
        """The owner of a token. Raises :class:`Refusal`, which counts against the address.

        A valid token always passes: others behind the same address may have sent wrong ones.
        """
        if not self.needs_token():
            return Identity(LOCAL, LOCAL, None)
        if token is None:
            reason = "this gateway requires a token, in `auth.token` of connect"
        else:
            token_digest = digest(token)
            principal = self.settings.tokens.find(token_digest, self.now())
            if principal is not None and not is_internal(principal.user):
                bridge = self.settings.tokens.impersonates(token_digest, self.now())
                return Identity(principal, principal, token_digest, bridge)
            reason = "unknown or revoked token"
        self.counts.total["refused_connect"] += 1
        address, now = counted_as(peer), trio.current_time()
        if (wait := self._failures.wait(address, now)) > 0:
            raise Refusal("rate_limited", "too many failed connects", retry_after=wait)
        self._failures.record(address, self.settings.limits.connect_failures, now)
        raise Refusal("unauthorized", reason)

    def on_behalf_of(self, identity: Identity, user: str) -> Identity:
        """A bridge as ``user``, never as an admin. Raises :class:`Refusal` for other tokens, and
        for users that are nobody in another chat: the host's own, and its operator.
        """
        token_digest, bearer = identity.token_digest, identity.bearer
        if token_digest is None or not self.settings.tokens.impersonates(token_digest, self.now()):
            raise Refusal(
                "forbidden", "`as_user` is for the tokens of bridges, which have `impersonate`"
            )
        if is_internal(user) or user == LOCAL.user:
            raise Refusal("forbidden", f"nobody acts as {user!r}: that is the host's own user")
        role: Role = "operator" if bearer.role == "admin" else bearer.role
        return Identity(bearer, Principal(user, role), token_digest, bridge=True)

    # -- limits --------------------------------------------------------------------------------

    def add_connection(self, user: str) -> None:
        """Count a connection of ``user``. Raises :class:`Refusal` above the limit."""
        limit = self.settings.limits.connections_per_user
        if self.is_full():
            raise Refusal("overloaded", "too many connections", retry_after=5.0)
        if self._users[user] >= limit:
            raise Refusal("limit_reached", f"{limit} connections are open already: close one")
        self._users[user] += 1

    def is_full(self) -> bool:
        """Whether as many known clients are connected as there may be."""
        return self._users.total() >= self.settings.limits.connections

    def remove_connection(self, user: str) -> None:
        self._users[user] -= 1
        if self._users[user] <= 0:
            del self._users[user]

    def spend_message(self, user: str) -> None:
        """Count a message of ``user``. Raises :class:`Refusal` when there were too many."""
        wait = self._messages.take(user, trio.current_time())
        if wait > 0:
            rate = self.settings.limits.messages_per_min
            raise Refusal("rate_limited", f"{rate} messages per minute", retry_after=wait)

    async def spend_input(self, principal: Principal, method: str, key: str | None) -> None:
        """As :meth:`spend_message`, but a resend under an accepted key always passes."""
        try:
            self.spend_message(principal.user)
        except Refusal:
            if key is None or not await self.api.is_resend(method, key, principal=principal):
                raise

    def spend_frames(self, user: str, frames: int, size: int, now: float) -> float:
        """Count frames of ``user``, and their bytes; the seconds until all of them are earned."""
        late = self._frames.spend(user, frames, now)
        return max(late, self._bytes.spend(user, size, now))

    # -- every connection ----------------------------------------------------------------------

    def tick(self) -> None:
        """The gateway's timer: ping every connection, drop rate counts that are at rest."""
        now = trio.current_time()
        self._messages.forget_idle(now)
        self._frames.forget_idle(now)
        self._bytes.forget_idle(now)
        self._failures.forget_idle(now)
        for connection in tuple(self.connections):
            connection.tick()

    def recheck(self) -> None:
        """Tokens have changed: close the connections whose token is not valid any more."""
        for connection in tuple(self.connections):
            connection.recheck()

    async def announce_storage(self) -> None:
        """Tell every client when nothing can be stored, and when it can again."""
        while True:
            await self.api.storage_changed()
            reason = self.api.status().storage
            for connection in tuple(self.connections):
                connection.announce_storage(reason)

    async def announce_shutdown(self) -> None:
        """Tell every client as soon as the host begins to shut down."""
        await self.api.closing()
        for connection in tuple(self.connections):
            connection.announce_shutdown()
