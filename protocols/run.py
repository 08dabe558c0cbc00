"""The result of a run, as its caller gets it; and its progress, as its events show it."""

from __future__ import annotations

from math import inf
from typing import Final, Generic, Self, TypedDict, cast

import attrs
import msgspec
from msgspec import UNSET
from typing_extensions import TypeVar

from motet.protocols import events
from motet.protocols.approvals import ApprovalPending
from motet.protocols.chat import ChatMessage
from motet.protocols.errors import (
    AgentError,
    AnswerRefused,
    Escalated,
    Internal,
    LimitReached,
    RunCancelled,
)
from motet.protocols.escalations import escalation_id
from motet.protocols.events import AnyEvent
from motet.protocols.limits import Limits
from motet.protocols.models import Usage
from motet.protocols.sessions import Principal, RunStatus
from motet.protocols.tools import CallResult

O_co = TypeVar("O_co", covariant=True, default=str)


@attrs.frozen
class RunResult(Generic[O_co]):
    """One finished run. ``O_co`` is what its agent declared with ``output_type``, else a text.

    Attributes:
        text: the answer as it was said, JSON where a type was declared; also what a limited run
            managed to say, or one that was refused in the middle of its answer.
        status: how it ended.
        limit: name of the limit, for ``limited``.
        detail: who stopped it, what failed, why the model refused, or why a person has to look at
            it, in words.
        error: why it failed, for ``failed``.
        errors: the calls that failed; the model saw them, the run went on. A negative result, such
            as a missing file, is none.
        rows: what the run added to the transcript.
        approvals: what it waits for, for ``waiting``: ids for ``Host.approve``.
        structured: whether its agent declared a type of output.
    """

    run_id: str
    session: str
    agent: str
    status: RunStatus
    text: str = ""
    usage: Usage = attrs.field(factory=Usage)
    limit: str = ""
    detail: str = ""
    error: AgentError | None = None
    errors: tuple[CallResult, ...] = ()
    rows: tuple[ChatMessage, ...] = ()
    approvals: tuple[str, ...] = ()
    structured: bool = False
    _value: object = attrs.field(default=UNSET, repr=False, alias="value")

    @property
    def output(self) -> O_co:
        """The answer. Where no type was declared it is :attr:`text`, however the run ended.

        An answer of a declared type is there when the run completed, or reached a limit with it;
        otherwise this raises as :meth:`check` does, since there is nothing of that type to give.
        """
        if self._value is not UNSET:
            return cast(O_co, self._value)  # read by the agent's own form
        if self.structured:
            self.check()
            raise Internal(f"the run {self.run_id} completed without an output")
        return cast(O_co, self.text)  # the agent declared no type, so that it is str

    @property
    def final_output(self) -> O_co:
        """Another name of ``output``."""
        return self.output

    def check(self) -> Self:
        """Itself when completed; otherwise raises.

        ``AgentError`` (failed), ``LimitReached`` (limited), ``AnswerRefused`` (refused by the model
        or its provider), ``Escalated`` (handed to a person),
        ``ApprovalPending`` (waiting: it goes on when somebody answers), ``RunCancelled`` (stopped
        by somebody else, dropped from the queue, or interrupted by a crash).
        """
        match self.status:
            case "completed":
                return self
            case "failed":
                raise self.error or Internal(self.detail)
            case "limited":
                raise LimitReached(self.limit, f"the run reached its limit: {self.limit}")
            case "refused":
                raise AnswerRefused(self.detail)
            case "escalated":
                raise Escalated(escalation_id(self.run_id), self.detail)
            case "waiting":
                raise ApprovalPending(self.run_id, self.approvals)
            case _:
                raise RunCancelled(f"the run {self.run_id} was {self.status}: {self.detail}")


# What may be said of a run besides its input, written once for every way to start one.


class Bounds(TypedDict, total=False):
    """The limits of one run.

    limits: in place of those of its agent.
    max_turns: in place of ``limits.turns``.
    """

    limits: Limits | None
    max_turns: int | None


class RunOptions(Bounds, total=False):
    """The options of ``host.run``, ``host.stream`` and similar methods.

    session: the conversation it belongs to; a new one if absent.
    principal: for whom it acts; the user of this machine if absent.
    key: of an input that may be sent again: it is answered once.
    """

    session: str | None
    principal: Principal
    key: str | None


# Progress

_PHASES = {
    "waiting_model": "the model",
    "waiting_children": "its sub-agents",
    "compacting": "a summary by the model",
    "queued": "a place at its model",
}

_PROGRESS: Final[frozenset[type]] = frozenset(
    {events.Activity, events.ToolCall, events.ToolResult}
    | {events.ApprovalRequested, events.ApprovalResolved}
)


class Progress(msgspec.Struct, eq=False):
    """When a run was last heard of, and what it waits on, read from its own events.

    Laws: every event is progress, but for the warning of a stall, which nobody notes; a stall is
    announced once until there is progress again; a run that waits for a person is not stalled.

    Attributes:
        at: time of the last event, by trio's clock; None: not yet.
        doing: its phase, as it has said.
        calls: names of the tools that have not ended, by call.
        approvals: that people have to give.
        announced: whether its stall was announced.
    """

    at: float | None = None
    doing: str = ""
    calls: dict[str, str] = {}
    approvals: set[str] = set()
    announced: bool = False

    def touch(self, now: float) -> None:
        """There was an event of it, or of a run that works for it."""
        self.at, self.announced = now, False

    def note(self, event: AnyEvent, now: float) -> None:
        """There was an event of it."""
        self.at, self.announced = now, False
        if type(event) not in _PROGRESS:  # a look by type: a `match` of structs is slow
            return
        match event:
            case events.Activity(phase=phase):
                self.doing = phase
            case events.ToolCall(id=call, name=name):
                self.calls[call] = name
            case events.ToolResult(id=call):
                self.calls.pop(call, None)
            case events.ApprovalRequested(id=approval):
                self.approvals.add(approval)
            case events.ApprovalResolved(id=approval):
                self.approvals.discard(approval)
            case _:
                pass

    def stalled(self, now: float, limit: float) -> float | None:
        """Seconds without an event, if they are too many and were not announced."""
        return now - self.at if self.at is not None and now >= self.due(limit) else None

    def due(self, limit: float) -> float:
        """The time at which it is stalled if there is no event before that; infinite: never."""
        if self.at is None or self.announced or self.approvals:
            return inf
        return self.at + limit

    def waits_on(self, *, stopping: bool) -> str:
        """In words for people."""
        if self.calls:
            names = ", ".join(dict.fromkeys(self.calls.values()))
            what = f"the tool {names}" if len(self.calls) == 1 else f"the tools {names}"
        else:
            what = _PHASES.get(self.doing, "what it has begun")
        return f"the clean-up of {what}, since it was stopped" if stopping else what
