"""The statements of approvals, of grants, and of the states of suspended runs.

Nothing branches inside a transaction: a condition is the number of rows that a statement returns.
Invariants: an approval changes its state as ``TRANSITIONS`` of ``motet.protocols.approvals`` has
it; the state of a run is a row of its journal, which goes with it.
"""

from __future__ import annotations

from motet.protocols.approvals import LATER, transition

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

MARK_ROW = """
INSERT INTO steps (run_id, step, body)
SELECT run_id, ?2, ?3 FROM runs WHERE run_id = ?1 AND status IN ('queued', 'running')
ON CONFLICT (run_id, step) DO UPDATE SET body = excluded.body"""

# A mark never replaces a result, or the mark that the call has begun: that is the later fact.
_IS_HELD = f"json_extract(steps.body, '$.kind') IS '{LATER}'"
BEGUN = f"{MARK_ROW} WHERE {_IS_HELD}"

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

# The state of its run, and of those that wait for that, has the people whose words they answer.
HEAR = f"""
UPDATE steps SET body = json_insert(body, '$.asked_by[#]', json(?2))
WHERE run_id = ?1 AND step = {STATE_STEP}"""

# So has its turn in a room that no host has open: one that has it open replaces the whole state.
HEAR_IN_ROOM = "UPDATE rooms SET state = room_heard(state, ?2, ?3) WHERE name = ?1"

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

SELECT = """
SELECT id, session, run_id, call_id, agent, user, tool, args, args_hash, reason, asked_by, created,
       expires, state, decision, note, resolved_by, resolved, used, proposed, people
FROM approvals"""
ONE = f"{SELECT} WHERE id = ?"
GRANTS = "SELECT id, agent, tool, user, asker, by, created, approval FROM approval_grants"
REVOKE = "DELETE FROM approval_grants WHERE id = ?1 AND (?2 IS NULL OR user = ?2) RETURNING 1"
