"""What the model reads of a failed call: three lines, or the text itself when nothing is stored.

Laws: three lines and at most :data:`FAILURE_LIMIT` code points in the first form, at most
:data:`FALLBACK_LIMIT` in the second. Source: seed 000, contradictions 11, 18 and 23.
"""

from __future__ import annotations

import json
import re

import msgspec

from motet.actors.errors.ids import ID_SHAPE
from motet.actors.errors.summary import SUMMARY_LIMIT
from motet.actors.errors.text import first_line, safe_text, shorten, type_name, well_formed

FAILURE_LIMIT = 300
FALLBACK_LIMIT = 500
NO_TEXT = "Tool execution failed"
# With a name of 61, a summary of 100 and the id twice the three lines are 300 long.
_TOOL_LIMIT = 61
_CODE_LIMIT = 64
_FAILURE = re.compile(
    rf"Tool '.{{0,61}}' failed: (?P<summary>.*)\n\[Error ID: (?P<id>{ID_SHAPE})\]\n"
)


def failure_text(tool: str, summary: str, error_id: str) -> str:
    """The three lines for a stored error. ``error_id`` is an id the store has given."""
    name = shorten(first_line(tool), _TOOL_LIMIT)
    line = shorten(first_line(summary), SUMMARY_LIMIT)
    return (
        f"Tool '{name}' failed: {line}\n"
        f"[Error ID: {error_id}]\n"
        f'📋 Use get_error_detail("{error_id}") for complete error information'
    )


def told(text: str) -> tuple[str, str | None]:
    """What :func:`failure_text` was made of: the summary, and the id. Of another text, itself.

    A text of several lines is made one, since it has no id under which more could be found.
    """
    found = _FAILURE.match(text)
    if found is None:
        return " ".join(text.split()), None
    return found["summary"], found["id"]


def fallback_text(text: str, code: str = "", left_out: int = 0) -> str:
    """The error itself, cut at the last newline of its second half, and how much is missing.

    ``left_out``: code points of the error that ``text`` does not have.
    """
    if not text.strip() and not code:
        return NO_TEXT
    head = f"Tool error: {shorten(first_line(code), _CODE_LIMIT)} - " if code else "Error: "
    whole = head + well_formed(text)
    if len(whole) <= FALLBACK_LIMIT and not left_out:
        return whole
    room = FALLBACK_LIMIT - len(_cut_mark(len(whole) + left_out))
    newline = whole.rfind("\n", FALLBACK_LIMIT // 2, room)
    kept = min(room if newline < 0 else newline, len(whole))
    return whole[:kept] + _cut_mark(len(whole) - kept + left_out)


def _cut_mark(missing: int) -> str:
    return f"... [truncated {missing} chars]"


def result_text(data: object) -> str:
    """What the model reads of a success: text as it is, else JSON in the order it was given."""
    if isinstance(data, str):
        return well_formed(data)
    try:
        return well_formed(_json(data))
    except (TypeError, ValueError, RecursionError):
        shown = shorten(first_line(safe_text(data)), SUMMARY_LIMIT)
        return f"[unserializable result of type {type_name(data)}: {shown}]"


def _json(data: object) -> str:
    """What JSON has no number for is null. Raises ``TypeError``, ``ValueError``."""
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return msgspec.json.encode(data).decode()
