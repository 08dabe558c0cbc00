"""Parameters and results of the gateway's methods about rooms."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.gateway import Count, IdempotencyKey, PageSize, Position
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.room_acts import Given
from motet.protocols.room_invites import (
    RoomInvite,
)
from motet.protocols.room_messages import MOST_REACTION
from motet.protocols.rooms import (
    RoomChange,
    RoomMessage,
    RoomPlan,
)

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
    reply_to: Position | None = None


class MessagesEditParams(msgspec.Struct, frozen=True):
    room: RoomName
    number: Position
    text: Annotated[str, Meta(min_length=1)]


class MessagesDeleteParams(msgspec.Struct, frozen=True):
    room: RoomName
    number: Position


class MessagesReactParams(msgspec.Struct, frozen=True):
    """``on`` false: the user reacts so no more."""

    room: RoomName
    number: Position
    reaction: Annotated[str, Meta(min_length=1, max_length=MOST_REACTION)]
    on: bool = True


class RoomsReadParams(msgspec.Struct, frozen=True):
    """The user has read the room up to message ``number``."""

    room: RoomName
    number: Position


class RoomsTypingParams(msgspec.Struct, frozen=True):
    """``on`` false: the user writes no more."""

    room: RoomName
    on: bool = True


class RoomsPresentParams(msgspec.Struct, frozen=True):
    room: RoomName


class RoomsPresent(msgspec.Struct, frozen=True):
    """The users who have the room open, by name."""

    room: str
    users: tuple[str, ...]


class RoomsHistoryParams(msgspec.Struct, frozen=True):
    """``query``: only messages that have these words."""

    room: RoomName
    before: Position | None = None
    limit: PageSize = 50
    query: Annotated[str, Meta(max_length=200)] = ""


class RoomsListParams(msgspec.Struct, frozen=True):
    """``after``: the name of the last room of the page before; ``query``: a part of its name or
    title; ``archived``: those that are archived instead of those in use.
    """

    after: Annotated[str, Meta(max_length=200)] = ""
    limit: PageSize = 50
    query: Annotated[str, Meta(max_length=200)] = ""
    archived: bool = False


class RoomsList(msgspec.Struct, frozen=True):
    """By name. ``next``: the ``after`` of the next page; None: there is none."""

    rooms: tuple[RoomInfo, ...]
    next: str | None = None


class RoomParams(msgspec.Struct, frozen=True):
    room: RoomName


class RoomsInviteParams(msgspec.Struct, frozen=True):
    """``expires``: Unix seconds; ``uses``: how often it works. Absent: without end."""

    room: RoomName
    role: Given = "member"
    expires: float | None = None
    uses: Position | None = None


class RoomsRevokeParams(msgspec.Struct, frozen=True):
    room: RoomName
    invite: Annotated[str, Meta(min_length=1, max_length=100)]


class RoomsJoinParams(msgspec.Struct, frozen=True):
    token: Annotated[str, Meta(min_length=1, max_length=200)]


class RoomsExportParams(msgspec.Struct, frozen=True):
    """``after``: number of the last message of the part before."""

    room: RoomName
    after: Count = 0
    limit: PageSize = 200


class RoomInvites(msgspec.Struct, frozen=True):
    room: str
    invites: tuple[RoomInvite, ...]


class RoomSummary(msgspec.Struct, frozen=True):
    """What was said before the user came, up to message ``upto``, in short; 0: nothing was, or the
    room has newcomers read something else.
    """

    room: str
    upto: int
    text: str


class RoomDone(msgspec.Struct, frozen=True):
    """It was done."""

    room: str


class Posted(msgspec.Struct, frozen=True):
    """The message is on disk, as number ``seq`` of its room."""

    seq: int
    status: Literal["accepted", "duplicate"]


class RoomsHistory(msgspec.Struct, frozen=True):
    """Messages in order. ``before``: of the page of older ones; None: there are none."""

    room: str
    messages: tuple[RoomMessage, ...]
    before: int | None
