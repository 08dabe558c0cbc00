"""A program together with what it is played with: what ``programs()`` draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from motet.testing.steps import Step
from motet.testing.stories.acts import Act
from motet.testing.stories.program import Mishap, Program
from motet.testing.stories.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from motet.testing.host import SimulatedHost

__all__ = ["BoundProgram"]


class Printer(Protocol):
    """What Hypothesis prints examples with."""

    def text(self, text: str, /) -> None: ...


@attrs.frozen(repr=False)
class BoundProgram:
    """A :class:`Program` for one agent or room. It has the attributes of the program."""

    program: Program
    target: Target

    def __repr__(self) -> str:
        from motet.testing.stories.printing import source

        return source(self.program)

    def _repr_pretty_(self, printer: Printer, _cycle: bool) -> None:
        """How Hypothesis shows an example."""
        printer.text(repr(self))

    @property
    def steps(self) -> Sequence[Act]:
        return self.program.steps

    @property
    def script(self) -> Mapping[str, Sequence[Step]]:
        return self.program.script

    @property
    def mishaps(self) -> Sequence[Mishap]:
        return self.program.mishaps

    @property
    def choices(self) -> Sequence[int]:
        return self.program.choices

    @property
    def seed(self) -> int:
        return self.program.seed

    def execute(self, host: SimulatedHost) -> None:
        """Have all of it happen in ``host``, step by step, and then let the host come to rest.

        What the history alone tells is looked at after each step. Raises ``InvariantBroken``, and
        what a step raises that is not the answer to a user who was refused.
        """
        from motet.testing.stories.play import Play

        Play(self, host).execute()

    def as_test(self, agent_import: str = "", *, name: str = "test_found") -> str:
        """The source of a test that does the same, to be pasted into a file.

        ``agent_import``: where the agent or room is, as ``myapp.agents:agent``; found by itself
        where it is a name of an imported module.
        """
        from motet.testing.stories.printing import as_test

        return as_test(self, agent_import, name=name)
