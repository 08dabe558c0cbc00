"""The life of an approval, as a table, and the SQL that makes its transitions. Pure.

Two rules. Every change of an approval's state, on disk and so everywhere, is an ``UPDATE`` that
:func:`transition` makes of the table: it finds no row where the table has no such change. Memory
only copies: what waits in a process looks at the stored approval that it gets back.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from motet.protocols.approvals import ApprovalInfo

# pending    it waits for a person
# allowed    a person has allowed it, and its call has not begun
# used       its call has begun; stored as allowed, with the time of its use
# denied     a person has denied it
# expired    not answered in time
# withdrawn  its run has ended, or its call has other arguments now
ApprovalLife: TypeAlias = Literal["pending", "allowed", "used", "denied", "expired", "withdrawn"]

ApprovalEvent: TypeAlias = Literal["allow", "deny", "expire", "withdraw", "use"]

TRANSITIONS: Final[dict[ApprovalLife, dict[ApprovalEvent, ApprovalLife]]] = {
    "pending": {"allow": "allowed", "deny": "denied", "expire": "expired", "withdraw": "withdrawn"},
    # Neither the end of its run nor time withdraws an answer: it stays on record as it was given.
    "allowed": {"use": "used"},
    "used": {},
    "denied": {},
    "expired": {},
    "withdrawn": {},
}

_UNUSED: Final = {"allowed": " AND used IS NULL", "used": " AND used IS NOT NULL"}
_STORED: Final = {"used": "allowed"}


def life_of(info: ApprovalInfo) -> ApprovalLife:
    """The state of a stored approval."""
    return "used" if info.used is not None else info.state


def next_state(state: ApprovalLife, event: ApprovalEvent, approval: str) -> ApprovalLife:
    """The state after ``event``. Raises ``RuntimeError`` for an event that cannot happen."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        possible = ", ".join(TRANSITIONS[state]) or "nothing"
        raise RuntimeError(
            f"life of {approval}: {event!r} cannot happen in state {state!r} (only: {possible})"
        ) from None


def transition(event: ApprovalEvent, also: str, where: str) -> str:
    """The statement that makes a transition of the approvals ``where``; ``also``: columns it sets.

    It changes those only that are in a state for it. Each event begins in one state, so that a
    condition on the stored state is enough, and two transitions at once cannot both find it.
    """
    ((before, after),) = [(state, row[event]) for state, row in TRANSITIONS.items() if event in row]
    stored = _STORED.get(after, after)
    return (
        f"UPDATE approvals SET state = '{stored}', {also}\n"
        f"WHERE {where} AND state = '{before}'{_UNUSED.get(before, '')}"
    )
