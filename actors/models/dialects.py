"""JSON Schemas as providers take them for answers: each enforces a part of the language. Pure.

What a provider does not know is left out of the schema and told in the description of its place,
for the model to follow; the run checks the answer against all of the schema in any case. A schema
that would mean something else then, such as an object of any names, is not put into a dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import attrs
import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.models import ModelEvent, ModelFailure

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
    """What a provider takes.

    Attributes:
        keywords: those it enforces beside the structure.
        all_required: it has no optional properties; one that may be null is required instead.
        references: whether it knows them, and so schemas that refer to themselves.
        depth: of objects in objects.
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


class _Beyond(Exception):
    """The schema says what the dialect has no words for."""


def translated(schema: JsonObject, dialect: Dialect) -> JsonObject | None:
    """The schema in a dialect; None when that would let other answers through or none at all."""
    if "$defs" in schema and not dialect.references:
        return None
    try:
        return _Translation(dialect).node(schema, 0)
    except _Beyond:
        return None


@attrs.frozen
class _Translation:
    dialect: Dialect

    def node(self, schema: JsonObject, depth: int) -> JsonObject:
        if depth > self.dialect.depth:
            raise _Beyond
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
        """The keywords that are kept as they are, and those that become words."""
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
                raise _Beyond
        return made, notes

    def _typed(self, schema: JsonObject, depth: int) -> JsonObject:
        kind = schema.get("type")
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                items = schema.get("items")
                if not isinstance(items, dict) or not items:
                    raise _Beyond
                return {"type": kind, "items": self.node(cast(JsonObject, items), depth)}
            case str():
                return {"type": kind}
            case _:
                raise _Beyond

    def _object(self, schema: JsonObject, depth: int) -> JsonObject:
        properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
        if not properties or schema.get("additionalProperties", False) is not False:
            raise _Beyond
        required = cast("list[str]", schema.get("required", []))
        if self.dialect.all_required:
            if any(name not in required and not _nullable(properties[name]) for name in properties):
                raise _Beyond
            required = list(properties)
        made = {name: self.node(part, depth + 1) for name, part in properties.items()}
        return {
            "type": "object",
            "properties": made,
            "required": required,
            "additionalProperties": False,
        }


def _values(schema: JsonObject) -> JsonObject:
    """A choice of values, with their types: some providers want them."""
    values = [schema["const"]] if "const" in schema else cast("list[object]", schema["enum"])
    kinds = ["null" if value is None else _TYPES.get(type(value), "") for value in values]
    if not all(kinds):
        raise _Beyond
    unique = list(dict.fromkeys(kinds))
    return {"type": unique[0] if len(unique) == 1 else unique, "enum": values}


def _nullable(schema: JsonObject) -> bool:
    choices = schema.get("anyOf", schema.get("oneOf", []))
    if schema.get("type") == "null" or None in cast("list[object]", schema.get("enum", [])):
        return True
    return any(_nullable(one) for one in cast("list[JsonObject]", choices))


# What the wire formats of all providers share: pure helpers and the shape of a reader.


class Reader(Protocol):
    """Turns one stream's chunks into events; knows nothing of connections."""

    @property
    def complete(self) -> bool:
        """Whether the provider has said how the answer ends."""
        ...

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        """The events in one chunk. Raises ``msgspec.ValidationError`` for what it can't read."""
        ...

    def close(self) -> Iterable[ModelEvent]:
        """The events that are known only at the end of the stream, ``Finished`` last.

        Raises :class:`ModelFailure` ``cut`` when the stream ended too early.
        """
        ...


def cut() -> ModelFailure:
    """The failure of a stream that ended without saying how the answer ends."""
    return ModelFailure("the stream ended in the middle of the answer", kind="cut")


def arguments_object(text: str) -> JsonObject:
    """The arguments as an object, also when the model wrote something else.

    A transcript keeps what the model wrote, but servers refuse a whole request for one call
    whose arguments are no object, and would do so on every later turn.
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
