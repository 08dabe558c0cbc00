"""The history of a simulated host, over its crashes, as people, models and tools saw it.

Invariant: what a host does while it is taken apart after a crash is not in it, since nobody
could have seen it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from motet.actors.telemetry.tracer import RunTrace
from motet.protocols.events import EventRecord
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import Ack, StopReport
from motet.testing.invariants.snapshot import Asked, Happened, Sent, Stopped

__all__ = ["History"]


@attrs.define(eq=False)
class History:
    """Grows while the world is driven. ``at`` of an entry is its number among all of them."""

    sent: list[Sent] = attrs.field(factory=list[Sent])
    asked: list[Asked] = attrs.field(factory=list[Asked])
    events: list[Happened] = attrs.field(factory=list[Happened])
    stops: list[Stopped] = attrs.field(factory=list[Stopped])
    crashes: list[int] = attrs.field(factory=list[int])
    cut_off: bool = False
    """The host is being taken apart: what it does now does not count."""
    _count: int = 0

    def next_at(self) -> int:
        """The number of what happens now, from 1."""
        self._count += 1
        return self._count

    def was_sent(
        self,
        ack: Ack,
        *,
        user: str,
        place: str,
        text: str,
        key: str | None,
        steers: bool = False,
    ) -> None:
        """A host has acknowledged an input."""
        again = ack.status == "duplicate"
        self.sent.append(
            Sent(self.next_at(), user, place, text, key, ack.run_id, again=again, steers=steers)
        )

    def was_posted(self, *, user: str, room: str, text: str, key: str | None, again: bool) -> None:
        """A room has taken a message."""
        self.sent.append(Sent(self.next_at(), user, room, text, key, again=again, to_room=True))

    def was_refused(
        self, error: Exception, *, user: str, place: str, text: str, key: str | None, room: bool
    ) -> None:
        """An input was not taken, and who sent it was told so."""
        why = f"{type(error).__name__}: {error}"
        self.sent.append(
            Sent(self.next_at(), user, place, text, key, accepted=False, why=why, to_room=room)
        )

    def was_stopped(self, report: StopReport, *, user: str, place: str, room: bool) -> None:
        """A stop has returned."""
        self.stops.append(Stopped(self.next_at(), user, place, report, to_room=room))

    def hear(self, record: EventRecord) -> None:
        """An event of whatever stream."""
        if not self.cut_off:
            self.events.append(Happened(self.next_at(), record))

    def hear_request(self, trace: RunTrace, request: ModelRequest) -> None:
        """A request that is about to be sent to a model."""
        if not self.cut_off:
            self.asked.append(
                Asked(
                    self.next_at(),
                    trace.run_id,
                    trace.session,
                    trace.user,
                    trace.agent,
                    request,
                )
            )

    def listeners(self) -> tuple[Callable[[EventRecord], None], Callable[..., None]]:
        """For the events and the requests of one host: they fall silent with its crash."""
        return self.hear, self.hear_request
