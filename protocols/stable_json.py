"""One text for each JSON value, so that equal arguments of a call are seen to be equal.

Laws: the order of keys, spaces and ways to write a number or a character make no difference;
different values give different texts. Keys are sorted, nothing is between the tokens, and
``<``, ``>`` and ``&`` are escaped, as Go does it, so that keys can be compared with its hosts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from json.encoder import encode_basestring
from math import isfinite
from operator import itemgetter
from typing import cast

import msgspec

from motet.protocols.chat import JsonObject

KEY_BYTES = 16

_ESCAPED = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in ("<", ">", "&", "\u2028", "\u2029")}
)
_PLAIN_FROM, _PLAIN_BELOW = 1e-6, 1e21


def stable_json(value: object) -> str:
    """The canonical text of a value that a JSON decoder made.

    A whole number is the same with and without ``.0``; an integer of any size stays exact. What
    JSON has no number for (``NaN``, ``Infinity``) keeps the name that decoders give it.
    Raises ``TypeError`` for what is no JSON value, ``RecursionError`` for one nested too deeply.
    """
    match value:
        case str():
            return _string(value)
        case None | bool():
            return json.dumps(value)
        case int():
            return str(value)
        case float():
            return _number(value)
        case dict():
            return _object(cast("Mapping[object, object]", value))
        case list() | tuple():
            return f"[{','.join(map(stable_json, cast('Sequence[object]', value)))}]"
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value")


def canonical(arguments: str) -> str:
    """The canonical text of a call's arguments; text that is not JSON as it is.

    Of a key that is there twice the last value counts, as it does for the tool. No arguments at
    all are the empty object.
    """
    try:
        return stable_json(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments


def in_order(arguments: str) -> str:
    """JSON text for people, with sorted keys and without spaces; other text as it is."""
    try:
        value: object = msgspec.json.decode(arguments)
        return msgspec.json.encode(value, order="deterministic").decode()
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def shortened(fields: JsonObject, limit: int) -> JsonObject:
    """The fields for people to see: names and values are cut to ``limit`` characters each."""

    def cut(value: object) -> object:
        if isinstance(value, int | float | None):
            return value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return value if len(text) <= limit else text[:limit]

    return {name[:limit]: cut(value) for name, value in fields.items()}


def call_key(tool: str, arguments: str) -> str:
    """The same for calls of one tool with equal arguments: 32 hex digits."""
    return digest((tool, ":", canonical(arguments)))


def digest(parts: Iterable[str]) -> str:
    """32 hex digits of the texts, one behind the other."""
    whole = "".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(whole).digest()[:KEY_BYTES].hex()


def _object(fields: Mapping[object, object]) -> str:
    named = sorted(((str(name), value) for name, value in fields.items()), key=itemgetter(0))
    return "{" + ",".join(f"{_string(name)}:{stable_json(value)}" for name, value in named) + "}"


def _string(text: str) -> str:
    return encode_basestring(text).translate(_ESCAPED)


def _number(value: float) -> str:
    if not isfinite(value):
        return json.dumps(value)
    size = abs(value)
    if value.is_integer() and size < _PLAIN_BELOW:
        return str(int(value))
    if _PLAIN_FROM <= size < _PLAIN_BELOW:
        return f"{Decimal(repr(value)):f}"
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa}e{exponent[:1]}{exponent[1:].lstrip('0')}"


# Values as they are shown to people and models

_KINDS: Mapping[type, str] = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number",
}  # fmt: skip
FRAGMENT_CHARS = 300


def kind_of(value: object) -> str:
    """The JSON name of a decoded value's type."""
    return "null" if value is None else _KINDS.get(type(value), "value")


def shown(value: object, most: int = 60) -> str:
    """The value as JSON, cut to ``most`` characters."""
    try:
        text = json.dumps(beginning(value), ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        text = f"a value of type {kind_of(value)}"
    return text if len(text) <= most else text[: most - 3] + "..."


def beginning(value: object) -> object:
    """The beginning of a value, which is all that is shown of it."""
    if isinstance(value, list):
        return cast("list[object]", value)[:FRAGMENT_CHARS]
    if isinstance(value, dict):
        return dict(islice(cast(JsonObject, value).items(), FRAGMENT_CHARS))
    return value[:FRAGMENT_CHARS] if isinstance(value, str) else value
