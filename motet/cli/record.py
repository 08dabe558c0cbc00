"""``motet record``: a stored run as a file that tests play, from a state directory or a gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from motet.actors.hosting.replay_journal import RunJournal, encode_record, read_journal
from motet.cli.chat import read_token
from motet.cli.exits import OK
from motet.cli.replay_away import fetch_journal
from motet.cli.running import PATIENCE
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.client import connect
from motet.protocols.errors import MotetError


def record_run(setup: Setup, run: str) -> int:
    """Print the record of a stored run. Raises ``NotFound``, ``ConfigError``."""
    return _print(trio.run(_stored, setup.state, run))


def record_away(url: str, token_file: Path | None, run: str) -> int:
    """The same of a run of a host behind a gateway. Raises as a client does."""
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
    """The record alone on stdout, for a file; on stderr what it is, and how it is played."""
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
