"""``motet config``: try the configuration out, print it with where it comes from, its schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from motet.actors.hosting.config import load_config
from motet.actors.hosting.config_schema import Line, explained, schema
from motet.cli.checks import Finding, agents, gateway, programs, providers, rooms, shown, together
from motet.cli.exits import FAILED, OK
from motet.cli.setup import found_here, load_setup
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError


def check(config: Path | None, state: Path | None, *, json: bool) -> int:
    """Read it, and try what can be tried without starting anything: 0 good, 1 broken."""
    findings = list(_findings(config, state))
    if not json:
        return shown(findings)
    print(msgspec.json.encode(findings).decode())
    return FAILED if any(one.verdict == "broken" for one in findings) else OK


def show(config: Path | None, *, effective: bool, json: bool) -> int:
    """Print each value and where it was set; without ``effective`` only what the file says."""
    file = config or found_here()
    loaded = load_config(file) if file else HostConfig()
    lines = [one for one in explained(loaded, file) if effective or one.source != "default"]
    if json:
        print(msgspec.json.encode(lines).decode())
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
