"""Invariants of privacy between users (G16)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from motet.testing.invariants.snapshot import Finding, Sent, Snapshot

__all__ = ["errors_stay_inside", "users_are_apart"]

MARKED = 8
"""Shorter texts occur in other texts by chance."""

PLAIN = 16
"""Shorter errors occur in other texts by chance."""


def users_are_apart(snapshot: Snapshot) -> Iterator[Finding]:
    """No text of a user is in a request, transcript or error of another, except in rooms (G16)."""
    told = [sent for sent in snapshot.sent if not sent.to_room and _is_marked(sent)]
    if len({sent.user for sent in told}) < 2:
        return
    for asked in snapshot.asked:
        text = _text(asked.request)
        for sent in _foreign(told, asked.user, text):
            yield f"a request of {asked.user} in run {asked.run_id} has {sent.text[:60]!r} in it"
    for session in snapshot.sessions:
        text = _text(snapshot.rows(session.session))
        for sent in _foreign(told, session.owner, text):
            yield (
                f"the transcript of session {session.session!r} of {session.owner} has "
                f"{sent.text[:60]!r} of {sent.user} in it"
            )
    owners = {session.session: session.owner for session in snapshot.sessions}
    for error in snapshot.errors:
        owner = owners.get(error.session_id)
        if owner is not None:
            for sent in _foreign(told, owner, _text(error.raw_error)):
                yield f"the error {error.id} of {owner} has {sent.text[:60]!r} in it"


def errors_stay_inside(snapshot: Snapshot) -> Iterator[Finding]:
    """Error texts of tools and providers are never posted in a room; people get a short form."""
    raised = {str(error.raw_error.get("message", "")): error for error in snapshot.errors}
    for room in snapshot.rooms:
        for said in room.messages:
            if said.kind != "agent":
                continue
            for text, error in raised.items():
                if len(text) >= PLAIN and text in said.text:
                    yield f"{said.author} has told the room {room.name!r} the error {error.id}"


def _is_marked(sent: Sent) -> bool:
    return sent.token != sent.text or len(sent.text) >= MARKED


def _foreign(told: list[Sent], user: str, text: str) -> Iterator[Sent]:
    """The inputs of other users that occur in ``text``."""
    own = {sent.token for sent in told if sent.user == user}
    seen: set[str] = set()
    for sent in told:
        if sent.user != user and sent.token not in own | seen and sent.token in text:
            seen.add(sent.token)
            yield sent


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
