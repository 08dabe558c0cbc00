"""Presence, typing and read marks: what people in a room see of each other. Pure.

Who has it open and who writes is never stored; read marks are, for each user and room. Invariants:
a user is here from the first of their connections to the end of the last; a person says at most
once in :data:`EVERY` seconds that they write, however often their client does; a read mark never
goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import msgspec

from motet.protocols.messages import Request

EVERY: Final = 2.0
"""Seconds between two signs of one person that they write; those in between are not passed on."""
TYPING: Final = 6.0
"""Seconds after which a client takes a person to write no more, unless it hears of it again."""
MOST_UNREAD: Final = 100
_MOST_PACED: Final = 1_000


class Unread(msgspec.Struct, frozen=True):
    """A user's read mark in a room, and the messages of others behind it, at most 100."""

    read: int = 0
    unread: int = 0


class MarkRead(Request[None], frozen=True, tag="rooms.read_mark"):
    """A user has read a room up to this number; never less than before, nor more than there is."""

    name: str
    user: str
    number: int


class CountUnread(Request[dict[str, Unread]], frozen=True, tag="rooms.unread"):
    """What a user has not read, for each of these rooms.

    ``rooms``: by name, the number up to which messages are hidden from the user.
    """

    user: str
    rooms: dict[str, int]


class KnowsUser(Request[bool], frozen=True, tag="rooms.knows"):
    """Whether there is a user of this name: one of the people of some room, who has said something
    in this one, or who has a session or a token. Without tokens, everybody can be one.

    ``users``: those of the tokens in the configuration.
    """

    name: str
    user: str
    users: tuple[str, ...] = ()


KNOWS: Final = (
    "SELECT ?2 IN (SELECT value FROM json_each(?3))"
    " OR ?3 = '[]' AND NOT EXISTS (SELECT 1 FROM tokens)"
    " OR EXISTS (SELECT 1 FROM tokens WHERE user = ?2)"
    " OR EXISTS (SELECT 1 FROM room_people WHERE user = ?2)"
    " OR EXISTS (SELECT 1 FROM sessions WHERE owner = ?2 AND listed = 1)"
    " OR EXISTS (SELECT 1 FROM runs WHERE user = ?2 AND open = 1)"
    " OR EXISTS (SELECT 1 FROM room_messages WHERE room = ?1 AND author = ?2 AND kind = 'person')"
)


class RolesOf(Request[tuple[str, ...]], frozen=True, tag="rooms.roles"):
    """The roles of the stored tokens of a user that are in force."""

    user: str


ROLES_OF: Final = (
    "SELECT DISTINCT role FROM tokens WHERE user = ?1 AND revoked IS NULL"
    " AND (expires IS NULL OR expires > ?2)"
)


class CountUnshown(Request[int], frozen=True, tag="rooms.unshown"):
    """How many messages of others an agent was not shown, up to number ``last``, besides ``shown``.

    ``seen``, ``told``, ``heard``: as of ``RoomState``, for this agent.
    """

    name: str
    member: str
    seen: int
    told: int
    heard: int
    last: int
    shown: tuple[int, ...] = ()


@attrs.define
class Presence:
    """The users who have rooms open, with the number of their connections."""

    _here: dict[str, dict[str, int]] = attrs.field(factory=dict[str, "dict[str, int]"], init=False)

    def enter(self, room: str, user: str) -> bool:
        """One more connection; whether it is the user's first."""
        users = self._here.setdefault(room, {})
        users[user] = users.get(user, 0) + 1
        return users[user] == 1

    def leave(self, room: str, user: str) -> bool:
        """One less; whether it was the user's last."""
        users = self._here[room]
        users[user] -= 1
        if users[user]:
            return False
        del users[user]
        if not users:
            del self._here[room]
        return True

    def of(self, room: str) -> tuple[str, ...]:
        """Who is here, by name."""
        return tuple(sorted(self._here.get(room, ())))


@attrs.define
class Pace:
    """Lets a signal of each key pass once in :data:`EVERY` seconds; bounded in memory.

    ``clock``: seconds that never go back.
    """

    clock: Callable[[], float]
    _last: dict[tuple[str, str], float] = attrs.field(
        factory=dict[tuple[str, str], float], init=False
    )

    def passes(self, room: str, user: str, *, on: bool) -> bool:
        """Whether to pass on that the user writes, or (``on`` false) writes no more."""
        key, now = (room, user), self.clock()
        last = self._last.pop(key, None)
        if not on:
            return last is not None
        due = last is None or now - last >= EVERY
        self._last[key] = now if due or last is None else last
        if len(self._last) > _MOST_PACED:
            del self._last[next(iter(self._last))]
        return due
