"""A model that answers whatever is drawn: sound, slightly wrong, broken, or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from motet.actors.models.schema_values import Pick
from motet.protocols.errors import listing, nearest
from motet.protocols.models import ModelRequest
from motet.testing.choices import Source, choices_of
from motet.testing.fuzz_steps import DRAWERS, TEXT
from motet.testing.playing import StepModel
from motet.testing.steps import Step
from motet.testing.turns import plain_answer

PLAIN = ("answer", None)
LOOPS = 12
"""How often a loop makes its call again, at most."""


class Drawn(msgspec.Struct, frozen=True):
    """One answer that was drawn: to which request, of which kind, and the step itself."""

    number: int
    kind: str
    step: Step

    def __str__(self) -> str:
        return f"{self.number:>3} {self.kind:<15} {self.step!r}"


class FuzzModel(StepModel):
    """Draws each answer, from the tools that are offered with the request.

    ``source`` makes the choices: Hypothesis' ``draw`` or ``data.draw``, so that a finding shrinks;
    a ``random.Random`` or a seed; or what was drawn before: a list with a ``bytes`` for each
    answer, or of numbers. The first choice is a plain answer, and so is every answer after
    ``limit`` requests: a run ends. ``weights`` changes how often a kind is drawn; 0 is never.

    Attributes:
        kinds: all kinds of answers there are.
        drawn: what was drawn so far.
    """

    kinds = tuple(DRAWERS)

    def __init__(
        self,
        source: Source,
        *,
        limit: int = 100,
        weights: Mapping[str, int] | None = None,
        name: str = "fuzz",
    ) -> None:
        super().__init__(name)
        self.drawn: list[Drawn] = []
        self._choices = choices_of(source)
        self._limit = limit
        self._weights = {kind: weight for kind, (weight, _) in DRAWERS.items()}
        self._loop: Step | None = None
        self._rounds = 0
        for kind, weight in (weights or {}).items():
            if kind not in DRAWERS:
                near = nearest(kind, self.kinds)
                hint = f"did you mean {near!r}?" if near else f"there are {listing([*self.kinds])}"
                raise ValueError(f"no kind {kind!r} of answers; {hint}")
            self._weights[kind] = weight
        if not any(self._weights.values()):
            raise ValueError("every kind of answers has the weight 0: nothing can be drawn")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.drawn)} drawn>"

    def script(self) -> list[Step]:
        """The steps that were drawn: a :class:`ScriptedModel` of them does the same again."""
        return [one.step for one in self.drawn]

    def report(self) -> str:
        """What was drawn, one line for each request."""
        return "\n".join(map(str, self.drawn))

    def _step(self, request: ModelRequest, /) -> Step:
        number = len(self.requests)
        kind, step = self._next(request) if number <= self._limit else PLAIN
        step = step or plain_answer(request, TEXT)
        self.drawn.append(Drawn(number, kind, step))
        return step

    def _next(self, request: ModelRequest) -> tuple[str, Step | None]:
        pick = self._choices()
        if self._loop is not None and self._rounds:
            self._rounds -= 1
            return "loop", self._loop
        kind = self._kind(pick)
        step = DRAWERS[kind][1](request, pick)
        if step is None:
            return PLAIN
        if kind == "loop":
            self._loop, self._rounds = step, 1 + pick(LOOPS)
        return kind, step

    def _kind(self, pick: Pick) -> str:
        place = pick(sum(self._weights.values()))
        for kind, weight in self._weights.items():
            place -= weight
            if place < 0:
                return kind
        raise AssertionError("a choice is less than the sum of the weights")
