"""One line that says what went wrong: what a model sees of an error at first.

Invariants: at most :data:`SUMMARY_LIMIT` code points, one line, no NUL, valid UTF-8, and the
summary of a summary is itself. Source: seed 000, contradictions 7 to 10.
"""

from __future__ import annotations

from typing import cast

import msgspec

from motet.actors.errors.raw import plain
from motet.actors.errors.text import first_line, message_of, safe_text, shorten, well_formed
from motet.protocols.chat import JsonObject

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
    return msgspec.json.encode(plain(inner or error)).decode() if error else ""


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
