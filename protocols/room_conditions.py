"""The conditions that end a room's round: ``MaxTurns(8) | TextMention("DONE")``.

Invariants: a condition is a pure function of a :class:`RoomView`, so that a restart in the middle
of a round changes none of its answers; it looks at its round only; ``|`` and ``&`` are associative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import attrs

from motet.protocols.rooms import RoomMessage, RoomView


class Condition(ABC):
    """Ends a round: ``MaxTurns(8) | TextMention("DONE")``. Checked after each turn of agents.

    A condition of your own is a subclass with :meth:`met`, or a function in :class:`When`. One that
    raises ends the round with the reason ``failed``.
    """

    @abstractmethod
    def met(self, view: RoomView) -> str:
        """The reason why the round is over; empty while it goes on."""

    def __or__(self, other: Condition) -> Condition:
        return AnyOf((self, other))

    def __and__(self, other: Condition) -> Condition:
        return AllOf((self, other))


@attrs.frozen
class AnyOf(Condition):
    """The first condition that is met."""

    conditions: tuple[Condition, ...]

    def met(self, view: RoomView) -> str:
        return next(filter(None, (each.met(view) for each in self.conditions)), "")


@attrs.frozen
class AllOf(Condition):
    """All conditions, met at the same moment."""

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
    """An agent has said ``text``, in the same case; ``author`` None: any agent."""

    text: str = attrs.field(validator=attrs.validators.min_len(1))
    author: str | None = None

    def met(self, view: RoomView) -> str:
        said = (one for one in _of_agents(view) if self.author in (None, one.author))
        return f"{self.text!r} was said" if any(self.text in each.text for each in said) else ""


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@attrs.frozen
class SpokenBy(Condition):
    """One of these agents has said something: a name, or several.

    A turn without a message does not count.
    """

    names: tuple[str, ...] = attrs.field(converter=_names, validator=attrs.validators.min_len(1))

    def met(self, view: RoomView) -> str:
        spoke = next((one.author for one in _of_agents(view) if one.author in self.names), "")
        return f"{spoke} has spoken" if spoke else ""


@attrs.frozen
class ToolCalled(Condition):
    """An agent has called ``tool`` in a turn that is over, and the call was done.

    ``by`` None: any agent.
    """

    tool: str = attrs.field(validator=attrs.validators.min_len(1))
    by: str | None = None

    def met(self, view: RoomView) -> str:
        calls = (one for one in view.floor.used if one.tool == self.tool)
        who = next((one.by for one in calls if self.by in (None, one.by)), "")
        return f"{who} has called {self.tool}" if who else ""


@attrs.frozen
class When(Condition):
    """``test`` is true of the room: any function of a :class:`RoomView`, without side effects."""

    test: Callable[[RoomView], bool]
    reason: str = attrs.field(default="its condition is met", validator=attrs.validators.min_len(1))

    def met(self, view: RoomView) -> str:
        return self.reason if self.test(view) else ""


@attrs.frozen
class Elapsed(Condition):
    """``seconds`` have passed since the person's message; turns under way are not cut off."""

    seconds: float = attrs.field(validator=attrs.validators.gt(0))

    def met(self, view: RoomView) -> str:
        return f"{self.seconds:g} s" if view.elapsed >= self.seconds else ""


def _of_agents(view: RoomView) -> list[RoomMessage]:
    """What agents have said in the round."""
    return [one for one in view.round if one.kind == "agent"]
