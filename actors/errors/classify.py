"""The six kinds of errors, the five classes of failures, and the texts about them. Pure.

:func:`classify` tries in this order: the kind that the exception declares (as ``ToolFailure``
does), the status code, the class of the exception, and word-bounded patterns in the order of
:data:`_PATTERNS`. The kind says what a failure is about; its class (:data:`TAXONOMY`) says where it
counts. Three texts exist: :func:`failure_text` for a stored error, :func:`fallback_text`
without a store, both with :func:`kind_lines`, and :func:`error_block` in a history that was pruned
or compacted; :class:`RepeatedCalls` adds advice.
Source: seeds 000 and 004, contradictions 11, 18, 23, 36, 37, 38, 44 and 47.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from subprocess import CalledProcessError
from typing import Literal, NamedTuple, TypeAlias, TypeGuard, cast, get_args

import msgspec
import trio

from motet.protocols.chat import FailureClass, JsonObject, Outcome
from motet.protocols.errors import CompactError, ErrorType, NotFound, UnknownName
from motet.protocols.stable_json import in_order
from motet.protocols.storage import StorageError
from motet.protocols.texts import first_line, shorten, well_formed
from motet.runtime.describe import ID_SHAPE, SUMMARY_LIMIT, error_code, error_object, error_text
from motet.runtime.errors import (
    ActorDead,
    ActorPaused,
    AskTimeout,
    MailboxFull,
    RestartLimitExceeded,
    StartFailed,
)
from motet.runtime.exceptions import members, plain_message, safe_text, sole, type_name
from motet.runtime.foreign import is_a
from motet.runtime.outside import foreign_code

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

# The first match counts: subclasses stand before their bases.
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
_MEMBERS = 500


def classify(error: object, code: str = "") -> ErrorType:
    """The kind of an error. ``code``: given by its tool."""
    if isinstance(error, BaseException):
        return kind_of(clues(error, code))
    status = _STATUS.get(_status(error_object(error)))
    return status or _of_words(code or error_code(error), error_text(error))


class Clue(NamedTuple):
    """An exception, as far as its kind depends on it: one that is certain, or its name and text."""

    kind: ErrorType | None
    name: str
    text: str


def clues(error: BaseException, code: str = "") -> list[Clue]:
    """The clues of an exception, or of the members of a group. Searches no text."""
    found: list[Clue] = []
    waiting = [error]
    while waiting and len(found) < _MEMBERS:
        one = sole(waiting.pop())
        if several := members(one):
            waiting += several
            continue
        kind = _declared_kind(one) or _STATUS.get(_status_of(one)) or _of_class(one)
        text = "" if kind else plain_message(one)[:_SEARCHED]
        found.append(Clue(kind, f"{code} {type(one).__name__}", text))
    return found


def kind_of(found: Iterable[Clue]) -> ErrorType:
    """The kind that all clues agree on."""
    kinds: set[ErrorType] = {clue.kind or _of_words(clue.name, clue.text) for clue in found}
    return kinds.pop() if len(kinds) == 1 else "unknown"


def _declared_kind(error: BaseException) -> ErrorType | None:
    """The kind that the error declares itself, as errors of tools and of model clients do."""
    kind = _attribute(error, "kind")
    return next((known for known in get_args(ErrorType) if known == kind), None)


def _of_class(error: BaseException) -> ErrorType | None:
    for known, kind in _CLASSES:
        if is_a(error, known):
            return kind
    return None


def _of_words(name: str, text: str) -> ErrorType:
    """``name``: a code or class name; its parts count as words."""
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
        with foreign_code:
            return getattr(holder, name, None)
    except Exception:  # a property of a foreign exception
        return None


def _number(value: object) -> int:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# Classes of failures. Each has one row: everything that counts failures reads this table.

Verdict: TypeAlias = Literal["succeeded", "failed", "down", "abandoned"]
"""The verdict of a call for the circuit breakers of its tool. ``failed``: counts for its person;
``down``: counts for all users of the agent; ``abandoned``: no verdict."""


class Consequences(NamedTuple):
    """The places where a failed call counts.

    Attributes:
        verdict: for the breakers of its tool.
        counted: towards ``Limits.tool_errors`` and ``Limits.total_errors``.
        advised: repeated with the same arguments, it earns advice.
        watched: by the detection of loops. Counted failures are left to their limits.
        shortened: later requests have a block or a line for it. The text of an answer stays.
        error: its span has the status ``error``, and ``RunResult.errors`` lists it.
    """

    verdict: Verdict
    counted: bool
    advised: bool
    watched: bool
    shortened: bool
    error: bool


TAXONOMY: Mapping[FailureClass, Consequences] = {
    #                                          counted advised watched shortened error
    "fault": Consequences("failed", True, True, False, True, True),
    "infrastructure": Consequences("down", True, True, False, True, True),
    "negative": Consequences("abandoned", False, False, True, False, False),
    "argument": Consequences("abandoned", False, True, True, True, True),
    "refusal": Consequences("abandoned", False, False, True, True, True),
}


def class_of(outcome: Outcome, failure: FailureClass | Literal[""] = "") -> FailureClass | None:
    """The class of a stored or fresh result; None if the call did not fail.

    A call that was stopped, never began, or whose outcome is unknown says nothing about its tool.
    Rows of older hosts have no class: those failures count as faults, as they did then.
    """
    if outcome == "failed":
        return failure or "fault"
    return "refusal" if outcome == "denied" else None


def consequences(outcome: Outcome, failure: FailureClass | Literal[""] = "") -> Consequences | None:
    """The row of the table for a result; None if the call did not fail."""
    found = class_of(outcome, failure)
    return None if found is None else TAXONOMY[found]


# Of exceptions. A guess from words never excuses a failure. ValueError, TypeError and LookupError
# are faults: a KeyError is far more often a bug of the tool than an answer, for which there is
# ToolNegative, or a mistake of the model, for which there is ToolRetry.
_EXCEPTIONS: tuple[tuple[type[BaseException], FailureClass], ...] = (
    (StorageError, "infrastructure"),
    (ActorDead, "infrastructure"),
    (ActorPaused, "infrastructure"),
    (AskTimeout, "infrastructure"),
    (MailboxFull, "infrastructure"),
    (RestartLimitExceeded, "infrastructure"),
    (StartFailed, "infrastructure"),
    (ImportError, "fault"),
    (CalledProcessError, "negative"),
    (PermissionError, "refusal"),
    (FileNotFoundError, "negative"),  # with and without an errno
    (FileExistsError, "negative"),
    (IsADirectoryError, "negative"),
    (NotADirectoryError, "negative"),
    (ProcessLookupError, "negative"),
    (NotFound, "negative"),
    (UnknownName, "negative"),
)
_SAYS_NO = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
_IS_OUT = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_KINDS: Mapping[ErrorType, FailureClass] = {"not_found": "negative", "validation": "argument"}


def failure_class(error: BaseException) -> FailureClass:
    """The class of an exception that a tool has raised.

    In this order: the class that it declares, its type, its errno, its HTTP status, its kind.
    """
    error = sole(error)
    if several := members(error):
        classes: set[FailureClass] = {failure_class(member) for member in several}
        return classes.pop() if len(classes) == 1 else "fault"
    declared = _attribute(error, "failure")
    for class_ in get_args(FailureClass):
        if class_ == declared:
            return cast("FailureClass", class_)  # the arguments of a Literal are its values
    for type_, class_ in _EXCEPTIONS:
        if issubclass(type(error), type_):
            return class_
    if is_a(error, OSError) and error.errno in (*_SAYS_NO, *_IS_OUT):
        return "negative" if error.errno in _SAYS_NO else "infrastructure"
    if kind := _declared_kind(error):
        return _KINDS.get(kind, "fault")
    return "negative" if _STATUS.get(_status_of(error)) == "not_found" else "fault"


# Error blocks. Laws: the message and the tool's name are one line each; the message has at most
# :data:`MESSAGE_LIMIT` code points, also after escaping; no text of an error can close its block.

MESSAGE_LIMIT = 200
_NAME_LIMIT = 64
_NO_TEXT = "(no message)"


def is_kind(kind: str) -> TypeGuard[ErrorType]:
    return kind in get_args(ErrorType)


def kind_lines(kind: ErrorType) -> str:
    """The lines about the kind of a failure, as they follow its text: kind and suggestion."""
    suggestion = SUGGESTIONS[kind]
    return f"\ntype: {kind}" + (f"\nsuggestion: {suggestion}" if suggestion else "")


def compact_error(tool: str, kind: ErrorType, message: str, now: float) -> CompactError:
    """A failed call in short. ``now``: Unix seconds."""
    return CompactError(
        tool_name=shorten(first_line(tool), _NAME_LIMIT),
        error_type=kind,
        message=shorten(first_line(message), MESSAGE_LIMIT),
        suggestion=SUGGESTIONS[kind],
        timestamp=now,
    )


def error_block(error: CompactError, error_id: str | None = None) -> str:
    """The block of an error in a request: kind, message, suggestion, id if it was stored."""
    lines = [
        f"tool: {_line(error.tool_name, _NAME_LIMIT)}",
        f"type: {error.error_type}",
        f"message: {_line(error.message, MESSAGE_LIMIT) or _NO_TEXT}",
    ]
    if error.suggestion:
        lines.append(f"suggestion: {_line(error.suggestion, MESSAGE_LIMIT)}")
    if error_id is not None:
        lines.append(f"[Error ID: {error_id}]")
    return "\n".join(["<error>", *lines, "</error>"])


def _line(text: str, limit: int) -> str:
    return shorten(first_line(text).replace("</", "&lt;/"), limit)


# Advice on repeated failing calls. Laws: it is given from the second failure in a row on; the order
# of keys in the arguments makes no difference; a success of the tool, or other arguments, reset the
# count. Counts are kept for each tool, so that calls of other tools in between do not reset them.

ADVISED_FROM = 2
_DIGEST = 16


class RepeatedCalls(msgspec.Struct, frozen=True):
    """The last failing call of each tool, as a digest, and its failures in a row."""

    rows: dict[str, tuple[str, int]] = {}

    def failed(self, tool: str, arguments: str) -> tuple[RepeatedCalls, str]:
        """The next state, and the advice for the result; empty for a first failure.

        ``arguments``: the JSON text of the model, valid or not.
        """
        digest = _digest(arguments)
        last, times = self.rows.get(tool, ("", 0))
        times = times + 1 if last == digest else 1
        return RepeatedCalls({**self.rows, tool: (digest, times)}), advice(times)

    def succeeded(self, tool: str) -> RepeatedCalls:
        if tool not in self.rows:
            return self
        return RepeatedCalls({name: row for name, row in self.rows.items() if name != tool})


def advice(times: int) -> str:
    """The advice on a call that has failed ``times`` times in a row; or empty."""
    if times < ADVISED_FROM:
        return ""
    return (
        f"[Advice: this call has failed {times} times in a row with the same arguments, and would "
        "again. Change the arguments, use another tool, or say what is missing.]"
    )


def _digest(arguments: str) -> str:
    whole = in_order(arguments).encode("utf-8", "surrogatepass")
    return hashlib.sha256(whole).hexdigest()[:_DIGEST]


# Results of failed calls. Laws: three lines and at most :data:`FAILURE_LIMIT` code points for a
# stored error, before the lines about its kind; at most :data:`FALLBACK_LIMIT`, with them, for any
# other.

FAILURE_LIMIT = 300
FALLBACK_LIMIT = 500
NO_TEXT = "Tool execution failed"
# A name of 61, a summary of 100 and the id twice make three lines of 300 code points.
_TOOL_LIMIT = 61
_CODE_LIMIT = 64
_FAILURE = re.compile(
    rf"Tool '.{{0,61}}' failed: (?P<summary>.*)\n\[Error ID: (?P<id>{ID_SHAPE})\]\n"
)


def failure_text(tool: str, summary: str, error_id: str) -> str:
    """The three lines for a stored error."""
    name = shorten(first_line(tool), _TOOL_LIMIT)
    line = shorten(first_line(summary), SUMMARY_LIMIT)
    return (
        f"Tool '{name}' failed: {line}\n"
        f"[Error ID: {error_id}]\n"
        f'📋 Use get_error_detail("{error_id}") for complete error information'
    )


def parse_failure_text(text: str) -> tuple[str, str | None]:
    """The summary and the id in a :func:`failure_text`; another text as one line, without an id."""
    found = _FAILURE.match(text)
    if found is None:
        return " ".join(text.split()), None
    return found["summary"], found["id"]


def fallback_text(text: str, code: str = "", left_out: int = 0, limit: int = FALLBACK_LIMIT) -> str:
    """The error itself, cut at the last newline of its second half, with the missing length.

    ``left_out``: code points of the error that are not in ``text``.
    """
    if not text.strip() and not code:
        return NO_TEXT
    head = f"Tool error: {shorten(first_line(code), _CODE_LIMIT)} - " if code else "Error: "
    whole = head + well_formed(text)
    if len(whole) <= limit and not left_out:
        return whole
    room = limit - len(_cut_mark(len(whole) + left_out))
    newline = whole.rfind("\n", limit // 2, room)
    kept = min(room if newline < 0 else newline, len(whole))
    return whole[:kept] + _cut_mark(len(whole) - kept + left_out)


def _cut_mark(missing: int) -> str:
    return f"... [truncated {missing} chars]"


def result_text(data: object) -> str:
    """The result text of a success: a text as it is, else JSON with its keys in order."""
    if isinstance(data, str):
        return well_formed(data)
    try:
        return well_formed(_json(data))
    except (TypeError, ValueError, RecursionError):
        shown = shorten(first_line(safe_text(data)), SUMMARY_LIMIT)
        return f"[unserializable result of type {type_name(data)}: {shown}]"


def _json(data: object) -> str:
    """NaN and infinities become null. Raises ``TypeError``, ``ValueError``."""
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return msgspec.json.encode(data).decode()
