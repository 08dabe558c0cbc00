"""What a room is: its members, who speaks next, and its limits. It runs nothing by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import attrs

from motet.actors.agent.definition import Agent, AnyAgent
from motet.actors.rooms.conditions import Condition
from motet.actors.rooms.floor import Rules
from motet.actors.rooms.speakers import Function, Mentions, RoundRobin, Speakers
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits
from motet.protocols.rooms import ROOM_MODES, MemberInfo, RoomMode, RoomView, Speak

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
        return tuple(one.agent for one in self.members if isinstance(one.agent, Agent))
