"""Rooms: what people and agents say in one, and how far its round of agents' turns has come.

A person's message opens a round; agents' messages never do. Source: API specification, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.limits import Limits
from motet.protocols.messages import Request
from motet.protocols.models import Usage
from motet.protocols.queueing import MODES, QueueMode

Kind: TypeAlias = Literal["person", "agent"]
Speak: TypeAlias = Literal["chosen", "mentioned"]
RoomMode: TypeAlias = QueueMode
"""What becomes of what people say while agents speak.

``collect``: it opens the next round after the turns that go on, with all that came meanwhile;
``followup``: when the round is over, each message in a round of its own; ``steer``: it enters the
turns that go on, and opens a round if it comes too late, or calls somebody else; ``interrupt``: it
ends the turns and opens the next round; ``reject``: it is refused.
"""
ROOM_MODES: tuple[RoomMode, ...] = MODES

NOBODY = "nobody to speak"
SILENT = "all passed"
STOPPED = "stopped"
TURNS = "max_turns"
DEPTH = "max_depth"
FAILED = "failed"
INTERRUPTED = "interrupted"


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
        elapsed: seconds since the round was opened.
    """

    room: str
    members: tuple[MemberInfo, ...]
    messages: tuple[RoomMessage, ...]
    round: tuple[RoomMessage, ...]
    floor: Floor
    left: int
    elapsed: float = 0.0

    @property
    def free(self) -> Sequence[str]:
        """Those who may be chosen without being called."""
        return [member.name for member in self.members if member.speak == "chosen"]


class Waiting(msgspec.Struct, frozen=True):
    """A turn that is not over though its task is: its run waits for a person, or has ended unheard.

    Attributes:
        round: that it belongs to.
        since: Unix seconds.
        counted: of its usage, what its round has counted.
    """

    run_id: str
    round: int
    since: float
    counted: Usage = Usage()


class RoomState(msgspec.Struct, frozen=True):
    """What a room needs to go on after a restart.

    Attributes:
        heard: number of the last person's message that a round was opened for.
        opened: when that was, in Unix seconds.
        seen: for each member, the last message that there was when it was told of what agents say.
        told: the same of what people say; where a member is not in it, ``seen`` counts for both.
        usage: what this round has used.
        given: when the floor was given last, in Unix seconds.
        waiting: turns that are to be heard yet, by the names of their members.
    """

    floor: Floor = Floor()
    heard: int = 0
    opened: float = 0.0
    seen: dict[str, int] = {}
    told: dict[str, int] = {}
    usage: Usage = Usage()
    given: float = 0.0
    waiting: dict[str, Waiting] = {}

    @property
    def held(self) -> bool:
        """Whether all who have the floor wait for a person's approval."""
        speaking = self.floor.speaking
        return bool(speaking) and all(self.holds(turn.name) for turn in speaking)

    def holds(self, name: str) -> bool:
        """Whether a member has the floor and waits."""
        waits = self.waiting.get(name)
        has_floor = any(turn.name == name for turn in self.floor.speaking)
        return has_floor and waits is not None and waits.round == self.floor.round


Members: TypeAlias = Annotated[tuple[str, ...], Meta(min_length=1, max_length=20)]
Policies: TypeAlias = Annotated[
    tuple[Literal["mentions", "round_robin", "handoff"], ...], Meta(min_length=1)
]
Until: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Turns: TypeAlias = Annotated[int, Meta(ge=1, le=50)]
Depth: TypeAlias = Annotated[int, Meta(ge=0, le=50)]
AtOnce: TypeAlias = Annotated[int, Meta(ge=1, le=20)]
Shown: TypeAlias = Annotated[int, Meta(ge=1, le=500)]


class RoomPlan(msgspec.Struct, frozen=True):
    """A room as a person asks for it, of agents that the host knows by name.

    Attributes:
        called: those of its members that speak only when they are called.
        until: a text that ends the round when an agent says it.
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: how many speak at once.
        history: messages that an agent is shown at most.
        limits: what all turns of one round may spend together.
    """

    members: Members
    called: tuple[str, ...] = ()
    speakers: Policies = ("mentions", "round_robin")
    until: Until | None = None
    max_turns: Turns = 8
    max_depth: Depth = 3
    concurrency: AtOnce = 1
    history: Shown = 50
    mode: RoomMode = "collect"
    limits: Limits = Limits()


class RoomChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different in a room; the rest stays. ``people`` as in :class:`RoomRecord`."""

    people: tuple[str, ...] | UnsetType = UNSET
    members: Members | UnsetType = UNSET
    called: tuple[str, ...] | UnsetType = UNSET
    speakers: Policies | UnsetType = UNSET
    until: Until | UnsetType | None = UNSET
    max_turns: Turns | UnsetType = UNSET
    max_depth: Depth | UnsetType = UNSET
    concurrency: AtOnce | UnsetType = UNSET
    history: Shown | UnsetType = UNSET
    mode: RoomMode | UnsetType = UNSET
    limits: Limits | UnsetType = UNSET

    def of(self, plan: RoomPlan) -> RoomPlan:
        """The plan with the changes."""
        return msgspec.structs.replace(plan, **self._changed)

    @property
    def plans(self) -> bool:
        """Whether anything but its people is to be different."""
        return bool(self._changed)

    @property
    def _changed(self) -> dict[str, object]:
        named = ((name, getattr(self, name)) for name in RoomPlan.__struct_fields__)
        return {name: value for name, value in named if value is not UNSET}


class RoomRecord(msgspec.Struct, frozen=True):
    """A room as it is stored; ``messages`` are its last ones, oldest first.

    Attributes:
        owner: whose it is; empty: the host's.
        people: users who may see it and speak in it beside its owner.
        plan: what it is, if a person has made it.
    """

    name: str
    owner: str
    state: RoomState = RoomState()
    messages: tuple[RoomMessage, ...] = ()
    people: tuple[str, ...] = ()
    plan: RoomPlan | None = None


class Said(msgspec.Struct, frozen=True):
    """A message is on disk. ``duplicate``: it was before, under the same key."""

    seq: int
    duplicate: bool = False


class FindRoom(Request[RoomRecord | None], frozen=True, tag="rooms.find"):
    """A stored room with its last ``keep`` messages, and all those of its round."""

    name: str
    keep: int = 50


class ListRooms(Request[tuple[RoomRecord, ...]], frozen=True, tag="rooms.list"):
    """All stored rooms, by name, without messages; or those with an ``unfinished`` round."""

    unfinished: bool = False


class CreateRoom(Request[None], frozen=True, tag="rooms.create"):
    """Put a room on record, if there is none of its name."""

    name: str
    owner: str
    people: tuple[str, ...] = ()
    plan: RoomPlan | None = None


class SetRoom(Request[None], frozen=True, tag="rooms.set"):
    """Who may see a room beside its owner, and what it is; None: as before."""

    name: str
    people: tuple[str, ...] | None = None
    plan: RoomPlan | None = None


class KeepState(Request[None], frozen=True, tag="rooms.keep"):
    name: str
    state: RoomState


class Say(Request[Said], frozen=True, tag="rooms.say"):
    """Store a message, and with it where the room stands, in one transaction.

    ``key``: makes a resend of a person harmless. Raises ``KeyConflict`` when it was used for
    something else.
    """

    name: str
    message: RoomMessage
    state: RoomState
    key: str | None = None


class FindSaid(Request[Said | None], frozen=True, tag="rooms.said"):
    """What a key was used for, if a person has used it for this text. Raises ``KeyConflict``."""

    name: str
    author: str
    text: str
    key: str


class ReadRoom(Request[tuple[RoomMessage, ...]], frozen=True, tag="rooms.read"):
    """Messages before number ``before`` (None: the last ones), oldest first."""

    name: str
    before: int | None = None
    limit: int = 50


RoomStoreMessage: TypeAlias = (
    FindRoom | ListRooms | CreateRoom | SetRoom | KeepState | Say | FindSaid | ReadRoom
)
