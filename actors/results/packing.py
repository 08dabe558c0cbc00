"""How the content of a result is kept in a text column, and whether it came back unchanged.

Law: unpacking a packed content gives it back, or raises; its checksum is of the content itself
and is always verified. Source: seed 000 (contradictions in its blob store are listed there).
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64decode, b64encode
from typing import Literal, TypeAlias

import msgspec

from motet.actors.storage.errors import StorageError

COMPRESS_FROM = 65_536
"""Bytes from which compressing is worth its time."""

Packing: TypeAlias = Literal["text", "base64", "zlib"]


class ResultDamaged(StorageError):
    """A stored result is not what was stored: its file was changed or its disk has failed."""


class Packed(msgspec.Struct, frozen=True):
    """``data`` is ASCII or the text itself; ``held`` is its size in bytes."""

    packing: Packing
    data: str
    held: int
    size: int
    sha256: str


def pack(content: bytes, compress_from: int = COMPRESS_FROM) -> Packed:
    """Keep text as it is, else as base64, and compressed where that is smaller."""
    packing, data = _plain(content)
    held = len(content) if packing == "text" else len(data)
    if len(content) >= compress_from:
        squeezed = b64encode(zlib.compress(content)).decode()
        if len(squeezed) < held:
            packing, data, held = "zlib", squeezed, len(squeezed)
    return Packed(packing, data, held, len(content), checksum(content))


def unpack(packed: Packed) -> bytes:
    """The content. Raises ``ResultDamaged``."""
    try:
        content = _content(packed)
    except (ValueError, zlib.error) as error:
        raise ResultDamaged(f"a stored result cannot be unpacked: {error}") from error
    if len(content) != packed.size or checksum(content) != packed.sha256:
        raise ResultDamaged("a stored result differs from what was stored: run its call again")
    return content


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _plain(content: bytes) -> tuple[Packing, str]:
    try:
        return "text", content.decode()
    except UnicodeDecodeError:
        return "base64", b64encode(content).decode()


def _content(packed: Packed) -> bytes:
    match packed.packing:
        case "text":
            return packed.data.encode()
        case "base64":
            return b64decode(packed.data, validate=True)
        case "zlib":
            inflate = zlib.decompressobj()
            # A damaged row must not unfold to more than what was stored.
            content = inflate.decompress(b64decode(packed.data, validate=True), packed.size + 1)
            if not inflate.eof:
                raise ValueError("the compressed data does not end where it should")
            return content
