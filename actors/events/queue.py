"""What waits in the bus: bounded, in order of arrival, ephemeral events the first to go.

Invariants: at most ``capacity`` records; durable ones are never thrown away; the order of what
stays is the order of arrival. Pure: the bus does the waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from motet.protocols.events import EventRecord


class EventQueue:
    """``dropped`` counts the ephemeral records that found no room or had to make some."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0, capacity
        self.capacity = capacity
        self.dropped = 0
        self._records: deque[EventRecord] = deque()
        self._ephemeral = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[EventRecord]:
        return iter(self._records)

    @property
    def last(self) -> EventRecord | None:
        """The newest record."""
        return self._records[-1] if self._records else None

    @property
    def full(self) -> bool:
        """Whether a durable record has to wait: nothing here may be dropped for it."""
        return len(self._records) >= self.capacity and not self._ephemeral

    def put(self, record: EventRecord) -> bool:
        """Take a record, or drop an ephemeral one. False for a durable one when :attr:`full`."""
        durable = record.event.durable
        if len(self._records) >= self.capacity:
            if not durable:
                self.dropped += 1
                return True
            if self.full:
                return False
            self._drop_ephemeral()
        self._records.append(record)
        self._ephemeral += not durable
        return True

    def take(self) -> list[EventRecord]:
        """All that waits, oldest first; leaves the queue empty."""
        taken = list(self._records)
        self._records.clear()
        self._ephemeral = 0
        return taken

    def _drop_ephemeral(self) -> None:
        self.dropped += self._ephemeral
        self._ephemeral = 0
        self._records = deque(r for r in self._records if r.event.durable)
