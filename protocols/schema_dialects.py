"""Dialects of JSON Schema, of which each model provider enforces a part. Pure.

A keyword outside of that part moves into the description, for the model to follow; the run checks
the answer against the whole schema anyway. A schema that would mean something else without the
keyword, such as an object with arbitrary names, is not translated at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs

from motet.protocols.chat import JsonObject, json_object

_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_DROPPED = frozenset({"default", "examples", "discriminator", "title"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_STRUCTURE = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf", "enum"}
    | {"const", "description", "$ref", "$defs"}
)


@attrs.frozen
class Dialect:
    """The part of JSON Schema that a provider accepts.

    Attributes:
        keywords: enforced in addition to the structure.
        all_required: optional properties do not exist; one that may be null is required instead.
        references: ``$ref`` is allowed, and with it recursive schemas.
        depth: how deep objects may be nested.
    """

    keywords: frozenset[str]
    all_required: bool = False
    references: bool = False
    depth: int = 10


OPENAI = Dialect(
    frozenset(
        {"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
        | {"multipleOf", "minItems", "maxItems"}
    ),
    all_required=True,
    references=True,
)
ANTHROPIC = Dialect(frozenset({"format"}), depth=32)


class _Untranslatable(Exception):
    """The dialect cannot express the schema."""


def translated(schema: JsonObject, dialect: Dialect) -> JsonObject | None:
    """The schema in a dialect; None when a translation would change the set of valid answers."""
    if "$defs" in schema and not dialect.references:
        return None
    try:
        return _Translation(dialect).node(schema, 0)
    except _Untranslatable:
        return None


@attrs.frozen
class _Translation:
    dialect: Dialect

    def node(self, schema: object, depth: int) -> JsonObject:
        if depth > self.dialect.depth or not isinstance(schema, dict):
            raise _Untranslatable  # ``true`` and ``false`` are schemas too
        return self._object_node(cast(JsonObject, schema), depth)

    def _object_node(self, schema: JsonObject, depth: int) -> JsonObject:
        if isinstance(schema.get("$ref"), str):
            return {"$ref": schema["$ref"]}
        made, notes = self._words(schema)
        if "enum" in schema or "const" in schema:
            made |= _values(schema)
        elif choices := schema.get("anyOf", schema.get("oneOf")):
            made["anyOf"] = [self.node(one, depth) for one in cast("list[JsonObject]", choices)]
        else:
            made |= self._typed(schema, depth)
        described = [cast(str, schema["description"])] if "description" in schema else []
        if notes:
            described.append(f"({', '.join(notes)})")
        if described:
            made["description"] = " ".join(described)
        if "$defs" in schema:
            defs = json_object(schema["$defs"])
            made["$defs"] = {name: self.node(part, depth) for name, part in defs.items()}
        return made

    def _words(self, schema: JsonObject) -> tuple[JsonObject, list[str]]:
        """The keywords to keep, and those to move into the description."""
        made: JsonObject = {}
        notes: list[str] = []
        for word, value in schema.items():
            if word in _STRUCTURE or word in _DROPPED:
                continue
            known = word in self.dialect.keywords and (word != "format" or value in _FORMATS)
            if known and not (word == "pattern" and "(?" in str(value)):
                made[word] = value
            elif isinstance(value, str | int | float):
                notes.append(f"{word}: {value}")
            else:
                raise _Untranslatable
        return made, notes

    def _typed(self, schema: JsonObject, depth: int) -> JsonObject:
        kind = schema.get("type")
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                items = schema.get("items")
                if not isinstance(items, dict) or not items:
                    raise _Untranslatable
                return {"type": kind, "items": self.node(cast(JsonObject, items), depth)}
            case str():
                return {"type": kind}
            case _:
                raise _Untranslatable

    def _object(self, schema: JsonObject, depth: int) -> JsonObject:
        properties = json_object(schema.get("properties"))
        if not properties or schema.get("additionalProperties", False) is not False:
            raise _Untranslatable
        required = cast("list[str]", schema.get("required", []))
        if self.dialect.all_required:
            if any(name not in required and not _nullable(properties[name]) for name in properties):
                raise _Untranslatable
            required = list(properties)
        made = {name: self.node(part, depth + 1) for name, part in properties.items()}
        return {
            "type": "object",
            "properties": made,
            "required": required,
            "additionalProperties": False,
        }


def _values(schema: JsonObject) -> JsonObject:
    """An ``enum`` with the types of its values, which some providers require."""
    values = [schema["const"]] if "const" in schema else cast("list[object]", schema["enum"])
    kinds = ["null" if value is None else _TYPES.get(type(value), "") for value in values]
    if not all(kinds):
        raise _Untranslatable
    unique = list(dict.fromkeys(kinds))
    return {"type": unique[0] if len(unique) == 1 else unique, "enum": values}


def _nullable(schema: object) -> bool:
    if not isinstance(schema, dict):
        return False
    schema = cast(JsonObject, schema)
    choices = schema.get("anyOf", schema.get("oneOf", []))
    if schema.get("type") == "null" or None in cast("list[object]", schema.get("enum", [])):
        return True
    return any(_nullable(one) for one in cast("list[object]", choices))
