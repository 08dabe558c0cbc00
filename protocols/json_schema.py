"""JSON Schema: the problems of a value and their paths, near misses repaired, references inlined.

Laws: :func:`compiled` gives a schema or raises :class:`SchemaError`; the check of a value then ends
without an exception, and costs a bounded number of steps; a value that fits is never changed. A
check that would cost more finds nothing: the tool judges its arguments anyway.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, cast

import attrs
import msgspec.inspect as mi

from motet.protocols.chat import JsonObject, json_object
from motet.protocols.errors import SchemaError, listing, nearest
from motet.protocols.stable_json import FRAGMENT_CHARS, beginning, kind_of, shown

Change: TypeAlias = "tuple[tuple[str | int, ...], object]"
"""A path inside of a value, and the new value there."""

MOST_PROBLEMS = 10
"""Lines about one value."""
MOST_ERRORS, MOST_REPAIRS = 200, 8
"""Errors that are looked at, and rounds of repairs."""
MOST_QUOTED = 1 << 20
ROOT = "the answer"

_BESIDE_THE_TYPE = ("title", "description", "default", "examples", "$defs")
_BOUNDS = {
    "minimum": "at least", "maximum": "at most",
    "exclusiveMinimum": "above", "exclusiveMaximum": "below",
}  # fmt: skip
_SIZES = {
    "minLength": "characters, not at least", "maxLength": "characters, not at most",
    "minItems": "items, not at least", "maxItems": "items, not at most",
    "minProperties": "entries, not at least", "maxProperties": "entries, not at most",
}  # fmt: skip


class Failure(Protocol):
    """A ``ValidationError`` of the library."""

    validator: str | None
    validator_value: Any
    instance: Any
    schema: Any
    context: Sequence[Failure]
    relative_path: Sequence[str | int]
    relative_schema_path: Sequence[str | int]
    absolute_path: Sequence[str | int]


class Checker(Protocol):
    """A :class:`motet.protocols.validator.Check`, whose import takes a tenth of a second."""

    def errors(self, value: object, most: int, /) -> list[Any]: ...


@attrs.frozen(eq=False)
class JsonSchema:
    """A schema that values can be checked against. Made by :func:`compiled`."""

    _check: Checker

    def problems(self, value: object, path: str = "") -> tuple[str, ...]:
        """The problems of a value, one line each. ``path``: of the value itself."""
        return _listed(self._check.errors(value, MOST_ERRORS), path)

    def read(self, value: object, path: str = "") -> tuple[object, tuple[str, ...]]:
        """The value and its problems, as :meth:`problems`.

        A value that fits is returned itself; in another, near misses are repaired first: ``"5"``
        for 5, a list or an object that was quoted once too often.
        """
        errors = self._check.errors(value, MOST_ERRORS)
        for _ in range(MOST_REPAIRS if errors else 0):
            changes = [change for error in errors for change in _changes(error)]
            better = _changed(value, changes) if changes else self._chosen(value, errors)
            if better is None:
                break
            value, errors = better, self._check.errors(better, MOST_ERRORS)
        return value, _listed(errors, path)

    def _chosen(self, value: object, errors: Sequence[Failure]) -> object:
        """The value with one repair inside a choice, if there are fewer errors then."""
        leaves = [leaf for error in errors for leaf in _leaves(error)]
        for leaf in leaves[:MOST_PROBLEMS]:
            for change in _changes(leaf):
                better = _changed(value, [change])
                if len(self._check.errors(better, MOST_ERRORS)) < len(errors):
                    return better
        return None


def _listed(errors: Iterable[Failure], path: str) -> tuple[str, ...]:
    missing_first = sorted(errors, key=lambda error: error.validator != "required")
    found: dict[str, None] = {}
    for error in missing_first:
        for line in _lines(error, path):
            if len(found) == MOST_PROBLEMS:
                return (*found, "and there are more problems")
            found[line] = None
    return tuple(found)


def compiled(schema: object, *, trusted: bool = False) -> JsonSchema:
    """The schema, ready for checks. ``trusted``: it was compiled before, or motet made it.

    Raises :class:`SchemaError` for a schema that is not valid in its dialect (``$schema``, else
    2020-12), that is too large, or that refers to anything outside of itself.
    """
    from motet.protocols.validator import compile_schema

    return JsonSchema(compile_schema(schema, trusted=trusted))


def problems(value: object, schema: JsonObject, path: str = "") -> tuple[str, ...]:
    """The problems that a value has by a schema of motet's own when its near misses are repaired.

    ``path``: of the value itself. A schema that cannot be read has none.
    """
    try:
        check = compiled(schema, trusted=True)
    except SchemaError:
        return ()
    return check.read(value, path)[1]


def fragment(schema: object) -> str:
    """A schema without its descriptions, cut to one line."""
    kept = schema
    if isinstance(schema, dict):
        entries = cast(JsonObject, schema).items()
        kept = {key: beginning(part) for key, part in entries if key not in _BESIDE_THE_TYPE}
    return shown(kept, FRAGMENT_CHARS)


# The lines about one error


def _lines(error: Failure, base: str) -> Iterator[str]:
    path = _path(base, error.absolute_path)
    schema = json_object(error.schema)
    wanted = error.validator_value
    match error.validator:
        case "required" if isinstance(wanted, list):
            parts = json_object(schema.get("properties"))
            for name in cast("list[str]", wanted):
                if name not in error.instance:
                    expected = fragment(parts.get(name, {}))
                    yield f"{_below(path, name)}: is missing; expected {expected}"
        case "additionalProperties" if wanted is False:
            known = list(json_object(schema.get("properties")))
            guess = nearest(str(error.absolute_path[-1]), known)
            hint = f"did you mean {guess!r}?" if guess else f"known: {listing(known)}"
            yield f"{path}: there is no such name; {hint}"
        case "anyOf" | "oneOf" if error.context:
            yield from _of_choices(error, path, base)
        case None:
            yield f"{path or ROOT}: nothing is allowed here"
        case _:
            yield f"{path or ROOT}: {_wrong(error)}; expected {fragment(schema)}"


def _of_choices(error: Failure, path: str, base: str) -> Iterator[str]:
    """The problems of the nearest choice."""
    found: dict[object, list[Failure]] = {}
    for one in error.context:
        found.setdefault(one.relative_schema_path[0], []).append(one)
    likely = [
        every
        for every in found.values()
        if kind_of(error.instance) in ("object", "array")
        and not any(one.validator in ("type", None) and not one.relative_path for one in every)
    ]
    if likely:
        for one in min(likely, key=len):
            yield from _lines(one, base)
        return
    choices = cast("list[object]", error.validator_value)
    every = " or ".join(fragment(choice) for choice in choices)[: 2 * FRAGMENT_CHARS]
    yield f"{path or ROOT}: {shown(error.instance)} fits none of {every}"


def _wrong(error: Failure) -> str:
    value, wanted = error.instance, error.validator_value
    word = error.validator or ""
    if word in _BOUNDS:
        return f"{shown(value)} is not {_BOUNDS[word]} {wanted}"
    if word in _SIZES:
        return f"it has {len(value)} {_SIZES[word]} {wanted}"
    match word:
        case "type":
            return f"{shown(value)} is of type {kind_of(value)}"
        case "enum" | "const":
            return f"{shown(value)} is none of the values there are"
        case "pattern":
            return f"{shown(value)} does not match the pattern"
        case "format":
            return f"{shown(value)} is no {wanted}"
        case "oneOf":
            return f"{shown(value)} fits more than one choice"
        case "uniqueItems":
            return "an item is there twice"
        case _:
            return f"{shown(value)} does not fit {shown({word: wanted})}"


def _path(base: str, steps: Iterable[str | int]) -> str:
    for step in steps:
        base = f"{base}[{step}]" if isinstance(step, int) else _below(base, step)
    return base


def _below(path: str, name: str) -> str:
    if not name.isidentifier():
        return f"{path}[{shown(name)}]"
    return f"{path}.{name}" if path else name


# Near misses


def _leaves(error: Failure) -> Iterator[Failure]:
    if not error.context:
        yield error
    for one in error.context:
        yield from _leaves(one)


def _changes(error: Failure) -> Iterator[Change]:
    """The place of a near miss, and the value that was meant."""
    value, wanted = error.instance, error.validator_value
    meant: list[object] = []
    if error.validator == "type":
        kinds = cast("list[object]", wanted) if isinstance(wanted, list) else [wanted]
        meant = [new for kind in kinds for new in _meant(value, str(kind))]
    elif error.validator in ("enum", "const") and isinstance(value, str):
        known = cast("list[object]", wanted) if error.validator == "enum" else [wanted]
        plain = [one for one in known[:MOST_ERRORS] if not isinstance(one, str | list | dict)]
        meant = [one for one in plain if value == json.dumps(one)]
    if meant:
        yield tuple(error.absolute_path), meant[0]


def _meant(value: object, kind: str) -> Iterator[object]:
    """The value of that type which another value stands for."""
    if kind == "boolean" and type(value) is int and value in (0, 1):
        yield value == 1
    if not isinstance(value, str) or len(value) > MOST_QUOTED:
        return
    text = value.strip()
    try:
        decoded: object = json.loads(text.lower() if kind == "boolean" else text)
    except (ValueError, RecursionError):
        return
    if isinstance(decoded, float) and not math.isfinite(decoded):
        return
    if kind_of(decoded) == kind or (kind == "number" and kind_of(decoded) == "integer"):
        yield decoded
    elif kind == "integer" and isinstance(decoded, float) and decoded.is_integer():
        yield int(decoded)


def _changed(value: object, changes: Iterable[Change]) -> object:
    """A copy with other values at some places; what did not change is shared."""
    for path, new in changes:
        value = _with(value, path, new)
    return value


def _with(value: object, path: tuple[str | int, ...], new: object) -> object:
    if not path:
        return new
    kept, step, rest = value, path[0], path[1:]
    if isinstance(value, list) and isinstance(step, int):
        items = cast("list[object]", value)
        return [*items[:step], _with(items[step], rest, new), *items[step + 1 :]]
    if isinstance(value, dict) and isinstance(step, str):
        entries = cast(JsonObject, value)
        return {**entries, step: _with(entries[step], rest, new)}
    return kept  # an earlier change has replaced its container


# References


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


_NO_KEYS = (
    *(mi.BoolType, mi.NoneType, mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType),
    *(mi.TupleType, mi.DictType, mi.TypedDictType, mi.NamedTupleType, mi.DataclassType),
    mi.StructType,
)


def unreadable_keys(types: Sequence[object]) -> str | None:
    """The first dict in these types, at any depth, whose keys no text of JSON stands for.

    None: there is none. ``dict[bool, int]`` is one; ``dict[str | bool, int]`` is not, since
    every key of it is read as a text. Types that msgspec does not know are taken as they are.
    """
    seen: set[int] = set()
    left: list[object] = []
    with suppress(TypeError, NameError):  # an unsupported type, a name that is not known
        left.extend(mi.multi_type_info(types))
    while left:
        one = left.pop()
        if isinstance(one, tuple):
            left.extend(cast("tuple[object, ...]", one))
        if not isinstance(one, mi.Type | mi.Field) or id(one) in seen:
            continue
        seen.add(id(one))  # a type may hold itself
        if isinstance(one, mi.DictType) and not _may_be_text(one.key_type):
            return _name_of(one.key_type)
        left.extend(getattr(one, name) for name in one.__struct_fields__ if name != "default")
    return None


def _name_of(key: mi.Type) -> str:
    bare = key.type if isinstance(key, mi.Metadata) else key
    return type(bare).__name__.removesuffix("Type").lower()


def _may_be_text(key: mi.Type) -> bool:
    if isinstance(key, mi.Metadata):
        return _may_be_text(key.type)
    if isinstance(key, mi.UnionType):
        return any(map(_may_be_text, key.types))
    return not isinstance(key, _NO_KEYS)
