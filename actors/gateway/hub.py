"""Events on their way from the host to any number of clients.

One journal subscription per stream is shared by all connections that watch it. An event is encoded
once however many watch. Events that come in one step are given to the watchers together, in the
next one, so that a client gets them in one write. Invariants: the numbers in a batch follow one
another; a watcher that fails disturbs neither the others nor the host's event bus.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from motet.protocols.events import EventRecord
from motet.protocols.gateway import encode, event_frame
from motet.protocols.host import Journal
from motet.protocols.room_newcomers import about, without_hidden
from motet.protocols.room_people import without_details
from motet.protocols.websocket import text_frame

CHUNK: Final = 65_536
"""Bytes that are written together, about."""
logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Published:
    """An event, encoded and measured once for all clients."""

    record: EventRecord
    size: int = attrs.field(init=False)
    _text: bytes = attrs.field(init=False)
    _plain: Published | None = attrs.field(init=False, default=None)
    _frame: bytes = attrs.field(init=False, default=b"")

    def __attrs_post_init__(self) -> None:
        self._text = encode(event_frame(self.record)).encode()
        self.size = len(self._text)

    @property
    def plain(self) -> Published:
        """The event without arguments and results of tools."""
        if self._plain is None:
            record = without_details(self.record)
            self._plain = self if record is self.record else Published(record)
        return self._plain

    def shown(self, *, plain: bool, hidden: int) -> Published:
        """The event as somebody sees it; ``hidden``: as of :func:`without_hidden`."""
        event = self.plain if plain else self
        masked = hidden and about(event.record) <= hidden
        return Published(without_hidden(event.record, hidden)) if masked else event

    @property
    def frame(self) -> str:
        return self._text.decode()

    def bytes(self) -> bytes:
        """The frame as it goes over the wire."""
        if not self._frame:
            self._frame = text_frame(self._text)
        return self._frame


@attrs.define(eq=False)
class Batch:
    """Events of one stream and one owner, at least one.

    ``start``, ``end``: first and last number, if any.
    """

    events: list[Published]
    start: int | None = None
    end: int | None = None
    size: int = 0
    _plain: Batch | None = attrs.field(init=False, default=None)
    _bytes: bytes = attrs.field(init=False, default=b"")

    @classmethod
    def of(cls, event: Published) -> Batch:
        seq = event.record.seq
        return cls([event], seq, seq, event.size)

    def hides(self, hidden: int) -> bool:
        """Whether it has words of a message up to this number."""
        return hidden > 0 and any(about(one.record) <= hidden for one in self.events)

    @property
    def plain(self) -> Batch:
        """The same events without arguments and results of tools."""
        if self._plain is None:
            events = [event.plain for event in self.events]
            self._plain = Batch(events, self.start, self.end, self.size)
        return self._plain

    @property
    def owner(self) -> str | None:
        """The user whose events they are, in the stream of a session."""
        return self.events[0].record.owner

    def extend(self, event: Published) -> bool:
        """Take one more event; false: it does not follow, is another's, or there is no room."""
        seq = event.record.seq
        if self.size + event.size > CHUNK or event.record.owner != self.owner:
            return False
        if seq is not None and self.end is not None and seq != self.end + 1:
            return False
        self.events.append(event)
        self.size += event.size
        if seq is not None:
            self.start = seq if self.start is None else self.start
            self.end = seq
        return True

    def bytes(self) -> bytes:
        """The frames as they go over the wire."""
        if not self._bytes:
            self._bytes = b"".join([event.bytes() for event in self.events])
        return self._bytes


def batches(events: Sequence[Published]) -> Iterator[Batch]:
    """All events in order, in as few batches as possible."""
    batch: Batch | None = None
    for event in events:
        if batch is not None and batch.extend(event):
            continue
        if batch is not None:
            yield batch
        batch = Batch.of(event)
    if batch is not None:
        yield batch


Watcher: TypeAlias = Callable[[Batch], None]
AccessWatcher: TypeAlias = Callable[[str], None]
"""See :meth:`motet.protocols.host.Journal.watch_access`."""


@attrs.define(eq=False)
class _Channel:
    watchers: dict[object, Watcher] = attrs.field(init=False, factory=dict[object, Watcher])
    access: dict[object, AccessWatcher] = attrs.field(
        init=False, factory=dict[object, "AccessWatcher"]
    )
    _waiting: list[Published] = attrs.field(init=False, factory=list[Published])

    def publish(self, record: EventRecord) -> None:
        try:
            event = Published(record)
        except Exception:
            logger.exception("an event of stream %r cannot be encoded", record.stream)
            return
        # Not at once: the bus publishes one event at a time, and one write for all of a step costs
        # a client far less than one for each.
        if not self._waiting:
            trio.lowlevel.current_trio_token().run_sync_soon(self._flush)
        self._waiting.append(event)

    def access_changed(self, generation: str) -> None:
        for changed in tuple(self.access.values()):
            changed(generation)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in batches(waiting):
            for watcher in tuple(self.watchers.values()):
                try:
                    watcher(batch)
                except Exception:
                    stream = batch.events[0].record.stream
                    logger.exception("a watcher of stream %r failed", stream)


class Hub:
    """The streams that somebody watches. ``gaps`` counts how often a client fell behind on one."""

    def __init__(self, journal: Journal) -> None:
        self.gaps = 0
        self._journal = journal
        self._channels: dict[str, tuple[_Channel, tuple[Callable[[], None], ...]]] = {}

    def watch(
        self, stream: str, watcher: Watcher, access_changed: AccessWatcher = lambda _: None
    ) -> Callable[[], None]:
        """Call ``watcher`` with all events of the stream until the returned function is called.

        ``access_changed`` is called when other people than before may read it.
        """
        if stream not in self._channels:
            channel = _Channel()
            detach = self._journal.attach(stream, channel.publish)
            end = self._journal.watch_access(stream, channel.access_changed)
            self._channels[stream] = channel, (detach, end)
        channel, _ = self._channels[stream]
        place = object()
        channel.watchers[place] = watcher
        channel.access[place] = access_changed

        def unwatch() -> None:
            channel.access.pop(place, None)
            if channel.watchers.pop(place, None) is not None and not channel.watchers:
                _, ends = self._channels.pop(stream)
                for end in ends:
                    end()

        return unwatch

    def count_gap(self) -> None:
        self.gaps += 1

    @property
    def watchers(self) -> int:
        return sum(len(channel.watchers) for channel, _ in self._channels.values())

    def __len__(self) -> int:
        return len(self._channels)
