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
from motet.protocols.approvals import (
    LATER,
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
    transition,
)
from motet.protocols.chat import Call, JsonObject, ToolMessage
from motet.protocols.room_costs import spent
from motet.protocols.storage import Row, Statement

STATE_STEP = -2
"""The step of a run's journal that holds its suspended state; rows count from 0."""

KEEP_STATE = f"""
INSERT INTO steps (run_id, step, body)
SELECT run_id, {STATE_STEP}, ?2 FROM runs
WHERE run_id = ?1 AND status IN ('queued', 'running', 'waiting')
ON CONFLICT (run_id, step) DO UPDATE SET body = excluded.body
RETURNING 1"""

IS_LIVE = "SELECT 1 FROM runs WHERE run_id = ? AND status IN ('queued', 'running')"

# Not all rows are journalled as they are made; those that are there are the same.
KEEP_ROW = "INSERT INTO steps (run_id, step, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"

_MARK = """
INSERT INTO steps (run_id, step, body)
SELECT run_id, ?2, ?3 FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running')
ON CONFLICT (run_id, step) DO UPDATE SET body = excluded.body"""

# A mark never replaces a result, or the mark that the call has begun: that is the later fact.
_IS_HELD = f"json_extract(steps.body, '$.kind') IS '{LATER}'"
BEGUN = f"{_MARK} WHERE {_IS_HELD}"

# The same call with other arguments: the approval of the earlier ones is void.
_OTHERS = "run_id = ?1 AND call_id = ?2 AND id <> ?3"
SUPERSEDE = f"{transition('withdraw', 'resolved = ?4', _OTHERS)} RETURNING id"

ADD = """
INSERT INTO approvals
    (id, session, run_id, call_id, step, agent, user, tool, args, args_hash, reason, asked_by,
     created, expires, proposed, people)
SELECT ?2, session, run_id, ?3, ?4, agent, user, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
FROM runs WHERE run_id = ?1
ON CONFLICT (id) DO NOTHING RETURNING 1"""

_ANSWER: tuple[str, str] = (
    "decision = ?2, note = ?3, resolved_by = ?4, resolved = ?5",
    "id = ?1 AND expires > ?5",
)
ALLOW = f"{transition('allow', *_ANSWER)} RETURNING 1"
DENY = f"{transition('deny', *_ANSWER)} RETURNING 1"

GRANT = """
INSERT INTO approval_grants (id, agent, tool, user, asker, by, created, approval)
SELECT 'grant_' || substr(a.id, 5) || '_' || asker.key,
       a.agent, a.tool, a.user, asker.value, ?2, ?3, a.id
FROM approvals AS a, json_each(a.asked_by) AS asker WHERE a.id = ?1
ON CONFLICT (agent, tool, user, asker) DO NOTHING"""

EXPIRE = f"{transition('expire', 'resolved = ?2', 'id = ?1')} RETURNING 1"

_CLAIMED = "id = ?1 AND run_id = ?2 AND args_hash = ?3"
CLAIM = f"{transition('use', 'used = ?4', _CLAIMED)} RETURNING 1"

# Also one that is suspended: its host may not have heard in time that the storage took it.
SUSPEND = """
UPDATE runs SET status = 'waiting', usage = ?2, updated = ?3
WHERE run_id = ?1 AND status IN ('queued', 'running', 'waiting')
RETURNING 1"""

RESUME = """
UPDATE runs SET status = 'running', updated = ?2
WHERE run_id = ?1 AND status IN ('waiting', 'running')
RETURNING 1"""

COUNT_RESUMED = f"""
UPDATE steps SET body = json_set(body, '$.resumed', json_extract(body, '$.resumed') + 1)
WHERE run_id = ?1 AND step = {STATE_STEP}
RETURNING body"""

# A host that ends in order has not died of those that it has resumed; blocked ones still wait.
NONE_RESUMED = f"""
UPDATE steps SET body = json_set(body, '$.resumed', 0)
WHERE step = {STATE_STEP} AND run_id IN (
    SELECT run_id FROM runs WHERE open = 1 AND status = 'running')"""

JOURNAL = "SELECT step, body FROM steps WHERE run_id = ? AND step >= 0 ORDER BY step"

PUBLISHED = """
SELECT event, json_extract(data, '$.id') FROM events
WHERE stream = (SELECT 'session:' || session FROM runs WHERE run_id = ?1)
  AND run_id = ?1 AND event IN ('run.started', 'tool.call', 'tool.result')"""

# A run with rows after the calls that had waited was not waiting when its host ended.
SUSPEND_LEFT = f"""
UPDATE runs SET status = 'waiting'
WHERE open = 1 AND status = 'running' AND EXISTS (
    SELECT 1 FROM steps AS state
    WHERE state.run_id = runs.run_id AND state.step = {STATE_STEP}
      AND NOT EXISTS (SELECT 1 FROM steps AS later WHERE later.run_id = runs.run_id
                      AND later.step > json_extract(state.body, '$.last')))"""

SUSPENDED = f"""
SELECT run_id, session, agent, user, text,
       coalesce((SELECT json_extract(body, '$.resumed') FROM steps
                 WHERE steps.run_id = runs.run_id AND step = {STATE_STEP}), 0),
       NOT EXISTS (SELECT 1 FROM approvals WHERE approvals.run_id = runs.run_id
                   AND state = 'pending')
       OR EXISTS (SELECT 1 FROM approvals WHERE approvals.run_id = runs.run_id
                  AND state <> 'pending' AND NOT EXISTS (
                      SELECT 1 FROM steps WHERE steps.run_id = approvals.run_id
                      AND steps.step = approvals.step AND NOT {_IS_HELD})),
       given IS NOT NULL AND json_extract(given, '$.waited') IS NULL,
       coalesce(json_extract(given, '$.sender'), '')
FROM runs WHERE open = 1 AND status = 'waiting' ORDER BY +rowid"""

_LIVE = "SELECT run_id FROM runs WHERE open = 1 AND status IN ('queued', 'running', 'waiting')"
LEFT = f"{transition('withdraw', 'resolved = ?1', f'run_id NOT IN ({_LIVE})')} RETURNING id"

_SELECT = """
SELECT id, session, run_id, call_id, agent, user, tool, args, args_hash, reason, asked_by, created,
       expires, state, decision, note, resolved_by, resolved, used, proposed, people
FROM approvals"""
ONE = f"{_SELECT} WHERE id = ?"
_FIELDS = tuple(name for name in ApprovalInfo.__struct_fields__ if name != "blocked")

_GRANTS = "SELECT id, agent, tool, user, asker, by, created, approval FROM approval_grants"
REVOKE = "DELETE FROM approval_grants WHERE id = ?1 AND (?2 IS NULL OR user = ?2) RETURNING 1"

_suspended = msgspec.json.Decoder(SuspendedState)


def request(
    new: NewApproval, suspended: SuspendedState | None, began: Sequence[Mark], now: float
) -> tuple[Statement, ...]:
    """To be written after the run's journal; the first fails when the run has ended."""
    run_id = new.run_id
    live = (Statement(IS_LIVE, (run_id,), expect=1),)
    given = (run_id, new.id, new.call_id, new.step, new.tool, storable(new.args), new.args_hash)
    asked, people, expires = to_json(new.asked_by), to_json(new.people), now + new.life
    not_begun = encode_message(held(Call(new.call_id, new.tool)))
    proposed = None if new.proposed is None else storable(new.proposed)
    return (
        *(live if suspended is None else _store(run_id, suspended)),
        *(begun(run_id, mark) for mark in began),
        # Its tool may have begun before it asked, and will begin again.
        Statement(_MARK, (run_id, new.step, not_begun)),
        Statement(SUPERSEDE, (run_id, new.call_id, new.id, now)),
        Statement(ADD, (*given, storable(new.reason), asked, now, expires, proposed, people)),
        Statement(ONE, (new.id,), expect=1),
    )


def begun(run_id: str, mark: Mark) -> Statement:
    return Statement(BEGUN, (run_id, mark.step, encode_message(mark.row)))


def mark_begun(run_id: str, mark: Mark) -> tuple[Statement, ...]:
    """Fails when the run has ended."""
    return Statement(IS_LIVE, (run_id,), expect=1), begun(run_id, mark)


def answer(request: AnswerApproval, now: float) -> tuple[Statement, ...]:
    """The first fails when the approval is unknown, settled, or expired."""
    note, by = storable(request.note), storable(request.by)
    given = (request.id, request.decision, note, by, now)
    decide = DENY if request.decision == "deny" else ALLOW
    always = request.decision == "allow-always"
    return (
        Statement(decide, given, expect=1),
        *((Statement(GRANT, (request.id, by, now)),) if always else ()),
        Statement(ONE, (request.id,), expect=1),
    )


def expire(approval: str, now: float) -> tuple[Statement, ...]:
    """The first fails when the approval is unknown or settled."""
    return Statement(EXPIRE, (approval, now), expect=1), Statement(ONE, (approval,), expect=1)


def claim(request: ClaimApproval, now: float) -> tuple[Statement, ...]:
    """Fails when the approval is not valid for this, or the run has ended."""
    given = (request.id, request.run_id, request.args_hash, now)
    return (Statement(CLAIM, given, expect=1), *mark_begun(request.run_id, request.mark))


def suspend(request: SuspendRun, now: float, of_room: bool) -> tuple[Statement, ...]:
    """To be written after the run's journal; fails when the run has ended."""
    run_id, suspended = request.run_id, request.suspended
    usage = to_json(suspended.turn.spent)
    results = ((run_id, mark.step, encode_message(mark.row)) for mark in request.rows)
    return (
        *_store(run_id, suspended),
        *(Statement(_MARK, given) for given in results),
        *((spent(run_id, usage, now),) if of_room else ()),
        Statement(SUSPEND, (run_id, usage, now), expect=1),
    )


def resume(run_id: str, now: float) -> tuple[Statement, ...]:
    """The first fails when the run is not suspended, the second when it has no stored state."""
    return (
        Statement(RESUME, (run_id, now), expect=1),
        Statement(COUNT_RESUMED, (run_id,), expect=1),
        Statement(JOURNAL, (run_id,)),
        Statement(PUBLISHED, (run_id,)),
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
    sql = f"{_SELECT}{condition} ORDER BY rowid DESC LIMIT ?"
    return sql, (*params, clamped(request.limit))


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
    return f"{_GRANTS}{condition} ORDER BY created DESC, id", params


def grant(row: Row) -> Grant:
    return struct(row, Grant)


def revoke(request: RevokeGrant) -> Statement:
    return Statement(REVOKE, (request.id, request.user))


def _store(run_id: str, suspended: SuspendedState) -> tuple[Statement, ...]:
    """Store the rows and the state; the first fails when the run has ended."""
    rows = tuple((run_id, at, encode_message(row)) for at, row in enumerate(suspended.rows))
    state = to_json(msgspec.structs.replace(suspended, rows=()))
    return (Statement(KEEP_STATE, (run_id, state), expect=1), Statement(KEEP_ROW, each=rows))
