"""The lives of inputs, runs and tool calls, as two tables in the manner of h11. Pure.

An input is queued, and then becomes a run of its own, enters a run that goes on, or is dropped.
Two rules. Every change of state goes through :func:`next_state`; a change that the table does not
have is a bug and raises. A run of the last host and a live one share the table. The life of a call
follows below, under the same rules: a state says all that a stop, a suspension and a resumption
need to know of a call.

       new --register--> arriving --store--> queued --start--> running --end--> ended
        |                    |               |    |                |
        |                   stop             |    |               stop
        |                    v               |    |                v
        |               overtaken            |    |             stopping --end--> ended
        |                    |               |    |
        |                  store            drop  enter
        |                    '--> dropped <--'    '--> entered --end--> ended
        '--restore--> queued
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from motet.protocols.approvals import Resumption
from motet.protocols.chat import Call

# new         made, and in no queue; also a run that stands for a summary and never starts
# arriving    in the run table; its input is on the way to disk
# overtaken   the same, and a stop came first
# queued      on disk, in the queue of its session
# entered     in the rows of another run, or answered together with another input
# dropped     out of the queue and not answered; its session puts that on record
# running     at work; its session's actor begins it
# stopping    asked to end; it cleans up
# suspended   waits for a person outside of any task
# ended       for ever
RunState: TypeAlias = Literal[
    "new",
    "arriving",
    "overtaken",
    "queued",
    "entered",
    "dropped",
    "running",
    "stopping",
    "suspended",
    "ended",
]

LifeEvent: TypeAlias = Literal[
    "register",  # its input is about to be stored
    "restore",  # the last host has left it in the queue
    "store",  # its input is on disk
    "enter",  # the run that it steers has taken it, or another input answers it too
    "start",  # it becomes a run of its own
    "drop",  # it leaves the queue and will not be answered
    "stop",  # somebody wants its end
    "suspend",  # it waits for a person, and is on disk
    "resume",  # it goes on with the answer
    "end",  # it has a result
]

# A stop changes nothing for an input in a queue: whoever stops it takes it out, which is a drop.
TRANSITIONS: Final[dict[RunState, dict[LifeEvent, RunState]]] = {
    "new": {"register": "arriving", "restore": "queued", "stop": "new", "end": "ended"},
    "arriving": {"store": "queued", "stop": "overtaken", "end": "ended"},
    "overtaken": {"store": "dropped", "stop": "overtaken", "end": "ended"},
    "queued": {
        "enter": "entered",
        "start": "running",
        "drop": "dropped",
        "stop": "queued",
        "end": "ended",
    },
    "entered": {"stop": "entered", "end": "ended"},
    "dropped": {"drop": "dropped", "stop": "dropped", "end": "ended"},
    "running": {"stop": "stopping", "suspend": "suspended", "end": "ended"},
    "stopping": {"stop": "stopping", "suspend": "suspended", "end": "ended"},
    "suspended": {"resume": "running"},
    "ended": {},
}

NOT_BEGUN: Final[frozenset[RunState]] = frozenset(
    {"new", "arriving", "overtaken", "queued", "dropped"}
)
UNSTORED: Final[frozenset[RunState]] = frozenset({"new", "arriving", "overtaken"})
"""Its input is not on disk, so far as is known here."""
RUNNING: Final[frozenset[RunState]] = frozenset({"running", "stopping"})
NEVER_STARTS: Final[frozenset[RunState]] = frozenset({"overtaken", "dropped"})
OUT_OF_QUEUE: Final[frozenset[RunState]] = frozenset({"new", "arriving", *NEVER_STARTS, *RUNNING})
"""Live and in no queue: a stop asks these to end, while it drops what is in a queue."""
OVER: Final[frozenset[RunState]] = frozenset({"suspended", "ended"})


class LifecycleError(RuntimeError):
    """An event that cannot happen to a run in its state."""

    def __init__(self, run_id: str, state: RunState, event: LifeEvent) -> None:
        possible = ", ".join(TRANSITIONS[state]) or "nothing"
        super().__init__(f"run {run_id}: {event!r} cannot happen in state {state!r}: {possible}")
        self.state = state
        self.event = event


def next_state(state: RunState, event: LifeEvent, run_id: str) -> RunState:
    """The state after ``event``. Raises :class:`LifecycleError`."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise LifecycleError(run_id, state, event) from None


def is_over(state: RunState) -> bool:
    """Whether the run has a result."""
    return state in OVER


_PHASES: Final[dict[RunState, str]] = {
    "new": "arriving",
    "overtaken": "arriving",
    "dropped": "queued",
    "stopping": "running",
}


def phase_of(state: RunState) -> str:
    """The state as models and people read it: arriving, queued, running, or over."""
    return _PHASES.get(state, state)


# new        nothing of it is published
# announced  its tool.call is published; its gates decide, or it waits for its turn
# waiting    its approval is stored, and waits for a person
# cleared    nobody keeps it from beginning; that is being stored, or it waits for a thread
# begun      its tool runs, and may have had its effect
# suspended  it is left for the time when its run is resumed
# done       it has its result, and its tool.result is published
CallState: TypeAlias = Literal[
    "new", "announced", "waiting", "cleared", "begun", "suspended", "done"
]

CallEvent: TypeAlias = Literal[
    "announce",  # its tool.call was published
    "ask",  # a person has to decide; also for a tool that asks after it has begun (NeedsApproval)
    "answer",  # the person has decided, or the time for it is over
    "clear",  # everybody has allowed it, and it is its turn
    "begin",  # the tool begins, in this very step
    "refuse",  # something keeps it from beginning, or its approval could not be used
    "suspend",  # the run has waited long enough
    "report",  # its tool.result was published
]

CALL_TRANSITIONS: Final[dict[CallState, dict[CallEvent, CallState]]] = {
    "new": {"announce": "announced"},
    "announced": {
        "ask": "waiting",
        "clear": "cleared",
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
    "cleared": {"begin": "begun", "refuse": "announced", "report": "done"},
    # A tool that asks after it has begun begins again, at once if a grant covers it.
    "begun": {"clear": "cleared", "ask": "waiting", "refuse": "announced", "report": "done"},
    "suspended": {"report": "done"},
    "done": {},
}
# A cut changes no state: the state already says what is due for the call then.
#
#             a stop                         a suspension            a kill
# new         stays unpublished              begins after it         begins after it, if held
# announced   did not start, is published    begins after it         the same
# waiting     the same, and is withdrawn     finds its approval      finds its approval
# cleared     did not start, is published    the same, and stored    is unknown, unless idempotent
# begun       was cut while it ran, the same the same, and stored    is unknown, unless idempotent
# suspended   did not start, is published    finds its approval      finds its approval
# done        keeps its result               keeps its result        keeps its result
#
# Held: somebody may keep it from beginning (``CallApprovals.held``). Any other call is on disk
# once, before it begins: a kill leaves it as one that was cleared.

OPEN: Final[frozenset[CallState]] = frozenset(
    {"announced", "waiting", "cleared", "begun", "suspended"}
)
"""States with a published tool.call and no tool.result (G7, G8)."""
BEGINS: Final[frozenset[CallState]] = frozenset({"cleared", "begun"})
"""States in which it waits for nobody: its tool runs, or is about to."""
PENDING: Final[frozenset[CallState]] = frozenset({"waiting", "suspended"})
"""States in which a person's answer lets the run continue."""


def next_call_state(state: CallState, event: CallEvent, call_id: str) -> CallState:
    """The state after ``event``. Raises ``RuntimeError`` for an event that cannot happen."""
    try:
        return CALL_TRANSITIONS[state][event]
    except KeyError:
        possible = ", ".join(CALL_TRANSITIONS[state]) or "nothing"
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
        if left is None:
            self._states: dict[str, CallState] = {call.id: "new" for call in calls}
            return
        results = {row.call_id for row in left.results}
        self._states = {
            call.id: resumed_state(
                announced=call.id in left.announced,
                reported=call.id in left.reported,
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
        states = self._states
        # In place of `next_call_state`, except where that raises.
        after = CALL_TRANSITIONS[states[call_id]].get(event)
        states[call_id] = after or next_call_state(states[call_id], event, call_id)

    def has_any(self, *states: CallState) -> bool:
        """Whether a call is in one of these states."""
        return not frozenset(states).isdisjoint(self._states.values())
