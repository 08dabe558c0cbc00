"""The rules of hooks: the points as one table, the merge of several verdicts, a hook's failure.

Rules: ``Abort`` works at every point that waits for its hooks; where the default is ``block``,
only a returned decision lets something happen; points without decisions have observers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Verdict,
    point_of,
)


@attrs.frozen
class PointRule:
    """One row of the table. ``replaces``: the field of the event that a ``Replace`` is for."""

    event: type[AnyHookEvent]
    decides: tuple[type[AnyDecision], ...] = ()
    on_error: OnError = "continue"
    replaces: str = ""

    @property
    def is_gate(self) -> bool:
        return bool(self.decides)


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
"""Here ``match`` selects tools."""


def rule_of(point: str) -> PointRule:
    """The row of a point. Raises ``ConfigError`` that lists all points."""
    for known, rule in POINTS.items():
        if known == point:
            return rule
    raise ConfigError(f"no such point {point!r}: hooks stand at {', '.join(POINTS)}")


_STRONGEST_FIRST: tuple[type[AnyDecision], ...] = (
    Abort,
    Deny,
    Ask,
    Continue,
    Respond,
)


def merge(verdicts: Sequence[Verdict]) -> Verdict:
    """The strongest verdict, the first of equals; if all allow, the last replacement."""
    kinds = [type(verdict.decision) for verdict in verdicts]
    for kind in _STRONGEST_FIRST:
        if kind in kinds:
            return verdicts[kinds.index(kind)]
    if Replace in kinds:
        return verdicts[len(kinds) - 1 - kinds[::-1].index(Replace)]
    changed = [v for v in verdicts if isinstance(v.decision, Allow) and v.decision.args is not None]
    return changed[-1] if changed else Verdict(Allow())


@attrs.frozen
class HookFault:
    """The failure of a hook, for the event log.

    ``on_error``: its policy, block or continue. ``error_id``: of what it raised, if that is stored.
    """

    hook: str
    on_error: OnError
    event: AnyHookEvent
    message: str
    error_id: str | None = None

    def __str__(self) -> str:
        where, what = f"at {point_of(self.event)}", "the run"
        if self.tool:
            after = isinstance(self.event, AfterTool)
            where, what = f"on tool {self.tool!r}", "the result" if after else "the call"
        elif isinstance(self.event, BeforeChild):
            where, what = f"on child {self.event.child!r}", "the child"
        refused = {"the result": "was withheld", "the run": "ended"}.get(what, "was denied")
        meant = f"{what} {refused}" if self.on_error == "block" else f"{what} went on"
        found = f" [Error ID: {self.error_id}]" if self.error_id else ""
        return f"hook {self.hook!r} failed {where}, {meant}: {self.message}{found}"

    @property
    def tool(self) -> str:
        """The tool of the call that the event is about; empty for other events."""
        return self.event.name if isinstance(self.event, BeforeTool | AfterTool) else ""
