"""The rooms of a host, for a gateway, a command line or a bridge.

Invariant: a room does not exist for a principal who may not see it (G16): all calls raise
``NotFound``.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from motet.protocols.rooms import MemberInfo, RoomChange, RoomMessage, RoomMode, RoomPlan, Said
from motet.protocols.sessions import LOCAL, Principal


class RoomInfo(msgspec.Struct, frozen=True):
    """A room and the state of its round.

    Attributes:
        owner: empty: the room is the host's.
        people: users who may see it besides the owner; ``*``: all.
        idle: it waits for a person: the round is over, and no message is left to open another.
        speaking: the members that have the floor.
        turns: agents' turns that the round has used; ``left``: those that it has left.
        reason: the reason why the last round ended.
        mode: the handling of messages that people send while agents speak.
        plan: its definition from the next round on; None: it is defined by the host's
            configuration or its program.
    """

    name: str
    owner: str
    people: tuple[str, ...]
    members: tuple[MemberInfo, ...]
    idle: bool
    speaking: tuple[str, ...]
    turns: int
    left: int
    reason: str
    mode: RoomMode = "collect"
    plan: RoomPlan | None = None


class HostRooms(Protocol):
    """The rooms of a running host, for a principal."""

    async def list(self, *, principal: Principal = LOCAL) -> tuple[RoomInfo, ...]:
        """The rooms that the principal may see, by name."""
        ...

    async def get(self, room: str, *, principal: Principal = LOCAL) -> RoomInfo: ...

    async def create(
        self,
        name: str,
        plan: RoomPlan,
        *,
        people: tuple[str, ...] = (),
        principal: Principal = LOCAL,
    ) -> RoomInfo:
        """Make a room of the principal's. A unique suffix is added to ``name``."""
        ...

    async def change(
        self, room: str, change: RoomChange, *, principal: Principal = LOCAL
    ) -> RoomInfo:
        """Change a room of the principal's: its audience at once, the rest from the next round on.

        Raises ``ConfigError`` for an impossible change, and for the definition of a room that no
        person has made.
        """
        ...

    async def post(
        self, room: str, text: str, *, key: str | None = None, principal: Principal = LOCAL
    ) -> Said:
        """Post a message as the principal. Raises as ``OpenRoom.post``."""
        ...

    async def history(
        self,
        room: str,
        *,
        before: int | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[RoomMessage, ...]:
        """Messages before number ``before``, oldest first."""
        ...

    def open_to(self, room: str, principal: Principal) -> bool:
        """Whether the principal may see a room; true for one that is not open."""
        ...
