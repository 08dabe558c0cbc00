"""One run of a host, as plain data that a stop can reach while everything is stuck.

It is touched by one Trio thread only, and no method awaits. Invariants: ``state`` moves left to
right only; ``ended`` is set exactly once, with a result; of many that stop a run one is the first.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from motet.actors.agent.budget import Budget
from motet.actors.agent.definition import AnyAgent
from motet.actors.result import RunResult
from motet.actors.sessions.arrivals import Arrival
from motet.actors.sessions.progress import Progress
from motet.protocols.limits import Limits
from motet.protocols.policy import Subject
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import Principal, RunStatus

if TYPE_CHECKING:
    from motet.actors.children.family import Family, StartSoon
    from motet.actors.equipment import Equipment
    from motet.actors.sessions.queueing import Burst
    from motet.protocols.approvals import Resumption

CLOSING = "the host is closing"
SHUTDOWN = "the host is shutting down"
"""The same when the next host can go on with it."""


@attrs.define(eq=False)
class Run:
    """One run, from the moment its input arrived.

    Attributes:
        workspace: what its tools see; None until it has been prepared.
        caller: the run that this one is a child of, and the call that asked for it.
        steers: the run that its input is to enter; None: it is to be a run of its own.
        only_enters: it never becomes one: when it comes too late, whoever sent it sees to it.
        sender: who said it, among those who share the session; empty: the principal's user.
        mode: what becomes of it if the session is at work.
        pause: seconds for which it is held, in case its sender types on; ``burst``: with what.
        method: by which its input came; with the principal, it says whose its key is.
        placed: it is not held any more, and was looked at since.
        joined: the runs of inputs that it answers too.
        beside: its caller goes on while it works, and is told of its end.
        among: the places of its caller's children that work at once; it waits for one.
        family: the children that work beside it; None until there is one.
        next_agent: to which its agent has handed the conversation, from the next request on.
        start_soon: starts a task of its session's actor.
        lineage: on whose behalf it works, outermost first: it may call no tool that policy denies
            one of them. A child has its parent's ``subjects``.
        budget: what it may spend; None until it starts, if it is nobody's child.
        found: tools of MCP servers that it has looked for and found.
        generation: higher than that of every run admitted before it.
        extra: what its system prompt says beside its agent's instructions.
        durable: it is nobody's, so that another host may go on with it.
        resumption: where it was left, if it was parked, or if its host has ended.
        heard: whether its start was told; None: its host is the first one.
        asked: an approval of it is on record; ``missed``: one was answered when its call had left.
        stop_reason: why it is to end, in the words of the first who asked; empty until then.
        by_user: whether a person asked for it, and not the end of who waits, or of the host.
        arrival: its input before it was admitted.
        kit: what it works with; None: whatever its host has.
        model: that was chosen for its session; empty: its agent's own.
    """

    id: str
    session: str
    agent: AnyAgent
    principal: Principal
    text: str
    limits: Limits
    deps: object = None
    key: str | None = None
    workspace: Path | None = None
    caller: tuple[str, str] | None = None
    steers: str | None = None
    only_enters: bool = False
    sender: str = ""
    mode: QueueMode = "followup"
    pause: float = 0.0
    method: str = "chat.send"
    burst: Burst | None = attrs.field(default=None, repr=False)
    placed: bool = False
    joined: tuple[str, ...] = ()
    beside: bool = False
    among: trio.CapacityLimiter | None = attrs.field(default=None, repr=False)
    family: Family | None = attrs.field(default=None, repr=False)
    next_agent: AnyAgent | None = None
    start_soon: StartSoon | None = attrs.field(default=None, repr=False)
    lineage: tuple[Subject, ...] = attrs.field(default=(), repr=False)
    budget: Budget | None = attrs.field(default=None, repr=False)
    found: set[str] = attrs.field(factory=set[str], repr=False)
    durable: bool = False
    resumption: Resumption | None = attrs.field(default=None, repr=False)
    heard: bool | None = None
    asked: bool = False
    missed: bool = False
    arrival: Arrival | None = attrs.field(default=None, repr=False)
    progress: Progress = attrs.field(factory=Progress, repr=False)
    kit: Equipment | None = attrs.field(default=None, repr=False)
    model: str = ""
    generation: int = 0
    state: Literal["arriving", "queued", "running", "ended"] = "arriving"
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    extra: str = ""
    stop_reason: str = ""
    by_user: bool = False
    soft_stop: bool = False
    result: RunResult[Any] | None = attrs.field(default=None, repr=False)
    ended: trio.Event = attrs.field(factory=trio.Event, repr=False)

    @cached_property
    def places(self) -> trio.CapacityLimiter:
        """For children that work at once."""
        return trio.CapacityLimiter(self.limits.parallel_children)

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """Whom policy is asked about when it calls a tool: its lineage and itself."""
        who = self.principal
        return (*self.lineage, Subject(self.agent.name, who.user, who.role, self.session))

    @property
    def model_name(self) -> str:
        """Of the model that it asks."""
        return self.model or self.agent.model_name

    @property
    def author(self) -> str:
        return self.sender or self.principal.user

    @property
    def talk(self) -> object:
        """What a text must have in common with it to enter it."""
        return self.agent.name, self.principal.user

    @property
    def kin(self) -> object:
        """What inputs must have in common to be answered as one."""
        return self.talk, self.principal.role, self.limits, id(self.deps), self.extra, self.caller

    @property
    def ending(self) -> bool:
        return bool(self.stop_reason)

    @property
    def is_for_the_next(self) -> bool:
        """Whether it is cut off so that the next host goes on with it.

        One that was left before is left again, by a host that was only opened for a moment.
        """
        left = self.stop_reason == CLOSING and self.heard is not None
        cut_off = left or self.stop_reason == SHUTDOWN
        durable = self.durable or self.key is not None
        return cut_off and durable and not self.by_user and self.caller is None

    def cancel(self, reason: str, *, by_user: bool = False) -> bool:
        """Ask the run to end now; whether nobody had before.

        It has ended when ``ended`` is set, not before.
        """
        if self.state == "ended":
            return False
        first = not self.stop_reason
        if first:
            self.stop_reason, self.by_user = reason, by_user
        self.scope.cancel()
        return first

    @property
    def never_starts(self) -> bool:
        """Whether a stop came first."""
        if self.result is not None:
            return self.result.status == "dropped"
        return bool(self.stop_reason) and self.state in ("arriving", "queued")

    def end(self, result: RunResult[Any]) -> None:
        if self.state != "ended":
            self.state = "ended"
            self.result = result
            self.ended.set()

    def ends_as(self, status: RunStatus, detail: str) -> RunResult[Any]:
        return RunResult(
            self.id,
            self.session,
            self.agent.name,
            status,
            detail=detail,
            structured=self.agent.form is not None,
        )
