"""A check for tools that come with a JSON Schema and no Python types, an MCP server's for one.

Invariant: a schema is never refused; what its simple types do not say is let through, and the
tool itself judges it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Union, cast

import msgspec

from motet.actors.tools.arguments import Arguments, Parameter
from motet.protocols.chat import JsonObject


def from_schema(schema: JsonObject) -> Arguments:
    """A check for a foreign schema; what its simple types do not say is let through."""
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    names = cast("list[object]", required) if isinstance(required, list) else []
    parameters = {
        name: Parameter(name, _supported(_mapping(part)), _mapping(part), name in names)
        for name, part in properties.items()
    }
    return Arguments(parameters, closed=schema.get("additionalProperties") is False)


def _mapping(value: object) -> JsonObject:
    return cast(JsonObject, value) if isinstance(value, dict) else {}  # decoded JSON


def _supported(schema: JsonObject) -> object:
    kind = _type_of(schema)
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError):
        return object
    return kind


def _type_of(schema: JsonObject) -> object:
    choices = schema.get("enum")
    if isinstance(choices, list):
        return _literal(cast("list[object]", choices))
    kinds = schema.get("type")
    if isinstance(kinds, list):
        members = tuple(_simple(str(kind), schema) for kind in cast("list[object]", kinds))
        return Union[members] if members else object  # noqa: UP007  made at run time
    return _simple(str(kinds), schema)


def _literal(choices: Sequence[object]) -> object:
    plain = choices and all(type(choice) in (str, int) for choice in choices)
    return Literal[tuple(choices)] if plain else object


def _simple(kind: str, schema: JsonObject) -> object:
    match kind:
        case "string":
            return _limited(str, schema, min_length="minLength", max_length="maxLength")
        case "integer":
            return _limited(int, schema, ge="minimum", le="maximum")
        case "number":
            return _limited(float, schema, ge="minimum", le="maximum")
        case "array":
            items = _supported(_mapping(schema.get("items")))
            return _limited(_list_of(items), schema, min_length="minItems", max_length="maxItems")
        case "boolean":
            return bool
        case "object":
            return dict[str, object]
        case "null":
            return None
        case _:
            return object


def _list_of(items: object) -> object:
    return list[items]  # type: ignore[valid-type]  # made at run time


def _limited(kind: object, schema: JsonObject, **keys: str) -> object:
    limits = {name: schema[key] for name, key in keys.items() if _is_number(schema.get(key))}
    pattern = schema.get("pattern")
    if kind is str and isinstance(pattern, str) and _is_pattern(pattern):
        limits["pattern"] = pattern
    if not limits:
        return kind
    limit = cast("Callable[..., msgspec.Meta]", msgspec.Meta)  # the keys are known at run time
    return Annotated[kind, limit(**limits)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
