"""``motet doctor``: what is in order, what is not, and what to do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import attrs
import trio

from motet.actors.mcp.probe import probe_all
from motet.actors.models.catalog import resolve
from motet.actors.models.providers import KNOWN, Provider, config_of
from motet.actors.storage.errors import StorageError
from motet.actors.storage.schema import VERSION
from motet.actors.tools.builtin.shell import Shell
from motet.actors.tools.tool import ToolFailure
from motet.cli.exits import FAILED, OK
from motet.cli.screen import console
from motet.cli.setup import Setup, load_setup
from motet.cli.stored import Overview, database_file, lock_owner, overview, reading
from motet.protocols.config import ProviderConfig
from motet.protocols.errors import ConfigError
from motet.protocols.version import __version__

Verdict: TypeAlias = Literal["ok", "note", "broken"]

MARKS: dict[Verdict, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "yellow"),
    "broken": ("✗", "red"),
}

PROBE_LIMIT = 15.0
"""Seconds that an MCP server may take to start; less where it is configured so."""


@attrs.frozen
class Finding:
    """One line. What is broken keeps an agent from working; a note does not."""

    verdict: Verdict
    topic: str
    text: str


def examine(config: Path | None, state: Path | None) -> int:
    """Print what was found; the exit code."""
    findings = list(_findings(config, state))
    out = console(sys.stdout)
    for finding in findings:
        mark, style = MARKS[finding.verdict]
        line = f"{mark} {finding.topic:<9} {finding.text}"
        out.print(line, style=style, markup=False, soft_wrap=True)
    return FAILED if any(finding.verdict == "broken" for finding in findings) else OK


def _findings(config: Path | None, state: Path | None) -> Iterator[Finding]:
    yield Finding("ok", "motet", f"{__version__} on Python {python_version()}")
    try:
        setup = load_setup(config, state)
    except ConfigError as error:
        yield Finding("broken", "config", str(error))
        return
    yield Finding("ok", "config", str(setup.file or "no motet.toml here: the built-in one is used"))
    yield from _agents(setup)
    yield from _providers(setup)
    yield Finding("ok", "tools", f"see {setup.workspace}")
    yield _shell(setup)
    yield from _servers(setup)
    yield from _state(setup.state)


# Agents and their models


def _agents(setup: Setup) -> Iterator[Finding]:
    try:
        agents = setup.agents()
        for agent in agents:
            resolve(agent.model_name)
            yield Finding("ok", "agent", f"{agent.name} ({agent.model_name})")
    except ConfigError as error:
        yield Finding("broken", "agent", str(error))


def _providers(setup: Setup) -> Iterator[Finding]:
    """The two that the guide begins with, and all others that an agent uses."""
    used = {agent.model.partition(":")[0] for agent in setup.config.agents.values()}
    for name, known in KNOWN.items():
        if name in used or name in ("openai", "anthropic"):
            yield _provider(name, known, config_of(setup.config.models, name), name in used)


def _provider(name: str, known: Provider, config: ProviderConfig, used: bool) -> Finding:
    """Whether a provider's package and key are there; what nobody uses may be absent."""
    wrong: Verdict = "broken" if used else "note"
    keys = (config.api_key_env,) if config.api_key_env else known.keys
    if not _installed(known.package):
        return Finding(wrong, name, f"its package is not installed: pip install 'motet[{name}]'")
    if found := next((key for key in keys if os.environ.get(key)), None):
        return Finding("ok", name, f"package installed, key in {found}")
    if known.keyless:
        return Finding("ok", name, "package installed")
    key = keys[0]
    if config.base_url or os.environ.get(known.url):
        return Finding("ok", name, f"package installed, no key in {key}, own base URL")
    return Finding(wrong, name, f"package installed, but {key} is not set: export {key}=...")


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package inside of one that is not there
        return False


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
    """Whether each MCP server starts and lists its tools."""
    if servers := setup.config.mcp:
        for one in trio.run(probe_all, servers, PROBE_LIMIT):
            if one.problem:
                yield Finding("broken", "mcp", f"{one.name}: {one.problem}")
            else:
                yield Finding("ok", "mcp", f"{one.name}: {len(one.tools)} tools ({one.about})")


def _state(state: Path) -> Iterator[Finding]:
    try:
        owner = lock_owner(state)
        yield _lock(state, owner)
        if database_file(state).is_file():
            found = trio.run(_overview, state)
            yield _database(found)
            yield from _runs(found, in_use=owner is not None)
    except StorageError as error:
        yield Finding("broken", "state", str(error))


def _lock(state: Path, owner: int | None) -> Finding:
    if owner is not None:
        return Finding("ok", "state", f"{state} is in use by process {owner or '(unknown)'}")
    if state.exists():
        usable = os.access(state, os.R_OK | os.W_OK | os.X_OK)
        text = f"{state} is free" if usable else f"{state} may not be written: chown or --state DIR"
        return Finding("ok" if usable else "broken", "state", text)
    return Finding("ok", "state", f"{state} is made when it is first used")


async def _overview(state: Path) -> Overview:
    async with reading(state) as readers:
        return await overview(readers, database_file(state))


def _database(found: Overview) -> Finding:
    text = f"{found.size / 1e6:.1f} MB, version {found.version}"
    if found.version > VERSION:
        text += f", newer than this motet knows ({VERSION}): upgrade motet"
        return Finding("broken", "database", text)
    if found.version < VERSION:
        text += f", brought to {VERSION} at the next start"
    return Finding("ok", "database", text)


def _runs(found: Overview, *, in_use: bool) -> Iterator[Finding]:
    open_runs = found.runs.get("running", 0) + found.runs.get("queued", 0)
    if in_use or not open_runs:
        yield Finding("ok", "runs", f"{open_runs} going on")
    else:
        text = f"{open_runs} cut off by the end of their host: marked so at the next start"
        yield Finding("note", "runs", text)
    if interrupted := found.runs.get("interrupted", 0):
        yield Finding("note", "runs", f"{interrupted} were interrupted: send these inputs again")
