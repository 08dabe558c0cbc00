"""Invariants of who gets to know what (G16)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from motet.testing.invariants.snapshot import Finding, Sent, Snapshot

__all__ = ["errors_stay_inside", "users_are_apart"]

MARKED = 8
"""Shorter texts stand in others by accident."""

PLAIN = 16
"""Shorter errors are words that anybody may say."""


def users_are_apart(snapshot: Snapshot) -> Iterator[Finding]:
    """No text of one user is in a request, transcript or error of another, but in a room (G16)."""
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
    """What tools and providers raised is never said in a room; people get its short form."""
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
    """Whose text it has in it that is not the user's."""
    own = {sent.token for sent in told if sent.user == user}
    seen: set[str] = set()
    for sent in told:
        if sent.user != user and sent.token not in own | seen and sent.token in text:
            seen.add(sent.token)
            yield sent


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
