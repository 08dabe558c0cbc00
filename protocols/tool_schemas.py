"""Schemas of tools as providers of models take them, and names that they take. Pure.

A provider refuses a whole request for one property of one tool whose name it does not take. Such a
name is replaced wherever it stands, and arguments come back under the true one. Law: in a fitted
schema every property has a name of the provider's pattern, no two names fall together, and renaming
arguments there and back changes no character of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import count
from types import MappingProxyType
from typing import TypeAlias, cast
from urllib.parse import unquote

import attrs
import msgspec

from motet.protocols.chat import JsonObject, json_object
from motet.protocols.tools import ToolSpec

MOST_TOOLS: Mapping[str, int] = {"openai": 128, "google": 512, "pydantic_ai": 128}
"""Tools that the providers take in a request, where there is a limit."""

Names: TypeAlias = Mapping[str, str]
NO_NAMES: Names = MappingProxyType({})

_BY_NAME = frozenset({"properties", "dependentSchemas"})
_BY_KEY = frozenset({"patternProperties", "$defs", "definitions"})
_ONE = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_DATA = frozenset({"const", "default", "enum", "examples"})
_KEY = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?', re.DOTALL)


def within(specs: tuple[ToolSpec, ...], most: int, later: str) -> tuple[ToolSpec, ...]:
    """The first tools of a request that takes so many; the prefix ``later`` goes out first."""
    first = sorted(specs, key=lambda spec: spec.name.startswith(later))
    kept = {spec.name for spec in first[:most]}
    return tuple(spec for spec in specs if spec.name in kept)


def fitting_names(names: Iterable[str], pattern: str) -> dict[str, str]:
    """A name for each of these. One that fits stays; no two share one."""
    unique = list(dict.fromkeys(names))
    given = {name: name for name in unique if re.fullmatch(pattern, name)}
    taken = set(given)
    for name in unique:
        if name not in given:
            fit = next(one for one in fits(name, "unnamed", pattern) if one not in taken)
            taken.add(fit)
            given[name] = fit
    return given


def fits(text: str, empty: str, pattern: str) -> Iterator[str]:
    """Texts that fit ``pattern``, the likest first, without end."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", text) or empty
    led = safe if re.match("[A-Za-z_]", safe) else f"_{safe}"
    # Room for a number within 40 characters, the shortest length of a pattern that takes one.
    short = led[:36]
    yield from (one for one in (text, safe, led, short) if re.fullmatch(pattern, one))
    for number in count(2):
        digest = sha256(f"{number}:{text}".encode(errors="replace")).hexdigest()
        near = (f"{led}_{number}", f"{short}_{number}", digest[:9])
        yield next(one for one in near if re.fullmatch(pattern, one))


@attrs.frozen
class _Text:
    """A schema by its text, which is hashable."""

    text: bytes
    schema: JsonObject = attrs.field(eq=False)


def fitted(schema: JsonObject, pattern: str) -> tuple[JsonObject, Names]:
    """The schema with names of properties that fit a pattern; and those, by the true ones."""
    try:
        return _fitted(_Text(msgspec.json.encode(schema), schema), pattern)
    except UnicodeEncodeError:  # half of a surrogate pair
        return _fit(schema, pattern)


def _fit(schema: JsonObject, pattern: str) -> tuple[JsonObject, Names]:
    known = dict.fromkeys(_property_names(schema))
    taken, names = set(known), dict[str, str]()
    for name in known:
        if not re.fullmatch(pattern, name):
            names[name] = next(one for one in _likely(name) if one not in taken)
            taken.add(names[name])
    return _Fitting(names).node(schema), names


@lru_cache(maxsize=1_024)
def _fitted(schema: _Text, pattern: str) -> tuple[JsonObject, Names]:
    return _fit(schema.schema, pattern)


def _likely(name: str) -> Iterator[str]:
    """Names that fit every provider's pattern, and stand in no text by chance."""
    safe = re.sub("[^A-Za-z0-9_]", "_", name)[:40]
    for number in count():
        digest = sha256(f"{number}:{name}".encode(errors="replace")).hexdigest()[:8]
        yield f"{'' if re.match('[A-Za-z_]', safe) else '_'}{safe}_{digest}"


def _property_names(schema: object) -> Iterator[str]:
    for word, part in _items(schema):
        if word in _BY_NAME or word == "dependentRequired":
            yield from map(str, json_object(part))
        if word == "required":
            yield from (name for name in _listed(part) if isinstance(name, str))
        for one in _below(word, part):
            yield from _property_names(one)


def _below(word: str, part: object) -> list[object]:
    """The schemas in the value of a keyword."""
    if word in _BY_NAME or word in _BY_KEY:
        return list(json_object(part).values())
    if word in _SEVERAL:
        return [*_listed(part), part]
    return [part] if word in _ONE else []


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _items(schema: object) -> list[tuple[str, object]]:
    return list(json_object(schema).items())


@attrs.frozen
class _Fitting:
    """Schemas with other names of properties, and nothing that no request can hold."""

    names: Names

    def node(self, schema: object) -> JsonObject:
        if schema is False:
            return {"not": {}}
        made: JsonObject = {}
        for word, part in _items(schema):
            if word == "propertyNames" and self.names:
                continue  # a rule for the true names
            made[_plain(word)] = self._part(word, part)
        kinds = made.get("type")
        kinds = cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]
        if "array" in kinds and not {"items", "prefixItems"} & made.keys():
            made["items"] = {}  # which some providers require
        return made

    def _part(self, word: str, part: object) -> object:
        if word in _BY_NAME:
            return {self._name(name): self._property(name, one) for name, one in _items(part)}
        if word in _BY_KEY:
            return {_plain(name): self.node(one) for name, one in _items(part)}
        if word in _SEVERAL and isinstance(part, list):
            return [self.node(one) for one in cast("list[object]", part)]
        if word in _ONE and isinstance(part, dict):
            return self.node(cast(object, part))
        if word == "required" and isinstance(part, list):
            return [self._name(str(name)) for name in cast("list[object]", part)]
        if word == "dependentRequired":
            return {self._name(name): self._part("required", one) for name, one in _items(part)}
        if word == "$ref" and isinstance(part, str):
            return self._pointer(part)
        return self._data(part, named=word in _DATA)

    def _property(self, name: str, schema: object) -> JsonObject:
        made = self.node(schema)
        if name in self.names:
            said = made.get("description")
            note = f"(named {json.dumps(_plain(name), ensure_ascii=False)})"
            made["description"] = f"{said} {note}" if isinstance(said, str) and said else note
        return made

    def _name(self, name: str) -> str:
        return self.names.get(name, name)

    def _pointer(self, reference: str) -> str:
        """A reference into the schema, whose path may lead through properties."""
        path, sharp, place = reference.partition("#")
        words = place.split("/")
        for at, word in enumerate(words):
            name = _unescaped(word)
            if at and words[at - 1] in _BY_NAME and name in self.names:
                words[at] = self.names[name]
        return _plain(f"{path}{sharp}{'/'.join(words)}")

    def _data(self, value: object, *, named: bool) -> object:
        match value:
            case str():
                return _plain(value)
            case float() if not math.isfinite(value):
                return None
            case list():
                return [self._data(one, named=named) for one in cast("list[object]", value)]
            case dict():
                return {
                    _plain(self._name(key) if named else key): self._data(one, named=named)
                    for key, one in _items(cast(object, value))
                }
            case _:
                return value


def _unescaped(word: str) -> str:
    return unquote(word).replace("~1", "/").replace("~0", "~")


def _plain(text: str) -> str:
    """The text without what servers cannot store."""
    return text if text.isascii() and "\0" not in text else _replaced(text)


def _replaced(text: str) -> str:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def with_keys(text: str, names: Names) -> str:
    """JSON with other keys, at every depth. Everything else stays as it is written."""

    def key(found: re.Match[str]) -> str:
        word, colon = found[1], found[2]
        if colon is None:
            return word
        try:
            other = names.get(str(json.loads(word, strict=False)))
        except ValueError:
            return found[0]
        return found[0] if other is None else json.dumps(other, ensure_ascii=True) + colon

    return _KEY.sub(key, text) if names else text


def object_schema(tool: ToolSpec) -> JsonObject:
    """The schema of a tool's arguments as providers accept it: an object, not an alternative.

    The host checks the arguments against the whole schema anyway.
    """
    kept = {key: value for key, value in tool.parameters.items() if key not in _REFUSED}
    return {**kept, "type": "object", "properties": json_object(kept.get("properties"))}


_REFUSED = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const"})
"""Keywords that providers refuse at the top of a tool's schema."""
