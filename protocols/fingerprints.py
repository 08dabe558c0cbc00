"""Fingerprints of errors: equal for failures that differ only in their data. Pure.

A fingerprint is made of the tool, the kind, the type, the code, the frames of the traceback and the
first line of the message. Numbers, ids, addresses, times, paths, quoted texts and the masks of
secrets count as one placeholder each. Invariants: the same input gives the same fingerprint in any
process and version of Python; nothing raises; the time is linear in the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Final

from motet.protocols.chat import JsonObject

READ: Final = 2_000
"""Characters of a message that count."""
SHOWN: Final = 300
_FRAMES: Final = 12
"""Frames that count, the innermost."""
_TRACEBACK: Final = 262_144

_BESIDE: Final = (rf"(?<=[A-Za-z0-9_-]{{{n}}}\d)(?=[A-Za-z0-9_-]{{{7 - n}}})" for n in range(8))
_IN_WORD: Final = rf"\d(?:{'|'.join(_BESIDE)})"
"""A digit among eight letters and digits. ``re`` looks for a digit fast, and for a word slowly."""
PLACEHOLDERS: Final = tuple(
    (
        *(signs[0], signs[-1], signs[len(signs) // 2]),
        re.compile(needed) if needed else None,
        re.compile(expression),
        placeholder,
    )
    for signs, needed, expression, placeholder in (
        (
            "[",
            "",
            r"\[[A-Za-z_ ]{0,40}REDACTED[^\]\n]{0,40}\]|\[secret(?::[^\]\n]{0,80})?\]",
            "<secret>",
        ),
        # A quote within a word is an apostrophe. Quoted are names, paths and values.
        (
            "'\"`",
            "",
            r"(?<!\w)'[^'\n]{0,500}'(?!\w)|\"[^\"\n]{0,500}\"|`[^`\n]{0,500}`",
            "<text>",
        ),
        (("://",), "", r"\b[a-z][a-z0-9+.-]{1,15}://[^\s<>]+", "<url>"),
        ("@", "", r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})*", "<address>"),
        (
            "-",
            r"\d-\d",
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)?"
            r"(?: ?Z\b| ?[+-]\d\d:?\d\d\b)?",
            "<time>",
        ),
        (
            ".",
            r"\d\.\d",
            r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.])",
            "<address>",
        ),
        (
            ":",
            ":[0-9a-fA-F]{0,4}:",
            r"(?<![\w:])\[?(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}\]?(?::\d{1,5})?",
            "<address>",
        ),
        ("/\\", "", r"(?<![\w/\\])(?:[A-Za-z]:)?(?:[~.]{0,2}[/\\])[^\s:,;()<>]+", "<path>"),
        ("/", "", r"(?<![\w/])[\w.-]{1,100}(?:/[\w.@+-]{1,100})+", "<path>"),
        (
            "-",
            "-[0-9a-fA-F]{4}-",
            r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
            "<id>",
        ),
        ("0", "0[xX]", r"\b0[xX][0-9a-fA-F]+\b", "<n>"),
        # A word of letters and digits, such as run_9b1d2c3e4f5a; a name such as utf8 stays.
        ("09", _IN_WORD, r"\b(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{8,}\b", "<id>"),
        # It begins with a set of characters, for which alone ``re`` looks fast.
        (
            "09",
            "",
            r"[+\d-](?<![A-Za-z_].)(?:(?<=\d)\d*|\d+)(?:[.,_]\d+)*(?:[eE][+-]?\d+)?",
            "<n>",
        ),
    )
)
"""Of each: three signs of which all of its texts have one (``0`` for any digit), and a part that
they have and most messages lack: both save a slow search."""
_MANY: Final = 8
_NONE_KNOWN: Final[Mapping[str, str]] = {}
_DIGIT: Final = re.compile(r"\d")
_DATA: Final = re.compile(r"[\[\]'\"`:@\d/\\-]")
"""Each text for which a placeholder stands has one of these."""
ADJACENT: Final = re.compile(r"(<(?:n|id)>)(?:[-_:./ ]*<(?:n|id)>)+")
_FRAME: Final = re.compile(r'^ *File "([^"\n]*)", line \d+(?:, in (.*))?$', re.MULTILINE)
_FOLDERS: Final = re.compile(r".*[/\\]")
LINE: Final = re.compile(r"[^\s\x00][^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*")


def fingerprint(
    tool: str, kind: str, raw: JsonObject, known: Mapping[str, str] = _NONE_KNOWN
) -> str:
    """16 hex digits for a stored error; ``raw`` is the whole error as it is stored.

    ``known``: from :func:`templates`.
    """
    inner = raw.get("error") if "message" not in raw else None
    message = _text(raw.get("message", inner if isinstance(inner, str) else ""))
    parts = (
        tool,
        kind,
        _text(raw.get("type")),
        _text(raw.get("code")),
        known.get(message) or template(message),
        *frames(_text(raw.get("traceback"))),
    )
    joined = "\0".join(parts).encode("utf-8", "replace")
    return sha256(joined).hexdigest()[:16]


def template(message: str) -> str:
    """The first line of a message with placeholders for its data; 300 characters at most."""
    found = LINE.search(message[:READ])
    return _template(found.group()) if found else ""


def templates(messages: Iterable[str]) -> dict[str, str]:
    """The templates of those of many messages that are one line, made together in half the time.

    None of a few, which are often known.
    """
    lines = [
        message
        for message in dict.fromkeys(messages)
        if len(message) <= READ and message.isprintable() and message[:1] not in ("", " ")
    ]
    if len(lines) < _MANY:
        return {}
    made = _with_placeholders("\n".join(lines)).split("\n")
    return {line: _shown(template) for line, template in zip(lines, made, strict=True)}


@lru_cache(maxsize=256)
def _template(line: str) -> str:
    """Cached, since errors that come in bursts are often equal."""
    return _shown(_with_placeholders(line) if _DATA.search(line) else line)


def _with_placeholders(text: str) -> str:
    """Lines with placeholders for their data: no expression goes on behind the end of a line."""
    has_digit = _DIGIT.search(text) is not None
    for one, other, third, needed, expression, placeholder in PLACEHOLDERS:
        if not (one in text or other in text or third in text or (one == "0" and has_digit)):
            continue
        if needed is None or needed.search(text):
            text = expression.sub(placeholder, text)
    return text


def _shown(line: str) -> str:
    line = " ".join(line.split())
    if line.count("<") > 1:
        line = ADJACENT.sub(r"\1", line)
    return line[:SHOWN]


def frames(traceback: str) -> tuple[str, ...]:
    """File name and function of the innermost frames, without folders and line numbers."""
    found = _FRAME.findall(traceback[-_TRACEBACK:])[-_FRAMES:] if traceback else ()
    return tuple(f"{_FOLDERS.sub('', path)}:{name}" for path, name in found)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:READ]
