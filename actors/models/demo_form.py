"""What the demo model answers where an answer has a form: the first value that fits. Pure.

Texts are what it was asked; all else is as small as the schema allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs

from motet.actors.models.wire import json_object
from motet.protocols.chat import JsonObject

DEPTH = 4
"""Lists of what is deeper than that are empty: a schema may refer to itself."""
EXAMPLES: Mapping[str, str] = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "uuid": "00000000-0000-0000-0000-000000000000",
}


def filled(schema: JsonObject, text: str) -> object:
    """A value of a schema. What is not in its simple words, as a pattern, may not fit."""
    return _Form(json_object(schema.get("$defs")), text).value(schema, 0)


@attrs.frozen
class _Form:
    defs: JsonObject
    text: str

    def value(self, schema: JsonObject, depth: int) -> object:
        reference = schema.get("$ref")
        if isinstance(reference, str) and depth <= 2 * DEPTH:
            return self.value(json_object(self.defs.get(reference.rpartition("/")[2])), depth + 1)
        if "const" in schema:
            return schema["const"]
        if values := cast("list[object]", schema.get("enum", [])):
            return values[0]
        if choices := cast("list[JsonObject]", schema.get("anyOf", schema.get("oneOf", []))):
            return self.value(choices[0], depth)
        return self._typed(schema, depth)

    def _typed(self, schema: JsonObject, depth: int) -> object:
        kinds = schema.get("type")
        match cast("list[object]", kinds)[0] if isinstance(kinds, list) else kinds:
            case "object":
                properties = json_object(schema.get("properties"))
                required = cast("list[str]", schema.get("required", []))
                return {
                    name: self.value(json_object(properties.get(name)), depth + 1)
                    for name in required
                }
            case "array":
                return self._items(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return _number(schema)
            case "boolean":
                return False
            case _:
                return None

    def _items(self, schema: JsonObject, depth: int) -> object:
        least = schema.get("minItems", 0)
        if depth >= DEPTH and not least:
            return []
        first = cast("list[JsonObject]", schema.get("prefixItems", []))
        wanted = max(1, least) if isinstance(least, int) else 1
        rest = [json_object(schema.get("items"))] * (wanted - len(first))
        return [self.value(item, depth + 1) for item in (*first, *rest)]

    def _string(self, schema: JsonObject) -> str:
        example = EXAMPLES.get(str(schema.get("format")))
        if example is not None:
            return example
        least, most = schema.get("minLength"), schema.get("maxLength")
        text = self.text if not isinstance(least, int) else self.text.ljust(least, ".")
        return text[:most] if isinstance(most, int) else text


def _number(schema: JsonObject) -> object:
    """The one nearest to 0 that the bounds allow."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if isinstance(above, int | float):
        low = above + 1
    if isinstance(below, int | float):
        high = below - 1
    if isinstance(low, int | float) and low > 0:
        return low
    return high if isinstance(high, int | float) and high < 0 else 0
