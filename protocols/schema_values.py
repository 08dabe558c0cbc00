"""Values that match a JSON Schema, or a regular expression: the simplest, or a drawn one. Pure.

A value results from a sequence of choices, and option 0 is always the simplest: the given text, a
list of one item, no optional properties, numbers near 0. So the demo model, which always takes
option 0, and a fuzzer, which draws and shrinks, share one generator.

Regular expressions may have letters, escapes, classes, groups, alternatives, repetitions and
anchors. A returned text always matches; for any other expression the result is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, floor, inf, isinf
from typing import TypeAlias, cast

import attrs

from motet.protocols.chat import JsonObject, json_object

Pick: TypeAlias = Callable[[int], int]
"""Picks one of n options, 0 the simplest. Equal picks give an equal value."""

MOST_EXTRA_REPEATS = 4
"""The most repetitions beyond the minimum of an unbounded one."""
_CLASSES = {"d": "0123456789", "w": "abcABC019_", "s": " \t", "D": "ab-", "W": " -.", "S": "ab0-"}
_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}
_ANY = "abcxyz019-"
_PRINTABLE = "".join(map(chr, range(32, 127)))
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")


class _Unsupported(Exception):
    """The expression uses an unsupported construct."""


def matching(pattern: str, pick: Pick) -> str | None:
    """A text that contains a match of ``pattern``; None for an unsupported one."""
    try:
        text = _Reader(pattern, pick).whole()
        return text if re.search(pattern, text) else None
    except (_Unsupported, re.error):
        return None


class _Reader:
    """Parses an expression from left to right and builds a matching text on the way."""

    def __init__(self, pattern: str, pick: Pick) -> None:
        self._rest = pattern
        self._pick = pick

    def whole(self) -> str:
        text = self._alternatives()
        if self._rest:
            raise _Unsupported
        return text

    def _alternatives(self) -> str:
        ways = [self._sequence()]
        while self._taken("|"):
            ways.append(self._sequence())
        return ways[self._pick(len(ways))] if len(ways) > 1 else ways[0]

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._rest and self._rest[0] not in "|)":
            start = self._rest
            part = self._atom()
            least, most = self._repetition()
            times = least + (self._pick(most - least + 1) if most > least else 0)
            after = self._rest
            for _ in range(times - 1):  # parsed again, so that each repetition draws anew
                self._rest = start
                part += self._atom()
            self._rest = after
            parts.append(part if times else "")
        return "".join(parts)

    def _atom(self) -> str:
        char = self._next()
        match char:
            case "^" | "$":
                return ""
            case ".":
                return self._one(_ANY)
            case "[":
                return self._one(self._class())
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise _Unsupported
            case _:
                return char

    def _group(self) -> str:
        if self._taken("?") and not self._taken(":"):
            raise _Unsupported
        text = self._alternatives()
        if not self._taken(")"):
            raise _Unsupported
        return text

    def _escape(self) -> str:
        char = self._next()
        if char in "bBAZ":
            return ""
        return self._one(self._escaped(char))

    def _escaped(self, char: str) -> str:
        """The characters that match an escape."""
        known = _CLASSES.get(char) or _PLAIN.get(char) or char
        if known == char and char.isalnum():
            raise _Unsupported
        return known

    def _class(self) -> str:
        """The characters of a class; its opening bracket has been read."""
        negated = self._taken("^")
        chars = ""
        while not (chars and self._rest.startswith("]")):
            char = self._next()
            found = self._escaped(self._next()) if char == "\\" else char
            if len(found) == 1 and self._rest[:1] == "-" and self._rest[1:2] not in ("]", "\\", ""):
                self._next()
                found = "".join(map(chr, range(ord(found), ord(self._next()) + 1)))
            chars += found
        self._next()
        return "".join(char for char in _PRINTABLE if char not in chars) if negated else chars

    def _repetition(self) -> tuple[int, int]:
        """The least and most repetitions of the preceding atom."""
        least, most = 1, 1
        if self._taken("*"):
            least, most = 0, MOST_EXTRA_REPEATS
        elif self._taken("+"):
            least, most = 1, 1 + MOST_EXTRA_REPEATS
        elif self._taken("?"):
            least, most = 0, 1
        elif found := _REPEAT.match(self._rest):
            self._rest = self._rest[found.end() :]
            least = int(found[1])
            most = least if found[2] is None else int(found[3] or least + MOST_EXTRA_REPEATS)
        else:
            return least, most
        self._taken("?")  # greediness does not matter here
        return least, most

    def _one(self, chars: str) -> str:
        if not chars:
            raise _Unsupported
        return chars[self._pick(len(chars))]

    def _next(self) -> str:
        if not self._rest:
            raise _Unsupported
        char, self._rest = self._rest[0], self._rest[1:]
        return char

    def _taken(self, char: str) -> bool:
        """Read ``char`` if it comes next."""
        if not self._rest.startswith(char):
            return False
        self._rest = self._rest[1:]
        return True


DEPTH = 4
"""Deeper lists are empty, since a schema may be recursive."""
MOST_EXTRA_ITEMS = 3
"""The most items of a list or map beyond its minimum."""
EXAMPLES: Mapping[str, Sequence[str]] = {
    "date": ("2026-01-01", "1970-01-01", "2024-02-29"),
    "date-time": ("2026-01-01T00:00:00Z", "1969-12-31T23:59:59.999+14:00"),
    "time": ("00:00:00Z", "23:59:59.999999Z"),
    "duration": ("PT0S", "-P1DT1S"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "decimal": ("0", "-1.50", "12345678901234567890.123"),
    "email": ("a@example.org",),
    "uri": ("https://example.org/",),
    "hostname": ("example.org",),
    "ipv4": ("192.0.2.1",),
    "ipv6": ("2001:db8::1",),
}
TEXTS = ("", "é∂ 日本 🎼", "two\nlines", '"quoted" {braces}', "<b>&amp;</b>", "  ", "x" * 300)
"""Texts that often break code, besides the given one."""
NUMBERS = (7, 1000, 0.5, 2**31, -(2**31), 2**53 - 1, 1e300)
"""Numbers that often break code, besides the bounds of a schema."""
WHOLE = 2**63 - 1
"""The greatest integer that all JSON parsers keep."""
TRIES = 20
BEYOND = 10**9
"""Stands for no limit of the length."""
BASE64 = "AAAA"
"""Three bytes in base64."""


def filled(schema: JsonObject, text: str, pick: Pick | None = None) -> object:
    """A value that matches a schema; without ``pick`` the simplest.

    References are resolved in its ``$defs``. Checks that are not in the schema may still fail.
    """
    return _Generator(json_object(schema.get("$defs")), text, pick or _first).value(schema)


def _first(_: int) -> int:
    return 0


@attrs.frozen
class _Generator:
    """Generates values: definitions for references, the text to use, and the choices."""

    defs: JsonObject
    text: str
    pick: Pick

    def value(self, schema: JsonObject, depth: int = 0) -> object:
        schema = resolved(schema, self.defs)
        if "const" in schema:
            return schema["const"]
        if values := _list(schema.get("enum")):
            return values[self.pick(len(values))]
        if choices := schemas(schema.get("anyOf", schema.get("oneOf"))):
            return self.value(self._choice(choices, depth), depth)
        return self._typed(schema, depth)

    def _choice(self, choices: list[JsonObject], depth: int) -> JsonObject:
        """One of the choices; a scalar one beyond ``DEPTH``, since a schema may be recursive."""
        if depth >= DEPTH:
            plain = [one for one in choices if one.get("type") not in (None, "object", "array")]
            return (plain or choices)[0]
        return choices[self.pick(len(choices))]

    def _typed(self, schema: JsonObject, depth: int) -> object:
        kinds = _list(schema.get("type")) or [schema.get("type")]
        match kinds[self.pick(len(kinds)) if len(kinds) > 1 else 0]:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return self._number(schema, whole=True)
            case "number":
                return self._number(schema, whole=False)
            case "boolean":
                return self.pick(2) == 1
            case None if "properties" in schema:
                return self._object(schema, depth)
            case None:
                return (None, self.text, 1, 0.5, True, [None], {"a": None})[self.pick(7)]
            case _:
                return None

    def _object(self, schema: JsonObject, depth: int) -> JsonObject:
        required = _list(schema.get("required"))
        named = {
            name: self.value(json_object(part), depth + 1)
            for name, part in json_object(schema.get("properties")).items()
            if name in required or (depth < DEPTH and self.pick(2))
        }
        others: object = schema.get("additionalProperties")
        least = _least(schema, "minProperties") - len(named)
        is_map = isinstance(others, dict)
        if not is_map or (depth >= DEPTH and least <= 0):
            return named
        wanted = self._size(max(0, least), _most(schema, "maxProperties"))
        names = islice(self._names(json_object(schema.get("propertyNames")), named), wanted)
        return {**named, **{name: self.value(json_object(others), depth + 1) for name in names}}

    def _names(self, schema: JsonObject, taken: JsonObject) -> Iterator[str]:
        """Keys for a map: numbers by default, since a map with number keys has no other mark."""
        known = set(taken)
        for number in range(1, 100):
            name = str(self.value({"type": "string", **schema})) if schema else str(number)
            if name not in known:
                known.add(name)
                yield name

    def _array(self, schema: JsonObject, depth: int) -> list[object]:
        first = schemas(schema.get("prefixItems"))
        least, most = _least(schema, "minItems"), _most(schema, "maxItems")
        if schema.get("items") is False:
            wanted = len(first)
        elif depth >= DEPTH:
            wanted = max(least, len(first))
        else:
            wanted = self._size(max(least, len(first), 0 if most == 0 else 1), most)
        rest = [json_object(schema.get("items"))] * (wanted - len(first))
        items = [self.value(item, depth + 1) for item in (*first, *rest)]
        return _distinct(items) if schema.get("uniqueItems") else items

    def _size(self, least: int, most: int | None) -> int:
        above = MOST_EXTRA_ITEMS if most is None else min(MOST_EXTRA_ITEMS, most - least)
        return least + (self.pick(above + 1) if above > 0 else 0)

    def _string(self, schema: JsonObject) -> str:
        if examples := EXAMPLES.get(str(schema.get("format"))):
            return examples[self.pick(len(examples))]
        least, most = _least(schema, "minLength"), _most(schema, "maxLength")
        if schema.get("contentEncoding") == "base64":
            return BASE64 * max(1, -(-least // len(BASE64)))
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            return self._matching(pattern, range(least, BEYOND if most is None else most + 1))
        texts = (self.text, *TEXTS)
        return texts[self.pick(len(texts))].ljust(least, ".")[:most]

    def _matching(self, pattern: str, lengths: range) -> str:
        """A text that matches a pattern and, if one of ``TRIES`` does, the lengths."""
        texts = (matching(pattern, self.pick) for _ in range(TRIES))
        fitting = (one for one in texts if one is not None and len(one) in lengths)
        return next(fitting, self.text)

    def _number(self, schema: JsonObject, *, whole: bool) -> object:
        candidates = numbers(schema, whole=whole)
        return candidates[self.pick(len(candidates))]


def resolved(schema: JsonObject, defs: JsonObject) -> JsonObject:
    """The schema with its ``$ref`` and ``allOf`` merged into it."""
    for _ in range(2 * DEPTH):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = json_object(defs.get(reference.rpartition("/")[2]))
            schema = {**found, **{word: part for word, part in schema.items() if word != "$ref"}}
        elif parts := schemas(schema.get("allOf")):
            rest = {word: part for word, part in schema.items() if word != "allOf"}
            schema = {word: part for one in (*parts, rest) for word, part in one.items()}
        else:
            return schema
    return {}


def schemas(parts: object) -> list[JsonObject]:
    """The value of a keyword that is a list of schemas; empty without the keyword."""
    return [json_object(part) for part in _list(parts)]  # ``true`` and ``false`` are schemas too


def numbers(schema: JsonObject, *, whole: bool) -> list[int | float]:
    """Distinct numbers within the bounds, the one nearest to 0 first."""
    low, high = _bound(schema, "inimum", whole), _bound(schema, "aximum", whole)
    step = schema.get("multipleOf")
    nearest = min(max(0, low), high)
    found: dict[int | float, None] = {}
    for one in (nearest, 1, -1, low, high, *NUMBERS):
        if isinf(one) or (whole and (one != int(one) or one > WHOLE)):
            continue
        if isinstance(step, int | float) and step > 0:
            one = max(floor(one / step), ceil(low / step) if not isinf(low) else -inf) * step
        if low <= one <= high:
            found[int(one) if whole else one] = None
    return list(found) or [nearest]


def _bound(schema: JsonObject, name: str, whole: bool) -> int | float:
    """The minimum (``inimum``) or maximum (``aximum``) of a schema; infinite if there is none."""
    sign = -1 if name == "inimum" else 1
    exclusive, inclusive = schema.get(f"exclusiveM{name}"), schema.get(f"m{name}")
    if isinstance(exclusive, int | float) and whole:
        return floor(exclusive) + 1 if sign < 0 else ceil(exclusive) - 1
    if isinstance(exclusive, int | float):
        other = schema.get("exclusiveMaximum" if sign < 0 else "exclusiveMinimum")
        if isinstance(other, int | float) and abs(other - exclusive) <= 1:
            return (3 * exclusive + other) / 4  # between the bounds, which are closer than 1
        return exclusive - sign
    if not isinstance(inclusive, int | float):
        return sign * inf
    return (ceil if sign < 0 else floor)(inclusive) if whole else inclusive


def _distinct(items: list[object]) -> list[object]:
    return [item for place, item in enumerate(items) if item not in items[:place]]


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _least(schema: JsonObject, word: str) -> int:
    return _most(schema, word) or 0


def _most(schema: JsonObject, word: str) -> int | None:
    bound = schema.get(word)
    return bound if isinstance(bound, int) else None
