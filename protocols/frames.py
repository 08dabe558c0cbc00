"""Frames of an append-only file: length, checksum and content, as a crash may leave them. Pure.

A frame is the mark, the length of the content and its CRC-32 (both of four bytes, little-endian),
and the content. Law: of a file that was cut anywhere, or of which any bytes were changed, every
frame outside of that damage is read, and nothing that was never written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar
from zlib import crc32

MARK = b"\xf1mtt"
_HEAD = struct.Struct("<4sII")
HEAD_SIZE = _HEAD.size


def head(content: bytes) -> bytes:
    """What stands before the content in its frame."""
    return _HEAD.pack(MARK, len(content), crc32(content))


Data = TypeVar("Data", bytes, memoryview)


def content_at(data: Data, at: int) -> Data | None:
    """The content of the frame that begins there; None if there is no whole one."""
    if data[at : at + 4] != MARK or len(data) < at + HEAD_SIZE:
        return None
    _, size, checksum = _HEAD.unpack_from(data, at)
    content = data[at + HEAD_SIZE : at + HEAD_SIZE + size]
    return content if len(content) == size and crc32(content) == checksum else None


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each whole frame begins, and its content."""
    at = data.find(MARK)
    while at >= 0:
        content = content_at(data, at)
        if content is None:
            at = data.find(MARK, at + 1)
            continue
        yield at, content
        at = data.find(MARK, at + HEAD_SIZE + len(content))
