"""When a run was last heard of, and what it waits on: read from its own events. Pure.

Laws: every event is progress, but for the word of a stall, which nobody notes; a stall is told once
until there is progress again; who waits for a person is not stalled.
"""

from __future__ import annotations

import attrs

from motet.protocols import events
from motet.protocols.events import AnyEvent

_PHASES = {
    "waiting_model": "the model",
    "waiting_children": "its sub-agents",
    "compacting": "a summary by the model",
    "queued": "its turn",
}


@attrs.define(eq=False)
class Progress:
    """Of one run.

    Attributes:
        at: when it was heard of last, by trio's clock; None: not yet.
        doing: its phase, as it has said.
        calls: names of the tools that have not ended, by call.
        people: approvals that somebody has to give.
        told: that it is stalled.
    """

    at: float | None = None
    doing: str = ""
    calls: dict[str, str] = attrs.field(factory=dict[str, str])
    people: set[str] = attrs.field(factory=set[str])
    told: bool = False

    def heard(self, now: float) -> None:
        """A sign of it, or of what works for it."""
        self.at, self.told = now, False

    def note(self, event: AnyEvent, now: float) -> None:
        """Something was heard of it."""
        self.at, self.told = now, False
        match event:
            case events.TextDelta() | events.ThinkingDelta():
                pass
            case events.Activity(phase=phase):
                self.doing = phase
            case events.ToolCall(id=call, name=name):
                self.calls[call] = name
            case events.ToolResult(id=call):
                self.calls.pop(call, None)
            case events.ApprovalRequested(id=approval):
                self.people.add(approval)
            case events.ApprovalResolved(id=approval):
                self.people.discard(approval)
            case _:
                pass
        self.at, self.told = now, False

    def stalled(self, now: float, limit: float) -> float | None:
        """Seconds for which nothing was heard, if they are too many and nobody was told."""
        if self.at is None or self.told or self.people or now - self.at < limit:
            return None
        return now - self.at

    def waits_on(self, *, stopping: bool) -> str:
        """In words for people."""
        if self.calls:
            names = ", ".join(dict.fromkeys(self.calls.values()))
            what = f"the tool {names}" if len(self.calls) == 1 else f"the tools {names}"
        else:
            what = _PHASES.get(self.doing, "what it has begun")
        return f"the clean-up of {what}, since it was stopped" if stopping else what
