"""What all connections of one gateway share.

Invariant: nothing here awaits, so that a check and what follows from it are one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from motet.actors.gateway.auth import (
    JoinedTokens,
    StaticTokens,
    TokenStore,
    WithOperator,
    token_entry,
)
from motet.actors.gateway.method import Once, Refusal
from motet.actors.gateway.outbox import Hub
from motet.actors.gateway.stores import AnswerBook, Conversations, Remembered
from motet.actors.gateway.tls import Certificate, tls_of
from motet.actors.storage.tokens import TokenBook, digest
from motet.protocols.config import GatewayConfig, split_listen
from motet.protocols.gateway import Limits
from motet.protocols.host import HostApi
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.outside import wall_time
from motet.runtime.rates import SlidingWindows, TokenBuckets


class Beating(Protocol):
    """A connection, as the one timer sees it."""

    def beat(self) -> None: ...

    def recheck(self) -> None:
        """Tokens have changed."""
        ...

    def farewell(self) -> None:
        """The host begins to shut down."""
        ...


@attrs.frozen
class Settings:
    """What a gateway is set up with.

    Attributes:
        tokens: without any, only this machine is served, as the admin ``local``.
        allowed_origins: pages of other hosts that may connect, such as ``https://a.example``.
        tls: None: in clear text.
    """

    host: str = "127.0.0.1"
    port: int = 7878
    tokens: TokenStore = attrs.field(factory=StaticTokens)
    allowed_origins: tuple[str, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    tls: Certificate | None = None

    @classmethod
    def of(
        cls,
        config: GatewayConfig,
        stored: TokenBook | None = None,
        operator: str | None = None,
    ) -> Settings:
        """The settings that a configuration asks for. Raises :class:`ConfigError`.

        ``stored``: tokens beside those of the configuration; ``operator``: another one.
        """
        host, port = split_listen(config.listen)
        tokens: TokenStore = StaticTokens(
            token_entry(item.token, item.user, item.role, impersonate=item.impersonate)
            for item in config.tokens
        )
        if stored is not None:
            tokens = JoinedTokens(tokens, stored)
        if operator is not None:
            tokens = WithOperator(tokens, digest(operator))
        limits = Limits(
            connections=config.connections,
            connections_per_user=config.connections_per_user,
            messages_per_min=config.messages_per_minute,
        )
        return cls(host, port, tokens, config.allowed_origins, limits, tls_of(config))


@attrs.frozen(eq=False)
class Books:
    """What a gateway has on disk beside tokens."""

    answers: AnswerBook
    conversations: Conversations


@attrs.define(eq=False)
class Context:
    """``now`` is Unix seconds, for tokens and frames; waiting goes by trio's clock."""

    api: HostApi
    settings: Settings
    now: Callable[[], float] = wall_time
    hub: Hub = attrs.field(init=False)
    messages: TokenBuckets = attrs.field(init=False)
    once: Once = attrs.field(init=False)
    failures: SlidingWindows[str] = attrs.field(init=False)
    connections: set[Beating] = attrs.field(init=False, factory=set[Beating])
    open_sockets: int = attrs.field(init=False, default=0)
    websockets: int = attrs.field(init=False, default=0)
    edges: int = attrs.field(init=False, default=0)
    conversations: Conversations = attrs.field(factory=Remembered, kw_only=True)
    evicted: int = attrs.field(init=False, default=0)
    failed: int = attrs.field(init=False, default=0)
    refused_connects: int = attrs.field(init=False, default=0)
    requests: Counter[tuple[str, str]] = attrs.field(init=False, factory=Counter["tuple[str, str]"])
    _users: Counter[str] = attrs.field(init=False, factory=Counter[str])

    def __attrs_post_init__(self) -> None:
        limits = self.settings.limits
        self.hub = Hub(self.api.events)
        self.once = Once(self.now)
        self.messages = TokenBuckets(limits.messages_per_min / 60, limits.message_burst)
        self.failures = SlidingWindows(limits.connect_failures_ms / 1000)

    def adopt(self, settings: Settings) -> None:
        """Go on with other settings: what was counted so far is counted on where it can be."""
        limits, before = settings.limits, self.settings.limits
        self.settings = settings
        if limits.messages_per_min != before.messages_per_min:
            self.messages = TokenBuckets(limits.messages_per_min / 60, limits.message_burst)
        self.recheck()

    def refused_for(self, peer: str) -> float:
        """Seconds for which an address is refused after too many failed connects."""
        return self.failures.wait(peer, trio.current_time())

    def recheck(self) -> None:
        """Tokens have changed: connections whose token is good no more are closed."""
        for connection in tuple(self.connections):
            connection.recheck()

    def impersonates(self, token_digest: str | None) -> bool:
        """Whether who came with this token may act as other users."""
        if token_digest is None:
            return False
        return self.settings.tokens.impersonates(token_digest, self.now())

    def needs_token(self) -> bool:
        return self.settings.tokens.has_tokens()

    def find(self, token_digest: str) -> Principal | None:
        return self.settings.tokens.find(token_digest, self.now())

    def authenticate(self, token: str | None, peer: str) -> tuple[Principal, str | None]:
        """The principal of a token, and the token's digest. Raises :class:`Refusal`."""
        if not self.settings.tokens.has_tokens():
            return LOCAL, None
        if token is None:
            reason = "this gateway wants a token: send it in `auth.token` of connect"
        else:
            token_digest = digest(token)
            principal = self.find(token_digest)
            if principal is not None:
                return principal, token_digest
            reason = "the token is not known, or not any more"
        self.refused_connects += 1
        failures = self.settings.limits.connect_failures
        self.failures.record(peer, failures, trio.current_time())
        raise Refusal("unauthorized", reason)

    def enter(self, user: str) -> None:
        """Count a connection of ``user`` in. Raises :class:`Refusal` above the limit."""
        limit = self.settings.limits.connections_per_user
        if self._users[user] >= limit:
            raise Refusal("limit_reached", f"{limit} connections are open already: close one")
        self._users[user] += 1

    def leave(self, user: str) -> None:
        self._users[user] -= 1
        if self._users[user] <= 0:
            del self._users[user]

    def spend_message(self, user: str) -> None:
        """Count one message of ``user``. Raises :class:`Refusal` when there were too many."""
        wait = self.messages.take(user, trio.current_time())
        if wait > 0:
            rate = self.settings.limits.messages_per_min
            raise Refusal("rate_limited", f"{rate} messages per minute", retry_after=wait)

    async def watch_closing(self) -> None:
        """Tell every client as soon as the host begins to shut down."""
        await self.api.closing()
        for connection in tuple(self.connections):
            connection.farewell()

    def beat(self) -> None:
        """The one timer's tick: greet every connection, forget what is at rest."""
        now = trio.current_time()
        self.messages.forget_idle(now)
        self.failures.forget_idle(now)
        for connection in tuple(self.connections):
            connection.beat()
