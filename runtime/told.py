"""The envelope of a told message of which something is to be known besides itself.

Most told messages travel bare. One that is tried again, or that carries the span of its sender,
travels in this.
"""

from __future__ import annotations

import msgspec

from motet.protocols.messages import Message

__all__ = ["Told"]


class Told(msgspec.Struct, eq=False):
    """A told message, the trace context of its sender, and how often its handler has failed."""

    message: Message
    context: str | None = None
    attempts: int = 0
