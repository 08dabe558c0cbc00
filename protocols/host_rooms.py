"""The rooms of a host, for a gateway, a command line or a bridge.

Invariant: a room does not exist for a principal who may not see it (G16): all calls raise
``NotFound``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from motet.protocols.room_acts import Given, RoomAct, RoomRole
from motet.protocols.room_invites import (
    RoomInvite,
)
from motet.protocols.room_newcomers import DEFAULT, Newcomers, Summary
from motet.protocols.room_people import TERMS, RoomPerson, RoomTerms
from motet.protocols.rooms import (
    Activation,
    MemberInfo,
    RoomChange,
    RoomMessage,
    RoomMode,
    RoomPlan,
    Said,
)
from motet.protocols.sessions import LOCAL, Principal


class Speaking(msgspec.Struct, frozen=True):
    """A member that has the floor.

    Attributes:
        since: Unix seconds; 0: unknown.
        waits_for: ``model``, ``queue`` (for a place at the model, or for its run to begin),
            ``tool NAME``, ``sub-agents``, ``summary`` or ``approval``.
    """

    name: str
    since: float
    waits_for: str


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
        unread: messages of others that the user has not read, at most 100; in lists only.
        read: number of the last one that they have; in lists only.
        plan: its definition from the next round on; None: it is defined by the host's
            configuration or its program.
        terms: its title, slow mode, and whether it is archived.
        role: of the principal who asks.
        details: whether they are shown the arguments and results of tools.
        gone: members whose agents the host does not have any more; the others go on.
        floor: for each of ``speaking``, since when it has the floor and what it waits for.
        activation: the messages of people that its agents answer; None: its policy decides.
        stuck: members whose turn the room has given up, each with the tools that do not return.
        newcomers: what newcomers read of the earlier talk.
        hidden: the principal is shown no message up to this number, and no event of its stream up
            to number ``hidden_events``: they came later.
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
    terms: RoomTerms = TERMS
    role: RoomRole = "reader"
    details: bool = False
    gone: tuple[str, ...] = ()
    unread: int = 0
    read: int = 0
    floor: tuple[Speaking, ...] = ()
    activation: Activation | None = None
    stuck: tuple[str, ...] = ()
    newcomers: Newcomers = DEFAULT
    hidden: int = 0
    hidden_events: int = 0


class RoomPage(msgspec.Struct, frozen=True):
    """A page of rooms, by name. ``next``: the ``after`` of the page behind it; None: the last."""

    rooms: tuple[RoomInfo, ...]
    next: str | None = None


class RoomPeople(msgspec.Struct, frozen=True):
    """The people of a room, as one of them may know them: bans are for those who may lift them.

    ``role``: of the principal who asks; None: they have left.
    """

    room: str
    owner: str
    people: tuple[RoomPerson, ...]
    terms: RoomTerms
    role: RoomRole | None


class NewInvite(msgspec.Struct, frozen=True):
    """An invite with its token, which is shown here and never again."""

    token: str
    invite: RoomInvite


class RoomExport(msgspec.Struct, frozen=True):
    """A part of a room's export: messages in order. ``next``: the ``after`` of the next part."""

    room: str
    owner: str
    terms: RoomTerms
    people: tuple[RoomPerson, ...]
    messages: tuple[RoomMessage, ...]
    next: int | None


class HostRooms(Protocol):
    """The rooms of a running host, for a principal."""

    async def list(self, *, principal: Principal = LOCAL) -> tuple[RoomInfo, ...]:
        """The rooms that the principal may see and that are in use, by name."""
        ...

    async def page(
        self,
        *,
        after: str = "",
        limit: int = 50,
        query: str = "",
        archived: bool = False,
        principal: Principal = LOCAL,
    ) -> RoomPage:
        """A page of them, or of the archived ones. ``query``: a part of the name or the title."""
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

    async def manage(self, act: RoomAct, *, principal: Principal = LOCAL) -> RoomPeople:
        """Carry out an act of administration. Raises as ``decide`` of ``room_people``."""
        ...

    async def people(self, room: str, *, principal: Principal = LOCAL) -> RoomPeople: ...

    async def invite(
        self,
        room: str,
        role: Given = "member",
        *,
        expires: float | None = None,
        uses: int | None = None,
        principal: Principal = LOCAL,
    ) -> NewInvite:
        """Make a link by which users of the host come in. ``expires``: Unix seconds."""
        ...

    async def invites(
        self, room: str, *, principal: Principal = LOCAL
    ) -> tuple[RoomInvite, ...]: ...

    async def revoke_invite(
        self, room: str, invite: str, *, principal: Principal = LOCAL
    ) -> None: ...

    async def join(self, token: str, *, principal: Principal = LOCAL) -> RoomInfo:
        """Come in by an invite; one who is in the room does not use it up."""
        ...

    async def export(
        self, room: str, *, after: int = 0, limit: int = 200, principal: Principal = LOCAL
    ) -> RoomExport:
        """The messages behind number ``after``."""
        ...

    async def post(
        self,
        room: str,
        text: str,
        *,
        key: str | None = None,
        reply_to: int | None = None,
        principal: Principal = LOCAL,
    ) -> Said:
        """Post a message as the principal. Raises as ``OpenRoom.post``."""
        ...

    async def history(
        self,
        room: str,
        *,
        before: int | None = None,
        limit: int = 50,
        query: str = "",
        principal: Principal = LOCAL,
    ) -> tuple[RoomMessage, ...]:
        """Messages before number ``before``, oldest first, that the principal is shown; with a
        ``query`` those that have these words, in upper or lower case.
        """
        ...

    async def summary(self, room: str, *, principal: Principal = LOCAL) -> Summary:
        """The summary of the messages before the principal came, if the room has newcomers read
        one; an empty one else, and if it cannot be made now. Made once, which may take a minute.
        """
        ...

    async def edit_message(
        self, room: str, number: int, text: str, *, principal: Principal = LOCAL
    ) -> RoomMessage:
        """Give a message of the principal's another text. Raises as ``OpenRoom.edit``."""
        ...

    async def delete_message(
        self, room: str, number: int, *, principal: Principal = LOCAL
    ) -> RoomMessage:
        """Withdraw a message: one's own, or any of a room that one moderates."""
        ...

    async def react(
        self,
        room: str,
        number: int,
        reaction: str,
        *,
        on: bool = True,
        principal: Principal = LOCAL,
    ) -> RoomMessage:
        """React to a message with a word or a sign, or (``on`` false) no more."""
        ...

    async def mark_read(self, room: str, number: int, *, principal: Principal = LOCAL) -> None:
        """The principal has read the room up to a message."""
        ...

    async def typing(self, room: str, *, on: bool = True, principal: Principal = LOCAL) -> None:
        """The principal writes a message, or no more. Told at most every two seconds."""
        ...

    async def present(self, room: str, *, principal: Principal = LOCAL) -> tuple[str, ...]:
        """The users who have the room open now, by name."""
        ...

    def enter(self, room: str, principal: Principal) -> Callable[[], None]:
        """The principal, who may see it, has it open until the returned function is called."""
        ...

    def open_to(self, room: str, principal: Principal) -> bool:
        """Whether the principal may see a room; true for one that is not open."""
        ...
