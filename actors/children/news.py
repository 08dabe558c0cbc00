"""What a run is told of the children that worked beside it, and what its transcript says of them.

Pure. Invariant: a child's end is in the transcript of its caller once: in a row that the model was
shown, or, when the run ended before, in its last row. Source: agent loop specification, section 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from motet.actors.children.names import LOOK
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.sessions import RunStatus


class Ended(msgspec.Struct, frozen=True):
    """A child that has ended. ``detail``: the limit's name, what went wrong, or who stopped it."""

    run_id: str
    agent: str
    status: RunStatus
    output: str = ""
    detail: str = ""

    @property
    def head(self) -> str:
        why = f", {self.detail}" if self.detail else ""
        return f"{self.agent} ({self.run_id}): {self.status}{why}"


def message(ended: Ended) -> UserMessage:
    """What the caller's model is given of it."""
    said = ended.output or "[It said nothing]"
    return UserMessage(f"[Sub-agent {ended.head}]\n{said}", note="injected")


def untold(rows: Iterable[ChatMessage], children: Iterable[Ended]) -> tuple[Ended, ...]:
    """Those whose end no row of their caller tells of, be it what it was given or has asked for."""
    told = "\n".join(row.text for row in rows if _tells(row))
    return tuple(one for one in children if one.head not in told)


def _tells(row: ChatMessage) -> bool:
    given = isinstance(row, UserMessage) and row.note == "injected"
    return given or (isinstance(row, ToolMessage) and row.name == LOOK)


def closed(rows: Sequence[ChatMessage], children: Sequence[Ended]) -> tuple[ChatMessage, ...]:
    """The rows of a run that has ended, whose last one says what became of these."""
    last = rows[-1] if rows else None
    if not children or not isinstance(last, AssistantMessage):
        return tuple(rows)
    told = "\n".join(f"- {one.head}" for one in children)
    text = f"{last.text}\n\n[Its sub-agents, whose results it has not seen:\n{told}]"
    return (*rows[:-1], replace(last, text=text))


def recovered(rows: Sequence[ChatMessage], children: Iterable[Ended]) -> tuple[ChatMessage, ...]:
    """The rows of a run that the end of its host cut off; they tell what its children have said."""
    late = untold(rows, children)
    said = "\n\n".join(message(one).text for one in late if one.output)
    last = rows[-1]
    if said and isinstance(last, AssistantMessage):
        rows = (*rows[:-1], replace(last, text=f"{last.text}\n\n{said}"))
    return closed(rows, [one for one in late if not one.output])
