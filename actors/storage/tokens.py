"""Access tokens: made, listed, revoked, and looked up by their digest.

The table is mirrored in memory, so that the gateway looks a token up without waiting. Invariants:
only the SHA-256 of a token is stored; all comparisons take constant time; from the moment its
revocation is on disk a token is not found, and the watchers of the book are called at once.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable

from motet.actors.storage.readers import Readers
from motet.actors.storage.tables import TableStore, struct
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.session_keys import is_internal
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
    """The SHA-256 of a token in hex, which is all that is stored of it."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def id_of(token_digest: str) -> str:
    """The public id of a token: the beginning of its digest, which does not reveal it."""
    return f"tok_{token_digest[:_ID_DIGITS]}"


class TokenBook(TableStore):
    """The stored tokens of one database; ``clock`` gives Unix seconds.

    ``transact`` runs a transaction and returns after its COMMIT. Calls that wait may raise a
    ``StorageError``; cancelled before the commit they have done nothing.
    """

    def __init__(
        self, commit: Commit, readers: Readers, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(commit, readers, clock)
        self._tokens: dict[str, TokenInfo] = {}
        self._watchers: dict[object, Callable[[], None]] = {}

    async def load(self) -> None:
        """Read the table again: other programs may have made or revoked tokens."""
        found = await self._readers.read(_ALL)
        tokens = {str(row[0]): _info(row) for row in found}
        if tokens != self._tokens:
            self._tokens = tokens
            self._changed()

    async def refresh(self) -> None:
        """As :meth:`load`; if the database cannot be read, the known tokens stay."""
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
        await self._write((Statement(_ADD, row),))
        await self.load()
        return NewToken(token, self._tokens[digest(token)])

    async def tokens(self) -> tuple[TokenInfo, ...]:
        """All tokens, revoked ones included, oldest first."""
        await self.load()
        return tuple(self._tokens.values())

    async def revoke(self, token_id: str) -> TokenInfo:
        """End a token for good; a revoked one stays as it is. Raises ``NotFound``."""
        start = token_id.removeprefix("tok_")
        if len(start) != _ID_DIGITS:
            raise NotFound(f"no token {token_id!r}; an id is tok_ and {_ID_DIGITS} hex digits")
        statement = Statement(_REVOKE, (start, self._clock(), _ID_DIGITS))
        (rows,) = await self._write((statement,))
        if not rows:
            raise NotFound(f"no token {token_id!r}")
        await self.load()
        return next(one for one in self._tokens.values() if one.id == id_of(start))

    # For a gateway: these methods do not wait

    @property
    def known(self) -> tuple[TokenInfo, ...]:
        """All tokens that were ever made, as they were last read."""
        return tuple(self._tokens.values())

    def has_tokens(self) -> bool:
        """Whether any was ever made. After the last one is revoked, a gateway admits no client."""
        return bool(self._tokens)

    def find(self, token_digest: str, now: float) -> Principal | None:
        """The principal of the token; None when it is unknown, revoked or expired."""
        info = self._good(token_digest, now)
        return None if info is None else Principal(info.user, info.role)

    def impersonates(self, token_digest: str, now: float) -> bool:
        info = self._good(token_digest, now)
        return info is not None and info.impersonate

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each change; returns a function that ends this."""
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
    if is_internal(user):
        raise InputValidation(f"a token belongs to a person: {user!r} is the host's own")
    if role not in ROLES:
        raise InputValidation(f"role is one of {', '.join(ROLES)}, not {role!r}")
    if expires is not None and not expires > now:
        raise InputValidation("`expires` is in the past: give Unix seconds")


def _info(row: Row) -> TokenInfo:
    token_digest, *fields = row
    return struct((id_of(str(token_digest)), *fields), TokenInfo, strict=False)
