"""The tokens of a host that are stored: made, listed, revoked, and found by their digest.

Plain statements and a book in memory, so that a gateway looks a token up without waiting.
Invariants: a token itself is never kept, only its SHA-256; all comparisons take constant time; a
revoked token is found by nobody from the moment its revocation is on disk, and whoever watches the
book is told at once.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import cast

from motet.actors.storage.readers import Readers
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.sessions import Principal, Role
from motet.protocols.storage import Commit, Row, Statement, StorageError
from motet.protocols.tokens import NewToken, TokenInfo

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
_ID_DIGITS = 12

_ADD = (
    "INSERT INTO tokens (hash, user, role, label, created, expires, impersonate)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_REVOKE = (
    "UPDATE tokens SET revoked = coalesce(revoked, ?2) WHERE substr(hash, 1, ?3) = ?1 RETURNING 1"
)
_ALL = (
    "SELECT hash, user, role, label, created, expires, impersonate, revoked FROM tokens"
    " ORDER BY created, hash"
)
_log = logging.getLogger(__name__)


def new_token() -> str:
    """A fresh token, ``mtt_`` and 32 hex digits. Show it once and keep :func:`digest` of it."""
    return f"mtt_{secrets.token_hex(16)}"


def digest(token: str) -> str:
    """What is kept of a token: its SHA-256 in hex."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def id_of(token_digest: str) -> str:
    """The name of a token; its beginning of a digest gives nobody the token."""
    return f"tok_{token_digest[:_ID_DIGITS]}"


class TokenBook:
    """The stored tokens of one database; ``clock`` gives Unix seconds.

    ``transact`` runs a transaction and returns after its COMMIT. Calls that wait may raise a
    ``StorageError``; cancelled before the commit they have done nothing.
    """

    def __init__(
        self, transact: Commit, readers: Readers, clock: Callable[[], float] = time.time
    ) -> None:
        self._transact = transact
        self._readers = readers
        self._clock = clock
        self._tokens: dict[str, TokenInfo] = {}
        self._watchers: dict[object, Callable[[], None]] = {}

    async def load(self) -> None:
        """Read all again: other programs may have made or revoked some."""
        found = await self._readers.read(_ALL)
        tokens = {str(row[0]): _info(row) for row in found}
        if tokens != self._tokens:
            self._tokens = tokens
            self._changed()

    async def refresh(self) -> None:
        """As :meth:`load`; a database that cannot be read leaves what is known as it is."""
        try:
            await self.load()
        except StorageError as error:
            _log.warning("the stored tokens cannot be read again: %s", error)

    async def add(
        self,
        user: str,
        role: Role = "operator",
        *,
        label: str = "",
        expires: float | None = None,
        impersonate: bool = False,
    ) -> NewToken:
        """Make a token for one user; it is in the answer and nowhere else.

        Raises ``InputValidation`` for a user, role or time that cannot be.
        """
        now = self._clock()
        _check(user, role, expires, now)
        token = new_token()
        row = (digest(token), user, role, label, now, expires, int(impersonate))
        await self._transact((Statement(_ADD, row),))
        await self.load()
        return NewToken(token, self._tokens[digest(token)])

    async def tokens(self) -> tuple[TokenInfo, ...]:
        """All stored ones, the revoked included, oldest first."""
        await self.load()
        return tuple(self._tokens.values())

    async def revoke(self, token_id: str) -> TokenInfo:
        """End a token for good; a revoked one stays as it is. Raises ``NotFound``."""
        start = token_id.removeprefix("tok_")
        if len(start) != _ID_DIGITS:
            raise NotFound(f"no token {token_id!r}; an id is tok_ and {_ID_DIGITS} hex digits")
        statement = Statement(_REVOKE, (start, self._clock(), _ID_DIGITS))
        (rows,) = await self._transact((statement,))
        if not rows:
            raise NotFound(f"no token {token_id!r}")
        await self.load()
        return next(one for one in self._tokens.values() if one.id == id_of(start))

    # For a gateway: nothing here waits

    def has_tokens(self) -> bool:
        """Whether there ever was one: a gateway whose last token was revoked lets nobody in."""
        return bool(self._tokens)

    def find(self, token_digest: str, now: float) -> Principal | None:
        """Whom the token with this digest is for; None when unknown, revoked or expired."""
        info = self._good(token_digest, now)
        return None if info is None else Principal(info.user, info.role)

    def impersonates(self, token_digest: str, now: float) -> bool:
        info = self._good(token_digest, now)
        return info is not None and info.impersonate

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` whenever the book did; returns the way to end that."""
        place = object()
        self._watchers[place] = changed

        def leave() -> None:
            self._watchers.pop(place, None)

        return leave

    def _good(self, token_digest: str, now: float) -> TokenInfo | None:
        found: TokenInfo | None = None
        for known, info in self._tokens.items():
            same = hmac.compare_digest(known, token_digest)
            if same and info.revoked is None and (info.expires is None or now < info.expires):
                found = info
        return found

    def _changed(self) -> None:
        for watcher in tuple(self._watchers.values()):
            watcher()


def _check(user: str, role: Role, expires: float | None, now: float) -> None:
    if not user.strip():
        raise InputValidation("a token belongs to a user: `user` is empty")
    if role not in ROLES:
        raise InputValidation(f"role is one of {', '.join(ROLES)}, not {role!r}")
    if expires is not None and not expires > now:
        raise InputValidation("`expires` is in the past: give Unix seconds")


def _info(row: Row) -> TokenInfo:
    known, user, role, label, created, expires, impersonate, revoked = row
    return TokenInfo(
        id=id_of(str(known)),
        user=str(user),
        role=cast("Role", role),  # a column that only this module writes
        label=str(label),
        created=float(created or 0),
        expires=None if expires is None else float(expires),
        impersonate=bool(impersonate),
        revoked=None if revoked is None else float(revoked),
    )
