"""Authentication and authorisation of clients: tokens and roles.

Invariants: a token itself is never kept, only its SHA-256; all comparisons take constant time;
without tokens only this machine is served (G16).
"""

from __future__ import annotations

import hmac
import re
from typing import Final, Protocol

import attrs
import msgspec

from motet.actors.storage.tokens import TokenBook, digest
from motet.protocols.admission import is_loopback
from motet.protocols.errors import ConfigError
from motet.protocols.session_keys import is_internal
from motet.protocols.sessions import LOCAL, Principal, Role

_RANK: Final[dict[Role, int]] = {"viewer": 0, "operator": 1, "admin": 2}
_TOKEN: Final = re.compile(r"mtt_[0-9a-f]{32}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def may(role: Role, needed: Role) -> bool:
    """Whether ``role`` is at least ``needed``; an unknown role may do nothing."""
    return _RANK.get(role, -1) >= _RANK[needed]


@attrs.frozen
class Identity:
    """``bearer``: the owner of the token. ``principal``: the user it acts for, another one if the
    token is a bridge's. ``token_digest``: None in a gateway without tokens. ``bridge``: the token
    may act for others.
    """

    bearer: Principal
    principal: Principal
    token_digest: str | None
    bridge: bool = False


class TokenEntry(msgspec.Struct, frozen=True):
    """A token at rest, bound to one user. ``expires``: Unix seconds; None: never."""

    digest: str
    user: str
    role: Role = "operator"
    expires: float | None = None
    impersonate: bool = False

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise ValueError("a token is kept as its SHA-256 in 64 hex digits: use `digest(token)`")
        if not self.user:
            raise ValueError("a token belongs to a user: `user` is empty")
        if is_internal(self.user):
            raise ValueError(f"a token belongs to a person: {self.user!r} is the host's own")
        if self.role not in _RANK:
            raise ValueError(f"role is viewer, operator or admin, not {self.role!r}")


def token_entry(
    token: str, user: str, role: Role = "operator", *, impersonate: bool = False
) -> TokenEntry:
    """The entry for a token in clear text, as it stands in an environment variable."""
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"the token of user {user!r} is not `mtt_` and 32 hex digits; "
            "make one: python -c 'import secrets; print(f\"mtt_{secrets.token_hex(16)}\")'"
        )
    try:
        return TokenEntry(digest(token), user, role, impersonate=impersonate)
    except ValueError as error:
        raise ConfigError(str(error)) from None


class TokenStore(Protocol):
    """Looks tokens up, at each connect and at each tick. No call may block."""

    def has_tokens(self) -> bool:
        """False: none was ever made, and the gateway serves this machine only."""
        ...

    def find(self, token_digest: str, now: float) -> Principal | None:
        """The owner of the token; None for one that is unknown, revoked or expired."""
        ...

    def impersonates(self, token_digest: str, now: float) -> bool:
        """Whether it is a valid token of a bridge, which may act as other users."""
        ...


@attrs.frozen
class StaticTokens:
    """Tokens of a configuration. A lookup compares all entries, so that its time tells nothing."""

    entries: tuple[TokenEntry, ...] = attrs.field(default=(), converter=tuple[TokenEntry, ...])

    def has_tokens(self) -> bool:
        return bool(self.entries)

    def find(self, token_digest: str, now: float) -> Principal | None:
        entry = self._valid(token_digest, now)
        return None if entry is None else Principal(entry.user, entry.role)

    def impersonates(self, token_digest: str, now: float) -> bool:
        entry = self._valid(token_digest, now)
        return entry is not None and entry.impersonate

    def _valid(self, token_digest: str, now: float) -> TokenEntry | None:
        found: TokenEntry | None = None
        for entry in self.entries:
            same = hmac.compare_digest(entry.digest, token_digest)
            if same and (entry.expires is None or now < entry.expires):
                found = entry
        return found


@attrs.frozen
class JoinedTokens:
    """The tokens of the configuration and the stored ones."""

    configured: TokenStore
    stored: TokenBook

    def has_tokens(self) -> bool:
        return self.configured.has_tokens() or self.stored.has_tokens()

    def find(self, token_digest: str, now: float) -> Principal | None:
        found = self.configured.find(token_digest, now), self.stored.find(token_digest, now)
        return found[0] or found[1]

    def impersonates(self, token_digest: str, now: float) -> bool:
        if self.configured.find(token_digest, now) is not None:
            return self.configured.impersonates(token_digest, now)
        return self.stored.impersonates(token_digest, now)


@attrs.frozen
class WithOperator:
    """Other tokens and one of the person at this machine; ``required``: it makes all need one."""

    others: TokenStore
    operator: str
    required: bool

    def has_tokens(self) -> bool:
        return self.required or self.others.has_tokens()

    def find(self, token_digest: str, now: float) -> Principal | None:
        own = hmac.compare_digest(self.operator, token_digest)
        return Principal(LOCAL.user, "admin") if own else self.others.find(token_digest, now)

    def impersonates(self, token_digest: str, now: float) -> bool:
        return self.others.impersonates(token_digest, now)


def check_listen(host: str, tokens: TokenStore) -> None:
    """Refuse to serve others without a token of theirs. Raises :class:`ConfigError`."""
    tokens = tokens.others if isinstance(tokens, WithOperator) else tokens
    if not is_loopback(host) and not tokens.has_tokens():
        raise ConfigError(
            f"refusing to listen on {host!r} without a token: everybody who reaches it would be "
            "admin. Configure a token, or listen on 127.0.0.1"
        )
