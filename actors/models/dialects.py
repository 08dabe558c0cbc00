"""Wire formats of providers: helpers that all share, and their dialects of JSON Schema. Pure.

Each provider enforces a part of JSON Schema. A keyword outside of that part moves into the
description, for the model to follow; the run checks the answer against the whole schema anyway. A
schema that would mean something else without the keyword, such as an object with arbitrary names,
is not translated at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import attrs
import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.models import (
    Finished,
    ModelEvent,
    ModelFailure,
    StopReason,
    Usage,
    UsageReport,
)

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

    def node(self, schema: JsonObject, depth: int) -> JsonObject:
        if depth > self.dialect.depth:
            raise _Untranslatable
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
            defs = cast("dict[str, JsonObject]", schema["$defs"])
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
        properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
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


def _nullable(schema: JsonObject) -> bool:
    choices = schema.get("anyOf", schema.get("oneOf", []))
    if schema.get("type") == "null" or None in cast("list[object]", schema.get("enum", [])):
        return True
    return any(_nullable(one) for one in cast("list[JsonObject]", choices))


class Reader(Protocol):
    """Turns one stream's chunks into events; knows nothing of connections."""

    @property
    def complete(self) -> bool:
        """The provider has sent the reason for the end of the answer."""
        ...

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        """The events in one chunk. Raises ``msgspec.ValidationError`` for an unreadable one."""
        ...

    def close(self) -> Iterable[ModelEvent]:
        """The last events, known only at the end of the stream; ``Finished`` is the last.

        Raises :class:`ModelFailure` ``cut`` when the stream ended too early.
        """
        ...


def last_events(reason: StopReason | None, usage: Usage | None) -> Iterable[ModelEvent]:
    """The events that end an answer. Raises :class:`ModelFailure` ``cut`` without a ``reason``."""
    if reason is None:
        raise ModelFailure("the stream ended in the middle of the answer", kind="cut")
    return (Finished(reason),) if usage is None else (UsageReport(usage), Finished(reason))


def arguments_object(text: str) -> JsonObject:
    """The arguments of a call as an object, even if the model wrote something else.

    The transcript keeps the model's own text, but a server would refuse every later request for
    one call whose arguments are not an object.
    """
    try:
        return msgspec.json.decode(text, type=JsonObject)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {"invalid_arguments": text.encode(errors="replace").decode()}


def json_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    # The cast holds since a JSON decoder made the value, so that its keys are strings.
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def wire_model(requested: str, own: str, provider: str) -> str:
    """The name a provider knows its model by; the request's wins over the adapter's own."""
    return requested.removeprefix(f"{provider}:") or own
