"""What a tool is told about the call it serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar, cast

import attrs
import trio

from motet.protocols.agents import AgentLike, AnyAgentLike
from motet.protocols.chat import JsonObject
from motet.protocols.events import ToolProgress
from motet.protocols.policy import Subject
from motet.protocols.run import RunResult
from motet.protocols.sessions import Principal
from motet.protocols.tools import Effects

D = TypeVar("D", covariant=True)
Out = TypeVar("Out")
Delegate: TypeAlias = "Callable[[Context[Any], AnyAgentLike, str], Awaitable[RunResult[Any]]]"
HandOver: TypeAlias = "Callable[[Context[Any], AnyAgentLike], str]"

MESSAGE = 500
"""Code points of what a tool says of its progress."""


@attrs.frozen(kw_only=True)
class Context(Generic[D]):
    """Given to a tool whose first parameter is annotated with it; never shown to the model.

    Attributes:
        deps: what the embedding program gave the agent; ``Context[D]`` names its type.
        principal: for whom the run acts. A tool that reads foreign data checks it (G16).
        call_id: the id the model gave this call.
        workspace: the folder this session may work in.
        approved: a person has approved this very call, or has done so for all calls of this tool.
        lineage: on whose behalf this run works, outermost first; policy asks about them too.
        delegate: what :meth:`run` does; the host's.
        hand_over: what :meth:`hand_over_to` does; the host's.
        tell: what :meth:`progress` does; the host's.
    """

    deps: D
    run_id: str
    session: str
    agent: str
    principal: Principal
    call_id: str
    workspace: Path
    approved: bool = False
    lineage: tuple[Subject, ...] = attrs.field(default=(), repr=False)
    delegate: Delegate | None = attrs.field(default=None, repr=False)
    hand_over: HandOver | None = attrs.field(default=None, repr=False)
    tell: Callable[[ToolProgress], object] | None = attrs.field(default=None, repr=False)

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """Those whom the policy is asked about: the lineage, then this run."""
        who = self.principal
        return (*self.lineage, Subject(self.agent, who.user, who.role, self.session))

    async def run(
        self, agent: AgentLike[D, Out] | AgentLike[None, Out], text: str
    ) -> RunResult[Out]:
        """Have another agent do a part of the work: a run in this one's scope and budget.

        It sees ``text`` and nothing of this conversation. The result tells how it ended, whatever
        that was. Cancelling, by the tool's time-out too, ends it and waits. Raises ``ToolDenied``,
        ``ToolRetry`` (the limits do not allow it), and ``RuntimeError`` outside of a host.
        """
        if self.delegate is None:
            raise RuntimeError("only a tool that a host runs can run another agent")
        return await self.delegate(self, agent, text)

    def hand_over_to(self, agent: AnyAgentLike) -> str:
        """Have the run go on as ``agent`` after the calls of this answer; what to tell the model.

        Raises ``ToolRetry`` when another call has done so, ``RuntimeError`` outside of a host.
        """
        if self.hand_over is None:
            raise RuntimeError("only a tool that a host runs can hand a conversation over")
        return self.hand_over(self, agent)

    def progress(
        self, message: str = "", *, done: float | None = None, total: float | None = None
    ) -> None:
        """Tell people how far the call has come, ``done`` of ``total``; the model is not told.

        Never waits: a client that is slow misses some of it. A function in a thread may call it.
        """
        if self.tell is None:
            return
        event = ToolProgress(self.call_id, message[:MESSAGE], done, total)
        if trio.lowlevel.in_trio_task():
            self.tell(event)
        else:
            trio.from_thread.run_sync(self.tell, event)


# What a tool declares besides its function, written once for every way to make one.


Approval: TypeAlias = bool | Callable[[Context[Any], JsonObject], bool | Awaitable[bool]]
"""Whether a person has to approve a call; the callable decides on its context and arguments.

An exception in it means that a person is asked.
"""

_APPROVAL = ("approval", "requires_approval", "needs_approval")


class Traits(TypedDict, total=False):
    """How a tool is run.

    timeout: seconds one call may take; 60 if absent.
    max_output: bytes of a result that a model gets at once, at most the default of 16,384; a
        larger one is stored, and the model reads on in pages.
    effects: ``read`` if absent; a ``write`` makes the batch it is in run in call order (G8).
    parallel: False: no other call of a batch runs beside a call of this tool.
    approval: whether a person has to approve a call, or a function that says so.
    polling: to be called again and again in the same way is its use: that is no loop.
    idempotent: to run a call twice is as good as once, so that one that the end of its host has cut
        off is run again; if absent: what is declared as ``effects="read"`` is.
    """

    timeout: float
    max_output: int
    effects: Effects
    parallel: bool
    approval: Approval
    polling: bool
    idempotent: bool


class ToolOptions(Traits, total=False):
    """What may be given with ``tool(...)`` and ``@agent.tool(...)``.

    name: the function's own if absent.
    description: that of its docstring if absent.
    requires_approval, needs_approval: other names of ``approval``.
    """

    name: str | None
    description: str | None
    requires_approval: Approval
    needs_approval: Approval


def traits(options: ToolOptions) -> Traits:
    """How the tool is run, each option under its one name.

    Raises ``TypeError`` for an option that there is not, and for two names of one.
    """
    given: dict[str, object] = {**options}
    for name in given:
        if name not in ToolOptions.__annotations__:
            known = ", ".join(ToolOptions.__annotations__)
            raise TypeError(f"a tool has no option {name!r}; there are {known}")
    named = [name for name in _APPROVAL if name in given]
    if len(named) > 1:
        raise TypeError(f"{' and '.join(named)} mean the same: give approval=... only")
    found = {name: given[name] for name in Traits.__annotations__ if name in given}
    found.setdefault("idempotent", given.get("effects") == "read")
    for name in named:
        found["approval"] = given[name]
    return cast(Traits, found)  # its keys, with the values of the same keys
