"""State and texts that the edges derive from the events of a run, whatever their format. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.events import AnyEvent
from motet.protocols.review import reveal
from motet.protocols.stable_json import stable_json

QUIET: Final = 0.2
"""Seconds without an event after which a run with pending approvals is taken to wait for them."""


class TextWithdrawn(Exception):
    """Text was sent that is not part of the message any more."""


@attrs.define(eq=False)
class SentTexts:
    """The text of each message that a client was sent, so that it gets none twice or left out.

    Messages have their numbers in the run. Invariant: the results of :meth:`delta` and
    :meth:`whole` for a message are, put together, a beginning of its text, and all of it after
    ``whole``.
    """

    _sent: dict[int, str] = attrs.field(init=False, factory=dict[int, str])

    def delta(self, i: int, at: int, text: str) -> str:
        """The unsent part of ``text``, which is at offset ``at`` in message ``i``."""
        sent = self._sent.get(i, "")
        if at > len(sent):
            return ""  # a delta before it was dropped: the whole message will have it
        new = text[len(sent) - at :]
        self._sent[i] = sent + new
        return new

    def whole(self, i: int, text: str) -> str:
        """The unsent part of message ``i``, whose whole is ``text``. Raises
        :class:`TextWithdrawn`.
        """
        sent = self._sent.get(i, "")
        self._sent[i] = text
        if text.startswith(sent):
            return text[len(sent) :]
        if sent.strip() == text.strip():
            return ""
        # A part that ends with a blank, before the note of an answer that was cut off.
        part = sent.rstrip()
        if text.startswith(part) and text[len(part) :][:1].isspace():
            return text[len(part) :]
        raise TextWithdrawn

    def withdraw(self, i: int) -> bool:
        """Forget messages from number ``i`` on; true if anything of them was sent."""
        gone = {number: text for number, text in self._sent.items() if number >= i}
        for number in gone:
            del self._sent[number]
        return any(gone.values())


@attrs.define(eq=False)
class ApprovalWait:
    """Whether a run only waits for a person, by its events.

    Attributes:
        pending: approvals may be pending.
        working: calls that have begun and not ended.
    """

    pending: bool = False
    working: set[str] = attrs.field(factory=set[str])
    _asked: set[str] = attrs.field(init=False, factory=set[str])

    @property
    def timeout(self) -> float:
        """Seconds to wait for the next event."""
        waits = self.pending and not self.working - self._asked
        return QUIET if waits else float("inf")

    def resolve(self, *, pending: bool) -> None:
        """The host's approvals were looked up: some are ``pending``, or none."""
        self.pending = pending

    def note(self, event: AnyEvent) -> None:
        match event:
            case ev.ApprovalRequested(call_id=call):
                self.pending = True
                self._asked.add(call)
            case ev.ToolCall(id=call):
                self.working.add(call)
                self._asked.discard(call)
            case ev.ToolResult(id=call):
                self.working.discard(call)
            case _:
                pass


def approval_question(pending: Sequence[ApprovalInfo]) -> str:
    """The question for a person in a chat: the pending calls, and how to answer them there."""
    lines = [_line(one) for one in pending]
    which = "" if len(pending) == 1 else "ID "
    how = f"`/approve {which}allow-once`, `allow-always` or `deny`, with a reason if you like"
    return "\n".join(["This waits for your approval:", *lines, f"Answer with {how}."])


def _line(one: ApprovalInfo) -> str:
    """The call with all of its arguments, as JSON in one line."""
    stable = msgspec.json.decode(stable_json(one.args), type=JsonObject)
    args = reveal(msgspec.json.encode(stable).decode())
    changed = "; a hook has changed the arguments" if one.proposed is not None else ""
    return f"- {one.id}: {reveal(one.tool)} {args} ({one.reason}{changed})"


def failure_of(end: AnyEvent) -> tuple[str, str] | None:
    """Code and message of a run, or an input, that ended without an answer; None for the rest."""
    match end:
        case ev.RunFailed(kind=kind, message=message):
            return kind, message
        case ev.RunRefused(reason=reason):
            return "run_refused", f"The model refused to answer: {reason}"
        case ev.RunEscalated(reason=reason, escalation=escalation):
            message = f"The run was handed to a person ({reason}), who answers {escalation}."
            return "run_escalated", message
        case ev.InputDropped(reason=reason):
            return "input_dropped", f"The input is not answered: {reason}."
        case ev.InputSteered(into=into):
            return "input_steered", f"The input is answered by the run {into}."
        case _:
            return None
