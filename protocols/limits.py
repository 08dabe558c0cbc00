"""Limits of runs, and the watchdog on runs without progress."""

from __future__ import annotations

import attrs
import msgspec
from msgspec.structs import replace

MAX_DEPTH = 5


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The budget of one run. ``None``: no limit of that kind.

    Calls, tokens and dollars include all runs below it: a child spends its parents' budget as well
    as its own.

    Attributes:
        turns: model requests in one run, those of its children not counted (seed 002: 20).
        tool_calls: tool calls.
        parallel: calls that run at once.
        tokens: input and output tokens together, as the provider counts them.
        usd: US dollars. A model with an unknown price causes a warning and is not counted.
        wall: seconds from the start of the run.
        depth: of sub-agents: 0 for none, 1 for children without children.
        children: live children at a time.
        parallel_children: working children at a time; the others wait.
        tool_errors: errors of one tool in a row that escalate the run (seed 004: 3).
        total_errors: errors of the whole run that escalate it (seed 004: 10).
        message_chars: code points of one input; a longer one is truncated with a notice.
    """

    turns: int = 20
    tool_calls: int | None = 200
    parallel: int = 8
    tokens: int | None = None
    usd: float | None = None
    wall: float | None = None
    depth: int = 1
    children: int = 5
    parallel_children: int = 8
    tool_errors: int | None = 3
    total_errors: int | None = 10
    message_chars: int = 32_768

    def __post_init__(self) -> None:
        for name in ("turns", "parallel", "parallel_children", "message_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"limits.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("tool_calls", "tokens", "usd", "wall", "tool_errors", "total_errors"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"limits.{name} must be above 0 or absent, not {value}")
        if not 0 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"limits.depth must be from 0 to {MAX_DEPTH}, not {self.depth}")
        if self.children < 0:
            raise ValueError(f"limits.children must be at least 0, not {self.children}")

    def lowered(self, turns: int | None) -> Limits:
        """The limits of one request that asks for fewer ``turns``; it cannot raise them.

        Raises ``ValueError`` for less than 1.
        """
        return self if turns is None else replace(self, turns=min(turns, self.turns))


UsageLimits = Limits
"""The name in pydantic-ai."""


@attrs.frozen(kw_only=True)
class WatchdogConfig:
    """Reports runs without progress. It ends no run: ``Limits.wall`` does that.

    Attributes:
        stalled: seconds without any sign of a run and its sub-agents, after which its session gets
            an event that says what the run waits for; 0: never. Waiting for a person is no stall.
    """

    stalled: float = 300.0

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.stalled < float("inf"):
            raise ValueError(f"stalled must be seconds, 0 or more, not {self.stalled!r}")
