"""The failed calls of a session, as its turn keeps them: counted, and answered with advice.

Laws: results are taken in call order, and what is rebuilt from a transcript equals what was kept
while it was made, so nothing has to be stored beside it. Source: errors specification section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard, get_args

import msgspec

from motet.actors.errors.advice import RepeatedCalls
from motet.actors.errors.classify import classify
from motet.actors.errors.compact import compact_summary
from motet.actors.errors.format import told
from motet.actors.errors.tracker import ErrorLimits, ErrorTracker, any_failed, counts_as
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, Outcome, ToolMessage
from motet.protocols.errors import CompactError, ErrorType
from motet.protocols.limits import Limits


class Failures(msgspec.Struct, frozen=True):
    """What counts against the run that is going on; transitions return the next state."""

    tracker: ErrorTracker = ErrorTracker()
    repeated: RepeatedCalls = RepeatedCalls()

    def ended(
        self, call: Call, outcome: Outcome, text: str, kind: str = "", now: float = 0.0
    ) -> tuple[Failures, str]:
        """The state after a call, and the advice to add to its result, mostly none."""
        match counts_as(outcome):
            case "success":
                if not self.tracker.rows and not self.repeated.rows:
                    return self, ""
                tracker = self.tracker.succeeded(call.name)
                repeated = self.repeated.succeeded(call.name)
                if tracker is self.tracker and repeated is self.repeated:
                    return self, ""
                return Failures(tracker, repeated), ""
            case "error":
                error = compacted_error(call.name, text, kind, now)
                repeated, advice = self.repeated.failed(call.name, call.arguments)
                return Failures(self.tracker.failed(error), repeated), advice
            case "neither":
                return self, ""


def compacted_error(tool: str, text: str, kind: str = "", now: float = 0.0) -> CompactError:
    """The short form of a failed call, of the text that its result has in the transcript."""
    message, _ = told(text)
    return compact_summary(tool, kind if _is_type(kind) else classify(message), message, now)


def failures_before(
    rows: Sequence[ChatMessage], limits: Limits, *, needs_review: bool = False
) -> Failures:
    """What a session's transcript counts against its next run.

    ``needs_review``: nobody has answered its last escalation. An answer forgives what was before.
    """
    errors = ErrorLimits(limits.tool_errors, limits.total_errors)
    state = Failures(ErrorTracker(errors))
    calls: Mapping[str, Call] = {}
    for row in rows if any_failed(rows) else ():
        match row:
            case AssistantMessage(note="escalated") if not needs_review:
                state = Failures(state.tracker.forgiven())
            case AssistantMessage():
                calls = {call.id: call for call in row.calls}
            case ToolMessage():
                call = calls.get(row.call_id, Call(row.call_id, row.name))
                state, _ = state.ended(call, row.outcome, row.text)
            case _:
                pass
    return Failures(state.tracker.new_run(), state.repeated)


def _is_type(kind: str) -> TypeGuard[ErrorType]:
    return kind in get_args(ErrorType)
