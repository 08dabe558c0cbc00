"""A journal of events in memory, for the tests of the gateway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import trio

from motet.protocols.events import AnyEvent, EventRecord, InputAccepted, is_durable
from motet.protocols.host import StreamHead

Sink = Callable[[EventRecord], None]


class FakeJournal:
    def __init__(self) -> None:
        self.records: dict[str, list[EventRecord]] = defaultdict(list)
        self.sinks: dict[str, list[Sink]] = defaultdict(list)
        self.oldest = 1
        self.reads = 0

    def publish(self, stream: str, event: AnyEvent, run_id: str | None = None) -> EventRecord:
        seq = len(self.records[stream]) + 1 if is_durable(event) else None
        record = EventRecord(stream=stream, event=event, ts=1.0, seq=seq, run_id=run_id)
        if seq is not None:
            self.records[stream].append(record)
        for sink in tuple(self.sinks[stream]):
            sink(record)
        return record

    def attach(self, stream: str, sink: Sink) -> Callable[[], None]:
        self.sinks[stream].append(sink)
        return lambda: self.sinks[stream].remove(sink)

    async def read(self, stream: str, after: int, limit: int = 200) -> tuple[EventRecord, ...]:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        start = max(after, self.oldest - 1)
        return tuple(self.records[stream][start : start + limit])

    async def input(self, stream: str, run_id: str) -> int | None:
        await trio.lowlevel.checkpoint()
        mine = (one for one in self.records[stream] if one.run_id == run_id)
        return next((one.seq for one in mine if isinstance(one.event, InputAccepted)), None)

    async def head(self, stream: str) -> StreamHead:
        await trio.lowlevel.checkpoint()
        return StreamHead(len(self.records[stream]), self.oldest)
