"""``motet config``: checks of a configuration that run nothing, its values, and its schema."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import attrs
import msgspec
import trio

from motet.actors.gateway.context import Settings
from motet.actors.host import hosted
from motet.actors.hosting.config import DEFAULT_AGENTS, load_config
from motet.actors.models.catalog import KNOWN, Provider, check_receiver, config_of, resolve
from motet.cli.config_schema import Line, schema, sources
from motet.cli.exits import FAILED, OK, explained
from motet.cli.logs import silenced
from motet.cli.render import in_json
from motet.cli.screen import console
from motet.cli.setup import Setup, chosen_file, load_setup
from motet.protocols.admission import is_loopback
from motet.protocols.config import HostConfig, ProviderConfig
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.room_config import SELECTOR, listed

Verdict: TypeAlias = Literal["ok", "note", "broken"]

MARKS: dict[Verdict, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "yellow"),
    "broken": ("✗", "red"),
}


@attrs.frozen
class Finding:
    """One line. A broken thing keeps an agent from working; a note does not."""

    verdict: Verdict
    topic: str
    text: str


def shown(findings: Iterable[Finding]) -> int:
    """Print the findings; the exit code."""
    found = list(findings)
    out = console(sys.stdout)
    for finding in found:
        mark, style = MARKS[finding.verdict]
        line = f"{mark} {finding.topic:<9} {finding.text}"
        out.print(line, style=style, markup=False, soft_wrap=True)
    return FAILED if any(finding.verdict == "broken" for finding in found) else OK


# Agents and their models


def agents(setup: Setup) -> Iterator[Finding]:
    try:
        for agent in setup.agents():
            resolve(agent.model_name)
            yield Finding("ok", "agent", f"{agent.name} ({agent.model_name})")
    except ConfigError as error:
        yield Finding("broken", "agent", str(error))


def providers(setup: Setup) -> Iterator[Finding]:
    """The two providers that the guide begins with, and all that an agent uses."""
    used = {agent.model.partition(":")[0] for agent in setup.config.agents.values()}
    for name, known in KNOWN.items():
        if name in used or name in ("openai", "anthropic"):
            yield _provider(name, known, config_of(setup.config.models, name), name in used)
        try:
            check_receiver(setup.config.models, name)
        except ConfigError as error:
            yield Finding("broken", name, str(error))


def _provider(name: str, known: Provider, config: ProviderConfig, used: bool) -> Finding:
    """Check a provider's package and key; those of an unused provider may be absent."""
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


# Things that the configuration names


def programs(setup: Setup) -> Iterator[Finding]:
    """Check that the programs of hooks and MCP servers exist. None is started."""
    for index, hook in enumerate(setup.config.hooks):
        yield _program("hook", hook.name or f"hooks[{index}]", hook.command, hook.cwd)
    for name, server in setup.config.mcp.items():
        if server.command:
            yield _program("mcp", name, server.command, server.cwd)
        else:
            yield Finding("ok", "mcp", f"{name}: {server.url} (not tried)")


def _program(topic: str, name: str, argv: Sequence[str], cwd: str | None) -> Finding:
    program = argv[0]
    place = str(Path(cwd or ".", program)) if os.sep in program else program
    if shutil.which(place) is None:
        return Finding("broken", topic, f"{name}: there is no program {program!r}")
    return Finding("ok", topic, f"{name}: {program}")


def rooms(setup: Setup) -> Iterator[Finding]:
    """Check that all agents that a room names exist."""
    known = tuple(setup.config.agents or DEFAULT_AGENTS)
    for name, room in setup.config.rooms.items():
        wrong = [str(UnknownName("agent", one, known)) for one in room.members if one not in known]
        wrong += [
            f"{one!r} is called and no member" for one in room.called if one not in room.members
        ]
        wrong += list(_speakers(listed(room.speakers)))
        for problem in wrong:
            yield Finding("broken", "room", f"{name}: {problem}")
        if not wrong:
            yield Finding("ok", "room", f"{name}: {', '.join(room.members)}")


def _speakers(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word.startswith(SELECTOR):
            try:
                resolve(word.removeprefix(SELECTOR))
            except (ConfigError, UnknownName) as error:
                yield str(error)


def gateway(setup: Setup) -> Iterator[Finding]:
    """Check that the gateway could start: its certificate, and a token if one is needed."""
    try:
        settings = Settings.of(setup.config.gateway)
    except ConfigError as error:
        yield Finding("broken", "gateway", str(error))
        return
    if not is_loopback(settings.host) and not settings.tokens.has_tokens():
        text = f"listens on {settings.host}: that needs a token: `motet token new USER`, or here"
        yield Finding("note", "gateway", text)


def together(setup: Setup) -> Finding:
    """Check that a host accepts all of it: tools, handoffs, teams, rules and hooks."""
    try:
        trio.run(_open, setup)
    except Exception as error:
        return Finding("broken", "host", explained(error))
    return Finding("ok", "host", "accepts this configuration")


async def _open(setup: Setup) -> None:
    """A host in memory, whose servers are not started."""
    servers = {name: attrs.evolve(one, start="lazy") for name, one in setup.config.mcp.items()}
    origin = setup.origin
    config = attrs.evolve(setup.config, state=None, mcp=servers)
    # Its log would tell of the temporary folder.
    with TemporaryDirectory() as folder, silenced("motet"):
        async with hosted(origin, origin.whole(config), workspace=folder):
            pass


# The command


def check(config: Path | None, state: Path | None, *, json: bool) -> int:
    """Read it, and check everything that can be checked without starting it: 0 good, 1 broken."""
    findings = list(_findings(config, state))
    if not json:
        return shown(findings)
    print(in_json(findings))
    return FAILED if any(one.verdict == "broken" for one in findings) else OK


def show(config: Path | None, *, effective: bool, json: bool) -> int:
    """Print each value and where it was set; without ``effective`` only those of the file."""
    file = chosen_file(config)
    loaded = load_config(file) if file else HostConfig()
    lines = [one for one in sources(loaded, file) if effective or one.source != "default"]
    if json:
        print(in_json(lines))
    elif lines:
        _print(lines)
    else:
        print("no motet.toml here: --effective shows the defaults", file=sys.stderr)
    return OK


def print_schema() -> int:
    """Print the JSON Schema, for editors."""
    print(msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode())
    return OK


def _findings(config: Path | None, state: Path | None) -> Iterator[Finding]:
    try:
        setup = load_setup(config, state)
    except ConfigError as error:
        yield Finding("broken", "config", str(error))
        return
    yield Finding("ok", "config", str(setup.file or "no motet.toml here: the built-in one is used"))
    yield from agents(setup)
    yield from (one for one in providers(setup) if one.verdict != "note")
    yield from rooms(setup)
    yield from programs(setup)
    yield from gateway(setup)
    yield together(setup)


def _print(lines: list[Line]) -> None:
    texts = [f"{line.key} = {line.text}" for line in lines]
    width = min(60, max(map(len, texts)))
    for text, line in zip(texts, lines, strict=True):
        print(f"{text:<{width}}  # {line.source}")
