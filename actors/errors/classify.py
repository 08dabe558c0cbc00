"""Which of six kinds an error is, and what a model may try next.

What an exception says of itself decides first (``kind``, as ``ToolFailure`` has it), then the
status code, the exception's class, and word-bounded patterns in the order of :data:`_PATTERNS`.
Source: seed 004, contradictions 37 and 38.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

import msgspec
import trio

from motet.actors.errors.summary import error_code, error_object, error_text
from motet.actors.errors.text import members, sole
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ErrorType, NotFound, UnknownName

SUGGESTIONS: Mapping[ErrorType, str] = {
    "timeout": "Try with a simpler query or smaller dataset",
    "auth": "Check credentials or request human approval",
    "validation": "Check input format and required fields",
    "not_found": "Verify the resource exists or try alternative",
    "rate_limit": "Wait and retry, or use alternative API",
    "unknown": "",
}

_STATUS: Mapping[int, ErrorType] = {
    400: "validation",
    401: "auth",
    403: "auth",
    404: "not_found",
    407: "auth",
    408: "timeout",
    410: "not_found",
    422: "validation",
    429: "rate_limit",
    504: "timeout",
}

# The first that fits: subclasses stand before their bases.
_CLASSES: tuple[tuple[type[BaseException], ErrorType], ...] = (
    (TimeoutError, "timeout"),
    (trio.TooSlowError, "timeout"),
    (PermissionError, "auth"),
    (FileNotFoundError, "not_found"),
    (ModuleNotFoundError, "not_found"),
    (ProcessLookupError, "not_found"),
    (NotFound, "not_found"),
    (UnknownName, "not_found"),
    (LookupError, "not_found"),
    (msgspec.MsgspecError, "validation"),
    (ValueError, "validation"),
    (TypeError, "validation"),
)

_PATTERNS: tuple[tuple[ErrorType, re.Pattern[str]], ...] = (
    (
        "rate_limit",
        re.compile(
            r"\brate[ -]?limit(?:s|ed|ing|er)?\b|\bratelimit\w*|\btoo many requests\b|\bthrottl\w+"
            r"|\bquota (?:was |is )?exceeded\b|\bexceeded \w+ \w* ?quota\b|\b429\b"
        ),
    ),
    (
        "timeout",
        re.compile(
            r"\btim(?:e|ed|es|ing)[ -]?outs?\b|\bdeadline exceeded\b|\btoo slow\b|\b(?:408|504)\b"
        ),
    ),
    (
        "auth",
        re.compile(
            r"\bauth\b|\bo?auth2?\b|\bauthenticat\w+|\bauthori[sz](?!ations? header)\w+"
            r"|\bunauthori[sz]ed\b|\bunauthenticated\b|\bforbidden\b"
            r"|\b(?:permission|access|privileges?) (?:was |is )?denied\b|\bdenied access\b"
            r"|\bcredentials?\b|\bapi[ -]?key\b|\blog[ -]?in (?:failed|required)\b"
            r"|\b(?:401|403|407)\b"
        ),
    ),
    (
        "validation",
        re.compile(
            r"\bvalidat\w+|\binvalid\w*|\bmalformed\b|\bmissing\b|\brequired\b|\bbad request\b"
            r"|\bunprocessable\b|\b(?:syntax|parse|parsing) error\b|\b(?:400|422)\b"
        ),
    ),
    (
        "not_found",
        re.compile(
            r"\bnot ?found\b|\bno such\b|\bdo(?:es)?(?: not|n't) exist\b|\bcannot find\b"
            r"|\bcould not find\b|\b(?:404|410)\b"
        ),
    ),
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
_SEARCHED = 4_000


def classify(error: object, code: str = "") -> ErrorType:
    """The kind of an error; ``code`` is one its tool gave besides."""
    if isinstance(error, BaseException):
        return _of_exception(sole(error), code)
    status = _STATUS.get(_status(error_object(error)))
    return status or _of_words(code or error_code(error), error_text(error))


def suggestion(kind: ErrorType) -> str:
    """What a model may try after an error of this kind; empty for ``unknown``."""
    return SUGGESTIONS[kind]


def _of_exception(error: BaseException, code: str) -> ErrorType:
    if several := members(error):
        kinds: set[ErrorType] = {_of_exception(sole(member), code) for member in several}
        return kinds.pop() if len(kinds) == 1 else "unknown"
    return (
        _said(error)
        or _STATUS.get(_status_of(error))
        or _of_class(error)
        or _of_words(f"{code} {type(error).__name__}", error_text(error))
    )


def _said(error: BaseException) -> ErrorType | None:
    """What the error itself says it is: those of tools and of model clients know."""
    kind = _attribute(error, "kind")
    return next((known for known in get_args(ErrorType) if known == kind), None)


def _of_class(error: BaseException) -> ErrorType | None:
    for known, kind in _CLASSES:
        if isinstance(error, known):
            return kind
    return None


def _of_words(name: str, text: str) -> ErrorType:
    """``name``: a code or class name, whose parts are words too."""
    words = f"{_CAMEL.sub(' ', name)} {text[:_SEARCHED]}".replace("_", " ").lower()
    for kind, pattern in _PATTERNS:
        if pattern.search(words):
            return kind
    return "unknown"


def _status(error: JsonObject) -> int:
    return next(
        (n for key in ("status", "status_code", "code") if (n := _number(error.get(key)))), 0
    )


def _status_of(error: BaseException) -> int:
    """The HTTP status, where client libraries put it."""
    holders = (error, _attribute(error, "response"))
    names = ("status_code", "status", "code")
    return next((n for h in holders for a in names if (n := _number(_attribute(h, a)))), 0)


def _attribute(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except Exception:  # a property of a foreign exception
        return None


def _number(value: object) -> int:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
