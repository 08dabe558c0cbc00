"""The configuration of a room in a file, and who may do what in it as that and the storage say."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import attrs
from msgspec.structs import replace

from motet.protocols.limits import Limits
from motet.protocols.room_limits import Budgets
from motet.protocols.room_newcomers import DEFAULT, NEWCOMERS, Newcomers
from motet.protocols.room_people import TERMS, Standing, audience
from motet.protocols.rooms import (
    ACTIVATIONS,
    DEFAULT_POLICIES,
    TURN_TIMEOUT,
    Activation,
    RoomMode,
    RoomRecord,
)
from motet.protocols.session_keys import thread_of

SELECTOR = "selector:"
_POLICY = re.compile(rf"mentions|round_robin|handoff|when_alone|{SELECTOR}\S+")


def listed(value: tuple[str, ...] | str) -> tuple[str, ...]:
    """One text or several, as a tuple."""
    return (value,) if isinstance(value, str) else value


def _are_policies(_: object, attribute: attrs.Attribute[Any], value: tuple[str, ...] | str) -> None:
    words = listed(value)
    wrong = [one for one in words if not _POLICY.fullmatch(one)]
    if wrong or not words:
        shown = repr(wrong[0]) if wrong else "nothing"
        raise ValueError(
            f"{attribute.name} must be 'mentions', 'round_robin', 'handoff', 'when_alone' or "
            f"'{SELECTOR}PROVIDER:MODEL', or a list of them, not {shown}"
        )


def _at_least(least: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    def check(_: object, attribute: attrs.Attribute[int], value: int) -> None:
        if value < least:
            raise ValueError(f"{attribute.name} must be at least {least}, not {value}")

    return check


def _is_positive(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be above 0, not {value}")


def _are_members(_: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must name at least one agent")


@attrs.frozen(kw_only=True)
class RoomConfig:
    """Several agents that talk with people and each other.

    Attributes:
        members: names of agents.
        called: those of them that speak only when they are called by name.
        people: users who may see it and speak in it, ``*``: all; admins may in any case.
        speakers: who speaks next, the first that picks someone: ``mentions``, ``round_robin``,
            ``handoff``, ``when_alone``, ``selector:PROVIDER:MODEL``.
        until: a text that ends the round when an agent says it.
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: how many speak at once.
        history: messages that an agent is shown.
        mode: what becomes of what people say while agents speak: ``collect``, it opens the next
            round; ``interrupt``, it ends their turns first; ``followup``, it opens one when this is
            over; ``steer``, it enters their turns; ``reject``, it is refused.
        limits: what all turns of one round may spend together.
        turn_timeout: seconds that one turn may take, or the choice of a speaker.
        budgets: what all its people, and each of them, may spend in an hour and a day; and
            each of them in a round.
        reactions: whether agents are told what people react with to messages.
        activation: the messages of people that the agents answer: ``always``, all; ``mention``,
            those that call an agent; ``off``, none. By default as ``speakers`` says.
        newcomers: what people and agents who come later read of the earlier talk: ``all`` of it;
            ``joining``, what was said since they were added; ``none``, what is said from their
            first visit or turn on; ``summary``, as ``joining`` with a summary of the rest.
    """

    members: tuple[str, ...] = attrs.field(validator=_are_members)
    called: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    speakers: tuple[str, ...] | str = attrs.field(default=DEFAULT_POLICIES, validator=_are_policies)
    until: str | None = None
    max_turns: int = attrs.field(default=8, validator=_at_least(1))
    max_depth: int = attrs.field(default=3, validator=_at_least(0))
    concurrency: int = attrs.field(default=1, validator=_at_least(1))
    history: int = attrs.field(default=50, validator=_at_least(1))
    mode: RoomMode = "collect"
    limits: Limits = attrs.field(factory=Limits)
    turn_timeout: float = attrs.field(default=TURN_TIMEOUT, validator=_is_positive)
    budgets: Budgets = attrs.field(factory=Budgets)
    reactions: bool = False
    activation: Activation | None = attrs.field(
        default=None, validator=attrs.validators.in_((None, *ACTIVATIONS))
    )
    newcomers: Newcomers = attrs.field(default=DEFAULT, validator=attrs.validators.in_(NEWCOMERS))


def standing_of(
    name: str,
    owner: str,
    configured: Collection[str],
    record: RoomRecord | None,
    newcomers: Newcomers = DEFAULT,
) -> Standing:
    """Who may do what in a room. ``configured``: the people whom its definition names."""
    people, terms = audience(configured, record.people if record else ()), TERMS
    terms = record.terms if record else terms
    return Standing(name, owner, people, terms, frozenset(configured), newcomers=newcomers)


def in_thread(standing: Standing, name: str) -> Standing:
    return replace(standing, thread=thread_of(name)[1])
