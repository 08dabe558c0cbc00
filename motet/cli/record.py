"""``motet record``: a stored run as a file that tests play, from a state directory or a gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import trio

from motet.actors.hosting.replay import read_journal
from motet.cli.chat import read_token
from motet.cli.exits import OK
from motet.cli.running import PATIENCE
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.client import Client, connect
from motet.protocols.errors import MotetError
from motet.protocols.events import AnyEvent, Gap
from motet.protocols.run_journal import BEFORE, RunJournal, journal_of, require_ended
from motet.protocols.sessions import HistoryRow, RunInfo
from motet.testing.run_records import encode_record


def record_run(setup: Setup, run: str) -> int:
    """Print the record of a stored run. Raises ``NotFound``, ``ConfigError``."""
    return _print(trio.run(_stored, setup.state, run))


def record_remote(url: str, token_file: Path | None, run: str) -> int:
    """Print the record of a run behind a gateway. Raises as a client does."""
    return _print(trio.run(_away, url, read_token(token_file), run))


async def _stored(state: Path, run: str) -> RunJournal:
    async with reading(state) as readers:
        return await read_journal(readers, run)


async def _away(url: str, token: str | None, run: str) -> RunJournal:
    try:
        with trio.fail_after(PATIENCE):
            async with connect(url, token=token, name="motet") as client:
                return await fetch_journal(client, run)
    except trio.TooSlowError:
        raise MotetError(f"the host at {url} does not answer") from None


def _print(journal: RunJournal) -> int:
    """Print the record on stdout, for a file, and a hint how to play it on stderr."""
    print(encode_record(journal).decode(), end="")
    info = journal.info
    calls = sum(len(answer.calls) for answer in journal.answers)
    print(
        f"run {info.run_id} of {info.agent}, {info.status}: "
        f"{len(journal.answers)} answers, {calls} calls; secrets are taken out\n"
        'in a test: mt.replay_run("FILE", agent)',
        file=sys.stderr,
    )
    return OK


# Runs behind a gateway


PAGE = 200


async def fetch_journal(client: Client, run_id: str) -> RunJournal:
    """The run of that id, as :func:`~motet.actors.hosting.replay.read_journal` reads it.

    Raises ``ConfigError`` for a run that has not ended or never began, and the host's error for
    one that it does not know or does not show to this client.
    """
    info = msgspec.convert(await client.call("runs.get", run_id=run_id), RunInfo)
    require_ended(info)
    rows = await _rows(client, info)
    own = [row for row in rows if row.run_id == info.run_id]
    return journal_of(info, own, rows, await _events(client, info))


async def _rows(client: Client, info: RunInfo) -> list[HistoryRow]:
    """The rows of the run's session, read from its end back to some rows before the run."""
    rows: list[HistoryRow] = []
    before: int | None = None
    while True:
        page = await client.history(info.session, before=before, limit=PAGE)
        rows[:0] = page.rows
        before = page.before
        if before is None or _reached(rows, info.run_id):
            return rows


def _reached(rows: list[HistoryRow], run_id: str) -> bool:
    """True if the rows begin far enough before the run."""
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
