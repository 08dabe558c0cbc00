"""When a round of a room is over: conditions that can be joined by ``|`` and ``&``.

Invariant: a condition is a pure question about a :class:`RoomView`, so that a restart in the
middle of a round changes none of its answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import attrs

from motet.protocols.rooms import RoomView


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
