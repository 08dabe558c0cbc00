"""Well-formed Unicode text, also of values whose ``__str__`` fails. Pure.

Nothing here raises, whatever ``__str__`` or ``__repr__`` of the value does.
"""

from __future__ import annotations

import re
from typing import cast

_LINE_END = re.compile("[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_VISIBLE = re.compile(r"[^\s\x00]")
ELLIPSIS = "..."
_MEMBERS_SHOWN = 8


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: surrogate pairs joined, lone surrogates replaced."""
    if text.isascii():  # no copy, which matters for megabytes
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def safe_text(value: object) -> str:
    """``str(value)``, or the name of its type when that fails."""
    try:
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
    if not isinstance(error, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", error).exceptions  # its widest type


def sole(error: BaseException) -> BaseException:
    """The error itself, out of the groups of one that nurseries wrap around it."""
    while len(inner := members(error)) == 1:
        error = inner[0]
    return error


def message_of(error: BaseException) -> str:
    """The text of the exception, or its type; of a group, the texts of its members."""
    error = sole(error)
    if several := members(error):
        return "; ".join(first_line(message_of(member)) for member in several[:_MEMBERS_SHOWN])
    text = safe_text(error)
    if not _VISIBLE.search(text):
        return type_name(error)
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
