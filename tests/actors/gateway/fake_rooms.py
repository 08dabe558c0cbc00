"""A host without rooms, for tests of a gateway."""

from __future__ import annotations

from motet.protocols.errors import NotFound
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.rooms import RoomChange, RoomMessage, RoomPlan, Said
from motet.protocols.sessions import LOCAL, Principal


class FakeRooms:
    """Whatever is asked for, there is no such room."""

    async def list(self, *, principal: Principal = LOCAL) -> tuple[RoomInfo, ...]:
        return ()

    async def get(self, room: str, *, principal: Principal = LOCAL) -> RoomInfo:
        raise NotFound(f"no room {room!r}")

    async def create(
        self,
        name: str,
        plan: RoomPlan,
        *,
        people: tuple[str, ...] = (),
        principal: Principal = LOCAL,
    ) -> RoomInfo:
        raise NotFound(f"no room {name!r}")

    async def change(
        self, room: str, change: RoomChange, *, principal: Principal = LOCAL
    ) -> RoomInfo:
        raise NotFound(f"no room {room!r}")

    async def post(
        self, room: str, text: str, *, key: str | None = None, principal: Principal = LOCAL
    ) -> Said:
        raise NotFound(f"no room {room!r}")

    async def history(
        self,
        room: str,
        *,
        before: int | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[RoomMessage, ...]:
        raise NotFound(f"no room {room!r}")

    def open_to(self, room: str, principal: Principal) -> bool:
        return True
