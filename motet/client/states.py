"""The states of a client as tables, in the manner of h11: connection, requests, streams.

Two rules. Every change of state goes through :func:`next_state`; a change that a table does not
have is a bug in the client and raises. Nothing here knows of frames, tasks or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, TypeVar

State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=str)

# offline      there is no connection; requests and streams wait for the next one
# connecting   `connect` was sent, and nothing else may be before its answer
# online       the host has let us in
# closed       for ever: the client was closed, or the gateway does not want it any more
ConnectionState: TypeAlias = Literal["offline", "connecting", "online", "closed"]
ConnectionEvent: TypeAlias = Literal["open", "accept", "lose", "close"]

CONNECTION: Final[Mapping[ConnectionState, Mapping[ConnectionEvent, ConnectionState]]] = {
    "offline": {"open": "connecting", "close": "closed"},
    "connecting": {"accept": "online", "lose": "offline", "close": "closed"},
    "online": {"lose": "offline", "close": "closed"},
    # Closing cuts into a connection that is being made or lost: its other events still come.
    "closed": {"open": "closed", "accept": "closed", "lose": "closed", "close": "closed"},
}

# waiting   not sent yet, or to be sent again
# sent      written on the present connection, and not answered
# done      settled, once, with a result or an error
RequestState: TypeAlias = Literal["waiting", "sent", "done"]
RequestEvent: TypeAlias = Literal["send", "requeue", "settle"]

REQUEST: Final[Mapping[RequestState, Mapping[RequestEvent, RequestState]]] = {
    "waiting": {"send": "sent", "settle": "done"},
    "sent": {"requeue": "waiting", "settle": "done"},
    "done": {},
}

# idle       not asked for on this connection, or there is none
# asking     a request for the events after the last one is under way
# live       the host has answered: events come
# retrying   the host could not answer; it is asked again at its next tick
# held       the reader is slow: unsubscribed, until it has taken half of the kept events
# failed     no event follows the kept ones
StreamState: TypeAlias = Literal["idle", "asking", "live", "retrying", "held", "failed"]
StreamEvent: TypeAlias = Literal["ask", "answer", "retry", "fill", "drain", "disconnect", "fail"]

STREAM: Final[Mapping[StreamState, Mapping[StreamEvent, StreamState]]] = {
    "idle": {"ask": "asking", "fill": "held", "disconnect": "idle", "fail": "failed"},
    "asking": {
        "answer": "live",
        "retry": "retrying",
        "fill": "held",
        "disconnect": "idle",
        "fail": "failed",
    },
    # Events are missing, or the host knows of more: what follows the last one is asked for again.
    "live": {"ask": "asking", "fill": "held", "disconnect": "idle", "fail": "failed"},
    "retrying": {"ask": "asking", "fill": "held", "disconnect": "idle", "fail": "failed"},
    "held": {"drain": "idle", "disconnect": "held", "fail": "failed"},
    "failed": {"disconnect": "failed", "fail": "failed"},
}


def next_state(
    table: Mapping[State, Mapping[Event, State]], state: State, event: Event, name: str
) -> State:
    """The state after ``event``. ``name``: of the thing, for the error if it cannot happen."""
    try:
        return table[state][event]
    except KeyError:
        possible = ", ".join(table[state])
        raise RuntimeError(
            f"{name}: {event!r} cannot happen in state {state!r} (only: {possible})"
        ) from None
