"""The history of a simulated host and the effects of its tools, across crashes.

Invariant: actions of a host while it is dismantled after a crash are not in either, since nobody
outside could have seen them.

Law of the ledger: a tool that is not declared idempotent has each effect at most once per call of a
model, across every cut, resumption and restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from motet.actors.telemetry.tracer import RunTrace
from motet.protocols.events import EventRecord
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import Ack, StopReport
from motet.testing.invariants.snapshot import Asked, Effect, Happened, Sent, Stopped

if TYPE_CHECKING:
    from motet.actors.tools.context import Context

__all__ = ["History", "Ledger"]


@attrs.define(eq=False)
class History:
    """All that outsiders saw. ``at`` of an entry is its number among all entries."""

    sent: list[Sent] = attrs.field(factory=list[Sent])
    asked: list[Asked] = attrs.field(factory=list[Asked])
    events: list[Happened] = attrs.field(factory=list[Happened])
    stops: list[Stopped] = attrs.field(factory=list[Stopped])
    crashes: list[int] = attrs.field(factory=list[int])
    cut_off: bool = False
    """True while a crashed host is dismantled: its actions are ignored."""
    _count: int = 0

    def next_at(self) -> int:
        """The number of the next entry, from 1."""
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
        """An input was refused, and its sender has got the error."""
        why = f"{type(error).__name__}: {error}"
        self.sent.append(
            Sent(self.next_at(), user, place, text, key, accepted=False, why=why, to_room=room)
        )

    def was_stopped(self, report: StopReport, *, user: str, place: str, room: bool) -> None:
        """A stop has returned."""
        self.stops.append(Stopped(self.next_at(), user, place, report, to_room=room))

    def hear(self, record: EventRecord) -> None:
        """An event of any stream."""
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
        """The callbacks for the events and the requests of one host; a crash mutes them."""
        return self.hear, self.hear_request


@attrs.define(eq=False)
class Ledger:
    """The effects of tools on the outside world, in order. A tool records each effect:

        async def pay(ctx: motet.Context[None], amount: int) -> str:
            ledger.did(ctx, f"paid {amount}")

    Attributes:
        effects: all of them.
        cut_off: nothing is recorded, since the running tools belong to a crashed host.
    """

    effects: list[Effect] = attrs.field(factory=list[Effect])
    cut_off: bool = False

    def did(self, call: str | Context[Any], what: str, *, repeatable: bool = False) -> None:
        """Record an effect of a call, given by the tool's context or by any name.

        Prefer the context: the id of a call is unique only in its session.
        """
        if not self.cut_off:
            self.effects.append(Effect(_name(call), what, repeatable))

    def of(self, call: str | Context[Any]) -> Sequence[str]:
        """The effects of a call."""
        name = _name(call)
        return [effect.what for effect in self.effects if effect.call == name]

    def count(self, what: str) -> int:
        """The number of times of an effect, over all calls."""
        return sum(1 for effect in self.effects if effect.what == what)

    def doubled(self) -> Sequence[Effect]:
        """The non-repeatable effects that a call had more than once; empty: at most once."""
        times = Counter(effect for effect in self.effects if not effect.repeatable)
        return [effect for effect, count in times.items() if count > 1]


def _name(call: str | Context[Any]) -> str:
    """The key of a call. A resumed run keeps its id, and its calls keep theirs."""
    return call if isinstance(call, str) else f"{call.run_id}/{call.call_id}"
