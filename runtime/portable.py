"""The check that a message can cross a process border: encode it, decode it, compare (design 4)."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from motet.protocols.messages import Message
from motet.runtime.errors import MessageNotPortable

__all__ = ["round_trip"]

M = TypeVar("M", bound=Message)


def round_trip(message: M) -> M:
    """An equal copy of ``message`` that went through msgpack, or MessageNotPortable."""
    kind = type(message)
    try:
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise MessageNotPortable(kind, str(error)) from error
    if copy != message:
        raise MessageNotPortable(kind, f"it comes back as {copy!r}")
    return copy
