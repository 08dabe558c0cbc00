"""The events and decisions of hooks: gates decide, observers only watch (G10).

A gate is asked before something happens; an observer is notified, and its answer is ignored.
Field names of events are the same at every point.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.models import ModelRequest, ModelResponse, Usage
from motet.protocols.sessions import Principal, RunStatus

OnError: TypeAlias = Literal["block", "continue"]
"""The effect of a hook's own exception or time-out. ``block`` is fail-closed."""

Point: TypeAlias = Literal[
    "session_start",
    "session_end",
    "before_input",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "before_output",
    "before_child",
    "after_child",
    "before_compact",
    "after_compact",
    "run_end",
    "error",
    "warning",
]


class HookEvent(msgspec.Struct, frozen=True, tag_field="point"):
    """Root of all events; the tag is the point. ``run_id`` is the run it happens in."""

    run_id: str
    session: str
    agent: str
    principal: Principal


class SessionStart(HookEvent, frozen=True, tag="session_start"):
    """The first run of a session since its actor started; ``resumed``: it has a history."""

    resumed: bool


class SessionEnd(HookEvent, frozen=True, tag="session_end"):
    """The session's actor ends: it was idle for too long, or the host closes."""


class BeforeInput(HookEvent, frozen=True, tag="before_input"):
    """An input is on disk and about to become the first row of its run."""

    text: str


class BeforeModel(HookEvent, frozen=True, tag="before_model"):
    """A request is about to be sent. ``iteration`` counts the run's requests from 1."""

    request: ModelRequest
    iteration: int


class AfterModel(HookEvent, frozen=True, tag="after_model"):
    """A model has answered; nothing of the answer is in the transcript yet."""

    response: ModelResponse
    iteration: int


class BeforeTool(HookEvent, frozen=True, tag="before_tool"):
    """A call is about to run; its arguments are already valid."""

    call_id: str
    name: str
    args: JsonObject


class AfterTool(HookEvent, frozen=True, tag="after_tool"):
    """A call has ended, in any way; ``text``: the result for the model."""

    call_id: str
    name: str
    args: JsonObject
    ok: bool
    text: str
    duration_ms: float
    error_id: str | None = None


class BeforeOutput(HookEvent, frozen=True, tag="before_output"):
    """A run is about to end with this answer. ``continued``: how often hooks made it go on."""

    text: str
    continued: int


class BeforeChild(HookEvent, frozen=True, tag="before_child"):
    """The run is about to start the agent ``child`` as a run of its own, with this text."""

    child: str
    text: str


class AfterChild(HookEvent, frozen=True, tag="after_child"):
    """A child of the run has ended; ``child_run`` is its id."""

    child: str
    child_run: str
    status: RunStatus
    output: str
    usage: Usage


class BeforeCompact(HookEvent, frozen=True, tag="before_compact"):
    """The conversation is too long: ``rows`` of it are about to be summarised.

    ``tokens``: an estimate for the request, or for the whole conversation after a run.
    """

    rows: int
    tokens: int


class AfterCompact(HookEvent, frozen=True, tag="after_compact"):
    """``summary`` now replaces ``rows`` rows of the conversation; stored rows stay."""

    rows: int
    summary: str


class RunEnd(HookEvent, frozen=True, tag="run_end"):
    """A run has ended and is stored. ``detail``: the limit, what failed, or who stopped it."""

    status: RunStatus
    output: str
    detail: str
    usage: Usage


class RunError(HookEvent, frozen=True, tag="error"):
    """A run has failed. ``kind`` is the variant of ``AgentError``."""

    kind: str
    message: str
    error_id: str | None = None


class RunWarning(HookEvent, frozen=True, tag="warning"):
    """A part of the host degraded and the run went on. ``source``: the part."""

    source: str
    message: str


AnyHookEvent: TypeAlias = (
    SessionStart
    | SessionEnd
    | BeforeInput
    | BeforeModel
    | AfterModel
    | BeforeTool
    | AfterTool
    | BeforeOutput
    | BeforeChild
    | AfterChild
    | BeforeCompact
    | AfterCompact
    | RunEnd
    | RunError
    | RunWarning
)


class Allow(msgspec.Struct, frozen=True, tag_field="decision", tag="allow"):
    """Go on; ``args``, validated again, replaces a call's arguments."""

    args: JsonObject | None = None


class Deny(msgspec.Struct, frozen=True, tag_field="decision", tag="deny"):
    """Do not do it. The reason goes to the model as a call's result, else to the user."""

    reason: str


class Ask(msgspec.Struct, frozen=True, tag_field="decision", tag="ask"):
    """A person decides. If there is no one to ask, it is a :class:`Deny`."""

    reason: str


class Respond(msgspec.Struct, frozen=True, tag_field="decision", tag="respond"):
    """Do not do it; this text is the result of the call, or the model's answer."""

    text: str


class Replace(msgspec.Struct, frozen=True, tag_field="decision", tag="replace"):
    """Go on with something else: a text, or before and after a model its request or response."""

    text: str | None = None
    request: ModelRequest | None = msgspec.field(default=None)
    response: ModelResponse | None = msgspec.field(default=None)


class Continue(msgspec.Struct, frozen=True, tag_field="decision", tag="continue"):
    """The answer is not the end: the model gets this text and goes on, within its limits."""

    text: str


class Abort(msgspec.Struct, frozen=True, tag_field="decision", tag="abort"):
    """Strongest verdict, at any gate: it skips a call, and at all other points ends the run."""

    reason: str


Decision: TypeAlias = Allow | Deny | Ask | Respond | Abort
"""The decisions of a gate of tools."""

AnyDecision: TypeAlias = Abort | Deny | Ask | Continue | Respond | Replace | Allow
"""Strongest first: the strongest of several hooks counts, and replacements chain."""


class Verdict(msgspec.Struct, frozen=True):
    """The merged decision, which hook made it, and whether by deciding or by failing.

    Attributes:
        args: with :class:`Ask`: the arguments as left by the hooks that allow the call.
        asked: with :class:`Ask`: the name and the reason of every hook that asks.
    """

    decision: AnyDecision
    hook: str = ""
    cause: Literal["decision", "error"] = "decision"
    args: JsonObject | None = None
    asked: tuple[tuple[str, str], ...] = ()


def point_of(event: AnyHookEvent) -> Point:
    """The point at which an event happens."""
    point: Point = event.__struct_config__.tag  # type: ignore[assignment]  # the tags above
    return point
