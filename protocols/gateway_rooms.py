"""Parameters and results of the gateway's methods about rooms."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.gateway import IdempotencyKey, PageSize, Position
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.rooms import RoomChange, RoomMessage, RoomPlan

ROOM_STREAM: Final = "room:"

RoomName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100)]
People: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=200)
]


class RoomsCreateParams(RoomPlan, frozen=True, kw_only=True):
    """``name``: prefix of the room's name; ``people``: other users who may see it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")]
    people: People = ()

    @property
    def plan(self) -> RoomPlan:
        return RoomPlan(*(getattr(self, name) for name in RoomPlan.__struct_fields__))


class RoomsSetParams(RoomChange, frozen=True, kw_only=True):
    """Absent fields stay as they are."""

    room: RoomName
    people: People | UnsetType = UNSET


class RoomsPostParams(msgspec.Struct, frozen=True):
    room: RoomName
    text: Annotated[str, Meta(min_length=1)]
    key: IdempotencyKey


class RoomsHistoryParams(msgspec.Struct, frozen=True):
    room: RoomName
    before: Position | None = None
    limit: PageSize = 50


class RoomsList(msgspec.Struct, frozen=True):
    rooms: tuple[RoomInfo, ...]


class Posted(msgspec.Struct, frozen=True):
    """The message is on disk, as number ``seq`` of its room."""

    seq: int
    status: Literal["accepted", "duplicate"]


class RoomsHistory(msgspec.Struct, frozen=True):
    """Messages in order. ``before``: of the page of older ones; None: there are none."""

    room: str
    messages: tuple[RoomMessage, ...]
    before: int | None
