"""What one subscriber has still to read: bounded, and it never loses a numbered event.

Invariants: at most ``capacity`` records; those with numbers come out in order, each once. When
there is no room, deltas of the same message are merged, then ephemeral records are dropped, then
all are given up and :attr:`Backlog.behind` asks for them to be read from the journal again.
Pure: the subscription does the waiting and the reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from motet.protocols.events import EventRecord, TextDelta, ThinkingDelta


class Backlog:
    """Attributes:

    last: number of the newest record taken, None before the first one is known.
    behind: numbered records after ``last`` are missing here; the journal has them.
    dropped: records that will never be seen: ephemeral ones, and ones without a number.
    """

    def __init__(self, capacity: int, after: int | None) -> None:
        assert capacity > 0, capacity
        self.capacity = capacity
        self.last = after
        self.behind = after is not None
        self.dropped = 0
        self._replayed: deque[EventRecord] = deque()
        self._live: deque[EventRecord] = deque()

    def __len__(self) -> int:
        return len(self._replayed) + len(self._live)

    @property
    def ready(self) -> bool:
        """Whether there is something to do: to take a record, or to read the journal."""
        return bool(self._replayed or self._live or self.behind)

    def offer(self, record: EventRecord) -> None:
        """A record that has just happened. Constant time on average, never raises."""
        if self.last is None and record.seq is not None:
            self.last = record.seq - 1
        if len(self._live) >= self.capacity:
            if self._live and (both := merged(self._live[-1], record)):
                self._live[-1] = both
                return
            self._make_room()
        self._live.append(record)

    def take(self) -> EventRecord | None:
        """The next record; None when there is none, or the journal has to be read before it."""
        if self._replayed:
            return self._advance(self._replayed.popleft())
        while self._live and not self.behind:
            record = self._live.popleft()
            if record.seq is None:
                return record
            if self.last is None or record.seq > self.last:
                return self._advance(record)
        return None

    def replay(self, records: Iterable[EventRecord], *, more: bool) -> None:
        """What the journal has after ``last``; ``more``: there may be still more.

        The caller sets :attr:`behind` to False *before* it reads: an overflow during the
        reading sets it again, and then what was read is not all there is.
        """
        self._replayed.extend(records)
        self.behind = self.behind or more
        newest = self._replayed[-1].seq if self._replayed else self.last
        if not self.behind and newest is not None:
            self._forget_until(newest)

    def _forget_until(self, newest: int) -> None:
        """Drop live records that the replay has overtaken, deltas of its messages included."""
        overtaken = 0
        for n, record in enumerate(self._live, 1):
            if record.seq is not None and record.seq <= newest:
                overtaken = n
        for _ in range(overtaken):
            self.dropped += self._live.popleft().seq is None

    def _advance(self, record: EventRecord) -> EventRecord:
        self.last = record.seq
        return record

    def _make_room(self) -> None:
        """Free a quarter at least, so that the work is spread over many offers."""
        enough = self.capacity * 3 // 4
        self._live = deque(merge(self._live))
        if len(self._live) <= enough:
            return
        lasting = deque(r for r in self._live if r.event.durable)
        self.dropped += len(self._live) - len(lasting)
        self._live = lasting
        if len(lasting) > enough:
            self.dropped += sum(record.seq is None for record in lasting)
            self.behind = self.behind or any(r.seq is not None for r in lasting)
            self._live = deque()


def merge(records: Iterable[EventRecord]) -> list[EventRecord]:
    """The records with neighbouring deltas of the same message made one."""
    made: list[EventRecord] = []
    for record in records:
        both = merged(made[-1], record) if made else None
        if both is None:
            made.append(record)
        else:
            made[-1] = both
    return made


def merged(first: EventRecord, second: EventRecord) -> EventRecord | None:
    """One delta for two that follow each other in the same message; None for all others."""
    a, b = first.event, second.event
    if not isinstance(a, TextDelta | ThinkingDelta) or type(a) is not type(b):
        return None
    assert isinstance(b, TextDelta | ThinkingDelta)
    same = first.run_id == second.run_id and first.stream == second.stream and a.i == b.i
    if not same or a.at + len(a.text) != b.at:
        return None
    return msgspec.structs.replace(first, event=msgspec.structs.replace(a, text=a.text + b.text))
