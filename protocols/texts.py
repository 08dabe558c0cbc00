"""Texts as UTF-8 can hold them, their first line, and the line that tells why a program failed."""

from __future__ import annotations

import re
from typing import Final

_LOOKED_AT = 16_384
_LONGEST = 4_096
"""A longer line is data and no message."""
_LAST_LINES = 20
_DIAGNOSTIC = re.compile(
    r"^[\w./+-]{1,64}(?:\[\d+\])?: \S"  # the name of a program or of an exception
    r"|\b(?:error|fatal|failed|failure|cannot|can't|unable|denied|refused|abort(?:ed|ing)?|panic"
    r"|not found|no such|timed out|unknown|invalid|unexpected|undefined|missing)\b",
    re.IGNORECASE,
)
_LETTER = re.compile("[^\\W\\d_]")
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_LINE_END = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
VISIBLE: Final = re.compile(r"[^\s\x00]")
_BREAKS: Final = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_UNSEEN: Final = r"\s\u200b-\u200f\u2060\ufeff"
_FRONT: Final = re.compile(rf"((?:^|[{_BREAKS}])[{_UNSEEN}]*)(?=[\[\uff3b])")
_NO_NAME: Final = re.compile(rf"[\[\]\uff3b\uff3d\x00-\x1f\x7f{_BREAKS}]+")
ELLIPSIS: Final = "..."


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: surrogate pairs joined, lone surrogates replaced."""
    if text.isascii():  # no copy, which matters for megabytes
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def escaped(text: str) -> str:
    """The text with a backslash before each square bracket that begins a line."""
    return _FRONT.sub(r"\1\\", text)


def plain_name(name: str) -> str:
    """The name without square brackets and line breaks."""
    return _NO_NAME.sub(" ", name)


def last_line(output: str | bytes | None, *, joined: bool = False) -> str:
    """The last line of a standard error, not redacted; empty if it is binary, or none.

    ``joined``: the output has what was written to both
    streams, in that order: of the last lines, the last one that reads like a message of a program
    counts, since others may have been written after it.
    """
    text = output or ""
    if isinstance(text, bytes | bytearray):
        text = bytes(text[-_LOOKED_AT:]).decode("utf-8", "replace")
    cut = len(text) >= _LOOKED_AT
    lines = [line for line in text[-_LOOKED_AT:].splitlines()[cut:] if line.strip()][-_LAST_LINES:]
    told = [*map(_readable, lines)] or [""]
    found = [line for line in told if _DIAGNOSTIC.search(line)] if joined and told[-1] else []
    last = (found or told)[-1]
    return last if _LETTER.search(last) else ""


def _readable(line: str) -> str:
    """The line without colours; empty if it is binary, or longer than any message."""
    bare = _COLOURS.sub("", line).strip()
    odd = len(_UNREADABLE.findall(bare))
    return _UNREADABLE.sub("", bare) if odd * 10 <= len(bare) <= _LONGEST else ""


def first_line(text: str) -> str:
    """The first line with visible text, trimmed and without NUL; empty if there is none."""
    start = VISIBLE.search(text)
    if start is None:
        return ""
    end = _LINE_END.search(text, start.start())
    line = text[start.start() : end.start() if end else None]
    return well_formed(line.replace("\0", "").strip())


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` code points, the mark of the cut included."""
    return text if len(text) <= limit else text[: limit - len(ELLIPSIS)] + ELLIPSIS
