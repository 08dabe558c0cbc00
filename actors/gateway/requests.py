"""Which requests of a connection run now, which wait, and which are refused. Pure.

Invariants: at most ``in_flight`` ordinary requests run and ``waiting`` wait; requests of one lane
run one after the other in the order in which they came (two messages to one session keep their
order); urgent requests (stops, commands, pings) never wait for any of these.
"""

from __future__ import annotations

from collections import deque

import attrs

from motet.actors.gateway.commands import parse_command
from motet.actors.gateway.failures import Refusal
from motet.protocols.gateway import Limits, RequestFrame

_URGENT_METHODS = frozenset({"runs.stop", "ping"})
_STREAM_METHODS = frozenset({"subscribe", "unsubscribe"})


def is_urgent(frame: RequestFrame) -> bool:
    """Whether the request must get through when everything else is stuck."""
    if frame.method in _URGENT_METHODS:
        return True
    text = frame.params.get("text")
    return frame.method == "chat.send" and isinstance(text, str) and bool(parse_command(text))


def lane_of(frame: RequestFrame) -> tuple[str, str] | None:
    """Requests of equal lanes keep their order; None: the order does not matter."""
    if frame.method == "chat.send":
        return "session", str(frame.params.get("session"))
    if frame.method in _STREAM_METHODS:
        return "stream", str(frame.params.get("stream"))
    return None


@attrs.define(eq=False)
class Requests:
    """The requests of one connection. A request is over when its answer was written."""

    limits: Limits = attrs.field(factory=Limits)
    running: int = attrs.field(init=False, default=0)
    urgent: int = attrs.field(init=False, default=0)
    _waiting: deque[RequestFrame] = attrs.field(init=False, factory=deque[RequestFrame])
    _busy: set[tuple[str, str]] = attrs.field(init=False, factory=set["tuple[str, str]"])

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def admit(self, frame: RequestFrame) -> bool:
        """True: run it now; false: it waits. Raises :class:`Refusal` when too many wait."""
        if is_urgent(frame):
            if self.urgent >= self.limits.in_flight:
                raise Refusal("overloaded", f"{self.urgent} stops or commands are in flight")
            self.urgent += 1
            return True
        if self._may_run(frame):
            self._begin(frame)
            return True
        if len(self._waiting) >= self.limits.waiting:
            raise Refusal(
                "overloaded",
                f"{self.running} requests are in flight and {len(self._waiting)} wait; "
                "read some answers first",
            )
        self._waiting.append(frame)
        return False

    def over(self, frame: RequestFrame) -> list[RequestFrame]:
        """An admitted request was answered; returns those that run now in its place."""
        if is_urgent(frame):
            self.urgent -= 1
            return []
        self.running -= 1
        lane = lane_of(frame)
        if lane is not None:
            self._busy.discard(lane)
        return self._next()

    def _next(self) -> list[RequestFrame]:
        started: list[RequestFrame] = []
        kept: deque[RequestFrame] = deque()
        held: set[tuple[str, str] | None] = set()
        for frame in self._waiting:
            lane = lane_of(frame)
            if self._may_run(frame) and (lane is None or lane not in held):
                self._begin(frame)
                started.append(frame)
            else:
                held.add(lane)
                kept.append(frame)
        self._waiting = kept
        return started

    def _may_run(self, frame: RequestFrame) -> bool:
        return self.running < self.limits.in_flight and lane_of(frame) not in self._busy

    def _begin(self, frame: RequestFrame) -> None:
        self.running += 1
        lane = lane_of(frame)
        if lane is not None:
            self._busy.add(lane)
