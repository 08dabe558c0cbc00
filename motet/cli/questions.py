"""Approvals at the keyboard, one after the other, answered by a letter."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from motet.cli.render import one_line
from motet.cli.screen import Screen
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.events import AnyEvent, ApprovalRequested, ApprovalResolved

ANSWERS: dict[str, ApprovalDecision] = {
    "y": "allow-once",
    "yes": "allow-once",
    "a": "allow-always",
    "always": "allow-always",
    "n": "deny",
    "no": "deny",
}


@attrs.define(eq=False)
class Questions:
    """Those that wait, the oldest first. False when there is none."""

    screen: Screen
    _asked: dict[str, str] = attrs.field(factory=dict[str, str])

    def __bool__(self) -> bool:
        return bool(self._asked)

    def remind(self, pending: Iterable[ApprovalInfo]) -> None:
        """Show what waits from before, oldest first."""
        for info in pending:
            self.screen.line(f"? {info.tool}: {one_line(info.reason)}  [{info.id}]", "warning")
            self._ask(info.id, info.tool)

    def note(self, event: AnyEvent) -> bool:
        """Take notice of an event; whether it was about a question."""
        match event:
            case ApprovalRequested(id=approval, tool=tool):
                self._ask(approval, tool)
            case ApprovalResolved(id=approval):
                self._asked.pop(approval, None)
            case _:
                return False
        return True

    def decision(self, text: str) -> ApprovalDecision | None:
        """The answer that a text is to the oldest question; None: it is none."""
        return ANSWERS.get(text.strip().lower()) if self._asked else None

    def take(self) -> str:
        """The id of the oldest one, which is answered now."""
        approval = next(iter(self._asked))
        del self._asked[approval]
        return approval

    def are(self, pending: Iterable[ApprovalInfo]) -> None:
        """These wait now, and no others."""
        self._asked = {one.id: one.tool for one in pending}

    def _ask(self, approval: str, tool: str) -> None:
        self._asked[approval] = tool
        first = next(iter(self._asked.values()))
        self.screen.line(f"may {first} do that? y: yes, a: always, n: no", "warning")
