"""Approvals of calls by a person, and the runs that are suspended until they are answered.

Invariants: an approval is for one call of one run with exactly the arguments that were shown; it is
answered at most once; the tool runs at most once for it, and only when it was allowed (G10).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import attrs
import msgspec

from motet.protocols.chat import ChatMessage, JsonObject, ToolMessage
from motet.protocols.errors import MotetError
from motet.protocols.events import ApprovalResolved
from motet.protocols.limits import Limits
from motet.protocols.messages import Request
from motet.protocols.models import Usage
from motet.protocols.policy import Subject
from motet.protocols.sessions import Principal
from motet.protocols.tools import CallResult

ApprovalDecision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
"""``allow-always`` leaves a :class:`Grant` for each asker."""

ApprovalState: TypeAlias = Literal["pending", "allowed", "denied", "expired", "withdrawn"]
"""``expired``: not answered in time. ``withdrawn``: the run has ended, or asks otherwise now."""


def _is_span(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{attribute.name} must be 0 or more, not {value!r}")


def _is_life(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be above 0, not {value!r}")


@attrs.frozen(kw_only=True)
class ApprovalsConfig:
    """How long calls wait for a person.

    Attributes:
        ask: False: nobody can be asked, and a call that needs an approval is denied.
        hold: seconds for which a run waits in memory; then it is suspended, and costs nothing.
        expires: seconds after which an unanswered approval expires.
    """

    ask: bool = True
    hold: float = attrs.field(default=60.0, validator=_is_span)
    expires: float = attrs.field(default=86_400.0, validator=_is_life)


class NeedsApproval(MotetError):
    """Raised by a tool, before it has done anything: a person has to approve this very call.

    Allowed, the tool is run again from its beginning, and finds ``ctx.approved`` true.
    """

    def __init__(self, reason: str = ""):
        super().__init__(reason or "the tool asks for an approval")
        self.reason = reason


class ApprovalAnswered(MotetError):
    """The approval has another answer already, or has expired; the message says which."""


class ApprovalPending(MotetError):
    """The run waits for a person. Raised by ``run(check=True)`` only.

    ``approvals`` are the ids that ``Host.approve`` takes.
    """

    def __init__(self, run_id: str, approvals: tuple[str, ...]):
        which = ", ".join(approvals) or "host.approvals() lists them"
        super().__init__(
            f"the run {run_id} waits for a person's approval ({which}) and goes on when "
            "host.approve(id, decision) has answered it"
        )
        self.run_id = run_id
        self.approvals = approvals


class ApprovalInfo(msgspec.Struct, frozen=True):
    """One approval.

    Attributes:
        agent, user: those of the run.
        args: the arguments, whole; secrets too.
        args_hash: SHA-256 of their canonical JSON.
        asked_by: ``tool`` (its declaration), ``call`` (it raised), or ``hook NAME``.
        created, expires, resolved: Unix seconds.
        used: when the tool was begun for it; None until then.
        blocked: why an answered call does not run yet, such as an unknown agent.
        proposed: the arguments that the model gave, if a hook has changed them.
        people: in a room, those whose words the run answers.
    """

    id: str
    session: str
    run_id: str
    call_id: str
    agent: str
    user: str
    tool: str
    args: JsonObject
    args_hash: str
    reason: str
    asked_by: tuple[str, ...]
    created: float
    expires: float
    state: ApprovalState = "pending"
    decision: ApprovalDecision | None = None
    note: str = ""
    resolved_by: str | None = None
    resolved: float | None = None
    used: float | None = None
    blocked: str = ""
    proposed: JsonObject | None = None
    people: tuple[str, ...] = ()


class Grant(msgspec.Struct, frozen=True):
    """The record of an ``allow-always``: ``asker`` asks no more for this tool, agent and user.

    It holds for all arguments; another asker, such as a hook, asks all the same.
    """

    id: str
    agent: str
    tool: str
    user: str
    asker: str
    by: str
    created: float
    approval: str


class TurnState(msgspec.Struct, frozen=True):
    """The state of a turn beyond its rows, while its calls run."""

    turns: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    """Of this run only."""
    spent: Usage = Usage()
    """Of this run and its children."""
    usd: float = 0.0
    closing: str = ""
    cuts: int = 0
    not_run: dict[str, CallResult] = {}


class SuspendedState(msgspec.Struct, frozen=True):
    """All that a run needs to resume in another process.

    Attributes:
        rows: those of the run so far; they are kept in its journal.
        step: the place of the last of them, the assistant row whose calls wait.
        last: the place of the last of their results.
        role: of the principal that it runs for.
        elapsed: used seconds of its wall time.
        messages: the number of its published messages.
        spans: the number of spans in its trace; ``started``: the begin of that, Unix seconds.
        next_agent: the agent that takes over after these calls.
        found: tools that it has searched for and found; ``extra``: additions to its prompt.
        resumed: how often it was resumed since a call of it last began to wait.
        lineage: the agents and users it works for, for the policy on its tools; ``asked_by``: the
            people whose words it answers in a room; ``payers``, ``round``: as of ``InputOptions``.
        repeats: ids of its calls that a killed host may have begun; without a result, they begin
            again.
        room_turn: of a room, as ``RoomState.turn`` names it.
    """

    rows: tuple[ChatMessage, ...]
    step: int
    last: int
    role: Literal["viewer", "operator", "admin"]
    limits: Limits
    turn: TurnState
    elapsed: float = 0.0
    messages: int = 0
    spans: int = 0
    started: float = 0.0
    errors: int = 0
    next_agent: str = ""
    found: tuple[str, ...] = ()
    extra: str = ""
    resumed: int = 0
    lineage: tuple[Subject, ...] = ()
    asked_by: tuple[Principal, ...] = ()
    repeats: tuple[str, ...] = ()
    payers: tuple[str, ...] = ()
    round: str = ""
    room_turn: str = ""


LATER = "waiting"
"""The kind of a call's provisional result: the call waits for a person and its run is suspended."""
NOT_STORED = "storage_unavailable"
"""The kind of the result of a call that did not run, since it could not be journalled."""


class Asking(msgspec.Struct, frozen=True):
    """A request that a person decides on a call. ``asker``: ``tool``, ``call`` or ``hook NAME``."""

    asker: str
    reason: str


class Permission(msgspec.Struct, frozen=True):
    """The answer to a call that wants to begin. An empty ``refusal`` lets it begin now.

    Attributes:
        kind: of the refusal; :data:`LATER` when the call runs after its run is resumed,
            :data:`NOT_STORED` when the storage did not take the call.
        approved: a person allowed this call, now or by a grant.
    """

    refusal: str = ""
    kind: str = "denied"
    approved: bool = False


class NewApproval(msgspec.Struct, frozen=True):
    """A call that has to wait. ``args``: canonical JSON; ``args_hash``: its hash.

    ``step``: the place of its result among the rows of its run. ``proposed``: the arguments that
    the model gave, if they are others.
    """

    id: str
    run_id: str
    call_id: str
    step: int
    tool: str
    args: str
    args_hash: str
    reason: str
    asked_by: tuple[str, ...]
    life: float
    proposed: str | None = None
    people: tuple[str, ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """The mark of a call, until its result replaces it: it may have begun, so that its outcome is
    unknown; or it has not, and says so.
    """

    step: int
    row: ToolMessage


class Settled(msgspec.Struct, frozen=True):
    """An approval as it is now. The asker publishes the changes that it has made.

    Attributes:
        fresh: this request has changed its state.
        superseded: ids of approvals that this request has withdrawn: they were for other arguments
            of the same call.
    """

    info: ApprovalInfo
    fresh: bool
    superseded: tuple[str, ...] = ()


class RequestApproval(Request[Settled], frozen=True, tag="approvals.request"):
    """Store a waiting call, with the state from which its run can resume. Idempotent by its id.

    ``suspended`` None: the run cannot be suspended. ``began``: the calls that run now. Raises
    ``NotFound`` when the run has ended.
    """

    new: NewApproval
    suspended: SuspendedState | None
    began: tuple[Mark, ...] = ()


class AnswerApproval(Request[Settled], frozen=True, tag="approvals.answer"):
    """Answer it; the same answer again changes nothing. Raises ``NotFound``, ``ApprovalAnswered``.

    ``allow-always`` stores its grants in the same transaction, and ``who``, whose words the note
    is, is added to the people whom these ``runs`` answer, and the turn of the room's member whose
    ``session`` it is.
    """

    id: str
    decision: ApprovalDecision
    by: str
    note: str = ""
    who: Principal | None = None
    runs: tuple[str, ...] = ()
    session: str = ""


class ExpireApproval(Request[Settled], frozen=True, tag="approvals.expire"):
    """Expire it. Raises ``NotFound``; a settled approval stays as it is."""

    id: str


class ClaimApproval(Request[bool], frozen=True, tag="approvals.claim"):
    """Use an allowed approval for its call, which begins; False: it is not valid for that."""

    id: str
    run_id: str
    args_hash: str
    mark: Mark


class MarkBegun(Request[None], frozen=True, tag="approvals.begun"):
    """Store that a call begins while others wait. Raises ``NotFound``."""

    run_id: str
    mark: Mark


class SuspendRun(Request[bool], frozen=True, tag="approvals.park"):
    """Suspend a run until an approval is answered; its journal is written with it.

    ``rows``: known results, which may not be in the journal. False: the run has ended.
    """

    run_id: str
    suspended: SuspendedState
    rows: tuple[Mark, ...] = ()


class Resumption(msgspec.Struct, frozen=True):
    """A suspended run as it was stored.

    Attributes:
        results: of its calls, as far as they have one.
        announced, reported: ids of calls whose ``tool.call``, and ``tool.result``, is published.
        started: its ``run.started`` is published.
    """

    suspended: SuspendedState
    results: tuple[ToolMessage, ...] = ()
    announced: frozenset[str] = frozenset()
    reported: frozenset[str] = frozenset()
    started: bool = True


class ResumeRun(Request[Resumption | None], frozen=True, tag="approvals.resume"):
    """Resume a suspended run, in one host only; None when it is no longer suspended."""

    run_id: str


class StoredSuspendedRun(msgspec.Struct, frozen=True):
    """A suspended run.

    Attributes:
        due: it has an answer that it has not used.
        durable: no caller waits for it, so that another host may go on with it.
        sender: who said its input, in a group.
    """

    run_id: str
    session: str
    agent: str
    user: str
    text: str
    resumed: int = 0
    due: bool = False
    durable: bool = False
    sender: str = ""


class ListSuspended(Request[tuple[StoredSuspendedRun, ...]], frozen=True, tag="approvals.parked"):
    """At start, before recovery. Runs whose host ended while they waited are suspended now."""


class WithdrawLeft(Request[tuple[ApprovalInfo, ...]], frozen=True, tag="approvals.withdraw_left"):
    """Once at start, after recovery: withdraw the approvals that no run waits for."""


class ListApprovals(Request[tuple[ApprovalInfo, ...]], frozen=True, tag="approvals.list"):
    """Newest first; absent filters match all. ``user`` None: everybody's."""

    user: str | None = None
    session: str | None = None
    state: ApprovalState | None = None
    run_id: str | None = None
    limit: int = 50


class GetApproval(Request[ApprovalInfo | None], frozen=True, tag="approvals.get"):
    id: str


class ListGrants(Request[tuple[Grant, ...]], frozen=True, tag="approvals.grants"):
    """Newest first; absent filters match all."""

    user: str | None = None
    agent: str | None = None
    tool: str | None = None


class RevokeGrant(Request[bool], frozen=True, tag="approvals.revoke"):
    """Forget a grant; False: there is none of that id, or it is another user's."""

    id: str
    user: str | None = None


ApprovalProtocol: TypeAlias = (
    RequestApproval
    | AnswerApproval
    | ExpireApproval
    | ClaimApproval
    | MarkBegun
    | SuspendRun
    | ResumeRun
    | ListSuspended
    | WithdrawLeft
    | ListApprovals
    | GetApproval
    | ListGrants
    | RevokeGrant
)


# Rules


class StaleCall(MotetError):
    """A call that was given a message of a room as it was before somebody changed it."""

    def __init__(self) -> None:
        super().__init__(
            "a message that its arguments quote was changed meanwhile; nothing was done:"
            " call it again"
        )


def hash_of(text: str) -> str:
    """The hash of canonical JSON that binds an approval to its arguments."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def approval_id(run_id: str, call_id: str, args_hash: str) -> str:
    """The id of the one approval that a call with these arguments can have."""
    whole = "\0".join((run_id, call_id, args_hash)).encode("utf-8", "surrogatepass")
    return f"apr_{sha256(whole).hexdigest()[:16]}"


def why_asked(asked: Iterable[Asking]) -> str:
    """The reasons of those who ask, for the person who decides."""
    return "; ".join(
        one.reason if one.asker in ("tool", "call", "policy") else f"{one.asker}: {one.reason}"
        for one in asked
    )


DENIED_BY: Final = "denied by "
SAYS: Final = ", who says: "


def refusal_of(info: ApprovalInfo) -> str:
    """Why a call was not begun, for its model."""
    match info.state:
        case "expired":
            return "nobody has answered the request for an approval in time; it was not run"
        case "withdrawn":
            return "the request for an approval was withdrawn; it was not run"
        case _:
            said = f"{SAYS}{info.note}" if info.note.strip() else ""
            return f"{DENIED_BY}{info.resolved_by}{said}"


def is_told(decision: ApprovalDecision, note: str) -> bool:
    """Whether a model reads the note of an answer, as a person's words."""
    return decision == "deny" and bool(note.strip())


_DECISIONS: Final[dict[ApprovalState, Literal["allow", "deny", "expired", "cancelled"]]] = {
    "allowed": "allow",
    "denied": "deny",
    "expired": "expired",
    "withdrawn": "cancelled",
}


def resolved(info: ApprovalInfo) -> ApprovalResolved:
    """The event of a settled approval."""
    return ApprovalResolved(info.id, _DECISIONS[info.state], info.resolved_by or "", info.note)


# The life of an approval

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
