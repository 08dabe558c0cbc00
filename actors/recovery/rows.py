"""What a host reads and writes of the runs that the last one left: statements and rows. Pure.

Invariant: that a session is being taken up is counted on disk before anything of it is begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import msgspec

from motet.actors.sessions import store_rows as stored
from motet.actors.sessions.store_rows import encode
from motet.protocols.chat import ChatMessage
from motet.protocols.events import AnyEvent
from motet.protocols.recovery import Given, Quarantined
from motet.protocols.sessions import RunInfo
from motet.protocols.storage import Row, Statement

# The last sign of life of a run's session: events come at its end, too.
LEFT = """
SELECT run_id, coalesce(given, ''),
       max(runs.updated, coalesce((
           SELECT ts FROM events WHERE stream = 'session:' || runs.session
           ORDER BY seq DESC LIMIT 1), 0)),
       coalesce((SELECT tries FROM resumptions WHERE resumptions.session = runs.session), 0),
       (SELECT since FROM resumptions WHERE resumptions.session = runs.session) IS NOT NULL,
       EXISTS (SELECT 1 FROM sessions WHERE sessions.session = runs.session
               AND parent IS NOT NULL)
FROM runs WHERE status IN ('queued', 'running')"""

SLACK = 60.0
"""Seconds by which the clock may have been put back while a run went on."""


def since(session: str, created: str) -> str:
    """That an event is not from before something began: those need not be read. SQL."""
    return (
        f"seq > coalesce((SELECT seq FROM events WHERE stream = 'session:' || {session}"
        f" AND ts < {created} - {SLACK} ORDER BY seq DESC LIMIT 1), 0)"
    )


HEARD = f"""
SELECT event, coalesce(json_extract(data, '$.id'), ''), json_extract(data, '$.i'),
       json_extract(data, '$.role'), json_extract(data, '$.text')
FROM events
WHERE stream = 'session:' || ?1 AND run_id = ?2 AND {since("?1", "?3")}
  AND event IN ('input.accepted', 'run.started', 'run.resumed', 'message', 'tool.call',
                'tool.result')
ORDER BY seq"""

TRACE = "SELECT spans, started, errors FROM traces WHERE run_id = ?"

TRY = """
INSERT INTO resumptions (session, tries) VALUES (?, 1)
ON CONFLICT (session) DO UPDATE SET tries = tries + 1"""
SETTLED = "DELETE FROM resumptions WHERE session = ? AND since IS NULL"
ALL_SETTLED = "DELETE FROM resumptions WHERE since IS NULL"
PUT_ASIDE = "UPDATE resumptions SET since = ?2 WHERE session = ?1 AND since IS NULL RETURNING 1"
RELEASE = "DELETE FROM resumptions WHERE session = ? AND since IS NOT NULL RETURNING 1"
ASIDE = """
SELECT session, coalesce(owner, ''), tries, since
FROM resumptions LEFT JOIN sessions USING (session)
WHERE since IS NOT NULL ORDER BY since, session"""

FORGET_STEPS = "DELETE FROM steps WHERE run_id = ? AND step >= 0"
ADD_STEP = "INSERT INTO steps (run_id, step, body) VALUES (?, ?, ?)"

_given = msgspec.json.Decoder(Given)


@attrs.frozen
class LeftRun:
    """A run that has not ended, of a host that has.

    Attributes:
        given: None: it belonged to whoever waited for it, who is gone.
        seen: the last sign of life of its session, Unix seconds.
        tries: hosts in a row that died while they took up its session.
        aside: its session is quarantined.
        rows: its journal, without what cannot be read; then it is ``broken``.
        heard: the events that were told of it, each with the id of its call if it has one.
        spans, started, errors: of its trace.
        late: what is to be told of it before it goes on.
    """

    info: RunInfo
    given: Given | None
    seen: float
    tries: int = 0
    aside: bool = False
    rows: tuple[ChatMessage, ...] = ()
    broken: bool = False
    heard: tuple[tuple[str, str], ...] = ()
    spans: int = 0
    started: float = 0.0
    errors: int = 0
    late: tuple[AnyEvent, ...] = ()


def given_text(given: Given) -> str:
    return msgspec.json.encode(given).decode()


def never_again(row: Row) -> bool:
    """Whether it is known of a row of :data:`LEFT` that it is not taken up."""
    return not row[1]


def left_run(
    info: RunInfo,
    row: Row,
    steps: Iterable[Row] = (),
    heard: Sequence[Row] = (),
    trace: Sequence[Row] = (),
) -> LeftRun:
    """From a row of :data:`LEFT`, and what was read of it besides."""
    _, text, seen, tries, aside, is_child = row
    rows, broken = _journal(steps)
    spans, started, errors = trace[0] if trace else (0, info.updated, 0)
    return LeftRun(
        info=info,
        given=None if is_child else _read(str(text)),
        seen=float(seen or 0),
        tries=int(tries or 0),
        aside=bool(aside),
        rows=rows,
        broken=broken,
        heard=tuple((str(row[0]), str(row[1])) for row in heard),
        spans=int(spans or 0),
        started=float(started or info.updated),
        errors=int(errors or 0),
    )


def take_up(runs: Iterable[tuple[str, Sequence[ChatMessage]]]) -> list[Statement]:
    """Let the journal of each run that has begun be these rows, without gaps."""
    statements: list[Statement] = []
    for run_id, rows in runs:
        if not rows:
            continue
        numbered = tuple((run_id, at, encode(row)) for at, row in enumerate(rows))
        statements += [Statement(FORGET_STEPS, (run_id,)), Statement(ADD_STEP, each=numbered)]
    return statements


def quarantined(row: Row) -> Quarantined:
    return msgspec.convert(
        dict(zip(Quarantined.__struct_fields__, row, strict=True)), Quarantined, strict=False
    )


def _read(text: str) -> Given | None:
    try:
        return _given.decode(text) if text else None
    except msgspec.MsgspecError:  # of a newer motet
        return None


def _journal(steps: Iterable[Row]) -> tuple[tuple[ChatMessage, ...], bool]:
    found: list[ChatMessage] = []
    broken = False
    for _, body in steps:
        try:
            found.append(stored.decode(body))
        except msgspec.MsgspecError:
            broken = True
    return tuple(found), broken
