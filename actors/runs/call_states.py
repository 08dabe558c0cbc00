"""The life of a tool call, as a table in the manner of h11. Pure.

Two rules. Every change goes through :meth:`CallStates.move`; a change that the table does not have
is a bug and raises. A state says all that a stop, a suspension and a resumption need to know of a
call, so that a live run, a suspended run and a recovered run cannot disagree about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from motet.protocols.approvals import Resumption
from motet.protocols.chat import Call

# new        nothing of it is published
# announced  its tool.call is published; its gates decide, or it waits for its turn
# waiting    its approval is stored, and waits for a person
# begun      its tool runs, and may have had its effect
# suspended  it is left for the time when its run is resumed
# done       it has its result, and its tool.result is published
CallState: TypeAlias = Literal["new", "announced", "waiting", "begun", "suspended", "done"]

CallEvent: TypeAlias = Literal[
    "announce",  # its tool.call was published
    "ask",  # a person has to decide; also for a tool that asks after it has begun (NeedsApproval)
    "answer",  # the person has decided, or the time for it is over
    "begin",  # the tool begins: last of all, when it is its turn
    "refuse",  # something keeps it from beginning, or its approval could not be used
    "suspend",  # the run has waited long enough
    "report",  # its tool.result was published
]

TRANSITIONS: Final[dict[CallState, dict[CallEvent, CallState]]] = {
    "new": {"announce": "announced"},
    "announced": {
        "ask": "waiting",
        "begin": "begun",
        "refuse": "announced",
        "suspend": "suspended",
        "report": "done",
    },
    "waiting": {
        "answer": "announced",
        "refuse": "announced",
        "suspend": "suspended",
        "report": "done",
    },
    # A tool that asks after it has begun begins again, at once if a grant covers it.
    "begun": {"begin": "begun", "ask": "waiting", "refuse": "announced", "report": "done"},
    "suspended": {"report": "done"},
    "done": {},
}
# A cut changes no state: the state already says what is due for the call then.
#
#             a stop                         a suspension            a kill
# new         stays unpublished              begins after it         begins after it
# announced   is published as cancelled      begins after it         begins after it
# waiting     the same, and is withdrawn     finds its approval      finds its approval
# begun       is published as cancelled      the same, and stored    is unknown, unless idempotent
# suspended   is published as cancelled      finds its approval      finds its approval
# done        keeps its result               keeps its result        keeps its result

OPEN: Final[frozenset[CallState]] = frozenset({"announced", "waiting", "begun", "suspended"})
"""States with a published tool.call and no tool.result (G7, G8)."""
PENDING: Final[frozenset[CallState]] = frozenset({"waiting", "suspended"})
"""States in which a person's answer lets the run continue."""


def next_state(state: CallState, event: CallEvent, call_id: str) -> CallState:
    """The state after ``event``. Raises ``RuntimeError`` for an event that cannot happen."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        possible = ", ".join(TRANSITIONS[state]) or "nothing"
        raise RuntimeError(
            f"life of call {call_id}: {event!r} cannot happen in state {state!r} (only: {possible})"
        ) from None


def resumed_state(*, announced: bool, reported: bool, has_result: bool) -> CallState:
    """The state of a call of a run that resumes, by what is stored of it.

    A result that was published and not stored is none: the call begins anew. One that was stored
    and not published is still to be published.
    """
    if reported:
        return "done" if has_result else "new"
    return "announced" if announced else "new"


class CallStates:
    """The states of the calls of one answer, by their ids. ``left``: what its run resumes from."""

    def __init__(self, calls: Iterable[Call], left: Resumption | None = None) -> None:
        results = {row.call_id for row in left.results} if left is not None else set[str]()
        self._states: dict[str, CallState] = {
            call.id: resumed_state(
                announced=left is not None and call.id in left.announced,
                reported=left is not None and call.id in left.reported,
                has_result=call.id in results,
            )
            for call in calls
        }

    def __repr__(self) -> str:
        return f"<CallStates {self._states}>"

    def __getitem__(self, call_id: str) -> CallState:
        return self._states[call_id]

    def move(self, call_id: str, event: CallEvent) -> None:
        """Make a transition, the only way in which a call changes its state."""
        self._states[call_id] = next_state(self._states[call_id], event, call_id)

    def has_any(self, *states: CallState) -> bool:
        """Whether a call is in one of these states."""
        return any(state in states for state in self._states.values())
