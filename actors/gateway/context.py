"""What all connections of one gateway share.

Invariant: nothing here awaits, so that a check and what follows from it are one step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from motet.actors.gateway.auth import StaticTokens, TokenStore, digest, token_entry
from motet.actors.gateway.failures import Refusal
from motet.actors.gateway.hub import Hub
from motet.actors.gateway.once import Once
from motet.actors.gateway.rates import Buckets, FailureWindow
from motet.protocols.config import GatewayConfig, split_listen
from motet.protocols.gateway import Limits
from motet.protocols.host import HostApi
from motet.protocols.sessions import LOCAL, Principal


class Beating(Protocol):
    """A connection, as the one timer sees it."""

    def beat(self) -> None: ...


@attrs.frozen
class Settings:
    """``allowed_origins``: pages of other hosts that may connect, such as ``https://a.example``.

    ``tokens``: without any, only this machine is served, as the admin ``local``.
    """

    host: str = "127.0.0.1"
    port: int = 7878
    tokens: TokenStore = attrs.field(factory=StaticTokens)
    allowed_origins: tuple[str, ...] = ()
    limits: Limits = attrs.field(factory=Limits)

    @classmethod
    def of(cls, config: GatewayConfig) -> Settings:
        """The settings that a configuration asks for. Raises :class:`ConfigError`."""
        host, port = split_listen(config.listen)
        entries = (token_entry(item.token, item.user, item.role) for item in config.tokens)
        return cls(host, port, StaticTokens(entries), config.allowed_origins)


@attrs.define(eq=False)
class Context:
    """``now`` is Unix seconds, for tokens and frames; waiting goes by trio's clock."""

    api: HostApi
    settings: Settings
    now: Callable[[], float] = time.time
    hub: Hub = attrs.field(init=False)
    messages: Buckets = attrs.field(init=False)
    once: Once = attrs.field(init=False)
    failures: FailureWindow = attrs.field(init=False)
    connections: set[Beating] = attrs.field(init=False, factory=set[Beating])
    open_sockets: int = attrs.field(init=False, default=0)
    websockets: int = attrs.field(init=False, default=0)
    evicted: int = attrs.field(init=False, default=0)
    failed: int = attrs.field(init=False, default=0)
    refused_connects: int = attrs.field(init=False, default=0)
    _users: Counter[str] = attrs.field(init=False, factory=Counter[str])

    def __attrs_post_init__(self) -> None:
        limits = self.settings.limits
        self.hub = Hub(self.api.events)
        self.once = Once(self.now)
        self.messages = Buckets(limits.messages_per_min / 60, limits.message_burst)
        period = limits.connect_failures_ms / 1000
        self.failures = FailureWindow(limits.connect_failures, period)

    def refused_for(self, peer: str) -> float:
        """Seconds for which an address is refused after too many failed connects."""
        return self.failures.refused_for(peer, trio.current_time())

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
        self.failures.record(peer, trio.current_time())
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

    def beat(self) -> None:
        """The one timer's tick: greet every connection, forget what is at rest."""
        now = trio.current_time()
        self.messages.forget_idle(now)
        self.failures.forget_old(now)
        for connection in tuple(self.connections):
            connection.beat()
