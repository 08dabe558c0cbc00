"""From the model's raw JSON text to valid arguments, with every problem named at once.

Arguments that fit as they are, which most do, are converted together, as one struct; only others
are looked at one by one, to mend them or to say what is wrong with each.
Invariants: whatever the text is, the outcome is a JSON object or an :class:`ArgumentError`;
checking what was checked changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self, Union, cast, runtime_checkable

import attrs
import msgspec
from msgspec.structs import astuple

from motet.actors.tools.json_schema import problems
from motet.protocols.chat import JsonObject
from motet.protocols.errors import MotetError, nearest
from motet.protocols.stable_json import shortened

# Models of pydantic in annotations, known by the methods they have: pydantic is no dependency.


class Model(Protocol):
    """What is used of a ``pydantic.BaseModel``."""

    @classmethod
    def model_json_schema(cls, *, ref_template: str) -> JsonObject: ...

    @classmethod
    def model_validate(cls, obj: object) -> Self: ...

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool) -> object: ...


@runtime_checkable
class _Failure(Protocol):
    def errors(self) -> list[Mapping[str, object]]: ...


def model_of(kind: type) -> type[Model] | None:
    """The type as a model, if it is one."""
    has_all = all(hasattr(kind, name) for name in ("model_json_schema", "model_validate"))
    return cast("type[Model]", kind) if has_all else None  # it has what is used of it


def schema_of_model(model: type[Model]) -> tuple[JsonObject, dict[str, JsonObject]]:
    """Its schema, and the definitions that this refers to; their names begin with the model's."""
    name = model.__name__
    schema = dict(model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}"))
    defs = cast("dict[str, JsonObject]", schema.pop("$defs", {}))
    return schema, {f"{name}.{key}": part for key, part in defs.items()}


def dumped(value: object) -> object:
    """A model as the JSON data that it is read from. Raises ``TypeError`` for anything else."""
    if model_of(type(value)) is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return cast(Model, value).model_dump(mode="json", by_alias=True, round_trip=True)


def problems_of(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Path and message of all that a model has found wrong; nothing for another error."""
    if not isinstance(error, _Failure) or not isinstance(error, ValueError):
        return
    for problem in error.errors():
        place = cast("tuple[str | int, ...]", problem.get("loc", ()))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        yield path, str(problem.get("msg", "is wrong"))


FRAGMENT_CHARS = 300
NEAR_CHARS = 24

_BESIDE_THE_TYPE = ("title", "description", "default", "examples")
_KINDS: Mapping[type, str] = {list: "array", str: "string", bool: "boolean"}
_OBJECT = msgspec.json.Decoder(JsonObject)
_SHORT = (int, float, type(None))
_PLAIN = (str, *_SHORT)
"""What JSON data has besides lists and objects; a ``bool`` is an ``int``."""


class ArgumentError(MotetError):
    """The arguments of a call are wrong; ``problems`` names everything that is."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@attrs.frozen
class Parameter:
    """One parameter: ``type`` is what msgspec converts to, ``schema`` what the model was told."""

    name: str
    type: object
    schema: JsonObject
    required: bool = True


def _together(arguments: Arguments) -> type[msgspec.Struct] | None:
    """All parameters as the fields of one struct; None if a name cannot be that of a field."""
    fields = [(f"p{place}", one) for place, one in enumerate(arguments.parameters.values())]
    try:
        return msgspec.defstruct(
            "Together",
            [
                (field, one.type) if one.required else (field, one.type, msgspec.UNSET)
                for field, one in fields
            ],
            rename={field: one.name for field, one in fields},
            kw_only=True,
        )
    except ValueError:
        return None


@attrs.frozen
class Arguments:
    """The parameters of one tool, and the check of what a model sends for them.

    ``closed``: a name that is no parameter is a problem, else it is passed on as it is.
    """

    parameters: Mapping[str, Parameter]
    closed: bool = True
    _struct: type[msgspec.Struct] | None = attrs.field(
        default=attrs.Factory(_together, takes_self=True), init=False, eq=False, repr=False
    )

    def parse(self, text: str) -> JsonObject:
        """Read the model's text. Near misses are mended: ``"5"`` for 5, an object in a string.

        Raises:
            ArgumentError: with all problems, for the model to read.
        """
        return self.check(_decode_object(text))

    def check(self, args: JsonObject, *, strict: bool = False) -> JsonObject:
        """The arguments as JSON data, mended unless ``strict``. Raises ``ArgumentError``."""
        plain: JsonObject | None
        try:
            plain = msgspec.to_builtins(self._fitting(args), str_keys=True, enc_hook=_json_form)
        except Exception:
            plain = None
        if plain is None:  # what is wrong, if anything is, is found one by one
            return self._one_by_one(args, strict=strict)
        return {
            name: value if isinstance(value := plain[name], _PLAIN) else _listed(value)
            for name in args
        }

    def typed(self, args: JsonObject) -> dict[str, object]:
        """Checked arguments as the values a Python function wants. Raises ``ArgumentError``."""
        try:
            values = dict(zip(self.parameters, astuple(self._fitting(args)), strict=True))
        except Exception:  # as above
            return {
                name: _convert(self.parameters[name], value, strict=True)
                for name, value in args.items()
            }
        return values if len(args) == len(values) else {name: values[name] for name in args}

    def _fitting(self, args: JsonObject) -> msgspec.Struct:
        """The arguments as they are, converted. Raises whatever shows that they do not fit."""
        if self._struct is None or not args.keys() <= self.parameters.keys():
            raise LookupError("a name that is no field")
        return msgspec.convert(
            args, self._struct, strict=True, str_keys=True, dec_hook=_beyond_msgspec
        )

    def _one_by_one(self, args: JsonObject, *, strict: bool) -> JsonObject:
        accepted: JsonObject = {}
        problems = list(self._misnamed(args))
        for name, value in args.items():
            try:
                accepted[name] = self._accept(name, value, strict=strict)
            except ArgumentError as error:
                problems += error.problems
        if problems:
            raise ArgumentError(problems)
        return accepted

    def _misnamed(self, args: JsonObject) -> Iterator[str]:
        known = list(self.parameters)
        for name in args:
            if self.closed and name not in self.parameters:
                guess = nearest(str(name), known)
                hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(known) or '-'}"
                yield f"unknown parameter {name!r}; {hint}"
        for parameter in self.parameters.values():
            if parameter.required and parameter.name not in args:
                yield f"missing parameter {parameter.name!r}; expected {_fragment(parameter)}"

    def _accept(self, name: str, value: object, *, strict: bool) -> object:
        parameter = self.parameters.get(name)
        if parameter is None:
            return value
        converted = _convert(parameter, value, strict=strict)
        try:
            plain = _listed(msgspec.to_builtins(converted, str_keys=True, enc_hook=_json_form))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError([f"{name}: is not JSON data: {error}"]) from error
        return plain


def _convert(parameter: Parameter, value: object, *, strict: bool) -> object:
    try:
        return _mended(parameter.type, value, strict=strict)
    except Exception as error:  # a __post_init__ of the user's own type may raise anything
        every = problems(value, parameter.schema, parameter.name)
        if len(every) > 1 and error.__cause__ is None:  # msgspec has named the first one only
            raise ArgumentError(every) from error
        *others, last = _said(parameter.name, error)
        raise ArgumentError([*others, f"{last}; expected {_fragment(parameter)}"]) from error


def _mended(kind: object, value: object, *, strict: bool) -> object:
    """Strictly first: a value that fits as it is must not be taken for something else."""
    try:
        return _as(kind, value, strict=True)
    except msgspec.ValidationError:
        if strict:
            raise
    try:
        return _as(kind, value, strict=False)
    except msgspec.ValidationError:
        inner = _decoded_container(value)
        if inner is None:
            raise
        return _as(kind, inner, strict=False)


def _as(kind: object, value: object, *, strict: bool) -> object:
    converted: object = msgspec.convert(
        value, kind, strict=strict, str_keys=True, dec_hook=_beyond_msgspec
    )
    return converted


def _beyond_msgspec(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):
        return value
    model = model_of(kind)
    if model is not None:
        return model.model_validate(value)
    raise msgspec.ValidationError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _listed(data: object) -> object:
    """The data with lists for the tuples that msgspec leaves as they are."""
    if isinstance(data, dict):
        return {name: _listed(part) for name, part in cast(JsonObject, data).items()}
    if isinstance(data, list | tuple):
        return [_listed(part) for part in cast("Sequence[object]", data)]
    return data


def _json_form(value: object) -> object:
    """The JSON data of a value that msgspec does not know. Raises ``TypeError``."""
    return str(value) if isinstance(value, Path) else dumped(value)


def _decoded_container(value: object) -> object:
    """The list or object a string holds as JSON: models quote them once too often."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return None
    try:
        decoded: object = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return None
    return decoded


def _decode_object(text: str) -> JsonObject:
    try:
        return _OBJECT.decode(text)
    except (ValueError, RecursionError):
        return _meant(text)


def _meant(text: str) -> JsonObject:
    """No text and ``null`` mean no arguments; an object quoted as a string is unquoted."""
    value: object = _decode(text) if text.strip() else {}
    if isinstance(value, str):
        value = _decode(value) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "number")
        raise ArgumentError([f"the arguments must be one JSON object, not a JSON {kind}"])
    return cast(JsonObject, value)  # decoded JSON: the names are strings


def _decode(text: str) -> object:
    try:
        value: object = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError([f"the arguments are not valid JSON: {broken(text, error)}"]) from None
    return value


def broken(text: str, error: Exception) -> str:
    """What is wrong with a JSON text, and where, when ``error`` is what msgspec said of it.

    The standard decoder knows the place, msgspec is the judge.
    """
    if isinstance(error, RecursionError):
        return "nested too deeply"
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        if found.pos >= len(text.rstrip()):
            return f"the text ends too early, after {len(text)} characters"
        return f"{found.msg} at character {found.pos}, {_near(text, found.pos)}"
    except (ValueError, RecursionError):
        pass
    # Only msgspec minds half of a surrogate pair, and it names that badly.
    return "a string holds half of a surrogate pair" if "truncated" in str(error) else str(error)


def _near(text: str, place: int) -> str:
    before = text[max(0, place - NEAR_CHARS) : place]
    return f"just before {text[place : place + NEAR_CHARS]!r} (after {before!r})"


def _said(name: str, error: Exception) -> Sequence[str]:
    """msgspec ends its messages with the path from ``$``; the model knows the parameter's name."""
    text = str(error) or type(error).__name__
    what, found, path = text.rpartition(" - at `$")
    place = f"{name}{path.rstrip('`')}" if found else name
    every = [f"{place}{below}: {problem}" for below, problem in problems_of(error.__cause__)]
    return every or [f"{place}: {what if found else text}"]


def _fragment(parameter: Parameter) -> str:
    told = {key: part for key, part in parameter.schema.items() if key not in _BESIDE_THE_TYPE}
    text = json.dumps(told, ensure_ascii=False, default=str)
    return text if len(text) <= FRAGMENT_CHARS else text[: FRAGMENT_CHARS - 3] + "..."


def preview(text: str, limit: int) -> JsonObject:
    """The arguments for people to see, strings cut to ``limit``; unreadable ones as their text."""
    try:
        return shortened(_decode_object(text), limit)
    except (ArgumentError, RecursionError):
        return {"arguments": text[:limit]}


# A check for tools that come with a JSON Schema and no Python types, an MCP server's for one.
#
# Invariant: a schema is never refused; what its simple types do not say is let through, and the
# tool itself judges it.


def from_schema(schema: JsonObject) -> Arguments:
    """A check for a foreign schema; what its simple types do not say is let through."""
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    names = cast("list[object]", required) if isinstance(required, list) else []
    parameters = {
        name: Parameter(name, _supported(_mapping(part)), _mapping(part), name in names)
        for name, part in properties.items()
    }
    return Arguments(parameters, closed=schema.get("additionalProperties") is False)


def _mapping(value: object) -> JsonObject:
    return cast(JsonObject, value) if isinstance(value, dict) else {}  # decoded JSON


def _supported(schema: JsonObject) -> object:
    kind = _type_of(schema)
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, ValueError):
        return object
    return kind


def _type_of(schema: JsonObject) -> object:
    choices = schema.get("enum")
    if isinstance(choices, list):
        return _literal(cast("list[object]", choices))
    kinds = schema.get("type")
    if isinstance(kinds, list):
        members = tuple(_simple(str(kind), schema) for kind in cast("list[object]", kinds))
        return Union[members] if members else object  # noqa: UP007  made at run time
    return _simple(str(kinds), schema)


def _literal(choices: Sequence[object]) -> object:
    plain = choices and all(type(choice) in (str, int) for choice in choices)
    return Literal[tuple(choices)] if plain else object


def _simple(kind: str, schema: JsonObject) -> object:
    match kind:
        case "string":
            return _limited(str, schema, min_length="minLength", max_length="maxLength")
        case "integer":
            return _limited(int, schema, ge="minimum", le="maximum")
        case "number":
            return _limited(float, schema, ge="minimum", le="maximum")
        case "array":
            items = _supported(_mapping(schema.get("items")))
            return _limited(_list_of(items), schema, min_length="minItems", max_length="maxItems")
        case "boolean":
            return bool
        case "object":
            return dict[str, object]
        case "null":
            return None
        case _:
            return object


def _list_of(items: object) -> object:
    return list[items]  # type: ignore[valid-type]  # made at run time


def _limited(kind: object, schema: JsonObject, **keys: str) -> object:
    limits = {name: schema[key] for name, key in keys.items() if _is_number(schema.get(key))}
    pattern = schema.get("pattern")
    if kind is str and isinstance(pattern, str) and _is_pattern(pattern):
        limits["pattern"] = pattern
    if not limits:
        return kind
    limit = cast("Callable[..., msgspec.Meta]", msgspec.Meta)  # the keys are known at run time
    return Annotated[kind, limit(**limits)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
