"""A failed call in four lines that a model can act on.

Laws: the message and the tool's name are one line each, the message has at most
:data:`MESSAGE_LIMIT` code points also after escaping, and no text of an error can close the block
that it stands in. Source: seed 004, contradictions 37, 44 and 47.
"""

from __future__ import annotations

from motet.actors.errors.classify import classify, suggestion
from motet.actors.errors.clip import redacted_head
from motet.actors.errors.summary import error_text
from motet.actors.errors.text import first_line, shorten
from motet.protocols.errors import CompactError, ErrorType

MESSAGE_LIMIT = 200
_NAME_LIMIT = 64
_NO_TEXT = "(no message)"


def compact_error(
    tool: str, error: object, now: float, *, code: str = "", kind: ErrorType | None = None
) -> CompactError:
    """An exception, a text or an error object in short. ``now``: Unix seconds.

    ``code`` is one its tool gave besides; ``kind`` one that is known better than by its words.
    """
    message, _ = redacted_head(error_text(error))
    return _made(tool, kind or classify(error, code), message, now)


def compact_summary(tool: str, kind: ErrorType, summary: str, now: float) -> CompactError:
    """The same of an error that the channel has reported: its summary is the message."""
    return _made(tool, kind, summary, now)


def _made(tool: str, kind: ErrorType, message: str, now: float) -> CompactError:
    return CompactError(
        tool_name=shorten(first_line(tool), _NAME_LIMIT),
        error_type=kind,
        message=shorten(first_line(message), MESSAGE_LIMIT),
        suggestion=suggestion(kind),
        timestamp=now,
    )


def error_block(error: CompactError, error_id: str | None = None) -> str:
    """What stands in the context: ``<error>``, its lines, and the id of the whole where stored."""
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
