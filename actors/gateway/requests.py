"""Admission of a connection's requests: run now, wait, or refuse. Pure.

Invariants: at most ``in_flight`` ordinary requests run and ``waiting`` wait; requests of one lane
run one after the other in their order (two messages to one session keep their order); urgent
requests (stops, commands, pings) never wait for ordinary ones, and stops not for other urgent
ones, which may wait for a disk.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Literal, TypeAlias

import attrs

from motet.actors.gateway.method import Refusal
from motet.protocols.commands import parse_command
from motet.protocols.gateway import Limits, RequestFrame

Urgency: TypeAlias = Literal["stop", "command"]

_INPUTS: Final = frozenset({"chat.send", "rooms.post"})
_ROOM_METHODS: Final = frozenset({"rooms.post", "messages.edit", "messages.delete"})
_STREAM_METHODS = frozenset({"subscribe", "unsubscribe"})


def urgency(frame: RequestFrame) -> Urgency | None:
    """The kind of a request that has to get through when everything else is stuck; else None."""
    if frame.method == "runs.stop":
        return "stop"
    if frame.method == "ping":
        return "command"
    text = frame.params.get("text")
    if frame.method not in _INPUTS or not isinstance(text, str):
        return None
    command = parse_command(text)
    return None if command is None else "stop" if command.stops else "command"


def input_of(frame: RequestFrame) -> tuple[str, str] | None:
    """The session and the sender of a request that is an input for an agent; else None."""
    session, sender = frame.params.get("session"), frame.params.get("sender", "")
    if frame.method != "chat.send" or urgency(frame) is not None:
        return None
    return (session, sender) if isinstance(session, str) and isinstance(sender, str) else None


def lane_of(frame: RequestFrame) -> tuple[str, str] | None:
    """Requests of the same lane keep their order; None: the order does not matter."""
    if frame.method == "chat.send":
        return "session", str(frame.params.get("session"))
    if frame.method in _ROOM_METHODS:
        return "room", str(frame.params.get("room"))
    if frame.method in _STREAM_METHODS:
        return "stream", str(frame.params.get("stream"))
    return None


@attrs.define(eq=False)
class Requests:
    """The requests of one connection. A request is over when its answer is written."""

    limits: Limits = attrs.field(factory=Limits)
    running: int = attrs.field(init=False, default=0)
    urgent: Counter[Urgency] = attrs.field(init=False, factory=Counter[Urgency])
    _waiting: deque[RequestFrame] = attrs.field(init=False, factory=deque[RequestFrame])
    _busy: set[tuple[str, str]] = attrs.field(init=False, factory=set["tuple[str, str]"])

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def admit(self, frame: RequestFrame) -> bool:
        """True: run it now; false: it waits. Raises :class:`Refusal` when too many wait."""
        urgent = urgency(frame)
        if urgent is not None:
            if self.urgent[urgent] >= self.limits.in_flight:
                raise Refusal("overloaded", f"{self.urgent[urgent]} {urgent}s are in flight")
            self.urgent[urgent] += 1
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
        """An admitted request was answered; returns the ones that run in its place."""
        urgent = urgency(frame)
        if urgent is not None:
            self.urgent[urgent] -= 1
            return []
        self.running -= 1
        lane = lane_of(frame)
        if lane is not None:
            self._busy.discard(lane)
        # No request overtakes an earlier one of its lane: within this loop requests only begin, so
        # that the reason for which the earlier one waits holds for the later one, too.
        started: list[RequestFrame] = []
        kept: deque[RequestFrame] = deque()
        for frame in self._waiting:
            if self._may_run(frame):
                self._begin(frame)
                started.append(frame)
            else:
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
