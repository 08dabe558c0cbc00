"""Handing a conversation over: the run goes on as another agent, from the next request on.

Invariants: a run has one agent at a time, and the calls of an answer are those of the agent that
gave it; the target gets the whole conversation, the session, the budget and the run's id; of
several transfers in one answer the first counts. Nothing new can happen for ever: each transfer is
a call, and costs a request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool

if TYPE_CHECKING:
    from motet.actors.agent.definition import AnyAgent

PREFIX = "transfer_to_"
_NAME_CHARS = 64


@attrs.frozen
class Handoff:
    """An agent that another may hand its conversation to, with other words for its model.

    Attributes:
        description: when to do it; None: what the agent's own description says.
        name: of the tool; None: ``transfer_to_`` and the agent's name.
    """

    agent: AnyAgent
    description: str | None = None
    name: str | None = None


def handoff_name(agent: str) -> str:
    """What the tool is called that hands over to an agent of that name."""
    return PREFIX + re.sub(r"[^A-Za-z0-9_-]", "_", agent)[: _NAME_CHARS - 12]


def handoff_tool(to: AnyAgent | Handoff) -> Tool:
    """The tool by which a model hands over. Raises ``TypeError`` for a name that cannot be one."""
    handoff = to if isinstance(to, Handoff) else Handoff(to)
    agent = handoff.agent
    about = agent.description or f"It is {agent.name!r}."

    async def transfer(ctx: Context[Any], reason: str = "") -> str:  # noqa: ARG001  # it is in the transcript
        """Args:
        reason: why, in one sentence, for whoever takes over.
        """
        return ctx.hand_over_to(agent)

    made = tool(
        transfer,
        name=handoff.name or handoff_name(agent.name),
        description=handoff.description
        or f"Hand this whole conversation to the agent {agent.name}, who answers it. {about}",
        effects="write",  # so that of several in one answer the first one counts
    )
    return attrs.evolve(made, agent=agent)
