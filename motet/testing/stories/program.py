"""A program: what users do, what models answer, what goes wrong, and who has the processor.

Invariants: a program is data and repeats itself: the same program, run with the same agents, gives
the same trace byte for byte (G12). Its ``repr`` is the Python that makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from motet.testing.steps import Step
from motet.testing.stories.acts import Act
from motet.testing.stories.written import Written

if TYPE_CHECKING:
    from motet.testing.host import SimulatedHost
    from motet.testing.stories.bound import BoundProgram
    from motet.testing.stories.target import Receive, Subject

__all__ = ["Mishap", "Program"]


class Mishap(Written, frozen=True, omit_defaults=True):
    """What goes wrong in one call of a tool.

    Attributes:
        call: which one, counted from 1 over all calls that reach a tool in the program.
        late: virtual seconds that pass before the function is called.
        fails: with which words the call fails; empty: it does not.
        after: it fails when the function has done its work, so that its effect is there.
    """

    call: int
    late: float = 0.0
    fails: str = ""
    after: bool = False


class Program(msgspec.Struct, frozen=True, omit_defaults=True):
    """One story of users, models and faults, to be played in a ``simulated_host``.

    Attributes:
        steps: what happens, in this order.
        script: for each agent by name, how its model answers, request by request over all
            sessions; afterwards, and for agents that are not named, it says ``ok``.
        mishaps: what goes wrong in tools.
        choices: the schedule from the first step on; empty: first in, first out.
        seed: of the host.
    """

    steps: Sequence[Act]
    script: Mapping[str, Sequence[Step]] = {}
    mishaps: Sequence[Mishap] = ()
    choices: Sequence[int] = ()
    seed: int = 0

    def bind(
        self, subject: Subject, *, receive: Receive | None = None, own_models: bool = False
    ) -> BoundProgram:
        """The program for this agent or room; see :func:`motet.testing.programs`."""
        from motet.testing.stories.bound import BoundProgram
        from motet.testing.stories.target import Target

        return BoundProgram(self, Target(subject, receive, own_models))

    def execute(
        self,
        host: SimulatedHost,
        subject: Subject,
        *,
        receive: Receive | None = None,
        own_models: bool = False,
    ) -> None:
        """Have all this happen in ``host``; see :meth:`BoundProgram.execute`."""
        self.bind(subject, receive=receive, own_models=own_models).execute(host)
