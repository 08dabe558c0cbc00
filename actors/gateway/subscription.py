"""Where one client stands in one stream. Pure.

A subscription is *held* while past events are fetched or its owner is checked: live events are
then kept aside, at most 64. It is *live* when every event up to now was handed on, *lost* when
the client was too slow and must ask again, and *closed* when it ended.

Invariants: what :meth:`Subscription.take`, :meth:`replayed` and :meth:`splice` let through has,
taken together, the numbers ``after + 1, after + 2, ...``, without gap or duplicate; nothing
passes before ``verified`` is set (G16).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, TypeAlias

import attrs

from motet.actors.gateway.outbox import Published
from motet.protocols.sessions import LOCAL, Principal

Phase: TypeAlias = Literal["held", "live", "lost", "closed"]
KEPT_ASIDE: Final = 64


@attrs.define(eq=False)
class Subscription:
    """``last`` was handed on last; ``head`` is the highest number known to exist.

    ``principal``: whose it has to be.
    ``begun``: the answer to the subscribe request is queued, so that events may follow.
    ``verified``: the host said that the stream is the principal's.
    """

    stream: str
    principal: Principal = LOCAL
    last: int = 0
    head: int = 0
    phase: Phase = "held"
    begun: bool = False
    verified: bool = False
    _aside: deque[Published] = attrs.field(
        init=False, factory=lambda: deque[Published](maxlen=KEPT_ASIDE)
    )

    def take(self, event: Published) -> bool:
        """An event came in; true: hand it on now."""
        seq = event.record.seq
        if seq is not None:
            self.head = max(self.head, seq)
        if self.phase == "held":
            self._aside.append(event)
        if self.phase != "live":
            return False
        if seq is None:
            return True
        if seq > self.last + 1:
            self.phase = "held"
            self._aside.append(event)
            return False
        if seq <= self.last:
            return False
        self.last = seq
        return True

    def take_all(self, start: int | None, end: int | None) -> bool:
        """Events came in whose numbers are ``start`` to ``end``, None: without any.

        True: hand all of them on now; false: ask :meth:`take` of each.
        """
        if self.phase != "live" or (start is not None and start != self.last + 1):
            return False
        if end is not None:
            self.last = end
            if end > self.head:
                self.head = end
        return True

    def begin(self, after: int, head: int) -> None:
        """Go on after number ``after`` of a stream whose highest is ``head``."""
        self.last = after
        self.head = max(self.head, head)

    def replayed(self, seq: int) -> bool:
        """A past event is to be handed on; false: numbers are missing, the journal lost them."""
        if seq != self.last + 1:
            return False
        self.last = seq
        self.head = max(self.head, seq)
        return True

    def splice(self) -> list[Published]:
        """Hand on what was kept aside; the phase is ``live`` after it unless numbers miss."""
        ready: list[Published] = []
        while self._aside:
            event = self._aside[0]
            seq = event.record.seq
            if seq is not None and seq > self.last + 1:
                return ready
            self._aside.popleft()
            if seq is None:
                ready.append(event)
            elif seq == self.last + 1:
                self.last = seq
                ready.append(event)
            else:
                # Ephemerals before an event that was replayed tell what it has told.
                ready.clear()
        if self.head <= self.last:
            self.phase = "live"
        return ready

    def lose(self) -> None:
        """The client is too slow: nothing more until it subscribes again."""
        self._end("lost")

    def close(self) -> None:
        self._end("closed")

    def _end(self, phase: Phase) -> None:
        self.phase = phase
        self._aside.clear()
