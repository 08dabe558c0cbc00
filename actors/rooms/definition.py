"""What a room is: its members, who speaks next, and its limits. It runs nothing by itself."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias, cast

import attrs

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.rooms.floor import Rules
from motet.actors.rooms.selection import Function, Mentions, RoundRobin, Speakers
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits
from motet.protocols.rooms import ROOM_MODES, MemberInfo, RoomMode, RoomView, Speak
from motet.protocols.session_keys import ROOM_CHANNEL, Chat, session_key
from motet.protocols.sessions import Principal

# Who may see a room, and who may say who may: pure.
#
# Invariants: to everybody else a room does not exist (G16); what a member has heard and said in a
# room is in sessions that only the room itself uses, from before their first message.


CHANNEL = ROOM_CHANNEL
EVERYBODY = "*"
"""In a list of people: every user of the host."""


def may_see(who: Principal, owner: str, people: Collection[str]) -> bool:
    """Read it, follow it, speak in it and stop it."""
    return may_change(who, owner) or who.user in people or EVERYBODY in people


def may_change(who: Principal, owner: str) -> bool:
    """Change it, invite people and send them away, and answer what its members ask for."""
    return who.role == "admin" or (bool(owner) and who.user == owner)


def acts_as(room: str) -> Principal:
    """In whose name the members of a room work: never in that of whoever spoke last."""
    return Principal(f"{CHANNEL}:{room}")


def room_of(user: str) -> str | None:
    """The room that a user acts for, if it is the members of one."""
    channel, colon, room = user.partition(":")
    return room if colon and channel == CHANNEL else None


def member_session(room: str, member: str) -> str:
    """The session in which a member keeps what it has heard and said in a room."""
    return session_key(Chat(agent=member, channel=CHANNEL, kind="group", chat=room))


# When a round of a room is over: conditions that can be joined by ``|`` and ``&``.
#
# Invariant: a condition is a pure question about a :class:`RoomView`, so that a restart in the
# middle of a round changes none of its answers.


class Condition(ABC):
    """Ends a round: ``MaxTurns(8) | TextMention("DONE")``. Asked after each turn of agents."""

    @abstractmethod
    def met(self, view: RoomView) -> str:
        """Why the round is over, or nothing while it goes on."""

    def __or__(self, other: Condition) -> Condition:
        return AnyOf((self, other))

    def __and__(self, other: Condition) -> Condition:
        return AllOf((self, other))


@attrs.frozen
class AnyOf(Condition):
    """The first of several that is met."""

    conditions: tuple[Condition, ...]

    def met(self, view: RoomView) -> str:
        return next(filter(None, (each.met(view) for each in self.conditions)), "")


@attrs.frozen
class AllOf(Condition):
    """Several that must be met at the same moment."""

    conditions: tuple[Condition, ...]

    def met(self, view: RoomView) -> str:
        reasons = [each.met(view) for each in self.conditions]
        return " and ".join(reasons) if all(reasons) else ""


@attrs.frozen
class MaxTurns(Condition):
    """Agents have taken ``turns`` turns for one person's message; silent ones count."""

    turns: int = attrs.field(validator=attrs.validators.ge(1))

    def met(self, view: RoomView) -> str:
        return f"{self.turns} turns" if view.floor.turns >= self.turns else ""


@attrs.frozen
class TextMention(Condition):
    """An agent has said ``text``, letter for letter; ``author`` None: any agent."""

    text: str = attrs.field(validator=attrs.validators.min_len(1))
    author: str | None = None

    def met(self, view: RoomView) -> str:
        said = (
            message
            for message in view.round
            if message.kind == "agent" and self.author in (None, message.author)
        )
        return f"{self.text!r} was said" if any(self.text in each.text for each in said) else ""


@attrs.frozen
class Elapsed(Condition):
    """``seconds`` have gone by since the person's message; turns under way are not cut off."""

    seconds: float = attrs.field(validator=attrs.validators.gt(0))

    def met(self, view: RoomView) -> str:
        return f"{self.seconds:g} s" if view.elapsed >= self.seconds else ""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Choice: TypeAlias = "Speakers | Callable[[RoomView], object]"


@attrs.frozen
class Member:
    """An agent of a room, or the name of one. ``speak="mentioned"``: only when it is called."""

    agent: AnyAgent | str
    speak: Speak = attrs.field(
        default="chosen", validator=attrs.validators.in_(("chosen", "mentioned"))
    )

    @property
    def name(self) -> str:
        return self.agent if isinstance(self.agent, str) else self.agent.name

    @property
    def info(self) -> MemberInfo:
        description = "" if isinstance(self.agent, str) else self.agent.description
        return MemberInfo(self.name, description, self.speak)


def _members(given: Sequence[Member | AnyAgent | str]) -> tuple[Member, ...]:
    return tuple(one if isinstance(one, Member) else Member(one) for one in given)


def _people(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(given)


def _speakers(given: Choice | None) -> Speakers:
    if given is None:
        return Mentions() | RoundRobin()
    return given if isinstance(given, Speakers) else Function(cast("Callable[..., str]", given))


@attrs.frozen
class Room:
    """Several agents that talk with people and with each other, within limits.

    Attributes:
        members: agents, their names, or :class:`Member`.
        speakers: who speaks next: ``mentions()``, ``round_robin()``, ``selector(model)``, joined by
            ``|``, or a function of a ``RoomView``. Those who are called, else one after the other,
            unless given.
        until: what ends a round: ``MaxTurns(8) | TextMention("DONE")``.
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: how many speak at once.
        history: messages that an agent is shown at most when it gets the floor.
        mode: what becomes of what people say while agents speak. ``collect``: it opens the next
            round after the turns that go on, together with all that came meanwhile; ``interrupt``:
            it ends these turns first; ``followup``: it opens a round of its own when this one is
            over; ``steer``: it enters these turns; ``reject``: it is refused.
        limits: what all turns of one round may spend together.
        people: users of the host who may see it and speak in it beside whoever has opened it
            first; ``*``: all.

    Raises ``ConfigError`` for a name that cannot be one, and for members that are not distinct.
    """

    name: str
    members: tuple[Member, ...] = attrs.field(converter=_members, kw_only=True)
    speakers: Speakers = attrs.field(default=None, converter=_speakers, kw_only=True)
    until: Condition | None = attrs.field(default=None, kw_only=True)
    max_turns: int = attrs.field(default=8, kw_only=True, validator=attrs.validators.ge(1))
    max_depth: int = attrs.field(default=3, kw_only=True, validator=attrs.validators.ge(0))
    concurrency: int = attrs.field(default=1, kw_only=True, validator=attrs.validators.ge(1))
    history: int = attrs.field(default=50, kw_only=True, validator=attrs.validators.ge(1))
    mode: RoomMode = attrs.field(
        default="collect", kw_only=True, validator=attrs.validators.in_(ROOM_MODES)
    )
    limits: Limits = attrs.field(factory=Limits, kw_only=True)
    people: tuple[str, ...] = attrs.field(default=(), converter=_people, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"room name {self.name!r}: use 1 to 64 letters, digits, '_.-'")
        names = [member.name.lower() for member in self.members]
        if not names:
            raise ConfigError(f"room {self.name!r} has no members: give members=[...]")
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"room {self.name!r} has two members named {name!r}")

    @property
    def rules(self) -> Rules:
        return Rules(self.max_turns, self.max_depth, self.concurrency)

    @property
    def agents(self) -> tuple[AnyAgent, ...]:
        """The members that are given as agents."""
        return tuple(one.agent for one in self.members if isinstance(one.agent, AgentSpec))
