"""The reader of the journal of one run, from the database."""

from __future__ import annotations

from motet.actors.storage.events import record_of
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import RUNS, run_info
from motet.actors.storage.session_transcripts import TRANSCRIPT, history_row
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.events import AnyEvent
from motet.protocols.run_journal import RunJournal, journal_of, require_ended
from motet.protocols.sessions import RunInfo

_RUNS = f"{RUNS} WHERE run_id LIKE ? ESCAPE '!' LIMIT 2"
_OWN = "SELECT pos, run_id, ts, body FROM messages WHERE session = ? AND run_id = ? ORDER BY pos"
_EVENTS = (
    "SELECT stream, seq, ts, run_id, data FROM events WHERE stream = ? AND run_id = ? ORDER BY seq"
)


async def read_journal(readers: Readers, run: str) -> RunJournal:
    """The run of that id, or of the only id that begins so.

    Raises ``NotFound`` when there is none, ``ConfigError`` for one that cannot be replayed: it has
    not ended, or never began.
    """
    info = await _find(readers, run)
    require_ended(info)
    stored = await readers.read(_OWN, (info.session, info.run_id))
    shown = map(history_row, await readers.read(TRANSCRIPT, (info.session,)))
    return journal_of(info, [*map(history_row, stored)], shown, await _events(readers, info))


async def _find(readers: Readers, run: str) -> RunInfo:
    pattern = "".join(f"!{sign}" if sign in "!%_" else sign for sign in run) + "%"
    found = [run_info(row) for row in await readers.read(_RUNS, (pattern,))] if run else []
    if not found:
        raise NotFound(f"no run {run!r}; `motet traces` lists them")
    exact = [info for info in found if info.run_id == run]
    if len(found) > 1 and not exact:
        raise ConfigError(f"several runs begin with {run!r}: give more of the id")
    return (exact or found)[0]


async def _events(readers: Readers, info: RunInfo) -> tuple[AnyEvent, ...]:
    stored = await readers.read(_EVENTS, (f"session:{info.session}", info.run_id))
    return tuple(record_of(row).event for row in stored)
