"""Forms of errors that the seeds describe and the product does not use: kept for their vectors."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from motet.actors.errors.classify import classify, compact_error, error_block
from motet.actors.errors.tracker import SHOWN, ErrorContext, Escalation
from motet.protocols.chat import JsonObject
from motet.protocols.errors import CompactError, ErrorType
from motet.protocols.redaction.redact import redacted_head
from motet.runtime.describe import error_text


def short_form(
    tool: str, error: object, now: float, *, code: str = "", kind: ErrorType | None = None
) -> CompactError:
    """An exception, a text or an error object in short. ``code`` is one that its tool gave."""
    message, _ = redacted_head(error_text(error))
    return compact_error(tool, kind or classify(error, code), message, now)


def escalation_result(escalation: Escalation) -> JsonObject:
    """The end of an escalated run as data, in the seed's keys."""
    return {
        "status": "escalated",
        "reason": escalation.reason,
        "cause": escalation.limit,
        "last_error": escalation.last_error.message,
        "error_history": [msgspec.to_builtins(error) for error in escalation.history],
    }


def without(context: ErrorContext, numbers: Container[int]) -> ErrorContext:
    """The context without these errors, however they were resolved."""
    kept = tuple(error for error in context.open if error.number not in numbers)
    return msgspec.structs.replace(context, open=kept)


def render(context: ErrorContext, shown: int = SHOWN) -> str:
    """The newest ``shown`` blocks after one line that counts the older ones; empty if none."""
    kept = context.open[max(len(context.open) - max(shown, 0), 0) :]
    hidden = len(context.open) - len(kept)
    older = [f"<error_summary>\n{hidden} older errors hidden\n</error_summary>"] if hidden else []
    return "\n\n".join([*older, *(error_block(e.error, e.error_id) for e in kept)])
