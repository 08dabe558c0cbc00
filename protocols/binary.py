"""Binary in texts and in JSON's types: found, and replaced by a note. Pure.

Binary is bytes, a ``data:`` URI, a typed block of base64 as MCP and model providers send it, or a
run of base64 that is too long and too mixed to be text. A note replaces it; other text is
unchanged; the time is linear in the text, and one search of a large text takes a part of it, since
a search holds the interpreter.

Sources: errors specification, section 3; seed 000, contradiction 46.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TypeAlias, cast
from urllib.parse import unquote

from motet.protocols.results import checksum

__all__ = ["RUN_LENGTH", "Note", "omitted", "text_without_binary", "without_binary"]

Note: TypeAlias = Callable[[bytes], str]
"""Makes the text that replaces these bytes."""

_PART = 65_536
RUN_LENGTH = 256
"""Shorter runs of base64 stay: hashes, keys and tokens look like them."""
_LINE = 60
"""The shortest line of wrapped base64."""
_DEPTH = 64

# A run has no character of its alphabet before it: that keeps the search linear.
_DATA_URI = re.compile(
    r"\bdata:[\w.+-]{0,64}(?:/[\w.+-]{1,64})?(?:;[\w.+-]{1,64}=[\w.+\"-]{1,64}){0,4};base64,"
    r"(?P<data>[0-9A-Za-z+/=_%-]*)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(
    rf"(?<![0-9A-Za-z+/])(?:[0-9A-Za-z+/]{{{_LINE},76}}\r?\n){{3,}}[0-9A-Za-z+/]{{0,76}}={{0,2}}"
)
_RUN = re.compile(rf"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{{{RUN_LENGTH},}}={{0,2}}")
_NO_BASE64 = re.compile(r"[^0-9A-Za-z+/_=\r\n-]|\n(?![0-9A-Za-z+/=])")
_UPPER, _LOWER, _DIGIT = (re.compile(f"[{letters}]") for letters in ("A-Z", "a-z", "0-9"))
_DISTINCT = 20
_LONG = 2_048
_MIME_KEYS = ("mimeType", "mime_type", "media_type")
_BINARY_TYPES = ("image", "audio", "base64", "file")
_DATA_KEYS = ("data", "blob")


def omitted(data: bytes, result_id: str | None = None) -> str:
    """The note: size, checksum, and the id of the stored bytes."""
    stored = "" if result_id is None else f" [Result ID: {result_id}]"
    return f"[binary omitted: {len(data)} bytes, sha256 {checksum(data)}]{stored}"


def without_binary(value: object, note: Note) -> object:
    """The value (text, bytes, or JSON's types with bytes in them) with notes for its binary."""
    return _without(value, note, _DEPTH)


def _without(value: object, note: Note, depth: int) -> object:
    match value:
        case str():
            return text_without_binary(value, note)
        case bytes() | bytearray():
            return note(bytes(value))
        case dict() if depth:
            return _mapping(cast("dict[object, object]", value), note, depth - 1)
        case list() | tuple() if depth:
            return [_without(item, note, depth - 1) for item in cast("list[object]", value)]
        case _:
            return value


def _mapping(value: dict[object, object], note: Note, depth: int) -> dict[object, object]:
    return {
        key: note(data)
        if (data := _typed(value, key, item)) is not None
        else _without(item, note, depth)
        for key, item in value.items()
    }


def _typed(block: dict[object, object], key: object, item: object) -> bytes | None:
    """The bytes of a field that its block says is base64."""
    declared = block.get("type") in _BINARY_TYPES or any(name in block for name in _MIME_KEYS)
    if isinstance(item, str) and item and (key == "b64_json" or (key in _DATA_KEYS and declared)):
        return _decoded(item)
    return None


def text_without_binary(text: str, note: Note) -> str:
    """The text with a note for each ``data:`` URI and each long run of base64 in it."""
    if ";base64," in text.lower():
        text = _DATA_URI.sub(lambda found: note(_payload(found["data"])), text)
    if len(text) <= _PART:
        return _without_runs(text, note)
    return "".join([_without_runs(part, note) for part in _parts(text)])


def _parts(text: str) -> Iterator[str]:
    """The text in parts, each of which ends where no run of base64 goes on."""
    at = 0
    while at < len(text):
        end = _NO_BASE64.search(text, at + _PART)
        stop = len(text) if end is None else end.end()
        yield text[at:stop]
        at = stop


def _without_runs(text: str, note: Note) -> str:
    if len(text) < RUN_LENGTH or max(map(len, text.split()), default=0) < _LINE:
        return text  # looking for a long word takes a quarter of the time of the two searches
    text = _WRAPPED.sub(lambda found: _replaced(found.group(), note), text)
    return _RUN.sub(lambda found: _replaced(found.group(), note), text)


def _replaced(found: str, note: Note) -> str:
    run = "".join(found.split())
    data = _decoded(run) if _is_mixed(run) else None
    return found if data is None else note(data)


def _is_mixed(run: str) -> bool:
    """Whether capitals, small letters and digits are mixed as in encoded bytes.

    A very long run need only have all three: no word is like that.
    """
    kinds = _UPPER, _LOWER, _DIGIT
    if len(run) < RUN_LENGTH or not all(kind.search(run) for kind in kinds):
        return False
    parts = (run[at : at + _PART] for at in range(0, len(run), _PART))
    if not any(len(seen) >= _DISTINCT for seen in accumulate(map(set, parts), set[str].union)):
        return False
    if len(run) >= _LONG:
        return True
    upper, lower, digits = (len(kind.findall(run)) / len(run) for kind in kinds)
    return upper >= 0.15 and lower >= 0.15 and digits >= 0.03


def _payload(text: str) -> bytes:
    """The bytes of a data URI; a damaged one is binary, too."""
    decoded = _decoded(unquote(text))
    return text.encode() if decoded is None else decoded


def _decoded(text: str) -> bytes | None:
    plain = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (Base64Error, ValueError):
        return None
