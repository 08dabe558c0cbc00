"""References of a JSON Schema to its definitions, replaced by what they stand for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from motet.protocols.chat import JsonObject


def inlined(schema: JsonObject, defs: Mapping[str, JsonObject]) -> JsonObject | None:
    """The schema without references; None when it refers to itself."""
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
            # It maps to definitions that are not there any more.
            schema = {key: value for key, value in schema.items() if key != "discriminator"}
        return {key: _replaced(value, defs, inside) for key, value in schema.items()}
    name = reference.rpartition("/")[2]
    if name in inside:
        raise RecursionError(name)
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return _replaced({**defs[name], **rest}, defs, (*inside, name))
