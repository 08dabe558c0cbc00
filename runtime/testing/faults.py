"""Faults: one thing that goes wrong at one scheduler step.

A fault strikes before step ``step`` is taken, so 1 is before anything runs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Fault", "FaultKind", "InjectedCrash"]

FaultKind = Literal["cancel", "crash", "kill", "stop", "delay"]


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    * ``cancel``: the scope that the world named ``target`` by ``may_cancel`` is cancelled;
    * ``crash``: the actor at path ``target`` fails with :class:`InjectedCrash`, and its supervisor
      decides about a restart;
    * ``stop``: the actor is stopped for ever, with ``grace`` seconds;
    * ``kill``: the same without grace, so its handlers are cancelled at once;
    * ``delay``: the task that would take the step waits while others take up to ``length`` steps.

    A fault whose target does not exist at that step does not strike.
    """

    kind: FaultKind
    step: int
    target: str = ""
    grace: float = 5.0
    length: int = 20

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"steps are counted from 1, so there is no step {self.step}")
        if not self.target and self.kind != "delay":
            raise ValueError(f"a {self.kind} needs a target: one that the world has marked")

    def __str__(self) -> str:
        return f"{self.kind} of {self.target or 'a task'} at step {self.step}"


class InjectedCrash(Exception):
    """The error of an actor that a crash fault hits."""
