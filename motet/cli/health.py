"""Faults of a state directory and of the processes of its hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio

from motet.actors.storage import recovery as rows
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import VERSION
from motet.cli.checks import Finding
from motet.cli.stored import database_file, reading
from motet.protocols.recovery import Quarantined
from motet.runtime.processes import GUARD

STUCK = 900.0
"""Seconds without anything on record, after which a run that goes on may be stuck."""
CHECKED = 2_000_000_000
"""Bytes of a database that is read through; a larger one would take minutes."""
SHOWN = 5

_CHECK = "PRAGMA quick_check(1)"
_STUCK = "SELECT run_id FROM runs WHERE status = 'running' AND updated < ? ORDER BY updated LIMIT ?"


@attrs.frozen
class Health:
    """``unsound``: what is wrong with the file, as SQLite says; None: it was not read."""

    unsound: str | None
    stuck: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]


def examined(state: Path, owner: int | None) -> Iterator[Finding]:
    """The findings about a database of this version. Raises ``StorageError``."""
    health = trio.run(_health, state)
    if health is None:
        return
    if health.unsound is None:
        yield Finding("note", "integrity", "not checked: the database is large")
    elif health.unsound:
        text = f"the database is damaged ({health.unsound}): restore a backup"
        yield Finding("broken", "integrity", text)
    else:
        yield Finding("ok", "integrity", "the database is sound")
    if owner is not None and health.stuck:
        text = f"no progress for {STUCK / 60:.0f} min: {', '.join(health.stuck)}; motet stop RUN"
        yield Finding("note", "stuck", text)
    for one in health.quarantined[:SHOWN]:
        text = f"{one.session} took the host down {one.tries} times and is left alone"
        yield Finding("note", "session", text)


def orphans(owner: int | None, proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Processes of tools whose host has gone. There are none but while they are being ended."""
    left = [pid for pid, parent in _guards(proc) if parent == 1 and owner != 1]
    if left:
        listed = ", ".join(map(str, left[:SHOWN]))
        yield Finding("note", "processes", f"tools without a host, look again soon: {listed}")
    else:
        yield Finding("ok", "processes", "no tool has outlived its host")


async def _health(state: Path) -> Health | None:
    async with reading(state) as readers:
        ((version,),) = await readers.read("PRAGMA user_version")
        return await _of(readers, database_file(state)) if version == VERSION else None


async def _of(readers: Readers, file: Path) -> Health:
    unsound = None
    if file.stat().st_size <= CHECKED:
        ((said,),) = await readers.read(_CHECK)
        unsound = "" if said == "ok" else str(said)
    stuck = await readers.read(_STUCK, (time.time() - STUCK, SHOWN))
    aside = [rows.quarantined(row) for row in await readers.read(rows.QUARANTINED)]
    return Health(unsound, tuple(str(row[0]) for row in stuck), tuple(aside))


def _guards(proc: Path) -> Iterator[tuple[int, int]]:
    """The guards of tools: their pids, and whose children they are. Only Linux has them."""
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(GUARD).encode() in words:
                about = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(folder.name), int(about[1])
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
