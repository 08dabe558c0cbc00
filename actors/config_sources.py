"""Where each value of a configuration was set. Pure, but for reading the file.

Invariant: secrets are left out, as in :mod:`motet.actors.config_view`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec

from motet.actors.config import REFERENCE, read_data
from motet.actors.config_view import view_of
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig

DEFAULT = "default"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class Line(msgspec.Struct, frozen=True):
    """One value. ``source``: ``default``, or the file and what it takes it from."""

    key: str
    value: object
    source: str

    @property
    def text(self) -> str:
        """The value as JSON, which for values that are no tables is TOML, too."""
        return msgspec.json.encode(self.value).decode()


def explained(config: HostConfig, file: Path | None) -> tuple[Line, ...]:
    """Every value of a configuration that was read from ``file``. Raises ``ConfigError``."""
    said = read_data(file) if file else {}
    name = file.name if file else ""
    found = _leaves(view_of(config).config, ())
    return tuple(Line(_key(path), value, _source(said, path, name)) for path, value in found)


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping) and value:
        for key, item in cast("Mapping[str, object]", value).items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _key(path: tuple[str, ...]) -> str:
    return ".".join(part if _PLAIN.fullmatch(part) else f'"{part}"' for part in path)


def _source(said: JsonObject, path: tuple[str, ...], file: str) -> str:
    found, value = _at(said, path)
    if found:
        return _taken_from(value, file)
    if len(path) == 4 and (path[0], path[2]) == ("agents", "limits"):
        found, value = _at(said, ("limits", path[3]))
        if found:
            return f"{_taken_from(value, file)}, limits"
    return DEFAULT


def _at(said: object, path: tuple[str, ...]) -> tuple[bool, object]:
    for part in path:
        if not isinstance(said, Mapping) or part not in said:
            return False, None
        said = cast("Mapping[str, object]", said)[part]
    return True, said


def _taken_from(value: object, file: str) -> str:
    if isinstance(value, str):
        if value.startswith("file:"):
            return f"{file}, from {value}"
        names = [found[2] for found in REFERENCE.finditer(value) if not found[1]]
        if names:
            return f"{file}, from the environment: {', '.join(names)}"
    return file
