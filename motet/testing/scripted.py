"""A model that follows a script: each request is answered by the next step of it."""

from __future__ import annotations

from collections.abc import Sequence

from motet.protocols.models import ModelFailure, ModelRequest
from motet.testing.playing import StepModel
from motet.testing.steps import Step as Step


class ScriptedModel(StepModel):
    """Answers one step per request, in order. A request too many fails and says so.

    Deterministic: call ids are ``call_1``, ``call_2``..., tokens are counted as four characters,
    the cost is zero. ``requests`` are those it has had.
    """

    def __init__(self, steps: Sequence[Step], *, name: str = "scripted") -> None:
        super().__init__(name)
        self._steps = list(steps)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.remaining)} steps left>"

    @property
    def remaining(self) -> Sequence[Step]:
        """The steps that no request has reached yet."""
        return self._steps[len(self.requests) :]

    def assert_complete(self) -> None:
        """Raises ``AssertionError`` when a step was not reached."""
        assert not self.remaining, (
            f"{len(self.remaining)} of {len(self._steps)} steps were not reached, "
            f"the next is {self.remaining[0]!r}"
        )

    def _step(self, _request: ModelRequest, /) -> Step:
        number = len(self.requests)
        if number > len(self._steps):
            raise ModelFailure(
                f"the script has {len(self._steps)} steps, and this is request {number}",
                kind="script",
            )
        return self._steps[number - 1]
