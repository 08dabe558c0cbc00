"""The ``jsonschema`` library, made safe for schemas and values of strangers.

Invariants: nothing is fetched; a check takes a bounded number of steps and ends without an
exception of the library; references in a circle are followed once. Keywords that the library
checks in quadratic time, or with backtracking expressions, have checks of their own here.

It is imported on first use, with the library, which takes a tenth of a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import date
from fractions import Fraction
from functools import cache, partial
from importlib import import_module
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias, cast

import attrs
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from motet.protocols.chat import JsonObject
from motet.protocols.errors import SchemaError
from motet.protocols.patterns import Pattern
from motet.protocols.patterns import compiled as compiled_pattern
from motet.protocols.stable_json import kind_of, shown

MOST_BYTES, MOST_LEVELS, MOST_LISTED = 128 * 1024, 60, 1_000
"""The limits of a schema; of the items of a list, where they are not all texts or all numbers."""
STEPS, STEPS_PER_VALUE, MOST_STEPS = 5_000, 20, 500_000
"""The steps that a check may take; each is ten microseconds."""
MOST_UNEVALUATED = 2_000
"""Items for ``unevaluated...``: the library needs the square of them, and its own expressions."""

# The library has no types of its own.
_VALIDATORS: Any = import_module("jsonschema.validators")
_Error: Any = import_module("jsonschema.exceptions").ValidationError
_SPECIFICATIONS: Any = import_module("jsonschema_specifications").REGISTRY
_ROOT = "urn:motet:schema"
_OLD, _NEW = "http://json-schema.org/draft-0", "https://json-schema.org/draft/20"
_DIALECTS = (*(f"{_OLD}{number}/schema" for number in (3, 4, 6, 7)), f"{_NEW}19-09/schema")
_DIALECT = f"{_NEW}20-12/schema"
_UNNAMED = (_DIALECT, _DIALECTS[3], _DIALECTS[1])
"""The dialects of a schema that names none; many servers write older ones."""
_LITERALS = frozenset({"const", "enum", "default", "examples"})
_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

Errors: TypeAlias = Iterator[Any]
Keyword: TypeAlias = Callable[[Any, Any, Any, JsonObject], "Iterable[Any] | None"]


class TooCostly(Exception):
    """A check has taken all its steps."""


@attrs.define
class _Work:
    """One check: the steps it has left, and the references it is following."""

    left: int
    patterns: dict[str, Pattern]
    choices: dict[int, frozenset[object]]
    of_names: Sequence[Pattern] = ()
    following: set[tuple[int, int]] = attrs.field(factory=set[tuple[int, int]])

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooCostly


_work: ContextVar[_Work] = ContextVar("motet schema check")


@attrs.frozen(eq=False)
class Check:
    """A schema that values can be checked against. ``of_names``: its ``patternProperties``."""

    _validator: Any
    _of_names: Sequence[Pattern] = ()
    _patterns: dict[str, Pattern] = attrs.field(factory=dict[str, Pattern], init=False)
    _choices: dict[int, frozenset[object]] = attrs.field(
        factory=dict[int, "frozenset[object]"], init=False
    )

    def errors(self, value: object, most: int) -> list[Any]:
        """The first errors of a value, as the library's ``ValidationError``. Never raises."""
        found: list[Any] = []
        allowed = min(STEPS + STEPS_PER_VALUE * _size(value), MOST_STEPS)
        token = _work.set(_Work(allowed, self._patterns, self._choices, self._of_names))
        try:
            # Too costly, too deep, or a defect of the library: the tool judges its arguments.
            with suppress(Exception):
                for error in self._validator.iter_errors(value):
                    found.append(error)
                    if len(found) >= most:
                        break
        finally:
            _work.reset(token)
        return found


def compile_schema(schema: object, *, trusted: bool = False) -> Check:
    """Read a schema. ``trusted``: it was checked before, or motet made it.

    Raises :class:`SchemaError` for a schema that is not valid in its dialect (``$schema``, else
    2020-12 or, where only that fits, an older one), that is too large, or that refers to anything
    outside of itself.
    """
    try:
        text = json.dumps(schema, allow_nan=False)
        if not trusted and len(text) > MOST_BYTES:
            raise SchemaError(f"it is larger than {MOST_BYTES >> 10} KiB")
        plain: object = json.loads(text)
        dialect = _dialect(plain)
        named = _names_dialect(plain)
        plain = _one_dialect(plain, dialect, 0)
        if not trusted:
            dialect = _fitting_dialect(plain, (dialect,) if named else _UNNAMED)
        return _linked(plain, dialect)
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except SchemaError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise SchemaError(f"it cannot be read: {error}") from error


def _linked(schema: object, dialect: str) -> Check:
    specification = specification_with(dialect)
    resource = specification.create_resource(cast(Any, schema))
    name = resource.id() or _ROOT
    registry = _SPECIFICATIONS.with_resource(name, resource).crawl()
    schemas = _reached(resource, registry.resolver(name), specification)
    names = [name for one in schemas for name in cast(JsonObject, one.get("patternProperties", {}))]
    # The anchors of a registry are found once, when it is crawled; those of a root each time.
    kind, root = _guarded(dialect), {"$ref": name}
    validator = kind(root, registry=registry, format_checker=_formats())
    return Check(validator, [compiled_pattern(name) for name in names])


def _names_dialect(schema: object) -> bool:
    return isinstance(schema, dict) and "$schema" in schema


def _dialect(schema: object) -> str:
    if not isinstance(schema, dict):
        if isinstance(schema, bool):
            return _DIALECT
        raise SchemaError(f"it must be an object, not of type {kind_of(schema)}")
    named = cast(JsonObject, schema).get("$schema", _DIALECT)
    uri = str(named).rstrip("#")
    for known in (*_DIALECTS, _DIALECT):
        if uri.partition("//")[2] == known.partition("//")[2]:
            return known
    raise SchemaError(f"its dialect is not known: {shown(named)}")


def _one_dialect(node: object, dialect: str, level: int, *, names: bool = False) -> object:
    """A copy without ``$schema``, since the library would leave our keywords there.

    ``names``: the keys of this object are no keywords.
    """
    if level > MOST_LEVELS:
        raise SchemaError(f"it is nested deeper than {MOST_LEVELS} levels")
    if isinstance(node, list):
        items = cast("list[object]", node)
        _refuse_long(items)
        return [_one_dialect(item, dialect, level + 1) for item in items]
    if not isinstance(node, dict):
        return node
    made: JsonObject = {}
    for key, part in cast(JsonObject, node).items():
        if names:
            made[key] = _one_dialect(part, dialect, level + 1)
        elif key == "$schema":
            if _dialect(cast(object, node)) != dialect:
                raise SchemaError("parts of it are in another dialect")
        elif key in _LITERALS:
            _refuse_long(part)
            made[key] = part
        else:
            made[key] = _one_dialect(part, dialect, level + 1, names=key in _MAPS)
    return made


def _refuse_long(items: object) -> None:
    """Unlike items are compared with each other one by one."""
    if isinstance(items, list) and len(found := cast("list[object]", items)) > MOST_LISTED:
        kinds = {type(item) for item in found}
        if len(kinds) > 1 or kinds & {dict, list}:
            raise SchemaError(f"a list in it has more than {MOST_LISTED} unlike items")


def _fitting_dialect(schema: object, dialects: Sequence[str]) -> str:
    """The first dialect that the schema is valid in. Raises :class:`SchemaError`."""
    first: SchemaError | None = None
    for dialect in dialects:
        kind = _guarded(dialect)
        errors = Check(kind(kind.META_SCHEMA, registry=_SPECIFICATIONS)).errors(schema, 1)
        if not errors:
            return dialect
        first = first or _invalid(errors[0])
    assert first is not None, "there is at least one dialect"
    raise first


def _invalid(error: Any) -> SchemaError:
    deepest = error
    while deepest.context:
        deepest = min(deepest.context, key=lambda one: (len(one.path), -len(one.schema_path)))
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    return SchemaError(
        f"at {path.removeprefix('.') or 'its root'}: {shown(deepest.instance)} is not allowed "
        f"({deepest.validator}: {shown(deepest.validator_value)})"
    )


def _reached(resource: Any, resolver: Any, specification: Any) -> Iterable[JsonObject]:
    """Every schema inside of a schema; each reference is followed once.

    Raises :class:`SchemaError` for one that leads nowhere.
    """
    open_ends: list[tuple[Any, Any]] = [(resource, resolver)]
    seen: dict[int, JsonObject] = {}
    while open_ends:
        resource, resolver = open_ends.pop()
        contents = resource.contents
        if not isinstance(contents, dict) or id(cast(object, contents)) in seen:
            continue
        schema = cast(JsonObject, contents)
        seen[id(schema)] = schema
        if "$schema" in schema:
            own = str(schema.get("$id", schema.get("id")))
            if own in _SPECIFICATIONS and _SPECIFICATIONS.contents(own) is schema:
                continue  # a dialect's own schema
            raise SchemaError("a part of it names a dialect of its own")
        for word in _REFERENCES:
            name = schema.get(word, "#")
            if not isinstance(name, str):
                raise SchemaError(f"{word} must be a text, not of type {kind_of(name)}")
            if word in schema:
                try:
                    found = resolver.lookup(name)
                except (Unresolvable, LookupError, ValueError):
                    raise SchemaError(
                        f"{word} {shown(name)} leads to nothing in it; nothing is fetched"
                    ) from None
                target = specification.create_resource(found.contents)
                open_ends.append((target, found.resolver))
        open_ends += [(one, resolver.in_subresource(one)) for one in resource.subresources()]
    return seen.values()


# The guarded library


@cache
def _guarded(dialect: str) -> Any:
    """The library's validator of a dialect, with our keywords, counting its steps."""
    standard = _VALIDATORS.validator_for({"$schema": dialect})
    words: dict[str, Keyword] = {
        name: own for name, own in _OWN.items() if name in standard.VALIDATORS
    }
    for name in _REFERENCES:
        if name in standard.VALIDATORS:
            words[name] = _followed_once(standard.VALIDATORS[name])
    if "dependencies" not in standard.VALIDATORS:
        words["dependencies"] = _VALIDATORS.Draft7Validator.VALIDATORS["dependencies"]
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if name in standard.VALIDATORS:
            words[name] = _if_small(standard.VALIDATORS[name])
    kind = _VALIDATORS.extend(standard, words)
    descend, iter_errors = kind.descend, kind.iter_errors

    def counted_descend(
        self: Any,
        instance: object,
        schema: Any,
        path: Any = None,
        schema_path: Any = None,
        resolver: Any = None,
    ) -> Any:
        _count(schema)
        if schema is False:  # the library leaves the paths out
            return iter((_forbidden(instance, path, schema_path),))
        return descend(self, instance, schema, path, schema_path, resolver)

    def counted_errors(self: Any, instance: object) -> Any:
        _count(self.schema)
        return iter_errors(self, instance)

    kind.descend, kind.iter_errors = counted_descend, counted_errors
    return kind


def _forbidden(instance: object, path: object, schema_path: object) -> Any:
    return _Error(
        "nothing is allowed here",
        validator=None,
        validator_value=None,
        instance=instance,
        schema=False,
        path=() if path is None else (path,),
        schema_path=() if schema_path is None else (schema_path,),
    )


def _count(schema: object) -> None:
    size = len(cast(JsonObject, schema)) if isinstance(schema, dict) else 0
    _work.get().spend(1 + size // 4)


def _followed_once(keyword: Keyword) -> Keyword:
    """A reference that leads back to itself, for the same value, adds nothing."""

    def follow(validator: Any, value: Any, instance: Any, schema: JsonObject) -> Errors:
        following, place = _work.get().following, (id(schema), id(instance))
        if place not in following:
            following.add(place)
            try:
                yield from keyword(validator, value, instance, schema) or ()
            finally:
                following.discard(place)

    return follow


def _if_small(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: JsonObject) -> Errors:
        if isinstance(instance, list | dict):
            work, items = _work.get(), cast("list[object]", instance)
            names = items if isinstance(instance, dict) else ()
            longest = max((len(str(name)) for name in names), default=0)
            risky = any(pattern.may_backtrack(longest) for pattern in work.of_names)
            if len(items) > MOST_UNEVALUATED or risky:
                raise TooCostly
            work.spend(1 + len(items))
        yield from keyword(validator, value, instance, schema) or ()

    return check


def _matches(pattern: str, text: str) -> bool | None:
    work = _work.get()
    found = work.patterns.get(pattern)
    if found is None:
        found = work.patterns[pattern] = compiled_pattern(pattern)
    return found.matches(text, work.spend)


def _pattern(_validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    if isinstance(instance, str) and _matches(value, instance) is False:
        yield _Error("it does not match the pattern")


def _pattern_properties(validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    if isinstance(instance, dict):
        for pattern, part in cast(JsonObject, value).items():
            for name, item in cast(JsonObject, instance).items():
                if _matches(pattern, name):
                    yield from validator.descend(item, part, path=name, schema_path=pattern)


def _additional(validator: Any, value: Any, instance: Any, schema: JsonObject) -> Errors:
    if not isinstance(instance, dict):
        return
    known = cast("Mapping[str, object]", schema.get("properties", {}))
    patterns = list(cast(JsonObject, schema.get("patternProperties", {})))
    for name, item in cast(JsonObject, instance).items():
        _work.get().spend(1)
        # A name that may match is not additional.
        if name in known or any(_matches(one, name) is not False for one in patterns):
            continue
        if value is False:
            yield _Error("there is no such name", path=(name,))
        else:
            yield from validator.descend(item, value, path=name)


def _enum(_validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    work = _work.get()
    known = work.choices.get(id(value))
    if known is None:
        work.spend(_size(value))
        known = work.choices[id(value)] = frozenset(map(_comparable, value))
    work.spend(1 + _size(instance) // 8)
    if _comparable(instance) not in known:
        yield _Error("it is none of the values there are")


def _const(_validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    _work.get().spend(1 + _size(value) // 8)
    if _comparable(instance) != _comparable(value):
        yield _Error("it is another value")


def _unique(_validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    if value and isinstance(instance, list):
        _work.get().spend(1 + _size(cast(object, instance)) // 8)
        items = [_comparable(item) for item in cast("list[object]", instance)]
        if len(set(items)) < len(items):
            yield _Error("an item is there twice")


def _one_of(validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    context: list[Any] = []
    fitting = 0
    for place, part in enumerate(value):
        wrong = list(validator.descend(instance, part, schema_path=place))
        context += wrong
        fitting += not wrong
        if fitting > 1:
            yield _Error("it fits more than one")
            return
    if not fitting:
        yield _Error("it fits none", context=context)


def _not(validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    if validator.evolve(schema=value).is_valid(instance):
        yield _Error("it fits a schema that it must not fit")


def _multiple_of(_validator: Any, value: Any, instance: Any, _schema: JsonObject) -> Errors:
    """Exact, as the digits are written: 0.3 is a multiple of 0.1."""
    is_number = isinstance(instance, int | float) and not isinstance(instance, bool)
    if is_number and Fraction(repr(instance)) % Fraction(repr(value)) != 0:
        yield _Error("it is no multiple")


_OWN: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "enum": _enum,
    "const": _const,
    "uniqueItems": _unique,
    "oneOf": _one_of,
    "not": _not,
    "multipleOf": _multiple_of,
}


def _comparable(value: object) -> object:
    """Equal for equal JSON values only: 1 is 1.0, but not true."""
    if isinstance(value, list):
        return ("list", *map(_comparable, cast("list[object]", value)))
    if isinstance(value, dict):
        entries = cast(JsonObject, value).items()
        return frozenset((name, _comparable(part)) for name, part in entries)
    return ("bool", value) if isinstance(value, bool) else value


def _size(value: object) -> int:
    """The number of values inside of a value, and itself."""
    count, open_values = 0, [value]
    while open_values:
        one = open_values.pop()
        count += 1
        if isinstance(one, list):
            open_values += cast("list[object]", one)
        elif isinstance(one, dict):
            open_values += cast(JsonObject, one).values()
    return count


# Formats

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?", re.ASCII)
_OFFSET = re.compile(r"[Zz]|[+-]([01]\d|2[0-3]):[0-5]\d", re.ASCII)
_DURATION = re.compile(
    r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)", re.ASCII
)
_PLAIN: Mapping[str, re.Pattern[str]] = {
    "duration": _DURATION,
    "uuid": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "hostname": re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*", re.ASCII),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]*", re.ASCII),
    "json-pointer": re.compile(r"(/([^~/]|~[01])*)*"),
}


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text)) and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _is_time(text: str) -> bool:
    """With or without an offset: models leave it out, and most programs take it so."""
    found = _TIME.match(text)
    return found is not None and _OFFSET.fullmatch(text[found.end() :] or "Z") is not None


def _is_moment(text: str) -> bool:
    return _is_date(text[:10]) and text[10:11] in ("T", "t", " ") and _is_time(text[11:])


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return "%" not in text


def _is_email(text: str) -> bool:
    local, _, domain = text.rpartition("@")
    quoted = len(local) > 2 and local.startswith('"') and local.endswith('"')
    plain = "@" not in local and not any(map(str.isspace, local))
    return bool(local and domain) and (quoted or plain) and not any(map(str.isspace, domain))


@cache
def _formats() -> Any:
    """The formats that are checked; any other is for people."""
    known: dict[str, Callable[[str], bool]] = {
        "date": _is_date,
        "time": _is_time,
        "date-time": _is_moment,
        "email": _is_email,
        "ipv4": lambda text: _is_address(IPv4Address, text),
        "ipv6": lambda text: _is_address(IPv6Address, text),
    }
    known |= {name: partial(_is_like, pattern) for name, pattern in _PLAIN.items()}
    checker = import_module("jsonschema").FormatChecker(formats=())
    for name, holds in known.items():
        checker.checks(name)(partial(_has_format, holds))
    return checker


def _is_like(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None


def _has_format(holds: Callable[[str], bool], value: object) -> bool:
    return not isinstance(value, str) or holds(value)
