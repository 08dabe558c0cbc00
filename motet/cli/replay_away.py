"""A run of a host behind a gateway, read by the methods that any client has."""

from __future__ import annotations

import msgspec

from motet.actors.hosting.replay_journal import BEFORE, RunJournal, from_a_turn, require_ended
from motet.client import Client
from motet.protocols.errors import ConfigError
from motet.protocols.events import AnyEvent, Gap
from motet.protocols.sessions import HistoryRow, RunInfo

PAGE = 200


async def fetch_journal(client: Client, run_id: str) -> RunJournal:
    """The run of that id, as :func:`~motet.actors.hosting.replay_journal.read_journal` reads it.

    Raises ``ConfigError`` for a run that has not ended or never began, and what the host says of
    one that it does not know or does not show to this client.
    """
    info = msgspec.convert(await client.call("runs.get", run_id=run_id), RunInfo)
    require_ended(info)
    rows = await _rows(client, info)
    own = [row for row in rows if row.run_id == info.run_id]
    if not own:
        raise ConfigError(f"run {info.run_id} is {info.status} and has no rows: it never began")
    before = [row.row for row in rows if row.pos < own[0].pos]
    return RunJournal(
        info,
        from_a_turn(before[-BEFORE:]),
        tuple(row.row for row in own),
        await _events(client, info),
    )


async def _rows(client: Client, info: RunInfo) -> list[HistoryRow]:
    """The rows of the run's session from its end, as far as what came before the run."""
    rows: list[HistoryRow] = []
    before: int | None = None
    while True:
        page = await client.history(info.session, before=before, limit=PAGE)
        rows[:0] = page.rows
        before = page.before
        if before is None or _reached(rows, info.run_id):
            return rows


def _reached(rows: list[HistoryRow], run_id: str) -> bool:
    """Whether the rows begin far enough before the run."""
    first = next((place for place, row in enumerate(rows) if row.run_id == run_id), 0)
    return first >= BEFORE


async def _events(client: Client, info: RunInfo) -> tuple[AnyEvent, ...]:
    """The durable events of the run; none when the host does not have them all any more."""
    stream = f"session:{info.session}"
    async with client.stream(stream) as events:
        head = events.last or 0
    found: list[AnyEvent] = []
    async with client.stream(stream, 0) as events:
        while (events.last or 0) < head:
            record = await anext(events)
            if isinstance(record.event, Gap):
                return ()
            if record.run_id == info.run_id and record.seq is not None:
                found.append(record.event)
    return tuple(found)
