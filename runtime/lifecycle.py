"""The life cycle of an actor, as a table in the manner of h11. Pure.

Two rules. Every change of state goes through :func:`next_state`; a change that the table does not
have is a bug in the kernel and raises. ``cell.py`` lists the orders that cause the events.

The states "stopping" and "failing" do the same work. They differ in the next state and in the mail:
a stopping actor has closed its mailbox and ends in "dead"; a failing one keeps its mail for the
next incarnation, and waits in "suspended" for the decision of its supervisor. A stop of a failing
actor changes to "stopping" at once; no event leads back.
"""

from __future__ import annotations

from typing import Final, Literal

from motet.protocols.messages import Message

__all__ = ["OVER", "TRANSITIONS", "Exit", "LifeEvent", "LifeState", "Terminated", "next_state"]

# new         has a name and a mailbox, no task
# starting    on_start is running; mail is accepted and waits
# running     handles mail
# stopping    ends its turn, its children and its clean-up, never to come back
# failing     the same, but mail is kept, since the supervisor may restart the actor
# suspended   between two incarnations: the supervisor decides, or a back-off delay runs.
#             Not ActorRef.suspend, which pauses a running actor and is no state
# dead        for ever
LifeState = Literal["new", "starting", "running", "stopping", "failing", "suspended", "dead"]

Exit = Literal["crashed", "stopped", "ended"]
"""Of an actor, for ever: by an error, by an order, or by itself."""

LifeEvent = Literal[
    "begin",  # a supervisor starts an incarnation
    "ready",  # on_start has returned
    "stop",  # an order to end for ever
    "fail",  # a crash, a normal end, or an order to end for the restart of a group
    "ended",  # the last task of the incarnation has ended
    "bury",  # no incarnation will follow
]

TRANSITIONS: Final[dict[LifeState, dict[LifeEvent, LifeState]]] = {
    "new": {"begin": "starting", "bury": "dead"},
    "starting": {"ready": "running", "stop": "stopping", "fail": "failing"},
    "running": {"stop": "stopping", "fail": "failing"},
    "failing": {"stop": "stopping", "fail": "failing", "ready": "failing", "ended": "suspended"},
    "stopping": {"stop": "stopping", "fail": "stopping", "ready": "stopping", "ended": "dead"},
    "suspended": {"begin": "starting", "bury": "dead"},
    "dead": {"bury": "dead", "stop": "dead"},
}

OVER: Final = frozenset[LifeState]({"stopping", "dead"})
"""The states in which a message that is sent now is not handled any more."""


def next_state(state: LifeState, event: LifeEvent, who: str) -> LifeState:
    """The state after ``event``, or an error that names the possible events."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        possible = ", ".join(TRANSITIONS[state])
        raise RuntimeError(
            f"life cycle of {who}: {event!r} cannot happen in state {state!r} (only: {possible})"
        ) from None


class Terminated(Message, frozen=True, tag="motet.terminated"):
    """The actor at ``path`` has ended for ever. ``error``: of its last incarnation, if it failed.

    ``reason`` and ``error`` are for people. ``exit`` and ``exception`` are for programs: how it has
    ended, and the error itself, which stays in the process. ``crashed`` goes before ``stopped``: an
    actor whose clean-up failed after a stop has crashed. Sent to actors that :meth:`Actor.watch`
    it.
    """

    path: str
    reason: str
    error: str | None = None
    exit: Exit = "ended"
    exception: Exception | None = None
