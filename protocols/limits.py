"""Limits of a run and of the things around it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

MAX_DEPTH = 5


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one run may spend. ``None`` means no limit of that kind.

    Calls, tokens and dollars are those of the run and of all runs below it: a child spends its
    parents' as well as its own.

    Attributes:
        turns: model requests in one run, those of its children not counted (seed 002: 20).
        tool_calls: tool calls.
        parallel: calls that run at once.
        tokens: input and output tokens together, as the provider counts them.
        usd: US dollars. A model whose price is unknown is warned of and not counted.
        wall: seconds from the start of the run.
        depth: how deep children may go: 0 for none, 1 for children without any of their own.
        children: children alive at once.
        parallel_children: children that work at once; the others wait.
        tool_errors: errors of one tool in a row that hand the run to a person (seed 004: 3).
        total_errors: errors of the whole run that do (seed 004: 10).
        message_chars: code points of one input; the rest is cut with a notice.
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
        """The limits of one request that asks for fewer ``turns``; more than these it can't have.

        Raises ``ValueError`` for less than 1.
        """
        return self if turns is None else replace(self, turns=min(turns, self.turns))


UsageLimits = Limits
"""The name it has elsewhere."""
