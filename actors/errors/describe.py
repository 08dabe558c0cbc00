"""Errors described: whole as a JSON object, in one line, and by an id. Pure; nothing raises.

:func:`serialize_error` leaves an object as it is, keeps type, causes and traceback of an exception,
and wraps anything else in ``{"message": ...}``. Values that JSON cannot hold become text: NaN,
bytes, cycles, lone surrogates, huge integers. Source: seed 000, contradictions 1 to 10 and 15.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import floor
from subprocess import CalledProcessError, TimeoutExpired
from typing import Any, cast

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.texts import last_line, well_formed
from motet.runtime.foreign import ForeignError
from motet.runtime.outside import foreign_code

_LINE_END = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_VISIBLE = re.compile(r"[^\s\x00]")
ELLIPSIS = "..."
_MEMBERS_SHOWN = 8


def safe_text(value: object) -> str:
    """``str(value)``, or the name of its type when that fails."""
    try:
        with foreign_code:
            return well_formed(str(value))
    except Exception:
        return f"<{type_name(value)} without text>"


def type_name(value: object) -> str:
    """The full name of the value's type, without the module for built-in ones."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def members(error: BaseException) -> tuple[BaseException, ...]:
    """The errors of a group; none for an error that is not a group."""
    # By its type, since the object may say anything about itself.
    if not issubclass(type(error), BaseExceptionGroup):
        return ()
    members_of: Any = BaseExceptionGroup.exceptions  # the descriptor, which has no type of its own
    return cast("tuple[BaseException, ...]", members_of.__get__(error))


def sole(error: BaseException) -> BaseException:
    """The error itself, out of the groups of one that nurseries wrap around it, and as raised."""
    while (standing := type(error) is ForeignError) or len(members(error)) == 1:
        error = cast("ForeignError", error).raised if standing else members(error)[0]
    return error


def message_of(error: BaseException) -> str:
    """The text of the exception, or its type; of a group, the texts of its members."""
    error = sole(error)
    if several := members(error):
        return "; ".join(first_line(message_of(member)) for member in several[:_MEMBERS_SHOWN])
    text = safe_text(error)
    if not _VISIBLE.search(text):
        return type_name(error)
    if isinstance(error, CalledProcessError | TimeoutExpired):
        said = last_line(error.stderr)
        return f"{text.rstrip('.')}: {said}" if said else text
    # KeyError's text is the repr of the key: without its name it says nothing.
    return f"KeyError: {text}" if isinstance(error, KeyError) else text


def first_line(text: str) -> str:
    """The first line with visible text, trimmed and without NUL; empty if there is none."""
    start = _VISIBLE.search(text)
    if start is None:
        return ""
    end = _LINE_END.search(text, start.start())
    line = text[start.start() : end.start() if end else None]
    return well_formed(line.replace("\0", "").strip())


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` code points, the mark of the cut included."""
    return text if len(text) <= limit else text[: limit - len(ELLIPSIS)] + ELLIPSIS


DEPTH_LIMIT = 64
NODE_LIMIT = 100_000
CAUSES_LIMIT = 16
LINKS_LIMIT = 500
"""Causes, contexts and members of one error that are all formatted."""
FRAMES_LIMIT = 50
PART_LIMIT = 16_384
"""Code points of one frame, or of one exception, in a traceback."""
_INTEGER_BITS = 1_024


def serialize_error(error: object, code: str = "", detail: JsonObject | None = None) -> JsonObject:
    """The error as a JSON object that any strict encoder accepts.

    ``detail`` is added to an exception. Its fields count, but for the message: a process reports
    its own traceback with them.
    """
    if isinstance(error, BaseException):
        made = _exception(error)
        if detail is not None:
            added = cast("JsonObject", to_json_types(detail))
            made = {**made, **added, "message": made["message"]}
    elif isinstance(error, str):
        made = _text(error)
    else:
        value = to_json_types(error)
        made = cast("JsonObject", value) if isinstance(value, dict) else {"message": value}
    return {"code": well_formed(code), **made} if code and "code" not in made else made


def _text(text: str) -> JsonObject:
    """A text that is a JSON object becomes that object: some tools print their errors so."""
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
    """The chain of causes as in a traceback, nearest first; it may be cyclic."""
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


def _has_many_causes(error: BaseException) -> bool:
    """Whether so many errors are linked to this one that formatting all would take seconds."""
    seen, left = set[int](), [error]
    while left and len(seen) < LINKS_LIMIT:
        if id(one := left.pop()) not in seen:
            seen.add(id(one))
            left += filter(None, (one.__cause__, one.__context__, *members(one)))
    return bool(left)


def traceback_parts(error: BaseException) -> tuple[list[str], bool]:
    """As ``traceback.format_exception``, and whether it is. Raises nothing.

    It is not for an error with very many causes, of which the nearest are shown, nor for one whose
    attributes raise.
    """
    try:
        with foreign_code:
            if not _has_many_causes(error):
                return traceback.format_exception(error, limit=-FRAMES_LIMIT), True
            parts: list[str] = []
            for one in (*reversed([*_causes(error)]), error):
                parts += traceback.format_tb(one.__traceback__, limit=-FRAMES_LIMIT)
                parts.append(f"{type_name(one)}: {message_of(one)}\n")
            return parts, False
    except Exception:
        return [f"{type_name(error)}\n"], False


def _traceback(error: BaseException) -> str:
    """The frames, and the beginning of each exception, whose whole message is stored beside it."""
    return well_formed("".join(_beginning(part) for part in traceback_parts(error)[0]))


def _beginning(part: str) -> str:
    return part if len(part) <= PART_LIMIT else shorten(part, PART_LIMIT) + "\n"


def to_json_types(value: object) -> object:
    """The value in JSON types: dict with text keys, list, str, int, float, bool, None."""
    return _JsonConverter().convert(value, DEPTH_LIMIT)


class _JsonConverter:
    """One conversion. A budget of nodes bounds the output of shared and cyclic values."""

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
            with foreign_code:
                return self._opened(value, depth)
        except Exception:  # msgspec cannot convert it, or an attribute raised
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


# Ids of stored errors: ``err_YYYYMMDD_HHMMSS_<6 hex>`` in UTC, 26 characters. They sort by time, to
# the second.

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
    """Cached, since errors come in bursts, and formatting is the slowest part of an id."""
    when = datetime.fromtimestamp(now, UTC)
    return f"{when.year:04}{when:%m%d_%H%M%S}"


def is_id(text: str) -> bool:
    return ERROR_ID.fullmatch(text) is not None


def find_id(text: str) -> str | None:
    """The first id in a text. Models quote it with its label, quotes or Markdown escapes."""
    found = _IN_TEXT.search(text.replace("\\_", "_"))
    return found.group() if found else None


# Summaries. Invariants: one line of at most :data:`SUMMARY_LIMIT` code points, no NUL, valid UTF-8;
# the summary of a summary is itself.

SUMMARY_LIMIT = 100


def summarize(error: object, code: str = "") -> str:
    """The first non-blank line of the error, trimmed, with ``Code X: `` in front if it has a code.

    ``code`` overrides the error's own code.
    """
    return shorten(_line(error, code), SUMMARY_LIMIT)


def _line(error: object, code: str) -> str:
    line, own = first_line(error_text(error)), first_line(code or error_code(error))
    return f"Code {own}: {line}".strip() if own else line


def error_text(error: object) -> str:
    """The whole text of an error."""
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
    """The code of an error object as text; empty without one."""
    code = error_object(error).get("code")
    return safe_text(code) if isinstance(code, str | int) and not isinstance(code, bool) else ""


def error_object(error: object) -> JsonObject:
    """The object with the message: results and providers nest it under ``error``."""
    if not isinstance(error, dict):
        return {}
    outer = cast("JsonObject", error)  # looked up by text, whatever keys it has
    inner = outer.get("error")
    if "message" in outer or not isinstance(inner, dict):
        return outer
    return cast("JsonObject", inner)
