"""The sums of what rooms and their people have spent, in the table ``room_costs``.

The sums are kept by statements in the transactions that store a run or its usage: so no kill parts
the two, and turns that are suspended, late or resumed by another host, and selectors, count as all
others do. :func:`turn_begun` stands behind the statement that inserts a run, :func:`spent` in front
of each that sets the usage of a run or ends it; runs whose user is no room (:data:`OF_ROOM`) need
neither.

Each run counts in two accounts: the hour of its room, and its round, if the room bounds what each
person may use in one (:func:`motet.protocols.room_limits.round_account`; its hour is 0). Other
rounds have no account, so that they cost nothing.

Invariants: the sum of the people's shares is the room's, token by token; a run's usage includes
that of its sub-agents, and counts when it is stored. Sub-agents that a dead host has left, whose
usage is in no run above them, count when they are closed. Rejected: sums in the state of the room,
which would lose what a turn has used before its host died; triggers on the table of runs
(:data:`TRIGGERS`), whose programs every run would load, at a fifteenth of the cost of its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from motet.protocols.room_limits import HOUR, Costs, Spent
from motet.protocols.storage import Statement

OF_ROOM: Final = "room:"
"""The users that rooms are begin so; no person's name does."""

_TOKENS = (
    "coalesce(json_extract({0}, '$.input_tokens'), 0)"
    " + coalesce(json_extract({0}, '$.output_tokens'), 0)"
)
_NANOS = "CAST(round(coalesce(json_extract({0}, '$.cost'), 0) * 1e9) AS INTEGER)"
# A thread is a room below another one, ``NAME/SEQ``, and spends its budgets.
_ROOM = "substr({0}.user, 6, instr({0}.user || '/', '/') - 6)"

_ACCOUNTS = """
account AS (
    SELECT * FROM run UNION ALL
    SELECT json_extract(given, '$.round'), 0{0} FROM run WHERE json_type(given, '$.round') = 'text'
)"""
_BEGUN = f"""
WITH run AS (
    SELECT {_ROOM.format("new")} AS room, CAST(new.created / {HOUR} AS INTEGER) AS hour,
        new.given AS given
    FROM runs AS new WHERE new.run_id = ?1 AND new.session LIKE 'agent:%:room:group:%'
        AND json_type(new.given, '$.payers') = 'array'
), {_ACCOUNTS.format(", given")}
INSERT INTO room_costs (room, user, hour, turns)
SELECT room, '', hour, 1 FROM account
UNION ALL
SELECT room, payer.value, hour, 1 FROM account, json_each(account.given, '$.payers') AS payer
WHERE true
ON CONFLICT (room, user, hour) DO UPDATE SET turns = turns + 1"""


def _below(sum: str) -> str:
    """The sub-agents that have ended since the run was last stored, so that only its dead host knew
    their usage as a part of its own.
    """
    return f"""iif(?4 = 'interrupted', (
        SELECT coalesce(sum({sum.format("one.usage")}), 0)
        FROM runs AS one JOIN sessions ON sessions.session = one.session
        WHERE sessions.parent = old.run_id AND one.created >= old.updated
            AND one.status NOT IN ('queued', 'running', 'waiting', 'interrupted')), 0)"""


def _shares(*sums: str) -> str:
    """The share of a payer in the growth of a run, as :func:`motet.protocols.room_limits.shares`
    divides each of its sums.
    """
    now, before, below = (f"({one} / payers + (payer.key < {one} % payers))" for one in sums)
    return f"{now} - {before} + {below}"


_SUMS = ", given, payers, tokens, nanos, tokens_before, nanos_before, tokens_below, nanos_below"
# A child's usage counts in the run above it, or when a kill has cut both: then all of it.
_SPENT = f"""
WITH run AS (
    SELECT {_ROOM.format("old")} AS room, CAST(?3 / {HOUR} AS INTEGER) AS hour, old.given AS given,
        json_array_length(old.given, '$.payers') AS payers,
        {_TOKENS.format("?2")} AS tokens, {_NANOS.format("?2")} AS nanos,
        iif(parent IS NULL, {_TOKENS.format("old.usage")}, 0) AS tokens_before,
        iif(parent IS NULL, {_NANOS.format("old.usage")}, 0) AS nanos_before,
        {_below(_TOKENS)} AS tokens_below, {_below(_NANOS)} AS nanos_below
    FROM runs AS old JOIN sessions ON sessions.session = old.session
    WHERE old.run_id = ?1 AND old.user GLOB '{OF_ROOM}*'
        AND old.status IN ('queued', 'running', 'waiting')
        AND (parent IS NULL OR ?4 = 'interrupted')
), {_ACCOUNTS.format(_SUMS)}
INSERT INTO room_costs (room, user, hour, tokens, nanos)
SELECT room, '', hour, tokens - tokens_before + tokens_below, nanos - nanos_before + nanos_below
FROM account
UNION ALL
SELECT room, payer.value, hour, {_shares("tokens", "tokens_before", "tokens_below")},
    {_shares("nanos", "nanos_before", "nanos_below")}
FROM account, json_each(account.given, '$.payers') AS payer WHERE true
ON CONFLICT (room, user, hour) DO UPDATE SET
    tokens = tokens + excluded.tokens, nanos = nanos + excluded.nanos"""


def turn_begun(run_id: str) -> Statement:
    """Count a turn of a room's member; behind the statement that inserts its run."""
    return Statement(_BEGUN, (run_id,))


def spent(run_id: str, usage: str, now: float, status: str = "running") -> Statement:
    """Count what a run of a room has used since it was last stored; in front of the statement that
    sets this usage (as JSON) and status, and in its transaction. One that has ended, or belongs to
    no room, counts nothing.
    """
    return Statement(_SPENT, (run_id, usage, now, status))


FIND: Final = """
SELECT user, sum(turns * (hour = ?2)), sum(tokens * (hour = ?2)), sum(nanos * (hour = ?2)),
    sum(turns), sum(tokens), sum(nanos)
FROM room_costs WHERE room = ?1 AND hour >= ?3 GROUP BY user"""


FIND_ROUND: Final = "SELECT user, turns, tokens, nanos FROM room_costs WHERE room = ?"


def costs_of(rows: Iterable[Sequence[object]], of_round: Iterable[Sequence[object]] = ()) -> Costs:
    """The costs that :data:`FIND` and :data:`FIND_ROUND` have found."""
    hour: dict[str, Spent] = {}
    day: dict[str, Spent] = {}
    round = {str(user): Spent(*map(int, map(str, sums))) for user, *sums in of_round}
    for user, *sums in rows:
        numbers = [one if isinstance(one, int) else 0 for one in sums]
        hour[str(user)], day[str(user)] = Spent(*numbers[:3]), Spent(*numbers[3:])
    return Costs(hour, day, round)


# Steps of the database, which are never edited: databases have taken them


def _part(sum: str) -> str:
    payers = "json_array_length(new.given, '$.payers')"
    return f"(({sum}) / {payers} + (payer.key < ({sum}) % {payers}))"


def _charge(tokens: str, nanos: str, token_share: str, nano_share: str) -> str:
    room = _ROOM.format("new")
    return f"""
    INSERT INTO room_costs (room, user, hour, tokens, nanos)
    SELECT {room}, '', CAST(new.updated / {HOUR} AS INTEGER), {tokens}, {nanos}
    UNION ALL
    SELECT {room}, payer.value, CAST(new.updated / {HOUR} AS INTEGER),
        {token_share}, {nano_share}
    FROM json_each(new.given, '$.payers') AS payer WHERE true
    ON CONFLICT (room, user, hour) DO UPDATE SET
        tokens = tokens + excluded.tokens, nanos = nanos + excluded.nanos;"""


def _triggers() -> str:
    room, parent = _ROOM.format("new"), "(SELECT parent FROM sessions WHERE session = new.session)"
    new, old = ([one.format(f"{row}.usage") for one in (_TOKENS, _NANOS)] for row in ("new", "old"))
    below = [
        f"(SELECT coalesce(sum({one.format('one.usage')}), 0) FROM runs AS one"
        " JOIN sessions ON sessions.session = one.session"
        " WHERE sessions.parent = new.run_id AND one.created >= old.updated"
        " AND one.status NOT IN ('queued', 'running', 'waiting', 'interrupted'))"
        for one in (_TOKENS, _NANOS)
    ]
    grown = [f"({now}) - ({before})" for now, before in zip(new, old, strict=True)]
    parts = [f"{_part(now)} - {_part(before)}" for now, before in zip(new, old, strict=True)]
    return f"""
CREATE TABLE room_costs (                   -- what rooms and their people have spent
    room TEXT NOT NULL,
    user TEXT NOT NULL,                     -- empty: all of them together
    hour INTEGER NOT NULL,                  -- since 1970
    turns INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0,
    nanos INTEGER NOT NULL DEFAULT 0,       -- billionths of a dollar
    PRIMARY KEY (room, user, hour)
) WITHOUT ROWID;

CREATE TRIGGER room_turn_begun AFTER INSERT ON runs
WHEN new.user LIKE 'room:%' AND new.session LIKE 'agent:%:room:group:%'
    AND json_type(new.given, '$.payers') = 'array'
BEGIN
    INSERT INTO room_costs (room, user, hour, turns)
    SELECT {room}, '', CAST(new.created / {HOUR} AS INTEGER), 1
    UNION ALL
    SELECT {room}, value, CAST(new.created / {HOUR} AS INTEGER), 1
    FROM json_each(new.given, '$.payers') WHERE true
    ON CONFLICT (room, user, hour) DO UPDATE SET turns = turns + 1;
END;

CREATE TRIGGER room_run_spent AFTER UPDATE OF usage ON runs
WHEN new.user LIKE 'room:%' AND new.usage <> old.usage AND {parent} IS NULL
BEGIN{_charge(*grown, *parts)}
END;

CREATE TRIGGER room_child_cut AFTER UPDATE OF status ON runs
WHEN new.user LIKE 'room:%' AND new.status = 'interrupted' AND old.status <> 'interrupted'
    AND {parent} IS NOT NULL
BEGIN{_charge(*new, *map(_part, new))}
END;

CREATE TRIGGER room_run_cut AFTER UPDATE OF status ON runs
WHEN new.user LIKE 'room:%' AND new.status = 'interrupted' AND old.status <> 'interrupted'
BEGIN{_charge(*below, *map(_part, below))}
END;
"""


TRIGGERS: Final = _triggers()
NO_TRIGGERS: Final = """
DROP TRIGGER room_turn_begun;
DROP TRIGGER room_run_spent;
DROP TRIGGER room_child_cut;
DROP TRIGGER room_run_cut;
"""
