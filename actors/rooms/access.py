"""Who may see a room, and who may say who may: pure.

Invariants: to everybody else a room does not exist (G16); what a member has heard and said in a
room is in sessions that only the room itself uses, from before their first message.
"""

from __future__ import annotations

from collections.abc import Collection

from motet.actors.sessions.keys import Chat, parse_key, session_key
from motet.protocols.errors import NotFound
from motet.protocols.sessions import Principal

CHANNEL = "room"
EVERYBODY = "*"
"""In a list of people: every user of the host."""


def may_see(who: Principal, owner: str, people: Collection[str]) -> bool:
    """Read it, follow it, speak in it and stop it."""
    return may_change(who, owner) or who.user in people or EVERYBODY in people


def may_change(who: Principal, owner: str) -> bool:
    """Change it, invite people and send them away, and answer what its members ask for."""
    return who.role == "admin" or (bool(owner) and who.user == owner)


def acts_as(room: str) -> Principal:
    """In whose name the members of a room work: never in that of whoever spoke last."""
    return Principal(f"{CHANNEL}:{room}")


def room_of(user: str) -> str | None:
    """The room that a user acts for, if it is the members of one."""
    channel, colon, room = user.partition(":")
    return room if colon and channel == CHANNEL else None


def member_session(room: str, member: str) -> str:
    """The session in which a member keeps what it has heard and said in a room."""
    return session_key(Chat(agent=member, channel=CHANNEL, kind="group", chat=room))


def check_session(session: str, who: Principal) -> None:
    """Raises ``NotFound`` for a room's session, unless it is the room's own members who ask."""
    chat = parse_key(session)
    if chat is not None and chat.channel == CHANNEL and who.user != acts_as(chat.chat).user:
        raise NotFound(f"no session {session!r}")
