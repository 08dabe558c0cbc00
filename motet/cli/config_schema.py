"""Descriptions of a configuration: its JSON Schema, and the source of each value.

Invariant: the schema accepts everything that the classes accept; it may accept more, such as
numbers out of range. Everything is pure, but for reading the file.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

import attrs
import msgspec

from motet.actors.hosting.config import REFERENCE, read_data
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.config_changes import view_of

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Final[Mapping[object, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}
_ATTRIBUTE = re.compile(r"^ {4}(\w+)(?: and (\w+))?: ", re.M)


def schema() -> JsonObject:
    """The schema of ``motet.toml``."""
    definitions: dict[str, object] = {}
    top = _class(HostConfig, definitions)
    return {"$schema": DRAFT, "title": "motet.toml", "$defs": definitions} | top


def _class(cls: type, definitions: dict[str, object]) -> JsonObject:
    kinds, about = get_type_hints(cls), _attributes(cls)
    fields = _attrs_fields(cls) if attrs.has(cls) else _struct_fields(cls)
    properties = {
        name: _kind(kinds[name], definitions) | _described(about.get(name), default)
        for name, default in fields.items()
    }
    for name in _durations(cls, kinds):
        properties[name]["type"] = ["number", "string"]
    required = [name for name, default in fields.items() if default is attrs.NOTHING]
    whole: JsonObject = {
        "type": "object",
        "description": _first(cls),
        "properties": properties,
        "additionalProperties": False,
    }
    return whole | ({"required": required} if required else {})


def _kind(kind: object, definitions: dict[str, object]) -> JsonObject:
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if isinstance(kind, type) and (attrs.has(kind) or issubclass(kind, msgspec.Struct)):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # the class may refer to itself
            definitions[kind.__name__] = _class(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _kind(inner[0], definitions)}
    if origin in (Union, UnionType):
        members = [_kind(one, definitions) for one in inner if one is not NoneType]
        return members[0] if len(members) == 1 else {"anyOf": members}
    assert issubclass(cast("type", origin), Mapping), kind
    return {"type": "object", "additionalProperties": _kind(inner[1], definitions)}


def _described(text: str | None, default: object) -> JsonObject:
    described: JsonObject = {} if text is None else {"description": text}
    if isinstance(default, bool | int | float | str):
        described["default"] = default
    return described


def _attrs_fields(cls: type) -> dict[str, object]:
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)
    return {field.name: field.default for field in fields}


def _durations(cls: type, kinds: Mapping[str, object]) -> list[str]:
    """The fields that take ``30s`` as well as 30."""
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls) if attrs.has(cls) else ()
    # The stubs of attrs do not give the types of a converter.
    converted = {one.name: cast("object", one.converter) for one in fields}  # pyright: ignore[reportUnknownMemberType]
    return [name for name, by in converted.items() if by is not None and kinds[name] is float]


def _struct_fields(cls: type[msgspec.Struct]) -> dict[str, object]:
    return {
        field.name: attrs.NOTHING if field.required else field.default
        for field in msgspec.structs.fields(cls)
    }


def _first(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _attributes(cls: type) -> dict[str, str]:
    """The description of each field in the docstring, below ``Attributes:``."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    section = section.partition("\n\n")[0]
    places = [*_ATTRIBUTE.finditer(section)]
    ends = [*(place.start() for place in places[1:]), len(section)]
    return {
        name: " ".join(section[place.end() : end].split())
        for place, end in zip(places, ends, strict=False)
        for name in place.groups()
        if name
    }


# The source of each value

DEFAULT = "default"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class Line(msgspec.Struct, frozen=True):
    """One value. ``source``: ``default``, or the file, with the reference that it resolves."""

    key: str
    value: object
    source: str

    @property
    def text(self) -> str:
        """The value as JSON, which is TOML, too, for all values but tables."""
        return msgspec.json.encode(self.value).decode()


def sources(config: HostConfig, file: Path | None) -> tuple[Line, ...]:
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
