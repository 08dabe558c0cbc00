"""The life of an input and of the run that it becomes, as a table.

An input is queued, and then becomes a run of its own, enters a run that goes on, or is dropped.
Two rules. Every change of state goes through :func:`next_state`; a change that the table does not
have is a bug and raises. A run of the last host and a live one share the table. Pure.

       new --register--> arriving --store--> queued --start--> running --end--> ended
        |                    |               |    ^                |
        |                   stop         offer    take_back       stop
        |                    v               v    |                v
        |               overtaken           offered             stopping --end--> ended
        |                    |               |    |
        |                  store            drop  enter
        |                    '--> dropped <--'    '--> entered --end--> ended
        '--restore--> queued
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

# new         made, and in no queue; also a run that stands for a summary and never starts
# arriving    in the run table; its input is on the way to disk
# overtaken   the same, and a stop came first
# queued      on disk, in the queue of its session
# offered     still in the queue; a run may take it into its rows with its next decision
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
    "offered",
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
    "offer",  # the run that it steers may take it
    "take_back",  # that run has not
    "enter",  # that run has, or another input answers it too
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
        "offer": "offered",
        "enter": "entered",
        "start": "running",
        "drop": "dropped",
        "stop": "queued",
        "end": "ended",
    },
    "offered": {
        "take_back": "queued",
        "enter": "entered",
        "drop": "dropped",
        "stop": "offered",
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
    {"new", "arriving", "overtaken", "queued", "offered", "dropped"}
)
RUNNING: Final[frozenset[RunState]] = frozenset({"running", "stopping"})
NEVER_STARTS: Final[frozenset[RunState]] = frozenset({"overtaken", "dropped"})
OUT_OF_QUEUE: Final[frozenset[RunState]] = frozenset({"arriving", *NEVER_STARTS, *RUNNING})
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
    "offered": "queued",
    "dropped": "queued",
    "stopping": "running",
}


def phase_of(state: RunState) -> str:
    """The state as models and people read it: arriving, queued, running, or over."""
    return _PHASES.get(state, state)
