"""One journal subscription per stream, shared by all connections that watch it.

Invariants: an event is encoded once however many watch, and what comes in one step is handed on
together, in the next one; a watcher that fails is told apart from the others and never reaches the
bus.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import attrs
import trio

from motet.actors.gateway.batch import Batch, batches
from motet.actors.gateway.outbox import Published
from motet.protocols.events import EventRecord
from motet.protocols.host import Journal

Watcher: TypeAlias = Callable[[Batch], None]
logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Channel:
    watchers: dict[object, Watcher] = attrs.field(factory=dict[object, Watcher])
    detach: Callable[[], None] | None = None
    _waiting: list[Published] = attrs.field(init=False, factory=list[Published])

    def publish(self, record: EventRecord) -> None:
        try:
            event = Published(record)
        except Exception:
            logger.exception("an event of stream %r cannot be encoded", record.stream)
            return
        if not self._waiting:
            trio.lowlevel.current_trio_token().run_sync_soon(self._hand_on)
        self._waiting.append(event)

    def _hand_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in batches(waiting):
            for watcher in tuple(self.watchers.values()):
                try:
                    watcher(batch)
                except Exception:
                    stream = batch.events[0].record.stream
                    logger.exception("a watcher of stream %r failed", stream)


@attrs.define(eq=False)
class Hub:
    """``gaps`` counts how often a client fell behind on a stream."""

    _journal: Journal
    gaps: int = attrs.field(init=False, default=0)
    _channels: dict[str, _Channel] = attrs.field(init=False, factory=dict[str, _Channel])

    def watch(self, stream: str, watcher: Watcher) -> Callable[[], None]:
        """Call ``watcher`` with all events of the stream; returns the way to end it."""
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
