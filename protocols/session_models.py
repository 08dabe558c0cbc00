"""The models that people have chosen for sessions, in place of their agents' own."""

from __future__ import annotations

from motet.protocols.messages import Request


class SetSessionModel(Request[None], frozen=True, tag="sessions.set_model"):
    """Set the model of a session; None: its agent's own again. Raises ``NotFound``."""

    session: str
    model: str | None


class SessionModels(Request[dict[str, str]], frozen=True, tag="sessions.models"):
    """The sessions that have a model of their own."""
