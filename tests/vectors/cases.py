"""A file of vectors as cases, with its shorthand for long strings written out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import attrs
import msgspec

Facts: TypeAlias = Mapping[str, object]
"""What the code has shown, by name; the main thing has the empty name."""
Adapter: TypeAlias = Callable[["Given"], Facts]

MAIN = ""


class NotYet(Exception):
    """The case is about something that is not built yet; says what."""


class NotUnderstood(Exception):
    """No adapter knows inputs of this form."""


@attrs.frozen
class Given:
    """The input of a case, with typed access to its fields."""

    value: object

    @property
    def fields(self) -> Mapping[str, object]:
        value = self.value
        return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}

    def __contains__(self, key: str) -> bool:
        return key in self.fields

    def get(self, key: str, default: object = None) -> object:
        return self.fields.get(key, default)

    def text(self, key: str, default: str = "") -> str:
        value = self.fields.get(key, default)
        if not isinstance(value, str):
            raise NotUnderstood(f"{key} is not a text")
        return value

    def number(self, key: str, default: int = 0) -> int:
        value = self.fields.get(key, default)
        if not isinstance(value, int):
            raise NotUnderstood(f"{key} is not a whole number")
        return value

    def seconds(self, key: str) -> float | None:
        value = self.fields.get(key)
        return float(value) if isinstance(value, int | float) else None

    def items(self, key: str) -> list[object]:
        value = self.fields.get(key)
        return cast("list[object]", value) if isinstance(value, list) else []

    def texts(self, key: str) -> list[str]:
        return [str(item) for item in self.items(key)]

    def sub(self, key: str) -> Given:
        return Given(self.fields.get(key))

    def __str__(self) -> str:
        return shown(self.value)


@attrs.frozen
class Case:
    area: str
    name: str
    given: Given
    expect: object
    note: str


def load(path: Path) -> dict[str, list[Case]]:
    """The cases of a file by area, in its order. Raises ``ValueError``, ``OSError``.

    The standard library's decoder takes the lone surrogates that some inputs hold.
    """
    decoded: object = json.loads(path.read_bytes())
    areas = msgspec.convert(decoded, dict[str, list[dict[str, object]]])
    return {
        area: [
            Case(
                area,
                str(case.get("name", number)),
                Given(written_out(case.get("input"))),
                written_out(case.get("expect")),
                str(case.get("note", "")),
            )
            for number, case in enumerate(cases)
        ]
        for area, cases in areas.items()
        if not area.startswith("_")
    }


def written_out(value: object) -> object:
    """``{"$repeat": [s, n]}`` and ``{"$concat": [...]}`` as the strings they stand for."""
    if isinstance(value, list):
        return [written_out(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    if fields.keys() == {"$repeat"}:
        text, times = cast("tuple[str, int]", fields["$repeat"])
        return text * times
    if fields.keys() == {"$concat"}:
        return "".join(str(part) for part in _parts(fields["$concat"]))
    return {key: written_out(item) for key, item in fields.items()}


def _parts(value: object) -> Iterator[object]:
    return (written_out(part) for part in cast("list[object]", value))


def shown(value: object, limit: int = 400) -> str:
    """A value in one line of a report."""
    text = value if isinstance(value, str) else repr(value)
    text = ascii(text)[1:-1] if isinstance(value, str) else text
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 4 :]}"
