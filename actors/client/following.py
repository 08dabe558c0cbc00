"""What a client has of one stream, whatever becomes of its connections. Pure.

Invariant: the numbered events that :meth:`Following.take` gives are ``after + 1, after + 2, ...``,
each once and in order, except where a ``Gap`` stands for those that the host no longer has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
from msgspec import UNSET

from motet.actors.client.errors import ClientError, RequestFailed
from motet.protocols.events import EventRecord, Gap
from motet.protocols.gateway import ErrorBody, StreamState

CAPACITY: Final = 1_024


@attrs.define(eq=False)
class Following:
    """One stream that is read. ``changed`` is called when there is something new to look at.

    Attributes:
        last: number of the last event that was kept; None: from where the stream is when asked.
        asking: id of the request that asks for what follows ``last``.
        held: the reader is slow; nothing is kept until it has taken half of what there is.
        again: the host could not answer; it is asked again at its next tick.
        begun: the host has answered once.
        error: why nothing follows what is kept.
    """

    stream: str
    last: int | None
    changed: Callable[[], None]
    capacity: int = CAPACITY
    asking: str | None = attrs.field(init=False, default=None)
    held: bool = attrs.field(init=False, default=False)
    again: bool = attrs.field(init=False, default=False)
    begun: bool = attrs.field(init=False, default=False)
    error: ClientError | None = attrs.field(init=False, default=None)
    _kept: deque[EventRecord] = attrs.field(init=False, factory=deque[EventRecord])

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def idle(self) -> bool:
        """Nothing is asked for, though it could be."""
        return self.asking is None and not self.held and self.error is None

    def answered(self, state: StreamState, now: float) -> None:
        """The host said where the stream stands; ``now`` is in Unix seconds."""
        self.asking, self.again, self.begun = None, False, True
        if self.last is None:
            self.last = state.head
        elif not state.resumed:
            reason = "" if state.reason is UNSET else state.reason
            if reason in ("not_found", "limit_reached"):
                self.fail(
                    RequestFailed(ErrorBody(reason, f"{self.stream} cannot be read: {reason}"))
                )
                return
            start = min(self.last, state.head) + 1
            self._kept.append(EventRecord(self.stream, Gap(start, state.head), now))
            self.last = state.head
        self.changed()

    def refused(self, error: RequestFailed) -> None:
        """The host did not say where the stream stands."""
        self.asking = None
        if self.begun and error.retryable:
            self.again = True
        else:
            self.fail(error)

    def arrived(self, seq: int | None, record: EventRecord | None) -> bool:
        """An event came, None if it is of a later version. True: ask for what follows ``last``."""
        if self.last is None or self.held:
            return False
        if seq is None:
            self._keep_ephemeral(record)
            return False
        if seq > self.last + 1:
            return self.asking is None
        if seq == self.last + 1:
            self._keep(seq, record)
        return False

    def take(self) -> EventRecord | None:
        """The next event that is kept. It may let the stream go on, see :attr:`held`."""
        if not self._kept:
            return None
        record = self._kept.popleft()
        if self.held and len(self._kept) <= self.capacity // 2:
            self.held = False
        return record

    def fail(self, error: ClientError) -> None:
        """Nothing more comes after what is kept."""
        self.asking, self.again, self.held = None, False, False
        self.error = self.error or error
        self.changed()

    def disconnected(self) -> None:
        self.asking, self.again = None, False

    def forget_ephemerals(self) -> None:
        """The host has restarted: parts of what it was about to say mean nothing any more."""
        kept = [record for record in self._kept if record.seq is not None or _is_gap(record)]
        self._kept = deque(kept)

    def _keep(self, seq: int, record: EventRecord | None) -> None:
        if len(self._kept) >= self.capacity:
            self.forget_ephemerals()
        if len(self._kept) >= self.capacity:
            self.held = True
            return
        self.last = seq
        if record is not None:
            self._kept.append(record)
            self.changed()

    def _keep_ephemeral(self, record: EventRecord | None) -> None:
        if record is None or self.asking is not None or len(self._kept) >= self.capacity // 2:
            return
        self._kept.append(record)
        self.changed()


def _is_gap(record: EventRecord) -> bool:
    return isinstance(record.event, Gap)
