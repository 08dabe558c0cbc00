"""One journal subscription per stream, shared by all connections that watch it.

Invariant: an event is encoded once however many watch; a watcher that fails is told apart from
the others and never reaches the bus.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import attrs

from motet.actors.gateway.outbox import Published
from motet.protocols.events import EventRecord
from motet.protocols.host import Journal

Watcher: TypeAlias = Callable[[Published], None]
logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Channel:
    watchers: dict[object, Watcher] = attrs.field(factory=dict[object, Watcher])
    detach: Callable[[], None] | None = None

    def publish(self, record: EventRecord) -> None:
        try:
            event = Published(record)
        except Exception:
            logger.exception("an event of stream %r cannot be encoded", record.stream)
            return
        for watcher in tuple(self.watchers.values()):
            try:
                watcher(event)
            except Exception:
                logger.exception("a watcher of stream %r failed", record.stream)


@attrs.define(eq=False)
class Hub:
    """``gaps`` counts how often a client fell behind on a stream."""

    _journal: Journal
    gaps: int = attrs.field(init=False, default=0)
    _channels: dict[str, _Channel] = attrs.field(init=False, factory=dict[str, _Channel])

    def watch(self, stream: str, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher`` with every event of the stream; returns the way to end it."""
        channel = self._channels.get(stream)
        if channel is None:
            channel = self._channels[stream] = _Channel()
            channel.detach = self._journal.attach(stream, channel.publish)
        place = object()
        channel.watchers[place] = watcher

        def leave() -> None:
            if channel.watchers.pop(place, None) is not None and not channel.watchers:
                self._close(stream, channel)

        return leave

    def _close(self, stream: str, channel: _Channel) -> None:
        if self._channels.get(stream) is channel:
            del self._channels[stream]
        if channel.detach is not None:
            channel.detach()

    @property
    def watchers(self) -> int:
        return sum(len(channel.watchers) for channel in self._channels.values())

    def __len__(self) -> int:
        return len(self._channels)
