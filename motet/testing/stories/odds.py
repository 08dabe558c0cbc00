"""The odds of faults in generated programs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

__all__ = ["Faults"]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The chance of each fault, from 0 to 1, wherever it could happen.

    Attributes:
        stall: a model lets a request wait, up to some minutes.
        rate_limit: a provider answers 429, with or without the time to wait.
        server: a provider fails, or is not reached.
        cut: a model's stream ends in the middle.
        malformed: a model calls what is not there, or with arguments that are wrong or no JSON.
        late: a tool takes longer.
        failing: a tool fails, before or after it has done its work.
        crash: the power is cut, at each step.
        schedule: tasks run in another order than they became ready.
    """

    stall: float = 0.04
    rate_limit: float = 0.03
    server: float = 0.03
    cut: float = 0.03
    malformed: float = 0.1
    late: float = 0.05
    failing: float = 0.05
    crash: float = 0.08
    schedule: float = 0.5

    NONE: ClassVar[Faults]

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            chance: float = getattr(self, name)
            if not 0 <= chance <= 1:
                raise ValueError(f"faults.{name} is a chance from 0 to 1, not {chance!r}")


Faults.NONE = Faults(
    stall=0, rate_limit=0, server=0, cut=0, malformed=0, late=0, failing=0, crash=0, schedule=0
)
