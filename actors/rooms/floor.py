"""The floor of a room as a table of moves: who may speak now, and when a round is over.

Invariants: only a person's message opens a round, with fresh counters; a turn is counted when the
floor is given, so that neither silence nor a crash gives one back; a round takes at most
``max_turns`` turns whatever anybody says; nobody has the floor twice at once.
Source: API specification, section 6, rules 1 to 6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import attrs
from msgspec.structs import replace

from motet.protocols.rooms import DEPTH, NOBODY, SILENT, TURNS, Due, Floor


@attrs.frozen
class Rules:
    """What a room allows.

    Attributes:
        max_turns: agents' turns for one message of a person.
        max_depth: calls from agent to agent in a row.
        concurrency: how many speak at once; all of them see the same messages.
    """

    max_turns: int = attrs.field(default=8, validator=attrs.validators.ge(1))
    max_depth: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    concurrency: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@attrs.frozen
class Give:
    """These get the floor, at once."""

    speakers: tuple[Due, ...]


@attrs.frozen
class Choose:
    """Somebody has to be chosen."""


@attrs.frozen
class Wait:
    """Somebody is speaking, or the room is waiting for a person."""


@attrs.frozen
class Over:
    """The round ends here."""

    reason: str


Move: TypeAlias = Give | Choose | Wait | Over


def opened(floor: Floor, called: Iterable[str]) -> Floor:
    """A person has spoken: a new round, whatever became of the last one."""
    due = tuple(Due(name) for name in called)
    return Floor(round=floor.round + 1, going=True, due=due, last=floor.last)


def next_move(floor: Floor, rules: Rules, *, met: str = "") -> Move:
    """What happens now. ``met``: a condition that ends the round."""
    if not floor.going or floor.speaking:
        return Wait()
    if met:
        return Over(met)
    left = rules.max_turns - floor.turns
    if left < 1:
        return Over(TURNS)
    if floor.due:
        return Give(floor.due[: min(left, rules.concurrency)])
    return Choose()


def given(floor: Floor, speakers: Sequence[Due]) -> Floor:
    """They have the floor; their turns are spent."""
    assert floor.going
    assert not floor.speaking
    names = {speaker.name for speaker in speakers}
    assert len(names) == len(speakers)
    return replace(
        floor,
        turns=floor.turns + len(speakers),
        speaking=tuple(speakers),
        due=tuple(due for due in floor.due if due.name not in names),
        depth=max(speaker.depth for speaker in speakers),
        last=speakers[-1].name,
    )


def spoken(floor: Floor, name: str, *, silent: bool, called: Iterable[str] = ()) -> Floor:
    """One has ended its turn. ``called``: whom it has called by name; itself does not count."""
    (turn,) = (due for due in floor.speaking if due.name == name)
    waiting = {due.name for due in floor.due}
    calls = tuple(
        Due(other, turn.depth + 1) for other in called if other != name and other not in waiting
    )
    return replace(
        floor,
        speaking=tuple(due for due in floor.speaking if due is not turn),
        due=floor.due + calls,
        passes=floor.passes + 1 if silent else 0,
    )


def without_deep_calls(floor: Floor, rules: Rules) -> tuple[Floor, str]:
    """The floor without calls that go too deep, and why the round ends if only those were left."""
    due = tuple(each for each in floor.due if each.depth <= rules.max_depth)
    reason = DEPTH if floor.due and not due else ""
    return replace(floor, due=due), reason


def without_strangers(floor: Floor, members: Sequence[str]) -> Floor:
    """The floor without those who are no members any more, since the room was changed."""
    due = tuple(each for each in floor.due if each.name in members)
    return floor if len(due) == len(floor.due) else replace(floor, due=due)


def chosen(floor: Floor, names: Sequence[str], free: Sequence[str]) -> tuple[Floor, str]:
    """Somebody was chosen, or nobody: then why the round ends.

    It ends too when all who may be chosen have passed since the last word.
    """
    if free and floor.passes >= len(free):
        return floor, SILENT
    if not names:
        return floor, NOBODY
    return replace(floor, due=tuple(Due(name) for name in dict.fromkeys(names))), ""


def ended(floor: Floor, reason: str) -> Floor:
    """The round is over; the room waits for a person."""
    return replace(floor, going=False, due=(), speaking=(), reason=reason)


def after_a_crash(floor: Floor, again: Iterable[str] = (), keep: Collection[str] = ()) -> Floor:
    """Who had the floor when the host died has lost the turn; the round's counters stay.

    ``again``: they speak next, in another turn; ``keep``: their turns go on.
    """
    names = set(again)
    back = tuple(turn for turn in floor.speaking if turn.name in names)
    due = tuple(due for due in floor.due if due.name not in names)
    kept = tuple(turn for turn in floor.speaking if turn.name in keep)
    return replace(floor, speaking=kept, due=back + due)
