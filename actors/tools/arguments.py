"""The arguments of a call: from the model's raw JSON text to valid values, or all its problems.

Most arguments fit unchanged, and are converted together, as one struct; only others are checked one
by one, to repair them or to explain each problem. Tools without Python types, such as those of
MCP servers, have a check of their JSON Schema (:class:`ForeignArguments`).

Invariants: for every text, the outcome is a JSON object or an :class:`ArgumentError`; a check of
checked arguments changes nothing; a foreign tool gets arguments that fit exactly as they were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Protocol, Self, cast, runtime_checkable

import attrs
import msgspec
from msgspec.structs import astuple

from motet.protocols.chat import JsonObject
from motet.protocols.errors import MotetError, nearest
from motet.protocols.json_schema import JsonSchema, compiled, fragment, problems
from motet.protocols.redaction.redact import redact_text
from motet.protocols.stable_json import shortened
from motet.protocols.texts import well_formed
from motet.runtime.outside import foreign_code

NEAR_CHARS = 24
QUICK_CHARS = 4_000

_KINDS: Mapping[type, str] = {list: "array", str: "string", bool: "boolean"}
_OBJECT = msgspec.json.Decoder(JsonObject)
_PLAIN = (str, int, float, type(None))
"""The types of JSON values besides lists and objects; a ``bool`` is an ``int``."""


class Model(Protocol):
    """A ``pydantic.BaseModel``, known by its methods: pydantic is no dependency."""

    @classmethod
    def model_json_schema(cls, *, ref_template: str) -> JsonObject: ...

    @classmethod
    def model_validate(cls, obj: object) -> Self: ...

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool) -> object: ...


@runtime_checkable
class _Failure(Protocol):
    def errors(self) -> list[Mapping[str, object]]: ...


def model_of(kind: type) -> type[Model] | None:
    """The type as a pydantic model, if it is one."""
    has_all = all(hasattr(kind, name) for name in ("model_json_schema", "model_validate"))
    return cast("type[Model]", kind) if has_all else None  # has_all has checked the protocol


def model_schema(model: type[Model]) -> tuple[JsonObject, dict[str, JsonObject]]:
    """A model's schema, and the definitions it refers to, whose names begin with the model's."""
    name = model.__name__
    schema = dict(model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}"))
    defs = cast("dict[str, JsonObject]", schema.pop("$defs", {}))
    return schema, {f"{name}.{key}": part for key, part in defs.items()}


def dumped(value: object) -> object:
    """The JSON data of a model. Raises ``TypeError`` for anything else."""
    if model_of(type(value)) is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return cast(Model, value).model_dump(mode="json", by_alias=True, round_trip=True)


def plain(value: object) -> object:
    """A path as text, a model as its data. Raises ``TypeError`` for anything else."""
    return str(value) if isinstance(value, PurePath) else dumped(value)


def has_form(value: object) -> bool:
    """Whether a result is text, bytes, or has a JSON form, and so more than its type to show."""
    if value is None or isinstance(value, str | bytes | float):
        return True
    try:
        kinds = (bytes, bytearray, memoryview)
        with foreign_code:
            data = msgspec.to_builtins(value, builtin_types=kinds, str_keys=True, enc_hook=plain)
            json.dumps(data, default=repr)  # no number of thousands of digits has a text
    except Exception:  # an object may raise anything here
        return False
    return True


def problems_of(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Path and message of each problem that a model has found; none for another error."""
    if not isinstance(error, _Failure) or not isinstance(error, ValueError):
        return
    for problem in error.errors():
        place = cast("tuple[str | int, ...]", problem.get("loc", ()))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        yield path, str(problem.get("msg", "is wrong"))


class ArgumentError(MotetError):
    """The arguments of a call are invalid; ``problems`` has one line for each reason, redacted.

    A check of the tool's own may say anything, such as the address of the database that it asked.
    """

    def __init__(self, problems: Sequence[str]):
        self.problems = tuple(redact_text(well_formed(problem)) for problem in problems)
        super().__init__("\n".join(self.problems))


@attrs.frozen
class Parameter:
    """One parameter: msgspec converts to ``type``; the model was given ``schema``."""

    name: str
    type: object
    schema: JsonObject
    required: bool = True


def _together(arguments: Arguments) -> type[msgspec.Struct] | None:
    """A struct with a field for each parameter; None if a name cannot be a field's."""
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
    """The parameters of one tool, and the check of a model's arguments.

    ``closed``: an unknown name is a problem; else it is passed on unchanged.
    """

    parameters: Mapping[str, Parameter]
    closed: bool = True
    _struct: type[msgspec.Struct] | None = attrs.field(
        default=attrs.Factory(_together, takes_self=True), init=False, eq=False, repr=False
    )

    def is_quick(self, text: str) -> bool:
        """Whether a text can be parsed at once; a larger one is, in a thread."""
        return len(text) <= 100 * QUICK_CHARS

    def parse(self, text: str) -> JsonObject:
        """Read the model's text. Near misses are repaired: ``"5"`` for 5, an object in a string.

        Raises:
            ArgumentError: with all problems, for the model to read.
        """
        return self.check(_decode_object(text))

    def check(self, args: JsonObject, *, strict: bool = False) -> JsonObject:
        """The arguments as JSON data, repaired unless ``strict``. Raises ``ArgumentError``."""
        plain: JsonObject | None
        try:
            try:
                plain = msgspec.to_builtins(self._fitting(args), str_keys=True, enc_hook=_json_form)
            except BaseException:
                with foreign_code:  # entered only for an error
                    raise
        except Exception:
            plain = None
        if plain is None:  # each by itself may still be repaired, or has a problem to report
            return self._one_by_one(args, strict=strict)
        return {
            name: value if isinstance(value := plain[name], _PLAIN) else _listed(value)
            for name in args
        }

    def typed(self, args: JsonObject) -> dict[str, object]:
        """Checked arguments as the values for a Python function. Raises ``ArgumentError``."""
        try:
            try:
                values = dict(zip(self.parameters, astuple(self._fitting(args)), strict=True))
            except BaseException:
                with foreign_code:
                    raise
        except Exception:  # as above
            return {
                name: _convert(self.parameters[name], value, strict=True)
                for name, value in args.items()
            }
        return values if len(args) == len(values) else {name: values[name] for name in args}

    def _fitting(self, args: JsonObject) -> msgspec.Struct:
        """All arguments, strictly converted at once. Any exception means that they do not fit."""
        if self._struct is None or not args.keys() <= self.parameters.keys():
            raise LookupError("a name that is not a field")
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
                yield f"missing parameter {parameter.name!r}; expected {fragment(parameter.schema)}"

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
        with foreign_code:
            return _repaired(parameter.type, value, strict=strict)
    except Exception as error:  # a __post_init__ of the user's own type may raise anything
        every = problems(value, parameter.schema, parameter.name)
        if len(every) > 1 and error.__cause__ is None:  # msgspec names only the first one
            raise ArgumentError(every) from error
        *others, last = _messages(parameter.name, error)
        raise ArgumentError([*others, f"{last}; expected {fragment(parameter.schema)}"]) from error


def _repaired(kind: object, value: object, *, strict: bool) -> object:
    """Strictly first: a value that fits must not be converted to something else."""
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
    """The data with lists in place of tuples, which msgspec keeps."""
    if isinstance(data, dict):
        return {name: _listed(part) for name, part in cast(JsonObject, data).items()}
    if isinstance(data, list | tuple):
        return [_listed(part) for part in cast("Sequence[object]", data)]
    return data


def _json_form(value: object) -> object:
    """The JSON data of a value of a type unknown to msgspec. Raises ``TypeError``."""
    return str(value) if isinstance(value, Path) else dumped(value)


def _decoded_container(value: object) -> object:
    """The list or object in a string: models quote JSON once too often."""
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
        return _unquoted(text)


def _unquoted(text: str) -> JsonObject:
    """Read text that is no object: empty and ``null`` mean none, a quoted object is unquoted."""
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
    """The problem of a JSON text that msgspec has refused with ``error``, and its place.

    Python's own decoder finds the place; msgspec is stricter, and decides.
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
    # Only msgspec refuses half of a surrogate pair, with a message that misleads.
    return "a string holds half of a surrogate pair" if "truncated" in str(error) else str(error)


def _near(text: str, place: int) -> str:
    before = text[max(0, place - NEAR_CHARS) : place]
    return f"just before {text[place : place + NEAR_CHARS]!r} (after {before!r})"


def _messages(name: str, error: Exception) -> Sequence[str]:
    """msgspec's message, with the parameter's name in place of the path's ``$``."""
    text = str(error) or type(error).__name__
    what, found, path = text.rpartition(" - at `$")
    place = f"{name}{path.rstrip('`')}" if found else name
    every = [f"{place}{below}: {problem}" for below, problem in problems_of(error.__cause__)]
    return every or [f"{place}: {what if found else text}"]


def preview(text: str, limit: int) -> JsonObject:
    """Arguments for people, strings cut to ``limit``; invalid ones as their text."""
    try:
        fields = _decode_object(text)
        # What a value becomes as JSON again is at most a few times as long as it was.
        return fields if 8 * len(text) <= limit else shortened(fields, limit)
    except (ArgumentError, RecursionError):
        return {"arguments": text[:limit]}


@attrs.define(eq=False)
class ForeignArguments:
    """The check of arguments by a JSON Schema, for a tool without Python types.

    What fits is passed on as it is, down to the digits of its numbers.
    """

    schema: JsonObject
    _compiled: JsonSchema | None = attrs.field(default=None, repr=False)

    def is_quick(self, text: str) -> bool:
        """As :meth:`Arguments.is_quick`; a schema that was not used yet has to be compiled."""
        return self._compiled is not None and len(text) <= QUICK_CHARS

    def parse(self, text: str) -> JsonObject:
        """As :meth:`Arguments.parse`."""
        return self.check(_decode_object(text))

    def check(self, args: JsonObject, *, strict: bool = False) -> JsonObject:
        """As :meth:`Arguments.check`; arguments that fit are returned themselves."""
        if self._compiled is None:
            self._compiled = compiled(self.schema)
        found: object = args
        if strict:
            problems = self._compiled.problems(args)
        else:
            found, problems = self._compiled.read(args)
        if problems or not isinstance(found, dict):
            raise ArgumentError(problems or ("the arguments must be one JSON object",))
        return cast(JsonObject, found)


def from_schema(schema: JsonObject) -> ForeignArguments:
    """The check of arguments by a JSON Schema, which is compiled now.

    Raises :class:`motet.protocols.errors.SchemaError`.
    """
    return ForeignArguments(schema, compiled(schema))
