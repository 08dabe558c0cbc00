"""What sees an actor at work: its traces and the system's telemetry. Absent, it costs one look."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from motet.protocols.messages import Message

__all__ = ["Observer"]


class Observer:
    """The observers of one actor."""

    def handling(self, message: Message, context: str | None) -> AbstractContextManager[None]:
        """Around the handler of ``message``."""
        del message, context
        return nullcontext()

    def restarted(self) -> None:
        """Another incarnation begins."""
