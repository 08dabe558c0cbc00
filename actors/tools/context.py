"""What a tool is told about the call it serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import attrs
import trio

from motet.protocols.events import ToolProgress
from motet.protocols.policy import Subject
from motet.protocols.sessions import Principal

if TYPE_CHECKING:
    from motet.actors.agent.definition import Agent, AnyAgent
    from motet.actors.result import RunResult

D = TypeVar("D", covariant=True)
Out = TypeVar("Out")
Delegate: TypeAlias = "Callable[[Context[Any], AnyAgent, str], Awaitable[RunResult[Any]]]"
HandOver: TypeAlias = "Callable[[Context[Any], AnyAgent], str]"

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

    async def run(self, agent: Agent[D, Out] | Agent[None, Out], text: str) -> RunResult[Out]:
        """Have another agent do a part of the work: a run in this one's scope and budget.

        It sees ``text`` and nothing of this conversation. The result tells how it ended, whatever
        that was. Cancelling, by the tool's time-out too, ends it and waits. Raises ``ToolDenied``,
        ``ToolRetry`` (the limits do not allow it), and ``RuntimeError`` outside of a host.
        """
        if self.delegate is None:
            raise RuntimeError("only a tool that a host runs can run another agent")
        return await self.delegate(self, agent, text)

    def hand_over_to(self, agent: AnyAgent) -> str:
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
