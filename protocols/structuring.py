"""Plain data into classes by cattrs, strictly, with every problem named at its path.

Nothing is coerced (the text ``"5"`` is not a number) except a whole number where a fraction is
meant. cattrs finds the hook for each type; the hooks here report all problems, not the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from math import isfinite
from types import NoneType
from typing import Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import attrs
import msgspec
from cattrs import Converter

from motet.protocols.errors import ConfigError, listing, nearest

T = TypeVar("T")
Hook = Callable[[object, object], object]

_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


Problems: TypeAlias = tuple[tuple[str, str], ...]
"""Each is a path and what is wrong there."""


def structured(data: object, cls: type[T], *, source: str, known: Problems = ()) -> T:
    """An instance of ``cls`` made of plain data. Raises ``ConfigError`` naming all problems.

    ``known``: problems of the data that were found before. A value that is missing because of one
    is no problem of its own.
    """
    try:
        made = _converter().structure(data, cls)
    except Invalid as invalid:
        known += tuple(one for one in invalid.problems if not _holds(one[0], known))
    else:
        if not known:
            return made
    raise ConfigError(_message(known, source))


def _holds(path: str, problems: Problems) -> bool:
    """Whether a problem is at the path or below it."""
    return any(f"{at}.".startswith((f"{path}.", f"{path}[")) for at, _ in problems)


class Invalid(Exception):
    """Some data cannot be structured. Each problem is a path and what is wrong there."""

    def __init__(self, *problems: tuple[str, str]):
        super().__init__(*problems)
        self.problems = problems

    def below(self, key: str) -> Invalid:
        """The same problems as seen from one level further out."""
        return Invalid(*((_joined(key, path), text) for path, text in self.problems))


def _joined(key: str, path: str) -> str:
    return key + path if path.startswith("[") or not path else f"{key}.{path}"


def _message(problems: Problems, source: str) -> str:
    lines = [f"{path}: {text}" if path else text for path, text in problems]
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n  ".join([f"{source} has {len(lines)} problems:", *lines])


@cache
def _converter() -> Converter:
    converter = Converter(detailed_validation=False)
    for kind in _KINDS:
        converter.register_structure_hook(kind, _scalar)
    converter.register_structure_hook_factory(_is_class, _class_hook)
    converter.register_structure_hook_func(_origin_in(Literal), _choice)
    converter.register_structure_hook_func(_origin_in(tuple), _items)
    converter.register_structure_hook_func(_origin_in(dict, Mapping), _table)
    converter.register_structure_hook_func(_is_one_or_more, _one_or_more)
    converter.register_structure_hook_func(lambda kind: NoneType in get_args(kind), _optional)
    return converter


def _origin_in(*origins: object) -> Callable[[object], bool]:
    return lambda kind: get_origin(kind) in origins


def _structure(value: object, kind: object) -> object:
    return _converter().structure(value, cast("type[object]", kind))


def _is_class(kind: object) -> bool:
    return isinstance(kind, type) and (attrs.has(kind) or issubclass(kind, msgspec.Struct))


def _scalar(value: object, kind: object) -> object:
    assert isinstance(kind, type)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (isinstance(value, float) and not isfinite(value)):
        raise Invalid(("", f"expected {_KINDS[kind]}, not {_shown(value)}"))
    return value


def _choice(value: object, kind: object) -> object:
    choices = [str(choice) for choice in get_args(kind)]
    if value in choices:
        return value
    near = nearest(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    raise Invalid(("", f"expected one of {listing(choices)}, not {_shown(value)}{hint}"))


def _optional(value: object, kind: object) -> object:
    """The other member of ``X | None``; a file has no null, a program may pass None."""
    (inner,) = (member for member in get_args(kind) if member is not NoneType)
    return None if value is None else _structure(value, inner)


def _is_one_or_more(kind: object) -> bool:
    return set(get_args(kind)) == {str, tuple[str, ...]}


def _one_or_more(value: object, _: object) -> object:
    """A text, or a list of them: who has only one need not put it into a list."""
    return _structure(value, str if isinstance(value, str) else tuple[str, ...])


def _items(value: object, kind: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise Invalid(("", f"expected a list, not {_shown(value)}"))
    inner = get_args(kind)[0]
    entries = enumerate(cast("Iterable[object]", value))
    return tuple(
        _each((f"[{i}]", partial(_structure, item, inner)) for i, item in entries).values()
    )


def _table(value: object, kind: object) -> dict[str, object]:
    table = _keyed(value)
    inner = get_args(kind)[1]
    return _each((key, partial(_structure, item, inner)) for key, item in table.items())


def _keyed(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Invalid(("", f"expected a table, not {_shown(value)}"))
    return {str(key): item for key, item in cast("dict[object, object]", value).items()}


def _each(parts: Iterable[tuple[str, Callable[[], object]]]) -> dict[str, object]:
    """The value of every part; when some fail, the problems of all of them."""
    done: dict[str, object] = {}
    problems: list[tuple[str, str]] = []
    for key, make in parts:
        try:
            done[key] = make()
        except Invalid as invalid:
            problems += invalid.below(key).problems
    if problems:
        raise Invalid(*problems)
    return done


def _class_hook(cls: type) -> Hook:
    """How an attrs class or a msgspec struct is made from a table."""
    fields = _attrs_fields(cls) if attrs.has(cls) else _struct_fields(cls)

    def make(value: object, _: object) -> object:
        table = _keyed(value)
        names = dict.fromkeys([*table, *(name for name in fields if fields[name].required)])
        parts = _each((name, partial(_field, fields, name, table)) for name in names)
        try:
            return cls(**parts)
        except (ValueError, ConfigError) as error:  # of fields that do not go together
            raise Invalid(("", str(error))) from None

    return make


@attrs.frozen
class _Field:
    """A field of a class; ``check`` raises ``ValueError`` with a text ``NAME must ...``."""

    kind: object
    required: bool
    check: Callable[[object], object]
    secret: bool = False
    convert: Callable[[object], object] | None = None


def _attrs_fields(cls: type) -> dict[str, _Field]:
    kinds = get_type_hints(cls)
    return {
        field.name: _Field(
            kinds[field.name],
            field.default is attrs.NOTHING,
            partial(field.validator, None, field) if field.validator else _anything,
            secret=not field.repr,
            convert=field.converter if kinds[field.name] is float else None,
        )
        for field in attrs.fields(cls)
    }


def _struct_fields(cls: type[msgspec.Struct]) -> dict[str, _Field]:
    """Fields of a struct whose fields have defaults: ``__post_init__`` can judge each alone."""

    def alone(name: str, value: object) -> object:
        return cls(**{name: value})

    return {
        field.name: _Field(field.type, field.required, partial(alone, field.name))
        for field in msgspec.structs.fields(cls)
    }


def _anything(_: object) -> None:
    """Every value of the right type will do."""


def _field(fields: dict[str, _Field], name: str, table: dict[str, object]) -> object:
    field = fields.get(name)
    if field is None:
        near = nearest(name, list(fields))
        hint = f"did you mean {near!r}?" if near else f"known: {listing(list(fields))}"
        raise Invalid(("", f"unknown key; {hint}"))
    if name not in table:
        raise Invalid(("", "is missing"))
    try:
        value = (field.convert or partial(_structure, kind=field.kind))(table[name])
        field.check(value)
    except Invalid:
        if field.secret:
            raise Invalid(("", "expected text")) from None
        raise
    except ValueError as error:
        raise Invalid(("", "must" + str(error).partition("must")[2])) from None
    return value


def _shown(value: object) -> str:
    """A value as the file has it, short enough for a line."""
    match value:
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case bool():
            return str(value).lower()
        case _:
            text = repr(value)
            return text if len(text) <= 60 else f"{text[:57]}..."
