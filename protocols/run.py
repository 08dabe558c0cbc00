"""The result of a run, as its caller gets it."""

from __future__ import annotations

from typing import Generic, Self, TypedDict, cast

import attrs
from msgspec import UNSET
from typing_extensions import TypeVar

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
