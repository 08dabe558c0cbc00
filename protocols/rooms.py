"""Rooms: their messages, the state of their round, and the requests to their store.

A person's message opens a round; agents' messages never do. Source: API specification, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from motet.protocols.escalations import AnswerEscalation
from motet.protocols.events import CallDropped, MessageChanged, Warned
from motet.protocols.limits import Limits
from motet.protocols.messages import Request
from motet.protocols.models import Usage
from motet.protocols.queueing import MODES, QueueMode
from motet.protocols.room_invites import AddInvite, FindInvite, ListInvites, Redeem, RevokeInvite
from motet.protocols.room_limits import Budgets, FindCosts, Planned
from motet.protocols.room_newcomers import DEFAULT, EVERYTHING, Agents, Joined, Newcomers
from motet.protocols.room_people import PeopleChange, RoomPerson, RoomTerms
from motet.protocols.sessions import Principal

Kind: TypeAlias = Literal["person", "agent"]
Speak: TypeAlias = Literal["chosen", "mentioned"]
RoomMode: TypeAlias = QueueMode
"""The handling of messages that people send while agents speak.

``collect``: all of them open the next round after the turns under way; ``followup``: each one opens
a round of its own when this one is over; ``steer``: a message enters the turns under way, and opens
a round if it comes too late or calls somebody else; ``interrupt``: it ends the turns and opens the
next round; ``reject``: it is refused.
"""
ROOM_MODES: tuple[RoomMode, ...] = MODES

Activation: TypeAlias = Literal["always", "mention", "off"]
"""The messages of people that a room's agents answer: all, those that call one of them, or none."""
ACTIVATIONS: tuple[Activation, ...] = ("always", "mention", "off")

NOBODY = "nobody to speak"
SILENT = "all passed"
STOPPED = "stopped"
TURNS = "max_turns"
DEPTH = "max_depth"
FAILED = "failed"
INTERRUPTED = "interrupted"
LATELY = 100
"""Messages behind the last answered one that are in memory at least, however many wait."""
REMOVED = "not a member any more"
TOO_LATE = "the round was over"
OFF = "its agents are off"


class MemberInfo(msgspec.Struct, frozen=True):
    """An agent of a room. ``speak``: ``mentioned`` is never chosen, only called by name."""

    name: str
    description: str = ""
    speak: Speak = "chosen"


class Reaction(msgspec.Struct, frozen=True):
    """What people react with to a message. ``users``: those who do, the first one first."""

    text: str
    users: tuple[str, ...]


class RoomMessage(msgspec.Struct, frozen=True):
    """A message of a person or an agent.

    Attributes:
        seq: its number in the room, from 1.
        round: the round that it opens or belongs to.
        asked_by: a person's own principal when they said it; for an agent, the people whose words
            its turn has answered. Empty in rooms of earlier versions.
        at, edited: Unix seconds when it was said, and when its text was last changed; 0: never.
        deleted: it was withdrawn, and has no text.
        reactions: of people.
        replies: messages in its thread.
        thread: number of the message in whose thread it is; 0: it is in the main talk.
        reply_to: number of the message that it answers; 0: none.
        reply_agent: the agent that has said that one, which the message calls; empty: a person.
    """

    seq: int
    author: str
    kind: Kind
    text: str
    round: int
    at: float = 0.0
    asked_by: tuple[Principal, ...] = ()
    edited: float = 0.0
    deleted: bool = False
    reactions: tuple[Reaction, ...] = ()
    replies: int = 0
    thread: int = 0
    reply_to: int = 0
    reply_agent: str = ""

    @property
    def label(self) -> str:
        """Its number as members read it: ``12``, or ``12.3`` in the thread of message 12."""
        reply = f"{self.thread}.{self.seq - 1}" if self.seq > 1 else str(self.thread)
        return reply if self.thread else str(self.seq)

    @property
    def calling(self) -> str:
        """Its text as far as calls go: a reply calls as ``@name`` in front of it would."""
        return f"@{self.reply_agent} {self.text}" if self.reply_agent else self.text

    @property
    def principals(self) -> tuple[Principal, ...]:
        """The people whose words these are, or whom they answer, with the rights they had then."""
        unknown = (Principal(self.author),) if self.kind == "person" else ()
        return self.asked_by or unknown


class Due(msgspec.Struct, frozen=True):
    """A member that is to speak: it was called, or chosen.

    Attributes:
        depth: counts the calls from agent to agent that led there.
        called_by: the agents that have called it by name.
        asked_by: the people behind its calls; once it has the floor, those whose words it answers.
        people: the users that have called it by name.
        first, last: numbers of the first and the last message that calls it.
        ended: numbers between them of messages whose calls have ended before.
        turn: number of its turn in the round, once it has the floor.
    """

    name: str
    depth: int = 0
    called_by: tuple[str, ...] = ()
    asked_by: tuple[Principal, ...] = ()
    people: tuple[str, ...] = ()
    first: int = 0
    last: int = 0
    ended: tuple[int, ...] = ()
    turn: int = 0

    @property
    def is_call(self) -> bool:
        return bool(self.people or self.called_by)


class Used(msgspec.Struct, frozen=True):
    """The member ``by`` has called a tool, and the call was done."""

    by: str
    tool: str


class Floor(msgspec.Struct, frozen=True):
    """The state of a room's round. Stored with every message, so that no restart resets it.

    Attributes:
        round: number of the round; 0 before the first.
        going: whether agents may still speak in it.
        turns: agents' turns that it has used, those under way included.
        speaking, due: the members that have the floor, and the next speakers, in order.
        depth: of the call that gave the last speakers the floor.
        passes: turns in a row without a message.
        last: the last member that got the floor, for taking turns.
        reason: the reason why the last round ended.
        asked_by: the people whose messages opened it, or entered its turns: an agent has no right
            in it that one of them lacks.
        used: the tools that members have called in turns that are over, each once.
        after: messages of people up to this number were answered before it.
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
    asked_by: tuple[Principal, ...] = ()
    used: tuple[Used, ...] = ()
    after: int = 0


class RoomView(msgspec.Struct, frozen=True):
    """A room as policies and conditions see it: pure data.

    Attributes:
        messages: those that an agent is shown, oldest first.
        round: the messages of this round, with those that opened it.
        elapsed: seconds since the round was opened.
        waiting: members whose earlier turn waits for an approval; they cannot be chosen.
        alone: at most one person is in the room: none but one was invited, or has spoken lately;
            so is the run above a room.
        activation: its setting; None: its policy of speakers decides.
    """

    room: str
    members: tuple[MemberInfo, ...]
    messages: tuple[RoomMessage, ...]
    round: tuple[RoomMessage, ...]
    floor: Floor
    left: int
    elapsed: float = 0.0
    waiting: tuple[str, ...] = ()
    alone: bool = True
    activation: Activation | None = None

    @property
    def free(self) -> Sequence[str]:
        """The members that may be chosen without being called."""
        chosen = (member.name for member in self.members if member.speak == "chosen")
        return [name for name in chosen if name not in self.waiting]


class Waiting(msgspec.Struct, frozen=True):
    """A suspended turn: its run waits for a person, or its result is not in the room yet.

    Attributes:
        round, turn, given: of the turn, as in ``RoomState``. since: Unix seconds.
        counted: the part of its usage that its round has counted.
        asked_by, planned: the people whose words it answers; what it may use, and who pays.
    """

    run_id: str
    round: int
    since: float
    counted: Usage = Usage()
    asked_by: tuple[Principal, ...] = ()
    planned: Planned = Planned()
    turn: str = ""
    given: float = 0.0


class News(msgspec.Struct, frozen=True):
    """The n-th ``change``, of message ``number``, by ``who``; number 0: others, not told."""

    number: int
    who: Principal | None = None
    reaction: str = ""
    on: bool = True
    change: int = 0


class RoomState(msgspec.Struct, frozen=True):
    """The stored state of a room, with which it goes on after a restart.

    Attributes:
        heard: the messages of people up to this number open no round any more.
        opened: when the round was opened, in Unix seconds.
        seen: for each member, the last message in the room when it was shown those of agents.
        told: the same for those of people; a member that is not in it has ``seen`` for both.
        usage: of this round.
        given, last, changed: Unix time when the floor was given; the last message and change then.
        turn: a name for those turns, which their runs have; empty: by an older motet.
        waiting: suspended turns, by the names of their members.
        calls: of members in people's messages that have opened no round yet, one for each member.
        collected: the calls of people's messages up to this number are in ``calls``, or were.
        drops, dropped: how many calls were dropped; the last ones, whose events may be on no disk.
        news: changes of messages that a member has read and was not told of, by its name.
        changes, untold, noticed, notices: the same of changes of messages, and of notices.
        joined: for each agent that was added later, when; and for all others that they were not.
        skipped: messages of people behind ``heard`` that open no round: a stop overtook them.
        scrubbing: messages that were changed, of whose old texts copies may have been left.
    """

    floor: Floor = Floor()
    heard: int = 0
    opened: float = 0.0
    seen: dict[str, int] = {}
    told: dict[str, int] = {}
    usage: Usage = Usage()
    given: float = 0.0
    turn: str = ""
    last: int = 0
    changed: int = 0
    waiting: dict[str, Waiting] = {}
    calls: tuple[Due, ...] = ()
    collected: int = 0
    dropped: tuple[CallDropped, ...] = ()
    drops: int = 0
    notices: tuple[Warned, ...] = ()
    noticed: int = 0
    news: dict[str, tuple[News, ...]] = {}
    changes: int = 0
    untold: tuple[MessageChanged, ...] = ()
    skipped: tuple[int, ...] = ()
    joined: dict[str, Joined] = {}
    scrubbing: tuple[int, ...] = ()

    @property
    def held(self) -> bool:
        """Whether all who have the floor, or are to have it next, wait for a person's approval."""
        if speaking := self.floor.speaking:
            return all(self.holds(turn.name) for turn in speaking)
        due = self.floor.due if self.floor.going else ()
        return bool(due) and all(one.name in self.waiting for one in due)

    def holds(self, name: str) -> bool:
        """Whether a member has the floor and waits."""
        waits = self.waiting.get(name)
        has_floor = any(turn.name == name for turn in self.floor.speaking)
        return has_floor and waits is not None and waits.round == self.floor.round


Members: TypeAlias = Annotated[tuple[str, ...], Meta(min_length=1, max_length=20)]
Policies: TypeAlias = Annotated[
    tuple[Literal["mentions", "round_robin", "handoff", "when_alone"], ...], Meta(min_length=1)
]
DEFAULT_POLICIES: Policies = ("mentions", "when_alone")
Until: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Turns: TypeAlias = Annotated[int, Meta(ge=1, le=50)]
Depth: TypeAlias = Annotated[int, Meta(ge=0, le=50)]
AtOnce: TypeAlias = Annotated[int, Meta(ge=1, le=20)]
Shown: TypeAlias = Annotated[int, Meta(ge=1, le=500)]
TurnTimeout: TypeAlias = Annotated[float, Meta(gt=0, le=86_400)]
TURN_TIMEOUT = 600.0
"""Seconds: enough for several long requests and tools, and an end to a turn that hangs."""


class RoomPlan(msgspec.Struct, frozen=True):
    """A room as a person asks for it, of agents that the host knows by name.

    Attributes:
        called: members that speak only when they are called.
        until: a text that ends the round when an agent says it.
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: agents that speak at once.
        history: messages that an agent is shown at most.
        limits: for all turns of one round together.
        reactions: whether agents are told what people react with to messages.
        turn_timeout: seconds of one turn, or of a choice, without those of a wait for an approval.
        activation: the messages that its agents answer; None: as ``speakers`` says.
        budgets: for all its people, and for each, by hour and day; for each, by round, too.
    """

    members: Members
    called: tuple[str, ...] = ()
    speakers: Policies = DEFAULT_POLICIES
    until: Until | None = None
    max_turns: Turns = 8
    max_depth: Depth = 3
    concurrency: AtOnce = 1
    history: Shown = 50
    mode: RoomMode = "collect"
    limits: Limits = Limits()
    turn_timeout: TurnTimeout = TURN_TIMEOUT
    budgets: Budgets = Budgets()
    reactions: bool = False
    activation: Activation | None = None
    newcomers: ClassVar[Newcomers] = DEFAULT  # its terms alone say so

    def member(self, name: str) -> MemberInfo:
        """A member as the plan has it."""
        return MemberInfo(name, speak="mentioned" if name in self.called else "chosen")


class RoomChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a room; unset fields stay. ``people``: all who may see it besides its owner."""

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
    turn_timeout: TurnTimeout | UnsetType = UNSET
    budgets: Budgets | UnsetType = UNSET
    reactions: bool | UnsetType = UNSET
    activation: Activation | UnsetType | None = UNSET

    def of(self, plan: RoomPlan) -> RoomPlan:
        """The plan with the changes."""
        return msgspec.structs.replace(plan, **self._changed)

    @property
    def plans(self) -> bool:
        """Whether it changes anything but the people."""
        return bool(self._changed)

    @property
    def _changed(self) -> dict[str, object]:
        named = ((name, getattr(self, name)) for name in RoomPlan.__struct_fields__)
        return {name: value for name, value in named if value is not UNSET}


class RoomRecord(msgspec.Struct, frozen=True):
    """A stored room; ``messages``: its last ones, oldest first.

    Attributes:
        owner: empty: the room is the host's.
        people: its people besides its owner, and those who are banned.
        plan: its definition, if a person has made it.
    """

    name: str
    owner: str
    state: RoomState = RoomState()
    messages: tuple[RoomMessage, ...] = ()
    people: tuple[RoomPerson, ...] = ()
    plan: RoomPlan | None = None
    terms: RoomTerms = RoomTerms()

    @property
    def names(self) -> tuple[str, ...]:
        """The users who may see it besides its owner."""
        return tuple(one.user for one in self.people if one.given and not one.banned)


class Said(msgspec.Struct, frozen=True):
    """A message is on disk. ``duplicate``: it was stored before, under the same key."""

    seq: int
    duplicate: bool = False


class RoomLike(Protocol):
    """The definition of a room, as tools see it."""

    @property
    def name(self) -> str: ...


class RoomResult(msgspec.Struct, frozen=True):
    """The answers of a room to one text.

    Attributes:
        messages: of agents since the text, oldest first; also answers to others who spoke then.
        turns: agents' turns of the last round, silent ones included.
        reason: of its end: ``nobody to speak``, ``max_turns``, ``stopped``, a limit, or other.
        usage: of the last round.
    """

    room: str
    messages: tuple[RoomMessage, ...]
    turns: int
    reason: str
    usage: Usage = Usage()

    @property
    def text(self) -> str:
        """The last message; empty if nobody has said anything."""
        return self.messages[-1].text if self.messages else ""


class FindRoom(Request[RoomRecord | None], frozen=True, tag="rooms.find"):
    """A stored room with the last ``keep`` messages that its members may be shown, and at least
    ``keep`` of the ones behind: of agents, and of people who wait for an answer.
    """

    name: str
    keep: int = 50


class ListRooms(Request[tuple[RoomRecord, ...]], frozen=True, tag="rooms.list"):
    """All stored rooms, by name, without messages; or those with an ``unfinished`` round."""

    unfinished: bool = False


class CreateRoom(Request[None], frozen=True, tag="rooms.create"):
    """Store a room, if there is none of its name. ``above``: the run whose call has it."""

    name: str
    owner: str
    people: tuple[str, ...] = ()
    plan: RoomPlan | None = None
    above: str | None = None


class PageRooms(Request[tuple[RoomRecord, ...]], frozen=True, tag="rooms.page"):
    """A page of the rooms that a user may see, by name, without messages; None: of all.

    ``after``: the name of the last one of the page before; ``query``: a part of name or title.
    """

    user: str | None
    after: str = ""
    limit: int = 50
    query: str = ""
    archived: bool = False


class CountRooms(Request[int], frozen=True, tag="rooms.count"):
    """How many rooms a user owns."""

    owner: str


class ChangePeople(Request[None], frozen=True, tag="rooms.people"):
    """Carry out a decided change of the people of a room, in one transaction.

    ``plan``: another definition of it; ``states``: of the room and its threads, in which messages
    of those who go wait no more; ``agents``: before and after a change of them.
    """

    name: str
    change: PeopleChange
    plan: RoomPlan | None = None
    states: Mapping[str, RoomState] = {}
    agents: Agents | None = None


class DeleteRoom(Request[None], frozen=True, tag="rooms.delete"):
    """Delete all rows of a room but those of its members' sessions."""

    name: str


class KeepState(Request[None], frozen=True, tag="rooms.keep"):
    name: str
    state: RoomState


class Say(Request[Said], frozen=True, tag="rooms.say"):
    """Store a message and the state of the room in one transaction.

    ``key``: the idempotency key of a person, for the message with the text ``given`` (empty: its
    own). Raises ``KeyConflict`` if it was used for another one. ``answers``: the answer to a
    member's escalation that it is. Raises ``EscalationAnswered`` if there is another one.
    """

    name: str
    message: RoomMessage
    state: RoomState
    key: str | None = None
    answers: AnswerEscalation | None = None
    given: str = ""


class FindSaid(Request[Said | None], frozen=True, tag="rooms.said"):
    """The message that a person has stored under a key. Raises ``KeyConflict`` for another one."""

    name: str
    author: str
    text: str
    key: str
    reply_to: int = 0


class ReadSince(Request[tuple[RoomMessage, ...]], frozen=True, tag="rooms.since"):
    """The first messages after number ``after``, oldest first. ``people``: those of people only."""

    name: str
    after: int
    limit: int = 200
    people: bool = False


class ToldLast(Request[tuple[int, int, int]], frozen=True, tag="rooms.told"):
    """The last change, notice and dropped call whose events are on disk; 0: there is none."""

    name: str


class ReadRoom(Request[tuple[RoomMessage, ...]], frozen=True, tag="rooms.read"):
    """Messages before number ``before`` (None: the last ones), oldest first, that have ``query``.

    ``heard``: of people's messages only those up to this number, if it is given; ``hidden``: none
    up to this number, for people's messages and those of agents.
    """

    name: str
    before: int | None = None
    limit: int = 50
    heard: int = EVERYTHING
    hidden: tuple[int, int] = (0, 0)
    query: str = ""


RoomStoreMessage: TypeAlias = (
    FindRoom
    | ListRooms
    | CreateRoom
    | PageRooms
    | CountRooms
    | ChangePeople
    | AddInvite
    | ListInvites
    | RevokeInvite
    | FindInvite
    | Redeem
    | DeleteRoom
    | KeepState
    | Say
    | FindSaid
    | ReadRoom
    | ReadSince
    | ToldLast
    | FindCosts
)
