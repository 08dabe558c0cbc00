"""What can be made to go wrong, and when: one fault at one scheduler step.

A fault strikes before the task whose turn it is takes step ``step``, so 1 is before anything runs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Fault", "FaultKind", "InjectedCrash"]

FaultKind = Literal["cancel", "crash", "kill", "stop", "delay"]


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong.

    * ``cancel``: the scope that the world named ``target`` by ``may_cancel`` is cancelled;
    * ``crash``: the actor at path ``target`` fails with :class:`InjectedCrash`; its supervisor
      decides what follows;
    * ``stop``: the actor is stopped for ever, with ``grace`` seconds;
    * ``kill``: the same with none, so its handlers are cancelled at once;
    * ``delay``: whichever task has its turn waits while others take up to ``length`` steps.

    A target that is not there at that step is missed.
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
    """What a crash fault raises in an actor."""
