"""Statements and rows of approvals and suspended runs. Pure.

Nothing branches inside a transaction: a condition is the number of rows that a statement returns.
Invariants: an approval changes its state as ``TRANSITIONS`` of ``motet.protocols.approvals`` has
it; it is used only for the arguments that it was allowed for; a run is suspended, and resumed, with
all of its state or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from motet.actors.storage.tables import (
    Query,
    clamped,
    decode_message,
    encode_message,
    storable,
    struct,
    to_json,
    where,
)
from motet.actors.transcript.grammar import held, is_held
from motet.protocols import approval_tables as sql
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalInfo,
    ClaimApproval,
    Grant,
    ListApprovals,
    ListGrants,
    Mark,
    NewApproval,
    Resumption,
    RevokeGrant,
    StoredSuspendedRun,
    SuspendedState,
    SuspendRun,
)
from motet.protocols.chat import Call, JsonObject, ToolMessage
from motet.protocols.room_costs import spent
from motet.protocols.session_keys import member_at
from motet.protocols.storage import Row, Statement

_FIELDS = tuple(name for name in ApprovalInfo.__struct_fields__ if name != "blocked")

_suspended = msgspec.json.Decoder(SuspendedState)


def request(
    new: NewApproval, suspended: SuspendedState | None, began: Sequence[Mark], now: float
) -> tuple[Statement, ...]:
    """To be written after the run's journal; the first fails when the run has ended."""
    run_id = new.run_id
    live = (Statement(sql.IS_LIVE, (run_id,), expect=1),)
    given = (run_id, new.id, new.call_id, new.step, new.tool, storable(new.args), new.args_hash)
    asked, people, expires = to_json(new.asked_by), to_json(new.people), now + new.life
    not_begun = encode_message(held(Call(new.call_id, new.tool)))
    proposed = None if new.proposed is None else storable(new.proposed)
    return (
        *(live if suspended is None else _store(run_id, suspended)),
        *(begun(run_id, mark) for mark in began),
        # Its tool may have begun before it asked, and will begin again.
        Statement(sql.MARK_ROW, (run_id, new.step, not_begun)),
        Statement(sql.SUPERSEDE, (run_id, new.call_id, new.id, now)),
        Statement(sql.ADD, (*given, storable(new.reason), asked, now, expires, proposed, people)),
        Statement(sql.ONE, (new.id,), expect=1),
    )


def begun(run_id: str, mark: Mark) -> Statement:
    return Statement(sql.BEGUN, (run_id, mark.step, encode_message(mark.row)))


def mark_begun(run_id: str, mark: Mark) -> tuple[Statement, ...]:
    """Fails when the run has ended."""
    return Statement(sql.IS_LIVE, (run_id,), expect=1), begun(run_id, mark)


def answer(request: AnswerApproval, now: float) -> tuple[Statement, ...]:
    """The first fails when the approval is unknown, settled, or expired."""
    note, by = storable(request.note), storable(request.by)
    given = (request.id, request.decision, note, by, now)
    decide = sql.DENY if request.decision == "deny" else sql.ALLOW
    always, at = request.decision == "allow-always", member_at(request.session)
    return (
        Statement(decide, given, expect=1),
        *((Statement(sql.GRANT, (request.id, by, now)),) if always else ()),
        *(Statement(sql.HEAR, (run, to_json(request.who))) for run in request.runs),
        *((Statement(sql.HEAR_IN_ROOM, (*at, to_json(request.who))),) if at else ()),
        Statement(sql.ONE, (request.id,), expect=1),
    )


def expire(approval: str, now: float) -> tuple[Statement, ...]:
    """The first fails when the approval is unknown or settled."""
    return Statement(sql.EXPIRE, (approval, now), expect=1), Statement(
        sql.ONE, (approval,), expect=1
    )


def claim(request: ClaimApproval, now: float) -> tuple[Statement, ...]:
    """Fails when the approval is not valid for this, or the run has ended."""
    given = (request.id, request.run_id, request.args_hash, now)
    return (Statement(sql.CLAIM, given, expect=1), *mark_begun(request.run_id, request.mark))


def suspend(request: SuspendRun, now: float, of_room: bool) -> tuple[Statement, ...]:
    """To be written after the run's journal; fails when the run has ended."""
    run_id, suspended = request.run_id, request.suspended
    usage = to_json(suspended.turn.spent)
    results = ((run_id, mark.step, encode_message(mark.row)) for mark in request.rows)
    return (
        *_store(run_id, suspended),
        *(Statement(sql.MARK_ROW, given) for given in results),
        *((spent(run_id, usage, now),) if of_room else ()),
        Statement(sql.SUSPEND, (run_id, usage, now), expect=1),
    )


def resume(run_id: str, now: float) -> tuple[Statement, ...]:
    """The first fails when the run is not suspended, the second when it has no stored state."""
    return (
        Statement(sql.RESUME, (run_id, now), expect=1),
        Statement(sql.COUNT_RESUMED, (run_id,), expect=1),
        Statement(sql.JOURNAL, (run_id,)),
        Statement(sql.PUBLISHED, (run_id,)),
    )


def resumption(found: Sequence[Sequence[Row]]) -> Resumption:
    """The answer of :func:`resume`. Raises ``msgspec.MsgspecError`` for a broken journal."""
    _, ((body,),), journal, published = found
    suspended = _suspended.decode(str(body))
    rows = {int(step or 0): decode_message(text) for step, text in journal}
    before = tuple(rows[at] for at in range(suspended.step + 1))
    results = (rows[at] for at in range(suspended.step + 1, suspended.last + 1) if at in rows)
    return Resumption(
        msgspec.structs.replace(suspended, rows=before),
        tuple(row for row in results if isinstance(row, ToolMessage) and not is_held(row)),
        frozenset(str(call) for event, call in published if event == "tool.call"),
        frozenset(str(call) for event, call in published if event == "tool.result"),
        started=any(event == "run.started" for event, _ in published),
    )


def suspended(row: Row) -> StoredSuspendedRun:
    return struct(row, StoredSuspendedRun, strict=False)


def search(request: ListApprovals) -> Query:
    condition, params = where(
        ("user = ?", request.user),
        ("session = ?", request.session),
        ("state = ?", request.state),
        ("run_id = ?", request.run_id),
    )
    query = f"{sql.SELECT}{condition} ORDER BY rowid DESC LIMIT ?"
    return query, (*params, clamped(request.limit))


def info(row: Row) -> ApprovalInfo:
    fields: dict[str, object] = dict(zip(_FIELDS, row, strict=True))
    fields["args"] = _args(str(fields["args"]))
    if fields["proposed"] is not None:
        fields["proposed"] = _args(str(fields["proposed"]))
    for listed in ("asked_by", "people"):
        fields[listed] = msgspec.json.decode(str(fields[listed]))
    return msgspec.convert(fields, ApprovalInfo)


def _args(text: str) -> JsonObject:
    """The arguments. Only a gate can make some that are no JSON: those stay text."""
    try:
        return msgspec.json.decode(text, type=JsonObject)
    except (msgspec.MsgspecError, RecursionError):
        return {"arguments": text}


def grants(request: ListGrants) -> Query:
    condition, params = where(
        ("user = ?", request.user), ("agent = ?", request.agent), ("tool = ?", request.tool)
    )
    return f"{sql.GRANTS}{condition} ORDER BY created DESC, id", params


def grant(row: Row) -> Grant:
    return struct(row, Grant)


def revoke(request: RevokeGrant) -> Statement:
    return Statement(sql.REVOKE, (request.id, request.user))


def _store(run_id: str, suspended: SuspendedState) -> tuple[Statement, ...]:
    """Store the rows and the state; the first fails when the run has ended."""
    rows = tuple((run_id, at, encode_message(row)) for at, row in enumerate(suspended.rows))
    state = to_json(msgspec.structs.replace(suspended, rows=()))
    return (
        Statement(sql.KEEP_STATE, (run_id, state), expect=1),
        Statement(sql.KEEP_ROW, each=rows),
    )
