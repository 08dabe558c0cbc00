"""The outbox of one client: the queue that its writer empties. Pure.

Offering never blocks, so that a slow client slows down nobody else. The outbox stays bounded:

- text deltas merge with the last queued one of their message: under pressure 1,000 tokens
  become one frame;
- above half of the limits an ephemeral event that does not merge is dropped;
- above the limits a durable event is refused: the caller announces a gap, one per stream, and
  the client fetches what it missed.

Answers and replayed pages do not count against these limits, since their producers wait for the
writer: a page is written before the next one is read, and the connection reads no further request
while :attr:`Outbox.answers` is high.

Invariants: events of one stream are written in their order; a durable event that was taken is
written unless the connection ends or its stream is withdrawn; ``bytes`` is the sum over all queued
entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import attrs
import msgspec

from motet.actors.gateway.hub import CHUNK, Published
from motet.protocols.events import EventRecord, Gap, TextDelta, ThinkingDelta
from motet.protocols.gateway import Limits, encode, event_frame
from motet.protocols.websocket import text_frame

_GAP_SIZE: Final = 160  # bytes of a gap's frame without the name of its stream, roughly
Kind: TypeAlias = Literal["answer", "event", "page", "gap"]
DeltaKey: TypeAlias = tuple[str, str | None, type[TextDelta] | type[ThinkingDelta]]


def size_of(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


@attrs.define(eq=False)
class Entry:
    """One frame to write. ``written`` is called when it is on its way to the client."""

    kind: Kind
    size: int
    stream: str | None = None
    text: str = ""
    event: Published | None = None
    more: list[str] = attrs.field(factory=list[str])
    until: int = 0
    gap: EventRecord | None = None
    written: Callable[[], None] | None = None

    def bytes(self) -> bytes:
        """The frame as it goes over the wire."""
        if self.event is not None and not self.more:
            return self.event.bytes()
        return text_frame(self.frame().encode())

    def frame(self) -> str:
        """The frame as JSON text, merged deltas included."""
        if self.gap is not None:
            return encode(event_frame(self.gap))
        if self.event is None:
            return self.text
        if not self.more:
            return self.event.frame
        return encode(event_frame(self._merged(self.event.record, self.more)))

    @staticmethod
    def _merged(record: EventRecord, more: list[str]) -> EventRecord:
        assert isinstance(record.event, TextDelta | ThinkingDelta)
        event = msgspec.structs.replace(record.event, text=record.event.text + "".join(more))
        return msgspec.structs.replace(record, event=event)


@attrs.define(eq=False)
class Outbox:
    """The queue of one connection. ``dropped`` counts ephemeral events, ``merged`` deltas."""

    limits: Limits = attrs.field(factory=Limits)
    bytes: int = attrs.field(init=False, default=0)
    answers: int = attrs.field(init=False, default=0)
    sealed: bool = attrs.field(init=False, default=False)
    dropped: int = attrs.field(init=False, default=0)
    merged: int = attrs.field(init=False, default=0)
    _entries: deque[Entry] = attrs.field(init=False, factory=deque[Entry])
    _events: int = attrs.field(init=False, default=0)
    _event_bytes: int = attrs.field(init=False, default=0)
    _deltas: dict[DeltaKey, Entry] = attrs.field(init=False, factory=dict[DeltaKey, Entry])
    _gaps: dict[str, Entry] = attrs.field(init=False, factory=dict[str, Entry])

    def __len__(self) -> int:
        return len(self._entries)

    def answer(self, text: str, written: Callable[[], None] | None = None) -> None:
        """Queue a frame that is never dropped."""
        self.answers += 1
        self._append(Entry("answer", size_of(text), text=text, written=written))

    def page(
        self, stream: str, events: list[Published], written: Callable[[], None] | None
    ) -> None:
        """Queue a page of past events; ``written`` is called after the last one."""
        assert events, "an empty page would never be written"
        for event in events:
            self._append(Entry("page", event.size, stream, event=event))
        self._entries[-1].written = written

    def offer(self, event: Published) -> bool:
        """Queue a live event. False: it is durable and there is no room for it."""
        record = event.record
        ephemeral = record.seq is None
        if self.sealed:
            return True
        if ephemeral and self._merge(record):
            return True
        # The upper half is for durable events: ephemeral ones are repeated by a later whole.
        full = self._fullness()
        if full >= (0.5 if ephemeral else 1.0):
            self.dropped += ephemeral
            return ephemeral
        entry = Entry("event", event.size, record.stream, event=event)
        self._append(entry)
        if isinstance(record.event, TextDelta | ThinkingDelta):
            entry.until = record.event.at + len(record.event.text)
            self._deltas[record.stream, record.run_id, type(record.event)] = entry
        return True

    def notice(self, text: str) -> None:
        """Queue a frame about the connection itself, unless half of the limits is used."""
        if self._fullness() < 0.5 and not self.sealed:
            self._append(Entry("event", size_of(text), text=text))
        else:
            self.dropped += 1

    def gap(self, stream: str, start: int, end: int, ts: float) -> None:
        """Queue a marker: events ``start`` to ``end`` of the stream are not sent."""
        record = EventRecord(stream=stream, event=Gap(start, end), ts=ts)
        entry = Entry("gap", _GAP_SIZE + size_of(stream), stream, gap=record)
        self._gaps[stream] = entry
        self._append(entry)

    def extend_gap(self, stream: str, end: int) -> None:
        """One more event is not sent: extend the marker, unless it was written already."""
        entry = self._gaps.get(stream)
        if entry is not None and entry.gap is not None and isinstance(entry.gap.event, Gap):
            event = Gap(entry.gap.event.start, end)
            entry.gap = msgspec.structs.replace(entry.gap, event=event)

    def withdraw(self, stream: str) -> None:
        """Drop the queued events of a stream: its subscription has ended or starts anew."""
        self._keep(lambda entry: entry.stream != stream)

    def seal(self) -> None:
        """Drop all events and take no more: only answers are still written."""
        self.sealed = True
        self._keep(lambda entry: entry.kind == "answer")

    def _keep(self, wanted: Callable[[Entry], bool]) -> None:
        entries, self._entries = self._entries, deque[Entry]()
        for entry in entries:
            if wanted(entry):
                self._entries.append(entry)
                continue
            self._forget(entry)
            if entry.written is not None:
                entry.written()

    def pop(self) -> Entry | None:
        """The next entry to write, or None. The writer calls its ``written``."""
        if not self._entries:
            return None
        entry = self._entries.popleft()
        self._forget(entry)
        return entry

    def take(self) -> list[Entry]:
        """The next entries to write together, about :data:`CHUNK` bytes."""
        taken: list[Entry] = []
        size = 0
        while size < CHUNK and (entry := self.pop()) is not None:
            taken.append(entry)
            size += entry.size
        return taken

    def _merge(self, record: EventRecord) -> bool:
        event = record.event
        if not isinstance(event, TextDelta | ThinkingDelta):
            return False
        entry = self._deltas.get((record.stream, record.run_id, type(event)))
        if entry is None or entry.event is None or self._event_bytes >= self.limits.outbox_bytes:
            return False
        first = entry.event.record.event
        assert isinstance(first, TextDelta | ThinkingDelta)
        if first.i != event.i or entry.until != event.at:
            return False
        size = size_of(event.text)
        entry.more.append(event.text)
        entry.until += len(event.text)
        entry.size += size
        self._count(entry, 0, size)
        self.merged += 1
        return True

    def _fullness(self) -> float:
        frames = self._events / self.limits.outbox_frames
        return max(frames, self._event_bytes / self.limits.outbox_bytes)

    def _append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._count(entry, 1, entry.size)

    def _forget(self, entry: Entry) -> None:
        self._count(entry, -1, -entry.size)
        if entry.kind == "answer":
            self.answers -= 1
        elif entry.kind == "gap" and entry.stream is not None:
            self._gaps.pop(entry.stream, None)
        elif entry.kind == "event":
            self._forget_delta(entry)

    def _forget_delta(self, entry: Entry) -> None:
        if entry.event is None:
            return
        record = entry.event.record
        if isinstance(record.event, TextDelta | ThinkingDelta):
            key = (record.stream, record.run_id, type(record.event))
            if self._deltas.get(key) is entry:
                del self._deltas[key]

    def _count(self, entry: Entry, entries: int, size: int) -> None:
        self.bytes += size
        if entry.kind == "event":
            self._events += entries
            self._event_bytes += size
