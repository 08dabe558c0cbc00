"""The JSON Schema of a function, from its type hints and docstring.

Constraints come as ``Annotated[int, Range(1, 200)]``; the notes of ``annotated_types`` and
``Field(...)`` of pydantic mean the same, and a text is a description (:func:`readable`).

Invariants: a function that cannot be described to a model is refused when the tool is made, with a
``TypeError`` that names the parameter; a hint without constraints stays the same object.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs
import docstring_parser
import msgspec

from motet.actors.tools.arguments import Arguments, Parameter, model_of, model_schema
from motet.actors.tools.context import Context
from motet.protocols.chat import JsonObject
from motet.protocols.json_schema import inlined, unreadable_keys

Function: TypeAlias = Callable[..., object]

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NO_KEYS = "a dict with keys of type {}; those of JSON are texts: use str, or a list of pairs"
_PLAIN = (str, int, float, bool, type(None))
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def readable(hint: object) -> object:
    """The hint with constraints that msgspec reads, at every depth."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is None or origin is Literal or not args:
        return hint
    if origin is Annotated:
        return _annotated(hint, args)
    inner = tuple(map(readable, args))
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    if origin is Union or origin is types.UnionType:
        return Union[inner]  # noqa: UP007  made at run time
    return origin[inner]


def _annotated(hint: object, args: tuple[object, ...]) -> object:
    kind = readable(args[0])
    metas = [meta for note in args[1:] if (meta := _meta(note)) is not None]
    if kind is args[0] and metas == list(args[1:]):
        return hint
    return Annotated[(kind, *metas)] if metas else kind


def _meta(note: object) -> msgspec.Meta | None:
    if isinstance(note, msgspec.Meta):
        return note
    if isinstance(note, str):
        return msgspec.Meta(description=note)
    parts = [note, *cast("list[object]", getattr(note, "metadata", []))]  # Field holds several
    found = {name: value for part in parts for name, value in _limits(part).items()}
    about = getattr(note, "description", None)
    if isinstance(about, str):
        found["description"] = about
    return cast(Any, msgspec.Meta)(**found) if found else None  # the names are known at run time


def _limits(note: object) -> dict[str, object]:
    given = {name: getattr(note, name, None) for name in _LIMITS}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }


@attrs.frozen
class Described:
    """A function as a model sees it, and the check of a call's arguments.

    ``returns``: its hint for that; ``object`` without one.
    """

    description: str
    parameters: JsonObject
    accepts: Arguments
    takes_context: bool
    returns: object


KNOWN_LIMIT = 512
"""Descriptions kept, at most."""
_KNOWN: dict[object, tuple[Described, bytes, object]] = {}
"""With the form of the schema, and what the key has by its id."""


def describe(fn: Function) -> Described:
    """Describe a function by its hints, defaults and docstring. Raises ``TypeError``.

    Functions of one ``def`` with the same hints, defaults and docstring are alike, such as the
    built-in tools of two hosts: they share the outcome, but for the schema, which its tool's owner
    may change.
    """
    alike = _alike(fn)
    if alike is None or not isinstance(fn, types.FunctionType):
        return _described(fn)
    known = _KNOWN.get(alike)
    if known is None:
        described = _described(fn)
        form = msgspec.json.encode(described.parameters)
        if msgspec.json.decode(form) != described.parameters:  # an infinite limit
            return described
        if len(_KNOWN) >= KNOWN_LIMIT:
            _KNOWN.clear()
        known = _KNOWN[alike] = described, form, (fn.__code__, fn.__globals__)
    return attrs.evolve(known[0], parameters=msgspec.json.decode(known[1]))


def _alike(fn: Function) -> object | None:
    """Equal for functions that are described in the same way; None if that cannot be told.

    The code is told by its identity: a module that is loaded anew has equal code, and may give the
    names in the hints another meaning.
    """
    if not isinstance(fn, types.FunctionType) or hasattr(fn, "__wrapped__"):
        return None
    defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    if not all(type(default) in _PLAIN for default in defaults):
        return None
    typed: list[tuple[object, object]] = [(type(one), one) for one in defaults]
    named = (fn.__doc__, id(fn.__code__), id(fn.__globals__))
    made: tuple[object, ...] = (*named, *fn.__annotations__.items(), *typed)
    try:
        hash(made)
    except TypeError:  # a constraint in Annotated that cannot be compared
        return None
    return made


def _described(fn: Function) -> Described:
    hints, given = _hints(fn), _given(fn)
    described = [p for p in inspect.signature(fn).parameters.values() if p.name not in given]
    takes_context = bool(described) and _is_context(hints.get(described[0].name))
    if takes_context:
        described = described[1:]
    for parameter in described:
        _refuse_undescribable(fn, parameter, hints)
    text, notes = _documentation(fn)
    types = {parameter.name: readable(hints[parameter.name]) for parameter in described}
    schemas, defs = _schemas(fn, types)
    for parameter in described:
        _annotate(schemas[parameter.name], parameter, notes)
    required = [p.name for p in described if p.default is inspect.Parameter.empty]
    accepts = Arguments(
        {name: Parameter(name, types[name], schemas[name], name in required) for name in types}
    )
    returns = hints.get("return", object)
    if keys := unreadable_keys([returns]):
        raise TypeError(f"tool {name_of(fn)}: it returns {_NO_KEYS.format(keys)}")
    return Described(text, _object(schemas, required, defs), accepts, takes_context, returns)


def schema_of(kind: object) -> JsonObject:
    """The JSON Schema of one type; ``$defs`` has only definitions that refer to themselves.

    Raises ``TypeError`` for a type that cannot be described.
    """
    (found,), defs = _components([readable(kind)])
    plain = inlined(found, defs)
    if plain is not None:
        return plain
    name = str(found.get("$ref", "")).rpartition("/")[2]
    return {**defs.get(name, found), "$defs": defs}


def function_of(fn: Function) -> Function:
    """The function with the hints and the code: of a ``partial``, or of a callable object."""
    if isinstance(fn, partial):
        return function_of(fn.func)
    return fn if inspect.isroutine(fn) or hasattr(fn, "__wrapped__") else type(fn).__call__


def name_of(fn: Function) -> str:
    """The function's own name, or that of its class."""
    inner = fn.func if isinstance(fn, partial) else fn
    return str(getattr(inner, "__name__", type(inner).__name__))


def _given(fn: Function) -> Collection[str]:
    """The arguments that a ``partial`` has already: they are not described."""
    return tuple(fn.keywords) if isinstance(fn, partial) else ()


def _hints(fn: Function) -> Mapping[str, object]:
    try:
        return get_type_hints(function_of(fn), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name_of(fn)}: {error}; types in its annotations must be importable when the "
            "tool is made: define them at module level, outside of `if TYPE_CHECKING`"
        ) from error


def _is_context(hint: object) -> bool:
    return hint is Context or get_origin(hint) is Context


def _refuse_undescribable(
    fn: Function, parameter: inspect.Parameter, hints: Mapping[str, object]
) -> None:
    where = f"tool {name_of(fn)}: parameter {parameter.name!r}"
    if type(parameter.default).__name__ == "FieldInfo":
        raise TypeError(f"{where}: put Field(...) into Annotated[...], and the default behind `=`")
    if parameter.kind in _VARIADIC:
        raise TypeError(f"{where}: * and ** parameters cannot be described to a model; name them")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise TypeError(f"{where}: arguments are passed by name; it must not be positional-only")
    if parameter.name not in hints:
        raise TypeError(f"{where} needs a type annotation: the model is told its schema")
    if _is_context(hints[parameter.name]):
        raise TypeError(f"{where}: Context must be the first parameter")


def _documentation(fn: Function) -> tuple[str, Mapping[str, str]]:
    text = inspect.cleandoc(function_of(fn).__doc__ or "")
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    notes = {param.arg_name: param.description or "" for param in parsed.params}
    return (parsed.description or "").strip(), notes


def _schemas(
    fn: Function, types: Mapping[str, object]
) -> tuple[dict[str, JsonObject], dict[str, JsonObject]]:
    """One schema per parameter, and the definitions of those that refer to themselves."""
    try:
        found, defs = _components(list(types.values()))
    except TypeError:
        for name, kind in types.items():
            _refuse_type(fn, name, kind)
        raise
    plain = [inlined(schema, defs) for schema in found]
    if all(schema is not None for schema in plain):
        found, defs = cast("list[JsonObject]", plain), {}  # none is None: just checked
    return dict(zip(types, found, strict=True)), defs


def _refuse_type(fn: Function, name: str, kind: object) -> None:
    try:
        _components([kind])
    except TypeError as error:
        reason = str(error).rpartition("\n")[2]
        raise TypeError(
            f"tool {name_of(fn)}: parameter {name!r} cannot be described to a model: {reason}"
        ) from error


def _components(types: Sequence[object]) -> tuple[list[JsonObject], dict[str, JsonObject]]:
    if keys := unreadable_keys(types):
        raise TypeError(_NO_KEYS.format(keys))
    of_models: dict[str, JsonObject] = {}

    def beyond_msgspec(kind: type) -> JsonObject:
        if kind is object:
            return {"description": "any JSON value"}
        if kind is Path:
            return {"type": "string", "format": "path"}
        model = model_of(kind)
        if model is None:
            return {}  # unknown: its annotation has the schema, or msgspec refuses it by name
        schema, defs = model_schema(model)
        of_models.update(defs)
        return schema

    found, defs = msgspec.json.schema_components(
        types, schema_hook=beyond_msgspec, ref_template="#/$defs/{name}"
    )
    return [dict(schema) for schema in found], {**defs, **of_models}


def _annotate(schema: JsonObject, parameter: inspect.Parameter, notes: Mapping[str, str]) -> None:
    if note := notes.get(parameter.name):
        schema["description"] = note
    if parameter.default is inspect.Parameter.empty:
        return
    with suppress(TypeError, ValueError):  # a default without a JSON form is not shown
        schema["default"] = msgspec.json.decode(msgspec.json.encode(parameter.default))


def _object(
    properties: Mapping[str, JsonObject], required: Sequence[str], defs: Mapping[str, JsonObject]
) -> JsonObject:
    schema: JsonObject = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return {**schema, "$defs": dict(defs)} if defs else schema
