"""``motet doctor``: checks of the machine, the configuration and the state, with advice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from platform import python_version
from tempfile import TemporaryDirectory

import attrs
import trio

from motet.actors.storage import recovery as rows
from motet.actors.storage.error_spool import SPILL_FILE
from motet.actors.storage.readers import Readers
from motet.actors.storage.schema import VERSION
from motet.actors.tools.builtin.shell import Shell
from motet.announced import lock_owner
from motet.cli.checks import Finding, agents, gateway, programs, providers, rooms, shown, together
from motet.cli.setup import Setup, load_setup
from motet.cli.stored import (
    Overview,
    database_file,
    deleted_files,
    overview,
    reading,
    waiting_errors,
)
from motet.cli.tools import probe_all
from motet.protocols.errors import ConfigError
from motet.protocols.recovery import Quarantined
from motet.protocols.storage import StorageError
from motet.protocols.tools import ToolFailure
from motet.protocols.version import __version__
from motet.runtime.processes import GUARD

PROBE_LIMIT = 15.0
"""Seconds that an MCP server may take to start; less where it is configured so."""


def examine(config: Path | None, state: Path | None, *, full: bool = False) -> int:
    """Print the findings; the exit code. ``full``: read the database through at any size."""
    return shown(_findings(config, state, full))


def _findings(config: Path | None, state: Path | None, full: bool) -> Iterator[Finding]:
    yield Finding("ok", "motet", f"{__version__} on Python {python_version()}")
    try:
        setup = load_setup(config, state)
    except ConfigError as error:
        yield Finding("broken", "config", str(error))
        return
    yield Finding("ok", "config", str(setup.file or "no motet.toml here: the built-in one is used"))
    yield from agents(setup)
    yield from providers(setup)
    yield from rooms(setup)
    yield from gateway(setup)
    yield from (one for one in programs(setup) if one.topic != "mcp")
    yield together(setup)
    yield Finding("ok", "workspace", str(setup.workspace))
    yield _shell(setup)
    yield from _servers(setup)
    yield from _state(setup.state, full)


# The machine


def _shell(setup: Setup) -> Finding:
    config = setup.config.tools.shell
    if config.mode != "sandbox":
        return Finding("note", "shell", f"mode {config.mode!r} is configured: no sandbox")
    try:
        with TemporaryDirectory() as folder:
            seen = setup.workspace if setup.workspace.is_dir() else Path(folder)
            trio.run(Shell(config).run, seen, "exit 0")
    except ToolFailure as failure:
        return Finding("broken", "shell", str(failure).splitlines()[0])
    return Finding("ok", "shell", "commands run in a sandbox (bubblewrap)")


def _servers(setup: Setup) -> Iterator[Finding]:
    """Check that each MCP server starts and lists its tools."""
    if servers := setup.config.mcp:
        for one in trio.run(probe_all, servers, PROBE_LIMIT):
            if one.problem:
                yield Finding("broken", "mcp", f"{one.name}: {one.problem}")
            else:
                tools = sum(not tool.problem for tool in one.tools)
                yield Finding("ok", "mcp", f"{one.name}: {tools} tools ({one.about})")
                for tool in one.tools:
                    if tool.problem:
                        text = f"{one.name}: {tool.name} is not offered: {tool.problem}"
                        yield Finding("note", "mcp", text)


def _state(state: Path, full: bool) -> Iterator[Finding]:
    try:
        owner = lock_owner(state)
        yield _lock(state, owner)
        if gone := deleted_files(state, owner):
            text = (
                f"process {owner} holds files that were deleted or moved ({', '.join(gone)}) and "
                "stores nothing: stop it, put the files or a backup back, start it again"
            )
            yield Finding("broken", "database", text)
        if database_file(state).is_file():
            found = trio.run(_overview, state)
            yield _database(found)
            yield from _room(found)
            if waiting := waiting_errors(state):
                text = f"{len(waiting)} errors wait in {SPILL_FILE} until the database takes them"
                yield Finding("note", "errors", text)
            yield from examined(state, owner, inf if full else CHECKED)
            yield from _runs(found, in_use=owner is not None)
        yield from orphans(owner)
    except StorageError as error:
        yield Finding("broken", "state", str(error))


def _lock(state: Path, owner: int | None) -> Finding:
    if owner is not None:
        return Finding("ok", "state", f"{state} is in use by process {owner or '(unknown)'}")
    if state.exists():
        usable = os.access(state, os.R_OK | os.W_OK | os.X_OK)
        text = f"{state} is free" if usable else f"{state} is not writable: chown or --state DIR"
        return Finding("ok" if usable else "broken", "state", text)
    return Finding("ok", "state", f"{state} will be created at the first use")


async def _overview(state: Path) -> Overview:
    async with reading(state) as readers:
        return await overview(readers, database_file(state))


def _database(found: Overview) -> Finding:
    log = f" and {found.log / 1e6:.1f} MB of log" if found.log else ""
    text = f"{found.size / 1e6:.1f} MB{log}, version {found.version}"
    text += f", last opened by motet {found.motet}" if found.motet else ""
    if found.version > VERSION:
        text += f", newer than this motet knows ({VERSION}): upgrade motet"
        return Finding("broken", "database", text)
    if found.version < VERSION:
        text += f", brought to {VERSION} at the next start"
    return Finding("ok", "database", text)


EMPTY, FULL, SCARCE = 1_000_000, 20_000_000, 500_000_000
"""Free bytes of the disk that take no transaction for sure, that are too few, and that are few."""
LONG_LOG = 100_000_000


def _room(found: Overview) -> Iterator[Finding]:
    text = f"{found.room / 1e6:,.0f} MB are free on the disk of the database"
    if found.room < FULL:
        when = "hosts store" if found.room < EMPTY else "hosts will soon store"
        yield Finding("broken", "disk", f"{text}: {when} nothing more; free some space")
    elif found.room < max(SCARCE, found.log):
        yield Finding("note", "disk", f"{text}: it will be full soon")
    if found.log > max(LONG_LOG, found.size):
        text = f"the log beside it has {found.log / 1e6:,.0f} MB"
        why = "a program that reads for long keeps it from being folded in; close that"
        yield Finding("note", "database", f"{text}: {why}")


def _runs(found: Overview, *, in_use: bool) -> Iterator[Finding]:
    open_runs = found.runs.get("running", 0) + found.runs.get("queued", 0)
    if in_use or not open_runs:
        yield Finding("ok", "runs", f"{open_runs} active")
    else:
        text = f"{open_runs} cut off by the end of their host: the next host resumes them"
        yield Finding("note", "runs", text)
    if interrupted := found.runs.get("interrupted", 0):
        yield Finding("note", "runs", f"{interrupted} were interrupted: send these inputs again")
    for one in found.quarantined:
        text = (
            f"{one.session} is quarantined: {one.tries} hosts in a row died while they took it up; "
            f"`motet sessions release {one.session}` lets the next one try again"
        )
        yield Finding("broken", "session", text)


# State directories and processes of hosts


STUCK = 900.0
"""Seconds without anything on record, after which a run that goes on may be stuck."""
CHECKED = 2_000_000_000
"""Bytes of a database that is read through; a larger one would take minutes."""
SHOWN = 5

_CHECK = "PRAGMA quick_check(1)"
_STUCK = (
    "SELECT run_id FROM runs WHERE open = 1 AND status = 'running' AND updated < ?"
    " ORDER BY updated LIMIT ?"
)


@attrs.frozen
class Health:
    """``unsound``: SQLite's report on the file; None: it was not read."""

    unsound: str | None
    stuck: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]


def examined(state: Path, owner: int | None, most: float = CHECKED) -> Iterator[Finding]:
    """The findings about a database of this version, read through up to so many bytes.

    Raises ``StorageError``.
    """
    health = trio.run(_health, state, most)
    if health is None:
        return
    if health.unsound is None:
        yield Finding("note", "integrity", "not checked: the database is large; use --full")
    elif health.unsound:
        text = f"the database is damaged ({health.unsound}): restore a backup, or --repair"
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
    """Processes of tools whose host has gone. They exist only while they are being ended."""
    left = [pid for pid, parent in _guards(proc) if parent == 1 and owner != 1]
    if left:
        listed = ", ".join(map(str, left[:SHOWN]))
        yield Finding("note", "processes", f"tools without a host, look again soon: {listed}")
    else:
        yield Finding("ok", "processes", "no tool has outlived its host")


async def _health(state: Path, most: float) -> Health | None:
    async with reading(state) as readers:
        ((version,),) = await readers.read("PRAGMA user_version")
        return await _of(readers, database_file(state), most) if version == VERSION else None


async def _of(readers: Readers, file: Path, most: float) -> Health:
    unsound = None
    if file.stat().st_size <= most:
        ((said,),) = await readers.read(_CHECK)
        unsound = "" if said == "ok" else str(said)
    stuck = await readers.read(_STUCK, (time.time() - STUCK, SHOWN))
    aside = [rows.quarantined(row) for row in await readers.read(rows.QUARANTINED)]
    return Health(unsound, tuple(str(row[0]) for row in stuck), tuple(aside))


def _guards(proc: Path) -> Iterator[tuple[int, int]]:
    """The guards of tools: their pids and parents. Only Linux has them."""
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(GUARD).encode() in words:
                about = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(folder.name), int(about[1])
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
