"""A row that is put into a transcript without a run."""

from __future__ import annotations

from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.messages import Request
from motet.protocols.sessions import Accepted


class InjectRow(Request[Accepted], frozen=True, tag="sessions.inject"):
    """Add a row at the end of a session's transcript, with its key, in one transaction.

    ``id`` stands where other rows have their run's. A model is shown the row from the next run
    on. Raises ``NotFound`` for an unknown session, ``KeyConflict``.
    """

    id: str
    session: str
    user: str
    row: UserMessage | AssistantMessage
    key: str
    body_hash: str
