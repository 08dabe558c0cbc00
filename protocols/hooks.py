"""Gates and observers: what they are shown and what they may decide (G10)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.sessions import Principal

OnError: TypeAlias = Literal["block", "continue"]
"""What a hook's own exception or time-out means. ``block`` is fail-closed."""

Point: TypeAlias = Literal["before_tool", "after_tool"]

GATES: frozenset[Point] = frozenset({"before_tool"})


class BeforeTool(msgspec.Struct, frozen=True):
    """A call is about to run; its arguments are already valid."""

    run_id: str
    session: str
    agent: str
    principal: Principal
    call_id: str
    name: str
    args: JsonObject


class AfterTool(msgspec.Struct, frozen=True):
    """A call has ended, one way or the other."""

    run_id: str
    session: str
    agent: str
    principal: Principal
    call_id: str
    name: str
    args: JsonObject
    ok: bool
    text: str
    duration_ms: float
    error_id: str | None = None


class Allow(msgspec.Struct, frozen=True):
    """Go on; ``args`` replaces the arguments and is validated again."""

    args: JsonObject | None = None


class Deny(msgspec.Struct, frozen=True):
    """Do not run it; the reason goes to the model as the call's result."""

    reason: str


class Ask(msgspec.Struct, frozen=True):
    """A person decides. Without anyone to ask it is a :class:`Deny`."""

    reason: str


class Respond(msgspec.Struct, frozen=True):
    """Do not run it; this text is its successful result."""

    text: str


class Abort(msgspec.Struct, frozen=True):
    """Strongest verdict. At a tool point it skips that call; at other points it ends the run."""

    reason: str


Decision: TypeAlias = Allow | Deny | Ask | Respond | Abort
"""Several hooks on one point: Abort > Deny > Ask > Respond > Allow; replacements chain."""
