"""Telemetry: the protocols of a metrics and tracing library, and the events of a trace.

Without telemetry nothing is measured, and each message costs one look at an attribute. With a
meter the clock is read before and after each handler; with spans every message travels in an
envelope too. The names that the kernel passes to ``count`` and ``record`` are the constants below.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from motet.protocols.messages import Message

__all__ = [
    "ASK_SECONDS",
    "DEAD_LETTERS",
    "FAILED",
    "HANDLED",
    "HANDLE_SECONDS",
    "RESTARTS",
    "Meter",
    "SpanKind",
    "Telemetry",
    "TraceEvent",
    "TraceKind",
]

HANDLED: Final = "motet.handled"  # handlers that returned
FAILED: Final = "motet.failed"  # handlers that raised or were cancelled
DEAD_LETTERS: Final = "motet.dead_letters"
RESTARTS: Final = "motet.restarts"
ASK_SECONDS: Final = "motet.ask.seconds"  # from sending to the one outcome
HANDLE_SECONDS: Final = "motet.handle.seconds"  # first to last step of a handler

SpanKind = Literal["ask", "handle"]


class Meter(Protocol):
    """Counters and histograms. Called in the tasks of actors and askers; must not raise."""

    def count(self, name: str, path: str) -> None:
        """One more of ``name`` at the actor ``path``."""
        ...

    def record(self, name: str, path: str, value: float) -> None:
        """A value for the histogram ``name``, in the unit its name ends in."""
        ...


@runtime_checkable
class Telemetry(Meter, Protocol):
    """A meter that gets spans too. Called in the tasks of actors and askers; must not raise.

    Contexts are W3C ``traceparent`` texts, since a message may cross a process border.
    """

    def span(
        self, kind: SpanKind, path: str, message: type[Message], parent: str | None
    ) -> AbstractContextManager[str | None]:
        """Around an ask of the actor at ``path``, or around its handler; one task, in order.

        Yields the context for messages sent within the span. ``parent`` is the sender's context;
        for an ask it is None, and the parent is the current span of the task. An error of the
        handler passes through the block.
        """
        ...

    def context(self) -> str | None:
        """The context of the span this task is in, for a told message."""
        ...


TraceKind = Literal["received", "handled", "failed", "asked", "settled", "restarted"]


class TraceEvent(msgspec.Struct, frozen=True):
    """One step of a traced actor, at ``at`` on Trio's clock.

    ``received``: its handler begins; then ``handled`` or ``failed``. ``asked`` and ``settled``: the
    actor asks the one at ``peer``, and has the outcome. ``detail``: the error, if there is one.
    """

    at: float
    kind: TraceKind
    path: str
    message: Message | None = None
    peer: str | None = None
    detail: str = ""
