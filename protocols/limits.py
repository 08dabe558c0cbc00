"""Limits of a run and of the things around it."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one run may spend. ``None`` means no limit of that kind.

    Attributes:
        turns: model requests in one run (seed 002: 20).
        tool_calls: tool calls in one run.
        parallel: calls that run at once.
        tokens: input and output tokens together, as the provider counts them.
        wall: seconds from the start of the run.
        tool_errors: errors of one tool in a row that hand the run to a person (seed 004: 3).
        total_errors: errors of the whole run that do (seed 004: 10).
        message_chars: code points of one input; the rest is cut with a notice.
    """

    turns: int = 20
    tool_calls: int | None = 200
    parallel: int = 8
    tokens: int | None = None
    wall: float | None = None
    tool_errors: int | None = 3
    total_errors: int | None = 10
    message_chars: int = 32_768

    def __post_init__(self) -> None:
        for name in ("turns", "parallel", "message_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"limits.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("tool_calls", "tokens", "wall", "tool_errors", "total_errors"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"limits.{name} must be above 0 or absent, not {value}")
