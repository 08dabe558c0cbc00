"""What a gateway, a command line or a bridge needs from the rooms of a host.

Invariant: to whoever may not see a room it does not exist (G16): all calls raise ``NotFound``.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from motet.protocols.rooms import MemberInfo, RoomChange, RoomMessage, RoomMode, RoomPlan, Said
from motet.protocols.sessions import LOCAL, Principal


class RoomInfo(msgspec.Struct, frozen=True):
    """A room and where its round stands.

    Attributes:
        owner: whose it is; empty: the host's.
        people: users who may see it too; ``*``: all.
        idle: it waits for a person: the round is over, and no other is to be opened.
        speaking: who has the floor.
        turns: agents' turns that the round has used; ``left``: that it may still have.
        reason: why the last round ended.
        mode: what becomes of what people say while agents speak.
        plan: what it is, from the next round on; None: the host's configuration or its program
            says so.
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
        """Those that the principal may see, by name."""
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
        """Make a room, the principal's; its name is ``name`` and something that nobody has."""
        ...

    async def change(
        self, room: str, change: RoomChange, *, principal: Principal = LOCAL
    ) -> RoomInfo:
        """Change a room of the principal's: who may see it at once, the rest from the next round.

        Raises ``ConfigError`` for what cannot be, and for another room than one that a person made.
        """
        ...

    async def post(
        self, room: str, text: str, *, key: str | None = None, principal: Principal = LOCAL
    ) -> Said:
        """Say something as the principal. Raises as ``OpenRoom.post``."""
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
        """Whether the principal may see an open room; of one that is not open, nothing is known."""
        ...
