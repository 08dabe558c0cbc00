"""Events of one stream that go to its clients together: joined once, written once to each.

Invariant: the numbers of a batch follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from motet.actors.gateway.outbox import CHUNK, Published


@attrs.define(eq=False)
class Batch:
    """Never empty. ``start`` and ``end`` are the first and the last number, None without any."""

    events: list[Published]
    start: int | None = None
    end: int | None = None
    size: int = 0
    _bytes: bytes = attrs.field(init=False, default=b"")

    @classmethod
    def of(cls, event: Published) -> Batch:
        seq = event.record.seq
        return cls([event], seq, seq, event.size)

    def extend(self, event: Published) -> bool:
        """Take one more event; false: it does not belong here, or there is no room."""
        seq = event.record.seq
        if self.size + event.size > CHUNK:
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
    """All events, in their order, in as few batches as can be."""
    batch: Batch | None = None
    for event in events:
        if batch is not None and batch.extend(event):
            continue
        if batch is not None:
            yield batch
        batch = Batch.of(event)
    if batch is not None:
        yield batch
