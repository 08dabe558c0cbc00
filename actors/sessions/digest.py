"""The fingerprint of an input, to tell a resend from another input under the same key."""

from __future__ import annotations

from hashlib import sha256

import msgspec


def body_hash(session: str, agent: str, text: str) -> str:
    """Equal for equal inputs only: the parts are framed, so they cannot run into each other."""
    return sha256(msgspec.msgpack.encode((session, agent, text))).hexdigest()
