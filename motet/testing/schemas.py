"""Arguments for a tool, drawn from its JSON Schema: valid, or with exactly one defect.

Laws: :func:`arguments` matches the schema; :func:`near_arguments` does not, and differs from valid
arguments in one place only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from math import isinf
from typing import Literal, TypeAlias, cast

import attrs

from motet.protocols.chat import JsonObject, json_object
from motet.protocols.json_schema import problems
from motet.protocols.schema_values import Pick, filled, resolved, schemas
from motet.testing.models import TEXT

Defect: TypeAlias = Literal["wrong_type", "missing_field", "extra_field", "out_of_range"]
DEFECTS: tuple[Defect, ...] = ("wrong_type", "missing_field", "extra_field", "out_of_range")

Path: TypeAlias = tuple[str | int, ...]

_OF_ANOTHER_TYPE: Sequence[object] = (None, "five", 7, 1.5, True, [], {}, [1], {"a": 1})
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MOST = 10_000
"""The largest generated text or list that exceeds a limit."""


def arguments(schema: JsonObject, pick: Pick) -> JsonObject:
    """Arguments that match the parameters of a tool; the first choices make the simplest."""
    return json_object(filled(schema, TEXT, pick))


def near_arguments(schema: JsonObject, defect: Defect, pick: Pick) -> JsonObject | None:
    """Arguments with one such defect; None when the parameters allow none."""
    right = arguments(schema, pick)
    places = [place for place in _places(schema, right) if place.defect == defect]
    while places:
        place = places.pop(pick(min(len(places), 256)))
        wrong = list(place.wrong)
        while wrong:
            found = _with(right, place.path, wrong.pop(pick(len(wrong))))
            if problems(found, schema):
                return found
    return None


@attrs.frozen
class _Removed:
    """Marks a removed value."""


REMOVED = _Removed()


@attrs.frozen
class _Place:
    """A place for a defect in a value, and the candidates for the defective value."""

    defect: Defect
    path: Path
    wrong: Sequence[object]


def _places(schema: JsonObject, value: JsonObject) -> Iterator[_Place]:
    yield from _inside(schema, value, (), json_object(schema.get("$defs")))


def _inside(schema: JsonObject, value: object, path: Path, defs: JsonObject) -> Iterator[_Place]:
    schema = resolved(schema, defs)
    if choices := schemas(schema.get("anyOf", schema.get("oneOf"))):
        fitting = (one for one in choices if not problems(value, {**one, "$defs": defs}))
        schema = {**schema, **resolved(next(fitting, choices[0]), defs)}
    if path:
        yield _Place("wrong_type", path, _OF_ANOTHER_TYPE)
        if wrong := list(_beyond(schema, value)):
            yield _Place("out_of_range", path, wrong)
    if isinstance(value, dict):
        yield from _of_object(schema, cast(JsonObject, value), path, defs)
    elif isinstance(value, list):
        first, rest = schemas(schema.get("prefixItems")), json_object(schema.get("items"))
        for at, item in enumerate(cast("list[object]", value)):
            part = first[at] if at < len(first) else rest
            yield from _inside(part, item, (*path, at), defs)


def _of_object(
    schema: JsonObject, value: JsonObject, path: Path, defs: JsonObject
) -> Iterator[_Place]:
    properties = json_object(schema.get("properties"))
    for name in cast("list[str]", schema.get("required", [])):
        yield _Place("missing_field", (*path, name), [REMOVED])
    if schema.get("additionalProperties") is False:
        near = [f"{name}s" for name in properties] or ["extra"]
        for name in near:
            if name not in properties:
                yield _Place("extra_field", (*path, name), [TEXT, 1, None])
    others = json_object(schema.get("additionalProperties"))
    for name, part in value.items():
        yield from _inside(json_object(properties.get(name, others)), part, (*path, name), defs)


def _beyond(schema: JsonObject, value: object) -> Iterator[object]:
    """Values of the right type outside of the schema's bounds."""
    for word in _NUMBERS:
        bound = schema.get(word)
        if isinstance(bound, int | float) and not isinf(bound):
            side = -1 if "inimum" in word else 1
            yield bound if word.startswith("exclusive") else bound + side
            yield bound + side * 10**6
    for word in _SIZES:
        bound = schema.get(word)
        size = bound + (-1 if word.startswith("min") else 1) if isinstance(bound, int) else -1
        if 0 <= size <= _MOST:
            yield from _sized(value, size)
    if isinstance(value, str) and schema.keys() & {"enum", "const", "pattern", "format"}:
        yield from (f"{value}?", "", "none of them")
    elif isinstance(value, int | float) and schema.keys() & {"enum", "const"}:
        yield from (-1, 999_999)


def _sized(value: object, size: int) -> Iterator[object]:
    """The value with another size."""
    if isinstance(value, str):
        yield value[:size].ljust(size, ".")
    elif isinstance(value, list):
        items = cast("list[object]", value)
        yield (items * (size + 1))[:size] if items else [None] * size
    elif isinstance(value, dict):
        entries = list(cast(JsonObject, value).items())[:size]
        first = entries[0][1] if entries else None
        yield dict([*entries, *((f"{TEXT}{at}", first) for at in range(size - len(entries)))])


def _with(value: JsonObject, path: Path, changed: object) -> JsonObject:
    """A copy with one place changed, added or removed."""
    copy = deepcopy(value)
    inner = cast("dict[str | int, object]", copy)
    for step in path[:-1]:
        inner = cast("dict[str | int, object]", inner[step])  # or a list, which works the same
    if isinstance(changed, _Removed):
        inner.pop(path[-1], None)
    else:
        inner[path[-1]] = changed
    return copy
