"""Anything that went wrong as a JSON object, whole.

An object stays as it is, an exception keeps its type, causes and traceback, anything else is
wrapped once in ``{"message": ...}``. What JSON cannot hold becomes text: NaN, bytes, cycles,
lone surrogates, integers without end. Nothing here raises. Source: seed 000, contradiction 15.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import floor
from typing import cast

import msgspec

from motet.actors.errors.text import (
    first_line,
    members,
    message_of,
    safe_text,
    shorten,
    sole,
    type_name,
    well_formed,
)
from motet.protocols.chat import JsonObject

DEPTH_LIMIT = 64
NODE_LIMIT = 100_000
CAUSES_LIMIT = 16
PART_LIMIT = 16_384
"""Code points of one frame, or of one exception, in a traceback."""
_INTEGER_BITS = 1_024


def serialize_error(error: object, code: str = "") -> JsonObject:
    """The error as a JSON object that any strict encoder takes."""
    if isinstance(error, BaseException):
        made = _exception(error)
    elif isinstance(error, str):
        made = _text(error)
    else:
        value = to_json_types(error)
        made = cast("JsonObject", value) if isinstance(value, dict) else {"message": value}
    return {"code": well_formed(code), **made} if code and "code" not in made else made


def _text(text: str) -> JsonObject:
    """A text that is a JSON object is that object: tools print their errors so."""
    if text.lstrip()[:1] == "{":
        try:
            return msgspec.json.decode(text, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass
    return {"message": well_formed(text)}


def _exception(error: BaseException) -> JsonObject:
    error = sole(error)
    made: JsonObject = {**_head(error)}
    if several := members(error):
        made["errors"] = [_head(member) for member in several[:CAUSES_LIMIT]]
    if causes := [_head(cause) for cause in _causes(error)]:
        made["causes"] = causes
    made["traceback"] = _traceback(error)
    return made


def _head(error: BaseException) -> dict[str, str]:
    return {"message": message_of(error), "type": type_name(error)}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The chain a traceback shows, nearest first; chains can be cyclic."""
    seen = {id(error)}
    for _ in range(CAUSES_LIMIT):
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


def _traceback(error: BaseException) -> str:
    """The frames, and of each exception the beginning: its message stands beside it, whole."""
    try:
        parts = traceback.format_exception(error, limit=-50)
        return well_formed("".join(_beginning(part) for part in parts))
    except Exception:  # an exception whose attributes raise
        return ""


def _beginning(part: str) -> str:
    return part if len(part) <= PART_LIMIT else shorten(part, PART_LIMIT) + "\n"


def to_json_types(value: object) -> object:
    """The value in JSON's own types: dict with text keys, list, str, int, float, bool, None."""
    return _JsonConverter().convert(value, DEPTH_LIMIT)


class _JsonConverter:
    """One conversion; its budget of nodes bounds what shared and cyclic values can unfold to."""

    def __init__(self) -> None:
        self.nodes = NODE_LIMIT

    def convert(self, value: object, depth: int) -> object:
        self.nodes -= 1
        match value:
            case None | bool():
                return value
            case str():
                return well_formed(value)
            case int():
                return _integer(value)
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case bytes() | bytearray():
                return bytes(value).decode("utf-8", "replace")
            case _:
                return self._compound(value, depth) if depth and self.nodes > 0 else "<cut>"

    def _compound(self, value: object, depth: int) -> object:
        try:
            return self._opened(value, depth)
        except Exception:  # msgspec knows no form of it, or reading it raised
            return safe_text(value)

    def _opened(self, value: object, depth: int) -> object:
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[object, object]", value), depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(cast("Iterable[object]", value), depth)
        if isinstance(value, BaseException):
            return _head(value)
        return self.convert(msgspec.to_builtins(value, str_keys=True), depth - 1)

    def _mapping(self, value: Mapping[object, object], depth: int) -> JsonObject:
        made: JsonObject = {}
        for key, item in value.items():
            if self.nodes <= 0:
                break
            made[safe_text(key)] = self.convert(item, depth - 1)
        return made

    def _items(self, value: Iterable[object], depth: int) -> list[object]:
        made: list[object] = []
        for item in value:
            if self.nodes <= 0:
                break
            made.append(self.convert(item, depth - 1))
        return made


def _integer(value: int) -> object:
    size = int.bit_length(value)
    return int(value) if size <= _INTEGER_BITS else f"<integer of {size} bits>"


# Ids of stored errors: ``err_YYYYMMDD_HHMMSS_<6 hex>`` in UTC, 26 characters.
#
# Ids sort as their times do, at a grain of one second. Source: seed 000, contradictions 1 to 6.


ID_SHAPE = r"err_[0-9]{8}_[0-9]{6}_[0-9a-f]{6}"
ERROR_ID = re.compile(ID_SHAPE)
_IN_TEXT = re.compile(rf"(?<![0-9A-Za-z_]){ID_SHAPE}(?![0-9A-Za-z_])")
ID_LENGTH = 26


def new_id(now: float, hex_source: Callable[[int], str]) -> str:
    """An id for ``now`` (Unix seconds). ``hex_source(3)`` gives its six hex digits."""
    made = f"err_{_second(floor(round(now, 6)))}_{hex_source(3)}"
    assert is_id(made), made
    return made


@lru_cache(maxsize=4)
def _second(now: int) -> str:
    """Errors come in crowds, and writing a time down takes longer than all else here."""
    when = datetime.fromtimestamp(now, UTC)
    return f"{when.year:04}{when:%m%d_%H%M%S}"


def is_id(text: str) -> bool:
    return ERROR_ID.fullmatch(text) is not None


def find_id(text: str) -> str | None:
    """The first id in a text: models paste it with its label, quotes or Markdown escapes."""
    found = _IN_TEXT.search(text.replace("\\_", "_"))
    return found.group() if found else None


# One line that says what went wrong: what a model sees of an error at first.
#
# Invariants: at most :data:`SUMMARY_LIMIT` code points, one line, no NUL, valid UTF-8, and the
# summary of a summary is itself. Source: seed 000, contradictions 7 to 10.


SUMMARY_LIMIT = 100


def summarize(error: object, code: str = "") -> str:
    """The first non-blank line of the error, trimmed, after ``Code X: `` where it has a code.

    ``code`` wins over a code the error itself carries.
    """
    return shorten(_line(error, code), SUMMARY_LIMIT)


def _line(error: object, code: str) -> str:
    line, own = first_line(error_text(error)), first_line(code or error_code(error))
    return f"Code {own}: {line}".strip() if own else line


def error_text(error: object) -> str:
    """The whole text of an error, all lines of it."""
    if isinstance(error, BaseException):
        return message_of(error)
    if isinstance(error, str):
        return well_formed(error)
    inner = error_object(error)
    for key in ("message", "error", "detail"):
        if isinstance(text := inner.get(key), str) and text.strip():
            return well_formed(text)
    return msgspec.json.encode(to_json_types(inner or error)).decode() if error else ""


def error_code(error: object) -> str:
    """The code an error object carries, as text; empty when it has none."""
    code = error_object(error).get("code")
    return safe_text(code) if isinstance(code, str | int) and not isinstance(code, bool) else ""


def error_object(error: object) -> JsonObject:
    """The object that says what went wrong: results and providers nest it below ``error``."""
    if not isinstance(error, dict):
        return {}
    outer = cast("JsonObject", error)  # looked up by text, whatever keys it has
    inner = outer.get("error")
    if "message" in outer or not isinstance(inner, dict):
        return outer
    return cast("JsonObject", inner)
