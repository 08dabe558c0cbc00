"""Tokens of the gateway, as they are told of: never the tokens themselves, except once.

Invariant: of a token at rest there is its SHA-256 only.
"""

from __future__ import annotations

import msgspec

from motet.protocols.sessions import Role


class TokenInfo(msgspec.Struct, frozen=True):
    """A stored token. Times are Unix seconds.

    Attributes:
        id: names it in lists and revocations; says nothing of the token.
        user: the one user it stands for.
        label: what it is for, in the words of who made it.
        expires: None: never.
        impersonate: a bridge's, which may act ``as_user`` for people of another chat.
        revoked: None: it is good until it expires.
    """

    id: str
    user: str
    role: Role
    label: str
    created: float
    expires: float | None = None
    impersonate: bool = False
    revoked: float | None = None


class NewToken(msgspec.Struct, frozen=True):
    """``token`` is shown this once."""

    token: str
    info: TokenInfo


class Operator(msgspec.Struct, frozen=True):
    """The token of the person at the machine of a gateway, who is its admin ``local``.

    Attributes:
        required: whether clients need a token also when there is no other.
    """

    token: str
    required: bool = False
