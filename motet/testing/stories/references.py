"""References of a scripted call to the results of earlier calls: ``mt.result_of("new_order")``.

A model repeats what it was told: the id of an order that it has made, the name of a file that it
has found. A script cannot know such values before the program runs, so its call holds a reference,
which is resolved when the model answers.

Invariants: a reference is JSON data (an object with the key ``$result_of``), so that a program with
references is stored and printed as any other. It always resolves: without a fitting result it has
the value ``otherwise``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import msgspec

from motet.protocols.chat import JsonObject, json_object

__all__ = ["REFERENCE", "Results", "literal", "plain", "resolved", "result_of"]

REFERENCE = "$result_of"
"""The key of the object that is a reference."""

Results: TypeAlias = Sequence[tuple[str, object]]
"""The tool and the result, as JSON data, of each call that has succeeded, oldest first."""

_WORD = re.compile(r"[^\s,;:!?()\[\]{}<>\"'=]+")
_NUMBER = re.compile(r"(?<![\w-])-?\d+|\d+")
_DEPTH = 8


def result_of(tool: str, path: str = "", *, back: int = 0, otherwise: object = None) -> JsonObject:
    """A reference to the result of an earlier call of ``tool``, as an argument of a scripted call.

    Args:
        path: the place of the value in the result, such as ``order.id`` or ``items.0``. By default
            it is the value that fits the argument: the field of its name, else an id, else the
            first number or text; in a plain text, the first word with a digit.
        back: 0 is the newest result of any session, 1 the one before.
        otherwise: the value as long as there is no such result; by default ``0`` or ``"none"``.

    It stands in a script, ``mt.call("refund", order=mt.result_of("new_order"))``, and in
    ``mt.programs(agent, arguments={"refund": {"order": mt.result_of("new_order")}})``.
    """
    given = {REFERENCE: tool, "path": path, "back": back, "otherwise": otherwise}
    return {key: value for key, value in given.items() if key == REFERENCE or value}


def resolved(args: JsonObject, schema: JsonObject, results: Results) -> JsonObject:
    """The arguments with the values of their references. ``schema``: the tool's parameters."""
    if not _has_reference(args):
        return args
    parts = json_object(schema.get("properties"))
    return {
        name: _resolved(value, name, json_object(parts.get(name)), results)
        for name, value in args.items()
    }


def literal(args: JsonObject) -> JsonObject:
    """The arguments with what a reference has without a result, for a text that is not resolved."""
    return resolved(args, {}, ())


def plain(value: object) -> object:
    """A result of a tool as JSON data; a text that is JSON as what it says."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _has_reference(value: object) -> bool:
    if isinstance(value, dict):
        held = cast("dict[str, object]", value)
        return REFERENCE in held or any(map(_has_reference, held.values()))
    return isinstance(value, list) and any(map(_has_reference, cast("list[object]", value)))


def _resolved(value: object, name: str, schema: JsonObject, results: Results) -> object:
    if isinstance(value, list):
        items = json_object(schema.get("items"))
        return [_resolved(one, name, items, results) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    held = cast(JsonObject, value)
    if REFERENCE not in held:
        parts = json_object(schema.get("properties"))
        return {
            key: _resolved(one, key, json_object(parts.get(key)), results)
            for key, one in held.items()
        }
    return _looked_up(held, name, schema, results)


def _looked_up(reference: JsonObject, name: str, schema: JsonObject, results: Results) -> object:
    numeric = schema.get("type") in ("integer", "number")
    otherwise = reference.get("otherwise", 0 if numeric else "none")
    known = [result for tool, result in results if tool == reference[REFERENCE]]
    if not known:
        return otherwise
    back = reference.get("back", 0)
    assert isinstance(back, int)
    result = known[max(0, len(known) - 1 - back)]
    if path := reference.get("path"):
        return _at(result, str(path), otherwise)
    found = _fitting(result, name, numeric=numeric)
    return otherwise if found is None else found


def _at(value: object, path: str, otherwise: object) -> object:
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = cast(JsonObject, value)[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):  # pyright: ignore[reportUnknownArgumentType]
            value = cast("list[object]", value)[int(step)]
        else:
            return otherwise
    return value


def _fitting(result: object, name: str, *, numeric: bool) -> object:
    """The value of a result that an argument of this name and type would get; None: there is none.

    Fields of its type come first; among them the one of the argument's name, one that contains it
    or is contained in it, an id, any other.
    """
    fields = list(_fields(result, ""))
    near = sorted(
        fields, key=lambda field: (isinstance(field[1], str) is numeric, _distance(field[0], name))
    )
    values = (_as_number(value) if numeric else _as_text(value) for _, value in near)
    return next((value for value in values if value is not None), None)


def _distance(key: str, name: str) -> int:
    key, name = key.lower(), name.lower()
    if key == name:
        return 0
    if key and (key in name or name in key):
        return 1
    return 2 if key.endswith("id") or key == "key" else 3


def _fields(value: object, key: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Every scalar of a result with the name of its field, from left to right."""
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        for inner, one in cast(JsonObject, value).items():
            yield from _fields(one, inner, depth + 1)
    elif isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _fields(one, key, depth + 1)
    elif value is not None:
        yield key, value


def _as_number(value: object) -> int | float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    found = _NUMBER.search(value) if isinstance(value, str) else None
    return int(found[0]) if found else None


def _as_text(value: object) -> str | None:
    if not isinstance(value, str):
        return None if isinstance(value, bool) else str(value)
    words = [word.strip(".") for word in _WORD.findall(value)]
    if len(words) <= 1:
        return value
    return next((word for word in words if any(map(str.isdigit, word))), value)
