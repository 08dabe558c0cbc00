"""Stored errors as a model reads them: folded, in pages from both ends, and searched. Pure.

:func:`error_page` answers ``get_error_detail``. Laws: the text of an answer has at most
:data:`PAGE_BYTES` bytes; the pages from one end, read one after the other, give the whole text
once, and the last one says that it is the last; an argument that is wrong is told.

:func:`folded` shortens an exception for a reader who mends a program: of each exception the frames
of the user's own code, then one line for those of libraries, and nothing twice. It reads the text
of a traceback, so that errors of other processes and of older hosts are folded too.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, cast

import attrs

from motet.protocols.chat import JsonObject
from motet.protocols.errors import StoredError
from motet.protocols.room_copies import going_on
from motet.protocols.tools import unsuccessful

Part: TypeAlias = Literal["head", "tail", "search"]

PAGE_BYTES = 8_000
"""Of the text of one page, as JSON."""
PAGE_CHARS = 4_000
MATCHES = 10
"""In one answer of a search."""
QUERY_CHARS = 200
MATCH_BYTES = 800
_BEFORE, _AFTER = 80, 160
_HEADS = 120
"""Characters of the heads of messages that go on, on a page or in a match."""

_HEADER = re.compile(r"^(?:Exception Group )?Traceback \(most recent call last\):$")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$')
_REPEATED = re.compile(r"^  \[Previous line repeated (\d+) more times?\]$")
_LINKS = {
    "The above exception was the direct cause of the following exception:": "caused by",
    "During handling of the above exception, another exception occurred:": "while handling",
}
_MARGIN = re.compile(r"^ *(?:\| ?|\+ (?=Exception Group Traceback))")
_MEMBER = re.compile(r"^ *\+(?:-\+)?-{3,}(?: (?P<number>\d+|\.\.\.) -+|-*)$")
_RAISES = re.compile(r"\braise\b")
_PATH_CHARS = 40
_CODE_CHARS = 80
_FIRST = ("code", "type", "traceback")

_OWN = Path(__file__).resolve().parent.parent
_LIBRARIES = (
    *{sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")},
    *(f"{_OWN}/{name}/" for name in ("motet", "actors", "runtime", "protocols")),
    "<frozen ",
)
_INSTALLED = ("/site-packages/", "/dist-packages/")


@attrs.define
class _Section:
    """One exception of a traceback.

    Attributes:
        frames: of the user's code: place and code, and how many times in a row.
        library: the places of the others.
        inside: the last frame is one of these.
        said: the text of the exception.
        link: how the next exception came of it.
        member: its number in a group.
    """

    frames: list[tuple[str, int]] = attrs.field(factory=list[tuple[str, int]])
    library: list[str] = attrs.field(factory=list[str])
    inside: bool = False
    said: list[str] = attrs.field(factory=list[str])
    link: str = ""
    member: str = ""


def _sections(traceback: str) -> list[_Section]:
    """The exceptions of a traceback, in its order: causes first, members of a group last."""
    found: list[_Section] = []
    now, in_frames, members, blank = _Section(), False, "| " in traceback, False
    for whole in traceback.splitlines():
        if members and (begun := _MEMBER.match(whole)):
            if begun["number"]:
                found.append(now)
                now, in_frames = _Section(member=begun["number"]), False
            continue
        line = _MARGIN.sub("", whole) if members else whole
        if link := _LINKS.get(line.strip()):
            now.link = link
            found.append(now)
            now, in_frames = _Section(member=now.member), False
        elif _HEADER.match(line):
            in_frames = True
        elif in_frames and (frame := _FRAME.match(line)):
            _add(now, frame["file"], f"{frame['line']} in {frame['name']}")
        elif in_frames and (again := _REPEATED.match(line)):
            _again(now, int(again[1]))
        elif in_frames and line.startswith("    "):
            _add_code(now, line.strip())
        elif line or (now.said and not blank):
            in_frames = False
            now.said.append(line)
        blank = not line
    return [*found, now]


def _add(section: _Section, file: str, place: str) -> None:
    at = f"{_short_path(file)}:{place}"
    section.inside = file.startswith(_LIBRARIES) or any(part in file for part in _INSTALLED)
    if section.inside:
        section.library.append(at)
    else:
        section.frames.append((at, 1))


def _add_code(section: _Section, code: str) -> None:
    """The line of the last frame; one that raises says nothing that the message does not."""
    if not section.inside and section.frames and code.strip("~^") and not _RAISES.search(code):
        at, times = section.frames[-1]
        section.frames[-1] = (f"{at}: {code[:_CODE_CHARS]}", times)


def _again(section: _Section, times: int) -> None:
    """The last frame came so many times more."""
    if not section.inside and section.frames:
        at, before = section.frames[-1]
        section.frames[-1] = (at, before + times)


def _short_path(path: str) -> str:
    if len(path) <= _PATH_CHARS:
        return path
    *_, folder, name = ("", *path.rsplit("/", 2)[-2:])
    return f".../{folder}/{name}" if folder else name


def _lines(section: _Section, seen: set[str]) -> Iterator[str]:
    """The frames that were not shown yet, each once, and one line for all of libraries."""
    times = Counter[str]()
    for at, count in section.frames:
        times[at] += count
    new = {at: count for at, count in times.items() if at not in seen}
    seen.update(new)
    for at, count in new.items():
        yield at if count == 1 else f"{at} ({count} times)"
    if section.library:
        last = f", the last {section.library[-1]}" if section.inside else ""
        number = len(section.library)
        yield f"({number} library frame{'s' if number > 1 else ''}{last})"


def folded(raw: JsonObject) -> JsonObject:
    """A stored exception with short tracebacks, and its causes told with them; others unchanged."""
    traceback = raw.get("traceback")
    if not isinstance(traceback, str):
        return raw
    sections = _sections(traceback)
    above = next((at for at, one in enumerate(sections) if one.member), len(sections))
    chain, inside = sections[:above], sections[above:]
    causes, errors = _heads(raw.get("causes")), _heads(raw.get("errors"))
    told = set[str]() if inside else {str(raw.get("message", ""))}
    seen: set[str] = set()
    lines = list(_lines(chain[-1], seen)) if chain else []
    for at, section in enumerate(reversed(chain[:-1])):
        name = causes[at] if len(causes) == len(chain) - 1 else "\n".join(section.said).strip()
        lines.append(f"{section.link} {_once(name, told)}")
        lines += _lines(section, seen)
    numbers = [one.member for one in inside if not one.link]
    for section in inside:
        at = numbers.index(section.member)
        is_known = not section.link and len(errors) == len(numbers)
        name = errors[at] if is_known else "\n".join(section.said).strip()
        lines.append(f"{section.link or section.member + '.'} {_once(name, told)}")
        lines += _lines(section, seen)
    made = {key: value for key, value in raw.items() if key != "traceback"}
    if len(chain) > 1:
        made.pop("causes", None)
    if inside:
        made.pop("errors", None)
        if len(errors) == len(numbers):  # the message is that of its members
            del made["message"]
    if lines:
        made["traceback"] = "\n".join(lines)
    first = {key: made.pop(key) for key in _FIRST if key in made}
    return {**first, **made}


def _heads(value: object) -> list[str]:
    """The type and message of each cause, or of each member of a group."""
    found = cast("list[object]", value) if isinstance(value, list) else []
    heads = [cast("JsonObject", one) for one in found if isinstance(one, dict)]
    return [f"{one.get('type', '')}: {one.get('message', '')}" for one in heads]


def _once(name: str, told: set[str]) -> str:
    """The type and the message of an exception; a message that was told before is left out."""
    kind, _, message = name.partition(": ")
    if message in told:
        return f"{kind}, with the message above"
    told.add(message)
    return name


# Pages


def error_page(data: JsonObject, part: str, query: str = "", offset: int = 0) -> JsonObject:
    """A part of a stored error: ``success`` with ``data``, or with ``error``.

    Args:
        data: the whole error, as the channel gives it.
        part: ``head`` and ``tail``: the text from its beginning, or its end, with ``offset``
            characters left out there. ``search``: the lines with ``query``, from ``offset`` on.
    """
    raw = data.get("raw_error")
    if not isinstance(raw, dict):
        return {"success": True, "data": data}
    shown = folded(cast("JsonObject", raw))
    head: JsonObject = {**data, "raw_error": shown}
    if _says_nothing_new(data, shown):
        del head["short_summary"]
    text = "\n".join(f"{key}: {_text(value)}" for key, value in shown.items())
    is_whole = part == "head" and not query and not offset and len(text) <= PAGE_BYTES
    if is_whole and _size(head) <= PAGE_BYTES:
        return {"success": True, "data": {**head, "end": True}}
    del head["raw_error"]
    match part:
        case "head" | "tail" if query:
            return _wrong('query is for part="search"; leave it out, or search')
        case "search" if not query.strip():
            return _wrong('part="search" needs a query: words that stand in the error')
        case "search" if len(query) > QUERY_CHARS:
            return _wrong(f"query has {len(query)} characters, and {QUERY_CHARS} at most")
        case "head" | "tail" | "search" if not 0 <= offset <= len(text):
            return _wrong(f"offset must be from 0 to {len(text)}, not {offset}")
        case "head":
            found = _from_start(text, offset)
        case "tail":
            found = _from_end(text, offset)
        case "search":
            found = _found(text, query, offset)
        case _:
            return _wrong(f'part must be "head", "tail" or "search", not {part[:40]!r}')
    return {"success": True, "data": {**head, "part": part, "total": len(text), **found}}


def _from_start(text: str, offset: int) -> JsonObject:
    mark = _mark(text, offset)
    shown = _fitting(text[offset : offset + PAGE_CHARS], PAGE_BYTES - _size(mark))
    end = offset + len(shown)
    more: JsonObject = {"end": True} if end == len(text) else {"next_offset": end}
    return {"offset": offset, "text": mark + shown, **more}


def _mark(text: str, begin: int) -> str:
    """Names the message of a room within which a page begins, so that it is corrected with it."""
    mark = going_on(text, begin, _HEADS)
    return f"{mark}\n" if mark else ""


def _from_end(text: str, offset: int) -> JsonObject:
    end = len(text) - offset
    limit = PAGE_BYTES - _size("x" * 4 * _HEADS) if "[#" in text else PAGE_BYTES
    shown = _fitting(text[max(end - PAGE_CHARS, 0) : end][::-1], limit)[::-1]
    more: JsonObject = {"end": True}
    if len(shown) < end:
        more = {"next_offset": offset + len(shown)}
    return {"offset": offset, "text": _mark(text, end - len(shown)) + shown, **more}


def _fitting(text: str, limit: int = PAGE_BYTES) -> str:
    """The beginning of a text whose JSON has at most ``limit`` bytes."""
    while (size := _size(text)) > limit:
        text = text[: len(text) * limit // size]
    return text


def _found(text: str, query: str, offset: int) -> JsonObject:
    """The first lines with the query from an offset on, each with the offset that shows it."""
    wanted, at, matches = re.compile(re.escape(query), re.IGNORECASE), offset, list[JsonObject]()
    while (found := wanted.search(text, at)) is not None:
        if len(matches) == MATCHES:
            return {"offset": offset, "matches": matches, "next_offset": at}
        begin = max(text.rfind("\n", 0, found.start()) + 1, found.start() - _BEFORE)
        line_end = text.find("\n", found.end())
        at = min(len(text) if line_end < 0 else line_end + 1, found.end() + _AFTER)
        line = text[begin:at].rstrip("\n")
        mark = _mark(text, begin)
        shown = mark + _fitting(line, MATCH_BYTES - _size(mark))
        matches.append({"offset": begin, "text": shown})
    return {"offset": offset, "matches": matches, "end": True}


def _says_nothing_new(data: JsonObject, shown: JsonObject) -> bool:
    """Whether the summary is a part of the message, as it is unless a tool gave a code."""
    summary, code = str(data.get("short_summary", "")), shown.get("code")
    bare = summary.removeprefix(f"Code {code}: ").removesuffix("...").strip()
    return "short_summary" in data and bare in str(shown.get("message", ""))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _wrong(message: str) -> JsonObject:
    return unsuccessful("INVALID_INPUT", message)


def detail_data(error: StoredError) -> JsonObject:
    """A stored error as the model sees it; the time is RFC 3339 in UTC."""
    return {
        "error_id": error.id,
        "timestamp": rfc3339(error.timestamp),
        "tool_name": error.tool_name,
        "short_summary": error.short_summary,
        "raw_error": error.raw_error,
    }


def rfc3339(seconds: float) -> str:
    """Unix seconds as ``2024-11-21T23:03:34.123456Z``."""
    when = datetime.fromtimestamp(seconds, UTC)
    return f"{when.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
