"""The one terminal event of a run. Pure."""

from __future__ import annotations

from motet.actors.agent.turn import Finish
from motet.protocols import events
from motet.protocols.errors import AgentError
from motet.protocols.escalations import escalation_id
from motet.protocols.models import Usage


def terminal(
    run_id: str,
    finish: Finish,
    usage: Usage,
    *,
    failure: AgentError | None,
    error_id: str | None,
) -> events.Terminal:
    """``failure``: by which it has failed, if it has."""
    match finish.status:
        case "completed":
            return events.RunCompleted(usage)
        case "limited":
            return events.RunLimited(usage, finish.detail)
        case "escalated":
            assert finish.escalation is not None
            tool, by = finish.escalation.tool, escalation_id(run_id)
            return events.RunEscalated(usage, finish.detail, tool, by)
        case "failed":
            kind = type(failure).__name__ if failure else "Internal"
            return events.RunFailed(usage, kind, finish.detail, error_id)
        case _:
            return events.RunCancelled(usage, finish.detail)
