"""Telemetry: the protocols of a metrics and tracing library, and the events of a trace.

Without telemetry nothing is measured, and each message costs one look at an attribute. With a
meter the clock is read before and after each handler; with spans every message travels in an
envelope too. The names that the kernel passes to ``count`` and ``record`` are the constants below.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Final, Literal, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from motet.protocols.messages import Message
from motet.runtime.outside import foreign_code

__all__ = [
    "ASK_SECONDS",
    "DEAD_LETTERS",
    "FAILED",
    "HANDLED",
    "HANDLE_SECONDS",
    "RESTARTS",
    "GuardedTelemetry",
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
    """Counters and histograms. Called in the tasks of actors and askers.

    One that raises is logged once and not called again: it could count only a part from then on.
    """

    def count(self, name: str, path: str) -> None:
        """One more of ``name`` at the actor ``path``."""
        ...

    def record(self, name: str, path: str, value: float) -> None:
        """A value for the histogram ``name``, in the unit its name ends in."""
        ...


@runtime_checkable
class Telemetry(Meter, Protocol):
    """A meter that gets spans too. Called in the tasks of actors and askers.

    One that raises is logged once and not called again, but to leave the spans that are open.
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


T = TypeVar("T")

_log = logging.getLogger("motet.runtime")


class GuardedTelemetry:
    """A meter whose errors reach no actor: the first one is logged, and ends its use.

    Its spans neither add an error to the block they are around nor take one away.
    """

    __slots__ = ("_dropped", "_meter")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._dropped = False

    def count(self, name: str, path: str) -> None:
        if not self._dropped:
            try:
                self._meter.count(name, path)
            except BaseException as error:
                self._failed(error)

    def record(self, name: str, path: str, value: float) -> None:
        if not self._dropped:
            try:
                self._meter.record(name, path, value)
            except BaseException as error:
                self._failed(error)

    def handled(self, path: str, seconds: float, *, done: bool) -> None:
        """Count a handler and record its time: one call, since each told message makes it."""
        if not self._dropped:
            try:
                self._meter.count(HANDLED if done else FAILED, path)
                self._meter.record(HANDLE_SECONDS, path, seconds)
            except BaseException as error:
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        # Entered only here: around each call it would be a tenth of a told message.
        try:
            with foreign_code:
                raise error
        except Exception as failure:
            self.drop(failure)

    def span(
        self, kind: SpanKind, path: str, message: type[Message], parent: str | None
    ) -> AbstractContextManager[str | None]:
        telemetry = cast("Telemetry", self._meter)  # the kernel has looked
        return _Span(self, lambda: telemetry.span(kind, path, message, parent))

    def context(self) -> str | None:
        return self.tried(cast("Telemetry", self._meter).context)

    def tried(self, call: Callable[[], T]) -> T | None:
        """The result of ``call``; None if it raises, or the meter is out of use."""
        if self._dropped:
            return None
        try:
            with foreign_code:
                return call()
        except Exception as error:
            self.drop(error)
        return None

    def drop(self, error: Exception) -> None:
        """Log the error and use the meter no more."""
        if self._dropped:
            return
        self._dropped = True
        with suppress(Exception), foreign_code:  # of a log handler, or of the error itself
            name = type(self._meter).__name__
            _log.error("the telemetry %s raised, and is not used any more", name, exc_info=error)


class _Span(AbstractContextManager[str | None]):
    """A span of a telemetry that may raise."""

    def __init__(
        self,
        telemetry: GuardedTelemetry,
        make: Callable[[], AbstractContextManager[str | None]],
    ) -> None:
        self._telemetry = telemetry
        self._make = make
        self._inner: AbstractContextManager[str | None] | None = None

    def __enter__(self) -> str | None:
        inner = self._telemetry.tried(self._make)
        if inner is None:
            return None
        entered: list[str | None] = []
        self._telemetry.tried(lambda: entered.append(inner.__enter__()))
        if not entered:
            return None
        self._inner = inner
        return entered[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        inner, self._inner = self._inner, None
        if inner is None:
            return
        try:
            with foreign_code:
                inner.__exit__(kind, error, trace)
        except Exception as failure:
            if failure is not error:  # that of the block, raised again
                self._telemetry.drop(failure)


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
