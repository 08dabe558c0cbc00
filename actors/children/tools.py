"""The tools of an agent that has others work beside it: start one, look after them, end one.

They know only the children that the calling run itself has started: any other is not found (G16).
"""

from __future__ import annotations

from typing import Annotated, Literal

from motet.actors.children.family import Child
from motet.actors.children.hearing import ended
from motet.actors.children.start import Children
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Length, Tool, ToolRetry, tool

TASK_CHARS = 200

_SPAWN = (
    "Start a sub-agent for work that stands alone, or that can go on beside yours. It sees nothing "
    "of this conversation: give it all it needs to know. You get its id at once and its result, "
    "by itself, when it has ended; do not wait for it in a loop. Without an agent's name it is "
    "another one of you; a name that nobody has gets you the list of all."
)
_LOOK = (
    "The sub-agents that you have started in this run. list: all of them; status: one, with its "
    "result if it has ended; cancel: end one that is not needed any more, and wait until it has."
)


def child_tools(children: Children) -> list[Tool]:
    """``spawn`` and ``subagents``, for the run that calls them."""

    async def spawn(
        ctx: Context[object], task: Annotated[str, Length(1)], agent: str = "", label: str = ""
    ) -> str:
        child = await children.spawn(ctx, agent, task, label)
        return f"Started {_who(child)}. Its result will come to you by itself."

    async def subagents(
        ctx: Context[object], action: Literal["list", "status", "cancel"] = "list", id: str = ""
    ) -> str:
        family = children.family(ctx)
        if action == "list":
            return "\n".join(map(_line, family.members.values())) or "You have started none."
        child = family.members.get(id)
        if child is None:
            known = ", ".join(family.members) or "none"
            raise ToolRetry(f"You have no sub-agent {id!r}. You have started: {known}")
        if action == "cancel":
            child.told = True  # by the result of this call, whenever it ends
            child.run.cancel("cancelled by its caller")
            await child.gone.wait()
        return _whole(child)

    return [
        tool(spawn, description=_SPAWN, effects="write"),
        tool(subagents, description=_LOOK, polling=True),
    ]


def _who(child: Child) -> str:
    label = f", {child.label}" if child.label else ""
    return f"{child.run.agent.name} ({child.run.id}{label})"


def _line(child: Child) -> str:
    run = child.run
    status = run.result.status if run.result else run.state
    label = f" [{child.label}]" if child.label else ""
    return f"{run.agent.name} ({run.id}): {status}{label} - {run.text[:TASK_CHARS]}"


def _whole(child: Child) -> str:
    if not child.gone.is_set():
        return _line(child)
    child.told = True
    end = ended(child)
    return f"{end.head}\n{end.output or '[It said nothing]'}"
