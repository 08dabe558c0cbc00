"""Agents and rooms of ``motet.toml`` as names: ``from motet.testing.configured import helper``.

So a case file or a test can name its subject, although no module defines it.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from motet.actors.hosting.config import CONFIG_FILE, build_agents, load_config
from motet.actors.rooms.opening import configured_room
from motet.protocols.config import HostConfig
from motet.protocols.errors import UnknownName
from motet.testing.stories.target import Subject

__all__ = ["configured"]


def configured(name: str, file: Path | None = None) -> Subject:
    """The agent or room of that name. Raises ``UnknownName``, ``ConfigError``.

    ``file``: the configuration; None: ``motet.toml`` in this folder, else the defaults.
    """
    here = Path(CONFIG_FILE)
    file = file or (here if here.is_file() else None)
    config = load_config(file) if file else HostConfig()
    root = file.absolute().parent if file else Path.cwd()
    built = build_agents(config, source=file.name if file else "", root=root)
    agents = {agent.name: agent for agent in built}
    if name in agents:
        return agents[name]
    if name not in config.rooms:
        raise UnknownName("agent or room", name, (*agents, *config.rooms))
    room = configured_room(name, config.rooms[name])
    members = [attrs.evolve(member, agent=agents[member.name]) for member in room.members]
    return attrs.evolve(room, members=members)


def __getattr__(name: str) -> Subject:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return configured(name)
    except UnknownName as error:
        raise AttributeError(str(error)) from None
