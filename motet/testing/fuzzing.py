"""The search of ``motet fuzz`` for a program that breaks an invariant, without a test.

It does the same as ``@given(programs(...))``, but deterministically by its seed, and without a
database of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from motet.protocols.errors import ConfigError
from motet.runtime.testing.guards import NotSimulated
from motet.testing.checking import check
from motet.testing.host import simulated_host
from motet.testing.invariants import Invariant
from motet.testing.stories.program import BoundProgram
from motet.testing.stories.strategy import programs
from motet.testing.stories.target import Faults, Subject
from motet.testing.survey import Survey, survey_of

__all__ = ["Found", "Search", "Stopped"]


_UNASKED = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)


class Stopped(BaseException):
    """The search was stopped from outside. No ``Exception``, so that it is no finding."""


class _Unfit(BaseException):
    """The agent cannot be tested, so that shrinking makes no sense."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@attrs.frozen
class Found:
    """The smallest failing program so far, and its error."""

    program: BoundProgram
    error: Exception


@attrs.define(eq=False)
class Search:
    """One search; :meth:`run` may be stopped between two programs.

    Attributes:
        subject: the agent or room.
        examples: the most programs to try.
        seed: of the drawn programs.
        invariants: in addition to those of every host.
        look: called before each program; an error of it ends the search.
        survey: what the programs have reached.
        tried: programs until the first finding.
        smaller: programs tried for shrinking.
        found: the finding.
    """

    subject: Subject
    examples: int = 500
    seed: int = 0
    users: int = 2
    sessions: int = 1
    max_steps: int = 20
    faults: Faults = attrs.field(factory=Faults)
    invariants: Sequence[Invariant] = ()
    look: Callable[[], None] = attrs.field(default=lambda: None)
    survey: Survey = attrs.field(factory=Survey, init=False)
    tried: int = attrs.field(default=0, init=False)
    smaller: int = attrs.field(default=0, init=False)
    found: Found | None = attrs.field(default=None, init=False)

    def run(self) -> Found | None:
        """Search until a finding cannot be shrunk further, or ``examples`` programs were tried.

        Raises the errors of ``look`` (``found`` stays), ``NotSimulated`` when the agents use
        something real, and ``ConfigError`` for an agent that cannot be tested.
        """
        drawn = programs(self.subject, self.users, self.sessions, self.max_steps, self.faults)
        quick = settings(
            max_examples=self.examples,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=_UNASKED,
            deadline=None,
            database=None,
        )

        def attempt(program: BoundProgram) -> None:
            self._attempt(program)

        search = seeded(self.seed)(quick(given(program=drawn)(attempt)))
        try:
            # The error is in ``found``.
            with suppress(Exception), survey_of() as self.survey:
                search()
        except _Unfit as unfit:
            raise unfit.error from None
        return self.found

    def _attempt(self, program: BoundProgram) -> None:
        self.look()
        if self.found is None:
            self.tried += 1
        else:
            self.smaller += 1
        try:
            with simulated_host(seed=program.seed) as host:
                program.execute(host)
                check(host, *self.invariants)
        except (NotSimulated, ConfigError) as error:
            raise _Unfit(error) from error
        except Exception as error:
            self.found = Found(program, error)
            raise
