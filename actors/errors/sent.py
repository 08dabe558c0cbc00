"""The failed calls of a transcript as a model is sent them: each error once, the older ones short.

A new error is three lines, as it was told; once the model has answered it, the last three that
nobody has resolved are blocks, older ones are one line with their number, and resolved ones one
line that says so. Laws: rows keep their number, order and calls; only texts of failed calls
change; the same rows give the same bytes; the transcript itself is never rewritten. The text of an
error that was answered has at most :data:`SENT_LIMIT` code points, that of one no longer shown
at most :data:`LINE_LIMIT`. Source: errors specification, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from motet.actors.errors.compact import MESSAGE_LIMIT, error_block
from motet.actors.errors.context import SHOWN, ErrorContext
from motet.actors.errors.failures import compacted_error
from motet.actors.errors.format import told
from motet.actors.errors.tracker import any_failed, counts_as
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage

RESOLVED = "[Failed; a later call of this tool succeeded]"
LINE_LIMIT = 80
SENT_LIMIT = MESSAGE_LIMIT + 300
"""Of a block: message, name, suggestion, id and the words around them."""


def as_sent(rows: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The rows of a request."""
    if not any_failed(rows):
        return tuple(rows)
    texts = _texts(rows)
    sent = list(rows)
    for at, text in texts.items():
        sent[at] = replace(sent[at], text=text)
    return tuple(sent)


def _texts(rows: Sequence[ChatMessage]) -> dict[int, str]:
    """The text of each failed call that has been answered, by its place."""
    context, places = ErrorContext(), dict[int, int]()
    answered = -1
    for at, row in enumerate(rows):
        if isinstance(row, AssistantMessage):
            answered = at
        elif isinstance(row, ToolMessage):
            counts = counts_as(row.outcome)
            if counts == "error":
                short = compacted_error(row.name, row.text)
                context = context.failed(short, told(row.text)[1])
                places[context.last] = at
            elif counts == "success" and context.open:
                context = context.succeeded(row.name)
    texts = {at: RESOLVED for at in places.values() if at < answered}
    for back, error in enumerate(reversed(context.open)):
        at = places[error.number]
        if at < answered:
            older = f"[Error {error.number} of this session: not shown again, newer ones are]"
            texts[at] = error_block(error.error, error.error_id) if back < SHOWN else older
    return texts
