"""Commands on the errors of a host that runs, is killed and started again meanwhile.

The host's tools fail all the time, and it is killed at random. Beside it, and between two hosts,
commands show, list, count and delete errors, and another program locks the database for longer than
the spool waits for it.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NamedTuple

import msgspec
import pytest
import trio

import motet
from motet.actors.storage.location import DATABASE_FILE
from motet.protocols.errors import StoredError
from tests.motet.command import Done
from tests.motet.command import motet as command

HOST = """
import os, random, sys, trio, motet
from motet.protocols.error_records import Origin

async def main(state, seed):
    rng = random.Random(seed)
    async with motet.open_host(state) as host:
        channel = host._parts.services.errors

        async def fail(number):
            tool, text = rng.choice(("kept", "kept", "doomed")), f"boom {seed} {number}"
            more = "x" * 300_000 if rng.random() < 0.02 else ""
            told = await channel.report(Origin(f"s{number % 5}", tool), f"{text}\\n{more}")
            if told.error_id is not None:
                os.write(1, f"{tool} {told.error_id} {text}\\n".encode())

        number = 0
        while True:
            async with trio.open_nursery() as nursery:
                for _ in range(rng.choice((1, 2, 40))):
                    nursery.start_soon(fail, number)
                    number += 1
            await trio.sleep(0.002)

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


class Shown(NamedTuple):
    """An error whose id a host has told."""

    tool: str
    id: str
    text: str


class Life:
    """A host, and the errors that it and earlier ones have told."""

    def __init__(self, state: Path, seed: int, shown: list[Shown]) -> None:
        self._rng = random.Random(f"commands {seed}")
        self._state = state
        self._shown = shown
        self._host = Popen([sys.executable, "-c", HOST, str(state), str(seed)], stdout=PIPE)

    def run(self) -> None:
        """Commands beside it, its end, and one more command."""
        for _ in range(self._rng.choice((2, 3, 4))):
            self._listen(self._rng.choice((1, 30, 200)))
            self._command()
        with self._host:
            self._host.send_signal(signal.SIGKILL)
            assert self._host.stdout is not None
            self._take(line for line in self._host.stdout if line.endswith(b"\n"))
        self._command()

    def _listen(self, count: int) -> None:
        assert self._host.stdout is not None
        self._take(islice(self._host.stdout, count))

    def _take(self, lines: Iterable[bytes]) -> None:
        self._shown += [Shown(*line.decode().rstrip("\n").split(" ", 2)) for line in lines]

    def _command(self) -> None:
        """One command, whose answer is right, or says that the database is locked."""
        kept = self._rng.choice([one for one in self._shown if one.tool == "kept"] or [None])
        which = self._rng.choice(("show", "show", "list", "stats", "prune", "lock"))
        if which == "show" and kept is not None:
            error = msgspec.json.decode(self._told("show", kept.id), type=StoredError)
            assert (error.id, error.tool_name, error.short_summary) == (kept.id, "kept", kept.text)
        elif which == "list":
            listed = self._told("list", "--all", "-n", "500", "--tool", "kept")
            ids = [error.id for error in msgspec.json.decode(listed, type=list[StoredError])]
            assert len(ids) == len(set(ids))
        elif which == "prune":
            done = errors(self._state, "prune", "--tool", "doomed")
            assert done.code == 0 or "locked" in done.err
        elif which == "lock" and self._host.poll() is None:
            database = sqlite3.connect(self._state / DATABASE_FILE, isolation_level=None)
            with closing(database), suppress(sqlite3.OperationalError):
                database.execute("BEGIN IMMEDIATE")
                self._listen(50)  # by the spill file
        else:
            self._told("stats")

    def _told(self, *words: str) -> str:
        done = errors(self._state, *words)
        assert done.code == 0, done.err
        return done.out


def errors(state: Path, *words: str) -> Done:
    return command("errors", *words, "--json", "--state", str(state), cwd=state)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("seed", "lives"), [(1, 3), *(pytest.param(n, 25, marks=pytest.mark.sweep) for n in (2, 3, 4))]
)
def test_no_error_is_lost_or_doubled_by_kills_with_commands_beside(
    tmp_path: Path, seed: int, lives: int
) -> None:
    """Law: each id is told once; each error that was told and not deleted is stored once, with its
    own text; an error that was deleted after all hosts have ended does not come back.
    """
    shown: list[Shown] = []
    for life in range(lives):
        Life(tmp_path, 1_000 * seed + life, shown).run()
    assert len({one.id for one in shown}) == len(shown)
    trio.run(settled, tmp_path)
    rows = stored(tmp_path)
    texts = Counter((row.tool, row.text) for row in rows)
    assert not [text for text, count in texts.items() if count > 1]
    assert {one for one in shown if one.tool == "kept"} <= set(rows)
    assert errors(tmp_path, "prune", "--tool", "doomed").code == 0
    trio.run(settled, tmp_path)
    assert {row.tool for row in stored(tmp_path)} == {"kept"}


async def settled(state: Path) -> None:
    """A host stores what an earlier one has left."""
    async with motet.open_host(state):
        pass


def stored(state: Path) -> list[Shown]:
    with closing(sqlite3.connect(state / DATABASE_FILE)) as database:
        found = database.execute("SELECT tool_name, id, short_summary FROM agent_errors")
        return [Shown(*row) for row in found]
