"""The definition of a room: its members, its policy of speakers, its limits and its audience.

A definition runs nothing by itself. Invariants: a room does not exist for users outside its
audience (G16); the sessions of its members are the room's own from before their first message.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TypeAlias, cast

import attrs

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits
from motet.protocols.room_conditions import Condition
from motet.protocols.room_floor import Rules
from motet.protocols.room_limits import Budgets
from motet.protocols.room_newcomers import DEFAULT, NEWCOMERS, Newcomers
from motet.protocols.room_reading import PAGE
from motet.protocols.room_speakers import Function, Mentions, Speakers, WhenAlone
from motet.protocols.room_turns import GIVE_FLOOR, GIVES_FLOOR, READS_BACK, ROOM_HISTORY
from motet.protocols.rooms import (
    ACTIVATIONS,
    ROOM_MODES,
    TURN_TIMEOUT,
    Activation,
    MemberInfo,
    RoomMode,
    RoomView,
    Speak,
)
from motet.protocols.session_keys import ROOM_CHANNEL, Chat, session_key, thread_of
from motet.protocols.sessions import Principal
from motet.protocols.tools import ToolRetry

# The audience of a room

CHANNEL = ROOM_CHANNEL


def acts_as(room: str) -> Principal:
    """The principal of a room's members: never the person who spoke last."""
    return Principal(f"{CHANNEL}:{thread_of(room)[0]}")


def room_of(user: str) -> str | None:
    """The room behind the principal of its members; None for other users."""
    channel, colon, room = user.partition(":")
    return room if colon and channel == CHANNEL else None


@lru_cache(maxsize=4096)
def member_session(room: str, member: str) -> str:
    """The session of a member in a room."""
    return session_key(Chat(agent=member, channel=CHANNEL, kind="group", chat=room))


# Definition

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(/[0-9]{1,9})?")  # with a number: a thread

Choice: TypeAlias = "Speakers | Callable[[RoomView], object]"


@attrs.frozen
class Member:
    """An agent of a room, or its name. ``speak="mentioned"``: it speaks only when it is called."""

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


def _speakers(given: Choice | None) -> Speakers:
    if given is None:
        return Mentions() | WhenAlone()
    return given if isinstance(given, Speakers) else Function(cast("Callable[..., str]", given))


@attrs.frozen
class Room:
    """Several agents that talk with people and with each other, within limits.

    Attributes:
        members: agents, their names, or :class:`Member`.
        speakers: the policy of who speaks next: ``mentions()``, ``round_robin()``, ``handoff()``,
            ``selector(model)``, joined by ``|``, or a function of a ``RoomView``. By default
            ``mentions() | when_alone()``: those who are called; a person alone is always answered.
        until: the condition that ends a round: ``MaxTurns(8) | TextMention("DONE")``.
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: agents that speak at once.
        history: messages that an agent is shown at most when it gets the floor.
        mode: the handling of messages that people send while agents speak. ``collect``: all of them
            open the next round after the turns under way; ``interrupt``: a message ends these turns
            first; ``followup``: it opens a round of its own when this one is over; ``steer``: it
            enters these turns; ``reject``: it is refused.
        limits: for all turns of one round together.
        budgets: what all its people, and each of them, may spend in an hour and a day (UTC); what
            each of them may in a round.
        turn_timeout: seconds that one turn may take, or the choice of a speaker. Then it ends, and
            the round goes on. Time in which it waits for a person's approval does not count.
        people: users of the host who may see it and speak in it besides the one who has opened it
            first; ``*``: all.
        reactions: whether agents are told what people react with to messages.
        activation: the messages of people that its agents answer. ``always``: all; ``mention``:
            those that call an agent; ``off``: none; None: as ``speakers`` says.
        newcomers: what people and agents who come later read of the earlier talk, unless the terms
            of the room say: ``none``, ``joining``, ``all``, ``summary``.

    Raises ``ConfigError`` for an impossible name, and for no members or two of one name.
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
    budgets: Budgets = attrs.field(factory=Budgets, kw_only=True)
    turn_timeout: float = attrs.field(
        default=TURN_TIMEOUT, kw_only=True, validator=attrs.validators.gt(0)
    )
    people: tuple[str, ...] = attrs.field(default=(), converter=tuple[str, ...], kw_only=True)
    reactions: bool = attrs.field(default=False, kw_only=True)
    activation: Activation | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.in_((None, *ACTIVATIONS))
    )
    newcomers: Newcomers = attrs.field(
        default=DEFAULT, kw_only=True, validator=attrs.validators.in_(NEWCOMERS)
    )

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
        return _rules(self.max_turns, self.max_depth, self.concurrency)

    @property
    def agents(self) -> tuple[AnyAgent, ...]:
        """The members that are given as agents."""
        return tuple(one.agent for one in self.members if isinstance(one.agent, AgentSpec))


_rules = lru_cache(maxsize=256)(Rules)  # asked for with each move


def thread_room(room: Room, name: str) -> Room:
    """The definition of a thread: its room's, where those speak who are called."""
    return attrs.evolve(room, name=name, speakers=Mentions())


# The tools of its members


def room_tools(
    read: Callable[[Context[object], str | int, int], Awaitable[str]],
) -> list[Tool]:
    """``give_floor`` and ``room_history``, for agents that take part in rooms."""

    async def give_floor(ctx: Context[object], to: str) -> str:
        if not ctx.principal.user.startswith(f"{CHANNEL}:"):
            raise ToolRetry("This is not a group chat, so there is no floor to give. Just answer.")
        return f"{to} speaks after your turn. Finish it now."

    async def room_history(ctx: Context[object], before: str | int = "", limit: int = PAGE) -> str:
        return await read(ctx, before, limit)

    return [
        tool(give_floor, name=GIVE_FLOOR, description=GIVES_FLOOR),
        tool(room_history, name=ROOM_HISTORY, description=READS_BACK),
    ]
