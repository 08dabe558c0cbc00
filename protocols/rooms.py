"""Rooms: what people and agents say in one, and how far its round of agents' turns has come.

A person's message opens a round; agents' messages never do. Source: API specification, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["person", "agent"]
Speak: TypeAlias = Literal["chosen", "mentioned"]

NOBODY = "nobody to speak"
SILENT = "all passed"
STOPPED = "stopped"
TURNS = "max_turns"
DEPTH = "max_depth"


class MemberInfo(msgspec.Struct, frozen=True):
    """An agent of a room. ``speak``: ``mentioned`` is never chosen, only called by name."""

    name: str
    description: str = ""
    speak: Speak = "chosen"


class RoomMessage(msgspec.Struct, frozen=True):
    """What somebody said.

    Attributes:
        seq: its number in the room, from 1.
        round: the round it opened or belongs to.
        at: Unix seconds.
    """

    seq: int
    author: str
    kind: Kind
    text: str
    round: int
    at: float = 0.0


class Due(msgspec.Struct, frozen=True):
    """Somebody who is to speak; ``depth`` counts the calls from agent to agent that led there."""

    name: str
    depth: int = 0


class Floor(msgspec.Struct, frozen=True):
    """Where a room's round stands. Stored with every message, so that no restart refills it.

    Attributes:
        round: number of the round; 0 before the first.
        going: whether agents may still speak in it.
        turns: agents' turns that it has used, those under way included.
        speaking: who has the floor.
        due: who speaks next, in this order.
        depth: of the call that gave the last speakers the floor.
        passes: turns in a row in which nothing was said.
        last: who had the floor last, for taking turns.
        reason: why the last round ended.
    """

    round: int = 0
    going: bool = False
    turns: int = 0
    speaking: tuple[Due, ...] = ()
    due: tuple[Due, ...] = ()
    depth: int = 0
    passes: int = 0
    last: str = ""
    reason: str = ""


class RoomView(msgspec.Struct, frozen=True):
    """What a room looks like to whoever decides about it: pure data.

    Attributes:
        messages: those that an agent is shown, oldest first.
        round: the messages of this round, its opening ones included.
        fresh: the last ones that nobody has been chosen for: one person's or the last speakers'.
        elapsed: seconds since the round was opened.
    """

    room: str
    members: tuple[MemberInfo, ...]
    messages: tuple[RoomMessage, ...]
    round: tuple[RoomMessage, ...]
    fresh: tuple[RoomMessage, ...]
    floor: Floor
    left: int
    elapsed: float = 0.0

    @property
    def free(self) -> Sequence[str]:
        """Those who may be chosen without being called."""
        return [member.name for member in self.members if member.speak == "chosen"]
