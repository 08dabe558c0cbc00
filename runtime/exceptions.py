"""Exceptions and other values as data: texts, JSON objects, tracebacks. Nothing here raises.

:func:`serialize_error` leaves an object as it is, keeps type, causes and traceback of an exception,
and wraps anything else in ``{"message": ...}``. Values that JSON cannot hold become text: NaN,
bytes, cycles, lone surrogates, huge integers. :func:`trace_of` takes a traceback without its
frames, so that nothing of a failed call stays alive until the traceback is formatted.
"""

from __future__ import annotations

import linecache
import math
import traceback
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from subprocess import CalledProcessError, TimeoutExpired
from sys import getsizeof
from traceback import FrameSummary, StackSummary, TracebackException
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.texts import VISIBLE, first_line, last_line, shorten, well_formed
from motet.runtime.foreign import ForeignError, is_a
from motet.runtime.outside import foreign_code

_MEMBERS_SHOWN = 8

DEPTH_LIMIT = 64
NODE_LIMIT = 100_000
CAUSES_LIMIT = 16
LINKS_LIMIT = 500
"""Causes, contexts and members of one error that are all formatted."""
FRAMES_LIMIT = 50
PART_LIMIT = 16_384
"""Code points of one frame, or of one exception, in a traceback."""
BYTES_LIMIT = 1_000_000
"""Bytes of a value of bytes that are shown; characters in which a message is looked for."""
KEYS_LIMIT = 250_000
"""Characters of all keys of a value."""
TRACE_LIMIT = 1_000_000
"""Characters of a traceback without frames, about; its end is kept."""
_INTEGER_BITS = 1_024
LINE_LIMIT = 4_096
"""Characters of one exception in a captured traceback."""


def safe_text(value: object) -> str:
    """``str(value)``, or the name of its type when that fails."""
    return well_formed(plain_text(value))


def plain_text(value: object) -> str:
    """As :func:`safe_text`, with lone surrogates; no copy of the text of most exceptions."""
    try:
        with foreign_code:
            return str(value)
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
    return well_formed(plain_message(error))


def plain_message(error: BaseException) -> str:
    """As :func:`message_of`, with lone surrogates; no copy of the text of most exceptions."""
    error = sole(error)
    if several := members(error):
        heads = (plain_message(member)[:PART_LIMIT] for member in several[:_MEMBERS_SHOWN])
        return "; ".join(map(first_line, heads))
    text = cut_text(error) or plain_text(error)
    if not VISIBLE.search(text, 0, BYTES_LIMIT):
        return type_name(error)
    if is_a(error, CalledProcessError) or is_a(error, TimeoutExpired):
        said = last_line(error.stderr)
        return f"{text.rstrip('.')}: {said}" if said else text
    # KeyError's text is the repr of the key: without its name it says nothing.
    return f"KeyError: {text}" if is_a(error, KeyError) else text


def cut_text(error: BaseException) -> str:
    """The text of an exception whose own would be a copy of megabytes of arguments; else empty."""
    said, given = type(error).__str__, error.args
    if len(given) == 1 and type(given[0]) is str and len(given[0]) < _HUGE:
        return ""
    if said is not KeyError.__str__ and len(given) == 1 and is_a(given[0], str):
        return ""  # that text itself
    if is_a(error, OSError) and (name := error.filename) is not None:
        given = (*given, name)
    if said not in _REPRS:
        return ""
    cut = _CutRepr(_HUGE)
    try:
        with foreign_code:
            if not _is_huge(given):
                return ""
            return cut.of(given[0]) if len(given) == 1 else cut.of(given)
    except Exception:
        return f"<{type_name(error)} without text>"


_HUGE = 1_000_000
_VISITED = 10_000
"""Values of the arguments of an exception that are looked at, about."""
_LEAST = _HUGE // _VISITED
_PLAIN = frozenset({str, int, float, bool, type(None)})
_REPRS = (BaseException.__str__, KeyError.__str__, OSError.__str__)


class _CutRepr:
    """Makes the ``repr`` of a value, of about ``room`` characters, without one of its large parts.

    ``reprlib`` does not: it makes that of bytes first, and cuts each part and not their sum.
    """

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: object, depth: int = 8) -> str:
        if self._room <= 0 or not depth:
            return "..."
        self._room -= _LEAST  # of an empty one, too: they may be shared, and cyclic
        if type(value) in _PLAIN:
            return self._made(value)
        if isinstance(value, Mapping):
            table = cast("Mapping[object, object]", value)
            items = islice(table.items(), LINKS_LIMIT)
            parts = [
                f"{self.of(key, depth - 1)}: {self.of(item, depth - 1)}" for key, item in items
            ]
            return f"{{{', '.join(parts)}{', ...' if len(table) > LINKS_LIMIT else ''}}}"
        if isinstance(value, list | tuple | set | frozenset):
            several = cast("Collection[object]", value)
            parts = [self.of(item, depth - 1) for item in islice(several, LINKS_LIMIT)]
            parts += ["..."] if len(several) > LINKS_LIMIT else []
            ends = "[]" if isinstance(several, list) else "()"
            return f"{ends[0]}{', '.join(parts)}{ends[1]}"
        if fields := _fields(value):
            parts = [f"{name}={self.of(item, depth - 1)}" for name, item in fields.items()]
            return f"{type(value).__qualname__}({', '.join(parts)})"
        return self._made(value)

    def _made(self, value: object) -> str:
        made = self._plain(value)
        self._room -= len(made)
        return made

    def _plain(self, value: object) -> str:
        half = self._room // 2
        if isinstance(value, str):
            made, length = repr(str.__getitem__(value, slice(half))), str.__len__(value)
        elif isinstance(value, bytes | bytearray):
            data = memoryview(value)
            made, length = repr(bytes(data[: half // 4])), len(data) * 4
        elif (size := getsizeof(value)) > _HUGE:
            return f"<{type_name(value)} of {size} bytes>"
        else:
            return repr(value)[: self._room]
        return made if length <= half else f"{made[:half]}..."


def _is_huge(values: Collection[object]) -> bool:
    """Whether values, nested ones among them, are many or have more than a megabyte together."""
    room, left, waiting = _HUGE - 8 * len(values), _VISITED, [*islice(values, LINKS_LIMIT)]
    while waiting and room > 0 and left:
        value = waiting.pop()
        room -= getsizeof(value, 8)
        left -= 1
        if type(value) in _PLAIN:
            continue
        if isinstance(value, Mapping):
            table = cast("Mapping[object, object]", value)
            waiting += [part for item in islice(table.items(), LINKS_LIMIT) for part in item]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += islice(cast("Iterable[object]", value), LINKS_LIMIT)
        else:
            waiting += _fields(value).values()
    return room <= 0 or not left


def _fields(value: object) -> dict[str, object]:
    """The fields of a data class, of attrs or a struct; none of another object."""
    kind: Any = type(value)
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__struct_fields__", None)
    names = names or [field.name for field in getattr(kind, "__attrs_attrs__", ())]
    return {name: getattr(value, name, None) for name in names}


def serialize_error(error: object, code: str = "", detail: JsonObject | None = None) -> JsonObject:
    """The error as a JSON object that any strict encoder accepts.

    ``detail`` is added to an exception. Its fields count, but for the message: a process reports
    its own traceback with them.
    """
    if isinstance(error, BaseException):
        made = exception_object(error, well_formed, traceback_text)
        if detail is not None:
            made = with_detail(made, to_json_types(detail))
    elif isinstance(error, str):
        made = text_object(error)
    else:
        value = to_json_types(error)
        made = cast("JsonObject", value) if isinstance(value, dict) else {"message": value}
    return with_code(made, code)


def with_detail(made: JsonObject, detail: object) -> JsonObject:
    """The error with the fields of a detail in JSON types, or with the detail as one field."""
    added = cast("JsonObject", detail) if isinstance(detail, dict) else {"detail": detail}
    return {**made, **added, "message": made["message"]}


def with_code(made: JsonObject, code: str) -> JsonObject:
    return {"code": well_formed(code), **made} if code and "code" not in made else made


def text_object(text: str) -> JsonObject:
    """A text that is a JSON object becomes that object: some tools print their errors so."""
    if text.lstrip()[:1] == "{":
        try:
            return msgspec.json.decode(text, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass
    return {"message": well_formed(text)}


def exception_object(
    error: BaseException,
    text: Callable[[str], object],
    trace: Callable[[BaseException], object],
) -> JsonObject:
    """The exception, its causes or members, its traceback; each in the form that they are given."""
    error = sole(error)
    made = _head(error, text)
    if several := members(error):
        made["errors"] = [_head(member, text) for member in several[:CAUSES_LIMIT]]
    if causes := [_head(cause, text) for cause in causes_of(error)]:
        made["causes"] = causes
    made["traceback"] = trace(error)
    return made


def _head(error: BaseException, text: Callable[[str], object]) -> JsonObject:
    return {"message": text(plain_message(error)), "type": type_name(error)}


def causes_of(error: BaseException) -> Iterator[BaseException]:
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


def links(error: BaseException) -> Collection[BaseException]:
    """The error and those that are linked to it, at most :data:`LINKS_LIMIT`."""
    seen, left = dict[int, BaseException](), [error]
    while left and len(seen) < LINKS_LIMIT:
        if id(one := left.pop()) not in seen:
            seen[id(one)] = one
            left += filter(None, (one.__cause__, one.__context__, *members(one)))
    return seen.values()


def has_many_causes(error: BaseException) -> bool:
    """Whether so many errors are linked to this one that formatting all would take seconds."""
    return len(links(error)) >= LINKS_LIMIT


def traceback_parts(error: BaseException) -> tuple[list[str], bool]:
    """As ``traceback.format_exception``, and whether it is. Raises nothing.

    It is not for an error with very many causes, of which the nearest are shown, nor for one whose
    attributes raise.
    """
    try:
        with foreign_code:
            if not has_many_causes(error):
                return traceback.format_exception(error, limit=-FRAMES_LIMIT), True
            parts: list[str] = []
            for one in (*reversed([*causes_of(error)]), error):
                parts += traceback.format_tb(one.__traceback__, limit=-FRAMES_LIMIT)
                parts.append(f"{type_name(one)}: {message_of(one)}\n")
            return parts, False
    except Exception:
        return [f"{type_name(error)}\n"], False


def traceback_text(error: BaseException) -> str:
    """The frames, and the beginning of each exception, whose whole message is stored beside it."""
    return well_formed("".join(beginning(part) for part in traceback_parts(error)[0]))


def beginning(part: str) -> str:
    return part if len(part) <= PART_LIMIT else shorten(part, PART_LIMIT) + "\n"


def to_json_types(
    value: object, text: Callable[[str], object] = well_formed, nodes: int = NODE_LIMIT
) -> object:
    """The value in JSON types: dict with text keys, list, str, int, float, bool, None.

    ``text`` makes the value of each text; beyond ``nodes`` values the rest is cut.
    """
    return _JsonConverter(text, nodes).convert(value, DEPTH_LIMIT)


class _JsonConverter:
    """One conversion. A budget of nodes bounds the output of shared and cyclic values."""

    def __init__(self, text: Callable[[str], object], nodes: int) -> None:
        self.text = text
        self.nodes = nodes
        self.keys = KEYS_LIMIT

    def convert(self, value: object, depth: int) -> object:
        self.nodes -= 1
        match value:
            case None | bool():
                return value
            case str():
                return self.text(value)
            case int():
                return _integer(value)
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case bytes() | bytearray():
                return self._data(value)
            case _:
                return self._compound(value, depth) if depth and self.nodes > 0 else "<cut>"

    def _data(self, value: bytes | bytearray) -> object:
        data = memoryview(value)
        text = bytes(data[:BYTES_LIMIT]).decode("utf-8", "replace")
        left_out = len(data) - BYTES_LIMIT
        return self.text(text if left_out <= 0 else f"{text}\n[... {left_out} bytes left out ...]")

    def _compound(self, value: object, depth: int) -> object:
        try:
            with foreign_code:
                return self._opened(value, depth)
        except Exception:  # msgspec cannot convert it, or an attribute raised
            return self.text(plain_text(value))

    def _opened(self, value: object, depth: int) -> object:
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[object, object]", value), depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(cast("Iterable[object]", value), depth)
        if isinstance(value, BaseException):
            return _head(value, self.text)
        if (fields := _fields(value)) and _is_huge(fields.values()):
            return self._mapping(cast("Mapping[object, object]", fields), depth)
        return self.convert(msgspec.to_builtins(value, str_keys=True), depth - 1)

    def _mapping(self, value: Mapping[object, object], depth: int) -> JsonObject:
        made: JsonObject = {}
        for key, item in value.items():
            if self.nodes <= 0 or self.keys <= 0:
                break
            name = well_formed(plain_text(key)[:PART_LIMIT])
            self.keys -= len(name)
            made[name] = self.convert(item, depth - 1)
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


# Tracebacks without frames


_Frame: TypeAlias = tuple[CodeType, int, int, object, object]
"""The code of a frame, its instruction and line, the name and the loader of its module."""


class _Formatted(StackSummary):
    """A stack as its lines: to format one takes longer than all else of a traceback."""

    def format(self, **_options: object) -> list[str]:
        return cast("list[str]", [*self])


Stacks: TypeAlias = dict[Hashable, tuple[_Formatted, list[_Frame]]]
"""Formatted stacks by their places, with the frames: these keep the code of the places alive."""


def _places(frames: list[_Frame]) -> Hashable:
    """Equal for equal stacks, while their code is alive."""
    # By its identity, since the hash of a code object reads all of it.
    return tuple((id(code), at, line, name, id(loader)) for code, at, line, name, loader in frames)


class Trace(NamedTuple):
    """A traceback without its frames. ``frames``: of each exception that it shows, the last first.

    An exception stands in it as its part of ``whole``, or as a text where that cannot be had.
    """

    whole: TracebackException | None
    frames: list[tuple[TracebackException | str, list[_Frame]]]

    def text(self, stacks: Stacks | None = None) -> str:
        """``stacks``: those that were formatted before; is filled."""
        lines = self._lines({} if stacks is None else stacks)
        return well_formed("".join(_last(map(beginning, lines))))

    def head(self, stacks: Stacks) -> str:
        """The beginning that the text has in common with others of the same place; or nothing."""
        known = stacks.get(_places(self.frames[0][1])) if len(self.frames) == 1 else None
        return "Traceback (most recent call last):\n" + "".join(known[0].format()) if known else ""

    def likeness(self) -> Hashable:
        """Equal for two tracebacks that have the same text, while both are alive."""
        return tuple(
            (part if isinstance(part, str) else _shape(part), _places(frames))
            for part, frames in self.frames
        )

    def _lines(self, stacks: Stacks) -> Iterator[str]:
        for part, frames in reversed(self.frames):
            if (known := stacks.get(where := _places(frames))) is None:
                made: Any = StackSummary.from_list(map(_summary, frames)).format()
                known = stacks[where] = _Formatted(made), frames
            if isinstance(part, str):
                yield from (*known[0].format(), part)
            else:
                part.stack = known[0]
        if self.whole is not None:
            yield from self.whole.format()


def likeness(error: object, *more: Hashable) -> Hashable:
    """Equal for two error objects or texts of the same JSON, and equal others. Raises nothing.

    The traceback may be a :class:`Trace`. Both have to be alive. What has no JSON is like nothing.
    """
    try:
        found: tuple[Hashable, ...] = more
        if isinstance(error, dict):
            table = cast("JsonObject", error)
            if isinstance(trace := table.get("traceback"), Trace):
                error, found = {**table, "traceback": None}, (*more, trace.likeness())
        found = (msgspec.json.encode(error), *found)
        hash(found)
    except Exception:  # nested too deeply, or unhashable
        return object()
    return found


def _shape(part: TracebackException) -> Hashable:
    """The text of an exception without its frames, and the kinds of its links."""
    return (
        *part.format_exception_only(),
        part.__cause__ is not None,
        part.__context__ is not None,
        part.__suppress_context__,
        len(part.exceptions or ()),
    )


def _last(lines: Iterable[str]) -> Iterable[str]:
    kept, size = deque[str](), 0
    for line in lines:
        kept.append(line)
        size += len(line)
        while size > TRACE_LIMIT:
            size -= len(kept.popleft())
    return kept


def trace_of(error: BaseException) -> Trace:
    """The traceback of an exception, as ``traceback`` formats it if that takes little."""
    try:
        with foreign_code:
            linked = links(error)
            if len(linked) < LINKS_LIMIT and not any(map(cut_text, linked)):
                at = error.__traceback__
                whole = TracebackException(type(error), error, at, limit=0, compact=True)
                return Trace(whole, _frames_of(whole, error))
            return Trace(None, [(_line(one), _frames(one)) for one in (error, *causes_of(error))])
    except Exception:
        return Trace(None, [(f"{type_name(error)}\n", [])])


def _line(error: BaseException) -> str:
    return f"{type_name(error)}: {plain_message(error)[:LINE_LIMIT]}\n"


def _frames_of(
    whole: TracebackException, error: BaseException
) -> list[tuple[TracebackException | str, list[_Frame]]]:
    found: list[tuple[TracebackException | str, list[_Frame]]] = []
    waiting = [(whole, error)]
    while waiting:
        part, one = waiting.pop()
        _shorten(part)
        found.append((part, _frames(one)))
        if part.__cause__ is not None and one.__cause__ is not None:
            waiting.append((part.__cause__, one.__cause__))
        if part.__context__ is not None and one.__context__ is not None:
            waiting.append((part.__context__, one.__context__))
        if part.exceptions:
            waiting += zip(part.exceptions, members(one), strict=False)
    return found


_NOTES_LIMIT = 64
_HELD = ("_str", "text", "msg", "filename")
"""The texts that a formatted exception holds; the last three of a syntax error."""


def _shorten(part: TracebackException) -> None:
    """Let go of the long texts of an exception, and of objects that are to be its notes."""
    for name in _HELD:
        text: object = getattr(part, name, None)
        if isinstance(text, str) and len(text) > LINE_LIMIT:
            setattr(part, name, beginning(text))
    notes = cast("object", part.__notes__)  # of any type: it belongs to the exception
    if notes is not None:
        if not isinstance(notes, list | tuple):
            notes = [_CutRepr(PART_LIMIT).of(notes)]
        several = islice(cast("Collection[object]", notes), _NOTES_LIMIT)
        part.__notes__ = [beginning(plain_text(note)) for note in several]


def _frames(error: BaseException) -> list[_Frame]:
    found: list[_Frame] = []
    at = error.__traceback__
    while at is not None:
        frame = at.tb_frame
        names = frame.f_globals
        name, loader = names.get("__name__"), names.get("__loader__")
        found.append((frame.f_code, at.tb_lasti, at.tb_lineno, name, loader))
        at = at.tb_next
    return found[-FRAMES_LIMIT:]


def _summary(frame: _Frame) -> FrameSummary:
    code, instruction, line, name, loader = frame
    linecache.lazycache(code.co_filename, {"__name__": name, "__loader__": loader})
    linecache.checkcache(code.co_filename)
    at = instruction // 2
    first, end, column, end_column = next(islice(code.co_positions(), at, at + 1), (None,) * 4)
    return FrameSummary(
        code.co_filename,
        first or line,
        code.co_name,
        lookup_line=False,
        end_lineno=end,
        colno=column,
        end_colno=end_column,
    )
