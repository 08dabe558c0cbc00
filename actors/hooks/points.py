"""The points where hooks stand, as one table: what is shown, what may be decided, what fails how.

Rules: ``Abort`` works at every point that waits for its hooks; where the default is ``block``,
only a returned decision lets something happen; points without decisions have observers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from motet.protocols.errors import ConfigError
from motet.protocols.hooks import (
    Abort,
    AfterChild,
    AfterCompact,
    AfterModel,
    AfterTool,
    Allow,
    AnyDecision,
    AnyHookEvent,
    Ask,
    BeforeChild,
    BeforeCompact,
    BeforeInput,
    BeforeModel,
    BeforeOutput,
    BeforeTool,
    Continue,
    Deny,
    OnError,
    Point,
    Replace,
    Respond,
    RunEnd,
    RunError,
    RunWarning,
    SessionEnd,
    SessionStart,
)


@attrs.frozen
class PointRule:
    """One row of the table. ``replaces`` names the field of the event that a Replace is for."""

    event: type[AnyHookEvent]
    decides: tuple[type[AnyDecision], ...] = ()
    on_error: OnError = "continue"
    replaces: str = ""

    @property
    def is_gate(self) -> bool:
        return bool(self.decides)

    @property
    def is_silent_allow(self) -> bool:
        """Whether a hook that returns None lets things go on."""
        return self.on_error == "continue"


POINTS: Mapping[Point, PointRule] = MappingProxyType(
    {
        "session_start": PointRule(SessionStart, (Abort, Allow)),
        "session_end": PointRule(SessionEnd),
        "before_input": PointRule(
            BeforeInput, (Abort, Deny, Respond, Replace, Allow), "block", "text"
        ),
        "before_model": PointRule(
            BeforeModel, (Abort, Respond, Replace, Allow), "block", "request"
        ),
        "after_model": PointRule(AfterModel, (Abort, Replace, Allow), "continue", "response"),
        "before_tool": PointRule(BeforeTool, (Abort, Deny, Ask, Respond, Allow), "block"),
        "after_tool": PointRule(AfterTool, (Abort, Replace, Allow), "continue", "text"),
        "before_output": PointRule(
            BeforeOutput, (Abort, Deny, Continue, Replace, Allow), "block", "text"
        ),
        "before_child": PointRule(BeforeChild, (Abort, Deny, Allow), "block"),
        "after_child": PointRule(AfterChild),
        "before_compact": PointRule(BeforeCompact, (Abort, Deny, Allow)),
        "after_compact": PointRule(AfterCompact),
        "run_end": PointRule(RunEnd),
        "error": PointRule(RunError),
        "warning": PointRule(RunWarning),
    }
)

TOOL_POINTS: frozenset[Point] = frozenset({"before_tool", "after_tool"})
"""Where ``match`` chooses among tools."""


def rule_of(point: str) -> PointRule:
    """The row of a point. Raises ``ConfigError`` that names the points there are."""
    for known, rule in POINTS.items():
        if known == point:
            return rule
    raise ConfigError(f"no such point {point!r}: hooks stand at {', '.join(POINTS)}")
