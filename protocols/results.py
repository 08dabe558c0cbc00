"""The requests and answers of the result store."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec

from motet.protocols.messages import Request

Kind: TypeAlias = Literal["text", "json", "binary"]
"""``json``: an array, paged by its items. ``text``: paged by lines. ``binary``: never shown."""


def checksum(content: bytes) -> str:
    """SHA-256 in hex, as a stored result carries it."""
    return sha256(content).hexdigest()


class ResultInfo(msgspec.Struct, frozen=True):
    """A stored result without its content. ``size`` is in bytes, ``sha256`` in hex.

    ``compressed``: on disk only.
    """

    id: str
    session: str
    tool: str
    kind: Kind
    size: int
    sha256: str
    compressed: bool = False


class StoredResult(msgspec.Struct, frozen=True):
    """A stored result with its content, verified by its checksum."""

    info: ResultInfo
    content: bytes


class StoreResult(Request[ResultInfo], frozen=True, tag="results.store"):
    """Store a result; answered after COMMIT. Older ones that are not pinned are evicted.

    Raises ``ResultTooLarge``, ``ResultsFull`` or another ``StorageError``.
    """

    session: str
    tool: str
    kind: Kind
    content: bytes
    pinned: bool = False


class ReadResult(Request[StoredResult | None], frozen=True, tag="results.read"):
    """One result of that session, which counts as used now; None: unknown, expired or foreign.

    ``session`` None: of any, for the host, which then decides who may read it.

    Raises ``ResultDamaged`` or another ``StorageError``.
    """

    id: str
    session: str | None


class PinResult(Request[bool], frozen=True, tag="results.pin"):
    """Pin a result against eviction, or unpin it; returns whether the session has it."""

    id: str
    session: str
    pinned: bool = True


class DropResults(Request[int], frozen=True, tag="results.drop"):
    """Delete all results of a session, pinned ones too; returns their number."""

    session: str


ResultProtocol: TypeAlias = StoreResult | ReadResult | PinResult | DropResults
