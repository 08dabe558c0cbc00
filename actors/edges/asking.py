"""A run that waits for a person, as a client of an edge learns of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from motet.actors.agent.stable_json import stable_json
from motet.actors.tools.arguments import preview
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalInfo

QUIET: Final = 0.2
"""Seconds without an event after which a run that has asked is taken to wait for its answers."""
LISTED: Final = 200
_ARGUMENT: Final = 500


@attrs.define(eq=False)
class Asking:
    """Whether a run only waits for a person, by its events.

    ``asking``: calls of it may wait; ``working``: those that do not.
    """

    asking: bool = False
    working: set[str] = attrs.field(factory=set[str])
    _asked: set[str] = attrs.field(init=False, factory=set[str])

    @property
    def patience(self) -> float:
        """Seconds to wait for the next event."""
        waits = self.asking and not self.working - self._asked
        return QUIET if waits else float("inf")

    def note(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.ApprovalRequested(call_id=call):
                self.asking = True
                self._asked.add(call)
            case ev.ToolCall(id=call):
                self.working.add(call)
                self._asked.discard(call)
            case ev.ToolResult(id=call):
                self.working.discard(call)
            case _:
                pass


def question(waiting: Sequence[ApprovalInfo]) -> str:
    """What a person in a chat is asked: the calls that wait, and how to answer them there."""
    lines = [_line(one) for one in waiting]
    which = "" if len(waiting) == 1 else "ID "
    how = f"`/approve {which}allow-once`, `allow-always` or `deny`, with a reason if you like"
    return "\n".join(["This waits for your approval:", *lines, f"Answer with {how}."])


def _line(one: ApprovalInfo) -> str:
    args = msgspec.json.encode(preview(stable_json(one.args), _ARGUMENT)).decode()
    return f"- {one.id}: {one.tool} {args} ({one.reason})"
