"""JSON Schema: all problems of a value with their paths, and schemas without references. Pure.

msgspec reads values and stops at the first problem; a model should correct all of them at once.
Laws: a valid value has no problems; keywords that are not known here are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import TypeAlias, cast
from uuid import UUID

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.errors import listing, nearest

Problems: TypeAlias = Iterator[str]

FRAGMENT_CHARS = 300
DEPTH = 32
"""The depth to which a value is checked: a schema may refer to itself."""

_BESIDE_THE_TYPE = ("title", "description", "default", "examples", "$defs")
_KINDS: Mapping[type, str] = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number",
}  # fmt: skip
_LAX: Mapping[str, object] = {"integer": int, "number": float, "boolean": bool, "null": None}
_FORMATS: Mapping[str, type] = {
    "date": date, "date-time": datetime, "time": time, "duration": timedelta, "uuid": UUID,
}  # fmt: skip
_BOUNDS: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    "minimum": (lambda a, b: a >= b, "at least"),
    "maximum": (lambda a, b: a <= b, "at most"),
    "exclusiveMinimum": (lambda a, b: a > b, "above"),
    "exclusiveMaximum": (lambda a, b: a < b, "below"),
}
_SIZES: Mapping[str, tuple[type, str, str]] = {
    "minLength": (str, "minimum", "characters"),
    "maxLength": (str, "maximum", "characters"),
    "minItems": (list, "minimum", "items"),
    "maxItems": (list, "maximum", "items"),
    "minProperties": (dict, "minimum", "entries"),
    "maxProperties": (dict, "maximum", "entries"),
}


def problems(value: object, schema: JsonObject, path: str = "") -> tuple[str, ...]:
    """The problems of a value, one line each. ``path``: of the value itself."""
    defs = cast("dict[str, JsonObject]", schema.get("$defs", {}))
    return tuple(_Check(defs).value(value, schema, path, DEPTH))


def fragment(schema: JsonObject) -> str:
    """A schema without its descriptions, cut to one line."""
    kept = {key: part for key, part in schema.items() if key not in _BESIDE_THE_TYPE}
    text = json.dumps(kept, ensure_ascii=False, default=str)
    return text if len(text) <= FRAGMENT_CHARS else text[: FRAGMENT_CHARS - 3] + "..."


def kind_of(value: object) -> str:
    """The JSON name of a decoded value's type."""
    return "null" if value is None else _KINDS.get(type(value), "value")


class _Check:
    def __init__(self, defs: Mapping[str, JsonObject]) -> None:
        self._defs = defs

    def value(self, value: object, schema: JsonObject, path: str, depth: int) -> Problems:
        schema = self._resolved(schema)
        if depth == 0:
            return
        for part in _schemas(schema.get("allOf")):
            yield from self.value(value, part, path, depth - 1)
        for word in ("anyOf", "oneOf"):
            if choices := _schemas(schema.get(word)):
                yield from self._choice(value, choices, path, depth)
        if (wrong := _wrong_type(value, schema)) or (wrong := _wrong_choice(value, schema)):
            yield f"{path or 'the answer'}: {wrong}; expected {fragment(schema)}"
            return
        for wrong in (*_beyond_bounds(value, schema), *_mismatch(value, schema)):
            yield f"{path or 'the answer'}: {wrong}; expected {fragment(schema)}"
        if isinstance(value, dict):
            yield from self._object(cast(JsonObject, value), schema, path, depth)
        elif isinstance(value, list):
            yield from self._array(cast("list[object]", value), schema, path, depth)

    def _resolved(self, schema: JsonObject) -> JsonObject:
        """The schema with a top-level reference replaced; one to itself allows anything."""
        for _ in range(DEPTH):
            name = schema.get("$ref")
            if not isinstance(name, str):
                return schema
            rest = {key: part for key, part in schema.items() if key != "$ref"}
            schema = {**self._defs.get(name.rpartition("/")[2], {}), **rest}
        return {}

    def _choice(self, value: object, choices: list[JsonObject], path: str, depth: int) -> Problems:
        """No problems if one choice fits; else those of the nearest choice."""
        found = [list(self.value(value, choice, path, depth - 1)) for choice in choices]
        if not all(found):
            return
        resolved = [self._resolved(choice) for choice in choices]
        likely = [
            one
            for one, choice in zip(found, resolved, strict=True)
            if not _wrong_type(value, choice) and kind_of(value) in ("object", "array")
        ]
        if likely:
            yield from min(likely, key=len)
        else:
            every = " or ".join(fragment(choice) for choice in resolved)[: 2 * FRAGMENT_CHARS]
            yield f"{path or 'the answer'}: {_shown(value)} fits none of {every}"

    def _object(self, value: JsonObject, schema: JsonObject, path: str, depth: int) -> Problems:
        properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
        for name in cast("list[str]", schema.get("required", [])):
            if name not in value:
                wanted = fragment(self._resolved(properties.get(name, {})))
                yield f"{_below(path, name)}: is missing; expected {wanted}"
        others = schema.get("additionalProperties", True)
        for name, part in value.items():
            if name in properties:
                yield from self.value(part, properties[name], _below(path, name), depth - 1)
            elif others is False:
                guess = nearest(name, list(properties))
                known = f"did you mean {guess!r}?" if guess else f"known: {listing([*properties])}"
                yield f"{_below(path, name)}: there is no such name; {known}"
            elif isinstance(others, dict):
                rest = cast(JsonObject, others)
                yield from self.value(part, rest, _below(path, name), depth - 1)

    def _array(self, value: list[object], schema: JsonObject, path: str, depth: int) -> Problems:
        first = _schemas(schema.get("prefixItems"))
        rest = schema.get("items")
        for index, item in enumerate(value):
            if index < len(first):
                yield from self.value(item, first[index], f"{path}[{index}]", depth - 1)
            elif isinstance(rest, dict):
                yield from self.value(item, cast(JsonObject, rest), f"{path}[{index}]", depth - 1)


def _schemas(parts: object) -> list[JsonObject]:
    return cast("list[JsonObject]", parts) if isinstance(parts, list) else []


def _below(path: str, name: str) -> str:
    if not name.isidentifier():
        return f"{path}[{_shown(name)}]"
    return f"{path}.{name}" if path else name


def _wrong_type(value: object, schema: JsonObject) -> str:
    kinds = schema.get("type")
    wanted = cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]
    if kinds is None or any(_is(value, str(kind)) for kind in wanted):
        return ""
    return f"{_shown(value)} is of type {kind_of(value)}"


def _is(value: object, kind: str) -> bool:
    """Whether a value is of a type, or is accepted as one, like ``"5"`` for 5."""
    if kind == kind_of(value) or (kind == "number" and kind_of(value) == "integer"):
        return True
    if kind not in _LAX or isinstance(value, bool | dict | list):
        return False
    try:
        msgspec.convert(value, _LAX[kind], strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _wrong_choice(value: object, schema: JsonObject) -> str:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(choices, list):
        return ""
    known = cast("list[object]", choices)
    # Types are compared since 1 == True; "1" is accepted where a number is expected.
    same = any(type(one) is type(value) and one == value for one in known)
    lax = isinstance(value, str) and value in [str(one) for one in known]
    return "" if same or lax else f"{_shown(value)} is none of the values there are"


def _beyond_bounds(value: object, schema: JsonObject) -> Problems:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for word, (holds, name) in _BOUNDS.items():
            bound = schema.get(word)
            if isinstance(bound, int | float) and not holds(value, bound):
                yield f"{value} is not {name} {bound}"
    for word, (kind, side, unit) in _SIZES.items():
        bound = schema.get(word)
        if isinstance(value, kind) and isinstance(bound, int):
            size = len(cast("list[object]", value))
            holds, name = _BOUNDS[side]
            if not holds(size, bound):
                yield f"it has {size} {unit}, not {name} {bound}"


def _mismatch(value: object, schema: JsonObject) -> Problems:
    if not isinstance(value, str):
        return
    kind = _FORMATS.get(str(schema.get("format")))
    if kind is not None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            yield f"{_shown(value)}: {error}"
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        try:
            found = re.search(pattern, value)
        except re.error:
            return  # a pattern of another dialect than Python's
        if found is None:
            yield f"{_shown(value)} does not match the pattern"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def inlined(schema: JsonObject, defs: Mapping[str, JsonObject]) -> JsonObject | None:
    """The schema with its references replaced by ``defs``; None if it refers to itself."""
    try:
        return cast(JsonObject, _replaced(schema, defs, ()))  # an object stays an object
    except RecursionError:
        return None


def _replaced(node: object, defs: Mapping[str, JsonObject], inside: tuple[str, ...]) -> object:
    if isinstance(node, list):
        return [_replaced(item, defs, inside) for item in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast(JsonObject, node)
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        if "anyOf" in schema:
            # A discriminator maps to definitions, which are gone.
            schema = {key: value for key, value in schema.items() if key != "discriminator"}
        return {key: _replaced(value, defs, inside) for key, value in schema.items()}
    name = reference.rpartition("/")[2]
    if name in inside:
        raise RecursionError(name)
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return _replaced({**defs[name], **rest}, defs, (*inside, name))
