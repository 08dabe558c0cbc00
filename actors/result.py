"""What a run came to, as the caller gets it."""

from __future__ import annotations

import attrs

from motet.protocols.chat import ChatMessage
from motet.protocols.errors import AgentError, Escalated, Internal, LimitReached, RunCancelled
from motet.protocols.escalations import escalation_id
from motet.protocols.models import Usage
from motet.protocols.sessions import RunStatus
from motet.protocols.tools import CallResult


@attrs.frozen
class RunResult:
    """One finished run.

    Attributes:
        output: the answer; also what a limited run managed to say.
        status: how it ended.
        limit: name of the limit, for ``limited``.
        detail: who stopped it, what failed, or why a person has to look at it, in words.
        error: why it failed, for ``failed``.
        errors: the calls that failed; the model saw them, the run went on.
        rows: what the run added to the transcript.
    """

    run_id: str
    session: str
    agent: str
    status: RunStatus
    output: str = ""
    usage: Usage = attrs.field(factory=Usage)
    limit: str = ""
    detail: str = ""
    error: AgentError | None = None
    errors: tuple[CallResult, ...] = ()
    rows: tuple[ChatMessage, ...] = ()

    @property
    def final_output(self) -> str:
        """Another name of ``output``."""
        return self.output

    def check(self) -> RunResult:
        """Itself when completed; otherwise raises.

        ``AgentError`` (failed), ``LimitReached`` (limited), ``Escalated`` (handed to a person),
        ``RunCancelled`` (stopped by somebody else, dropped from the queue, or interrupted by a
        crash).
        """
        match self.status:
            case "completed":
                return self
            case "failed":
                raise self.error or Internal(self.detail)
            case "limited":
                raise LimitReached(self.limit, f"the run reached its limit: {self.limit}")
            case "escalated":
                raise Escalated(escalation_id(self.run_id), self.detail)
            case _:
                raise RunCancelled(f"the run {self.run_id} was {self.status}: {self.detail}")
