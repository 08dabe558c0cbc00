"""Rows that are put into a transcript without a run.

Invariant: they are an exchange of their own, so that the transcript stays valid (G7).
"""

from __future__ import annotations

from typing import Literal

from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.messages import Request
from motet.protocols.sessions import Accepted

NOTED = "Noted."
NOTE = "A note was put into this conversation:"


class InjectRows(Request[Accepted], frozen=True, tag="sessions.inject"):
    """Add an exchange at the end of a session's transcript, with its key, in one transaction.

    ``id`` stands where other rows have their run's. A model is shown the rows from the next run
    on. Raises ``NotFound`` for an unknown session, ``KeyConflict``.
    """

    id: str
    session: str
    user: str
    rows: tuple[UserMessage, AssistantMessage]
    key: str
    body_hash: str


def exchange(text: str, role: Literal["user", "assistant"]) -> tuple[UserMessage, AssistantMessage]:
    """The text as said by one side, with a row of the other that people are not shown."""
    if role == "user":
        return UserMessage(text, note="injected"), AssistantMessage(NOTED, note="silent")
    return UserMessage(NOTE, note="hint"), AssistantMessage(text)
