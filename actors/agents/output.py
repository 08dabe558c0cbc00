"""Structured output: the JSON Schema of an agent's answers, and the parser for them.

Invariants: :meth:`OutputForm.read` returns a value of the declared type, and its text read again
gives an equal value; any other answer raises :class:`Unreadable` with all problems. Near misses are
repaired, as in the arguments of tools: ``"5"`` for 5, JSON in a code fence, an object that was
quoted once too often.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

import attrs
import msgspec

from motet.actors.tools.arguments import ArgumentError, Arguments, Parameter, broken
from motet.actors.tools.schema import readable, schema_of
from motet.protocols.chat import JsonObject
from motet.protocols.errors import MotetError
from motet.protocols.json_schema import problems
from motet.protocols.models import OutputSchema

ANSWER = "answer"
"""The key of an answer that is no object, in the object that providers want around it."""

_FENCED = re.compile(r"\s*```[a-zA-Z]*\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class Unreadable(MotetError):
    """An answer does not have the declared form; ``problems`` names every error."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Reading(msgspec.Struct, frozen=True):
    """A parsed answer. ``text``: its JSON, with nothing around it."""

    value: object
    text: str


@attrs.frozen
class OutputForm:
    """The form of a declared type.

    Attributes:
        schema: for the provider: always of an object.
        wrapped: whether that object only holds the answer.
    """

    name: str
    schema: JsonObject = attrs.field(repr=False)
    wrapped: bool
    _plain: JsonObject = attrs.field(repr=False, alias="plain")
    _accepts: Arguments = attrs.field(repr=False, alias="accepts")

    @property
    def asked(self) -> OutputSchema:
        """The schema for a provider that can enforce one."""
        return OutputSchema(self.name, self.schema)

    def read(self, text: str) -> Reading:
        """Parse the text of a model. Raises ``Unreadable``."""
        try:
            value = _decoded(text)
        except (ValueError, RecursionError) as error:
            wrong = Unreadable([f"the answer is not valid JSON: {broken(text, error)}"])
            return self._word(text, wrong)
        candidates = [value]
        if self.wrapped and isinstance(value, dict):
            held = cast(JsonObject, value)  # decoded JSON
            candidates = [held[ANSWER], held] if held.keys() == {ANSWER} else candidates
        found: list[Unreadable] = []
        for candidate in candidates:
            try:
                return self._as(candidate)
            except Unreadable as error:
                found.append(error)
        return self._word(text, found[0])

    def _word(self, text: str, wrong: Unreadable) -> Reading:
        """Read the text as a string: models leave out the quotes of a single word."""
        if text.lstrip()[:1] in ("", "{", "[", "`", '"'):
            raise wrong
        try:
            return self._as(text.strip())
        except Unreadable as error:
            is_word = "enum" in self._plain or self._plain.get("type") == "string"
            raise (error if is_word else wrong) from None

    def _as(self, value: object) -> Reading:
        try:
            plain = self._accepts.check({ANSWER: value})
            typed = self._accepts.typed(plain)[ANSWER]
        except ArgumentError as error:
            raise Unreadable(self._problems(value, error)) from error
        return Reading(typed, msgspec.json.encode(plain[ANSWER]).decode())

    def _problems(self, value: object, error: ArgumentError) -> Sequence[str]:
        """The errors by the schema, and those that the type itself found in other places."""
        known = problems(value, self._plain)
        places = {text.partition(": ")[0] for text in known}
        said = map(_of_type, error.problems)
        return (*known, *(text for text in said if text.partition(": ")[0] not in places))


def form_of(output_type: object) -> OutputForm | None:
    """The form of a type; None for ``str``, since every answer is one.

    Raises ``TypeError`` for a type that cannot be described to a model.
    """
    if output_type is str:
        return None
    try:
        plain = schema_of(output_type)
        kind = readable(output_type)
    except TypeError as error:
        reason = str(error).rpartition("\n")[2]
        raise TypeError(f"output_type {output_type!r}: {reason}") from error
    wrapped = plain.get("type") != "object"
    return OutputForm(
        name=_name(output_type),
        schema=_around(plain) if wrapped else plain,
        wrapped=wrapped,
        plain=plain,
        accepts=Arguments({ANSWER: Parameter(ANSWER, kind, plain)}),
    )


def _name(kind: object) -> str:
    """The name of the form for providers: letters, digits, ``_`` and ``-``."""
    name = _NOT_IN_A_NAME.sub("_", kind.__name__) if isinstance(kind, type) else ""
    return name.strip("_")[:64] or ANSWER


def _around(schema: JsonObject) -> JsonObject:
    inner = {key: part for key, part in schema.items() if key != "$defs"}
    outer: JsonObject = {
        "type": "object",
        "properties": {ANSWER: inner},
        "required": [ANSWER],
        "additionalProperties": False,
    }
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


def _decoded(text: str) -> object:
    """The JSON of an answer, with or without a code fence."""
    fenced = _FENCED.fullmatch(text)
    value: object = msgspec.json.decode(fenced[1] if fenced else text)
    return value


def _of_type(problem: str) -> str:
    """The error of a type without the schema behind it."""
    text = problem.partition("; expected {")[0].removeprefix(ANSWER)
    return text[1:] if text.startswith(".") else f"the answer{text}"
