"""Who listens to which stream, and what became of the events nobody could be given.

A plain object that the host makes once and gives to bus and journal: it stays when the bus is
restarted. Invariants: sinks of a stream are called in the order of attachment, never after they
were detached, and one that raises is detached and counted (it never reaches a run or the bus).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

from motet.actors.errors.raw import raw_error
from motet.actors.errors.redact import redact
from motet.actors.log import logger
from motet.protocols.events import EventRecord

if TYPE_CHECKING:
    from motet.actors.events.feed import EventFeed

Sink: TypeAlias = Callable[[EventRecord], None]

log = logger(__name__)

_EVERY_STREAM = "*"  # no stream's name, which all have a colon


@attrs.define(eq=False)
class _Listener:
    stream: str
    sink: Sink
    attached: bool = True
    skip: int = 0
    """Durable records that were published before it was attached, and are still to be stored."""


@attrs.define(eq=False)
class Fanout:
    """The listeners, four counters, and the way to the bus (``feed``) once there is one.

    Attributes:
        delivered: calls of sinks that returned.
        dropped: ephemeral events that a full bus threw away.
        unjournalled: durable events that were delivered without a number, since the journal failed.
        broken_sinks: sinks that raised.
    """

    delivered: int = attrs.field(default=0, init=False)
    dropped: int = attrs.field(default=0, init=False)
    unjournalled: int = attrs.field(default=0, init=False)
    broken_sinks: int = attrs.field(default=0, init=False)
    feed: EventFeed | None = attrs.field(default=None, init=False, repr=False)
    _listeners: dict[str, tuple[_Listener, ...]] = attrs.field(
        factory=dict[str, tuple[_Listener, ...]], init=False
    )

    def attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with each record of the stream from now on; returns the way to detach.

        The sink must not block. Detaching twice does no harm.
        """
        listener = _Listener(stream, sink)
        if self.feed is not None:
            listener.skip = self.feed.pending(stream)
        self._listeners[stream] = (*self._listeners.get(stream, ()), listener)
        return lambda: self._detach(listener)

    def attach_everywhere(self, sink: Sink) -> Callable[[], None]:
        """Call ``sink`` with each record of every stream; see :meth:`attach`."""
        return self.attach(_EVERY_STREAM, sink)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens to anything."""
        return bool(self._listeners)

    def listeners(self, stream: str) -> int:
        return len(self._listeners.get(stream, ()))

    def deliver(self, record: EventRecord) -> None:
        """Give a record to the stream's sinks. Raises nothing."""
        listeners = self._listeners.get(record.stream, ())
        for listener in (*listeners, *self._listeners.get(_EVERY_STREAM, ())):
            if not listener.attached:  # by a sink called before it
                continue
            if listener.skip and record.event.durable:
                listener.skip -= 1
                continue
            try:
                listener.sink(record)
            except Exception as error:
                self.broken_sinks += 1
                self._detach(listener)
                log.error(
                    "event_sink_detached", stream=record.stream, error=redact(raw_error(error))
                )
            else:
                self.delivered += 1

    def _detach(self, listener: _Listener) -> None:
        listener.attached = False
        left = tuple(other for other in self._listeners.get(listener.stream, ()) if other.attached)
        if left:
            self._listeners[listener.stream] = left
        else:
            self._listeners.pop(listener.stream, None)
