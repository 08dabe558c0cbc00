"""Invites of rooms, by which people come in, and the requests to their store.

Invariant: the token of an invite is shown once; what is stored is its digest.
"""

from __future__ import annotations

import msgspec

from motet.protocols.messages import Request
from motet.protocols.room_acts import Given
from motet.protocols.room_people import RoomPerson


class RoomInvite(msgspec.Struct, frozen=True):
    """A link by which people come in. Its token is stored as a digest only.

    Attributes:
        expires: Unix seconds; None: never.
        uses: how often it works still; None: any number of times.
    """

    id: str
    room: str
    role: Given
    by: str
    created: float
    expires: float | None = None
    uses: int | None = None


class AddInvite(Request[None], frozen=True, tag="rooms.invite"):
    """``digest``: of the token; ``invite.id`` follows from it."""

    digest: str
    invite: RoomInvite


class ListInvites(Request[tuple[RoomInvite, ...]], frozen=True, tag="rooms.invites"):
    name: str


class RevokeInvite(Request[bool], frozen=True, tag="rooms.uninvite"):
    """End an invite; False: there was none of this id."""

    name: str
    id: str


class FindInvite(Request[RoomInvite | None], frozen=True, tag="rooms.invited"):
    digest: str


class Redeem(Request[bool], frozen=True, tag="rooms.redeem"):
    """Let a person in by an invite, in one transaction; False: it is spent, over or revoked.

    ``now``: the time by the clock that the invite's end is of.
    """

    digest: str
    name: str
    person: RoomPerson
    now: float
