"""Binary data in what a tool returned: found, and replaced by a note, before a model sees it.

Laws: what is replaced is bytes, a ``data:`` URI, a typed block of base64 as MCP and model
providers send it, or a run of base64 long and mixed enough to be nothing else; all other text
stays as it is; the time is linear in the text. Source: errors specification, section 3.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import TypeAlias, cast
from urllib.parse import unquote

from motet.actors.results.packing import checksum

Note: TypeAlias = Callable[[bytes], str]
"""What stands in place of these bytes."""

RUN_LENGTH = 256
"""Shorter runs of base64 stay: hashes, keys and tokens look like them."""
_LINE = 60
"""Of base64 that is wrapped; shorter ones are not wrapped so."""
_DEPTH = 64

# A run begins where no character of its alphabet stands before it: that keeps the search linear.
_DATA_URI = re.compile(
    r"\bdata:[\w.+-]{0,64}(?:/[\w.+-]{1,64})?(?:;[\w.+-]{1,64}=[\w.+\"-]{1,64}){0,4};base64,"
    r"(?P<data>[0-9A-Za-z+/=_%-]*)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(
    rf"(?<![0-9A-Za-z+/])(?:[0-9A-Za-z+/]{{{_LINE},76}}\r?\n){{3,}}[0-9A-Za-z+/]{{0,76}}={{0,2}}"
)
_RUN = re.compile(rf"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{{{RUN_LENGTH},}}={{0,2}}")
_UPPER, _LOWER, _DIGIT = (re.compile(f"[{letters}]") for letters in ("A-Z", "a-z", "0-9"))
_DISTINCT = 20
_LONG = 2_048
_MIME_KEYS = ("mimeType", "mime_type", "media_type")
_BINARY_TYPES = ("image", "audio", "base64", "file")
_DATA_KEYS = ("data", "blob")


def omitted(data: bytes, result_id: str | None = None) -> str:
    """The note: how much it was, its checksum, and the id it is stored under."""
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
    if len(text) < RUN_LENGTH or max(map(len, text.split()), default=0) < _LINE:
        return text  # it is a quarter of the work to see that there is no long word
    text = _WRAPPED.sub(lambda found: _replaced(found.group(), note), text)
    return _RUN.sub(lambda found: _replaced(found.group(), note), text)


def _replaced(found: str, note: Note) -> str:
    run = "".join(found.split())
    data = _decoded(run) if _is_mixed(run) else None
    return found if data is None else note(data)


def _is_mixed(run: str) -> bool:
    """Whether capitals, small letters and digits are as mixed as encoded bytes have them.

    A very long run need only have all three: nobody writes such a word.
    """
    counts = [len(kind.findall(run)) for kind in (_UPPER, _LOWER, _DIGIT)]
    if len(run) < RUN_LENGTH or not all(counts) or len(set(run)) < _DISTINCT:
        return False
    upper, lower, digits = (count / len(run) for count in counts)
    return len(run) >= _LONG or (upper >= 0.15 and lower >= 0.15 and digits >= 0.03)


def _payload(text: str) -> bytes:
    """The bytes of a data URI; one that is damaged is binary all the same."""
    decoded = _decoded(unquote(text))
    return text.encode() if decoded is None else decoded


def _decoded(text: str) -> bytes | None:
    plain = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (Base64Error, ValueError):
        return None
