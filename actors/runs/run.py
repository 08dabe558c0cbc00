"""One run of a host, as plain data that a stop can reach while everything is stuck.

It is touched by one Trio thread only, and no method awaits. Invariants: ``state`` moves left to
right only; ``ended`` is set exactly once, with a result; of many that stop a run one is the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import attrs
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.runs.budget import Budget
from motet.protocols import events
from motet.protocols.events import AnyEvent
from motet.protocols.limits import Limits
from motet.protocols.policy import Subject
from motet.protocols.queueing import QueueMode
from motet.protocols.run import RunResult
from motet.protocols.sessions import Principal, RunStatus
from motet.runtime.outside import fresh_hex

if TYPE_CHECKING:
    from motet.actors.agents.toolkit import Toolkit
    from motet.actors.runs.queue_rules import Burst
    from motet.protocols.approvals import Resumption


# Inputs that were sent and are no runs yet: a stop that came after them covers them all the same.
#
# Between the moment in which somebody says something and the one in which the run table knows of
# it, agents and sessions are looked up, and on a connection other messages may be before it.
# Touched by one Trio thread only; nothing here awaits. Invariants: an arrival that was stopped
# never becomes a run that starts; one that nobody holds any more is none.


@attrs.define(eq=False)
class Arrival:
    """One of them, from when it was sent until the run ``run_id`` is in the run table.

    Attributes:
        session: empty until it is known.
        sender: who said it, in a group whose session the principal keeps.
        stopped: why its run must not start; empty: it may.
    """

    session: str
    principal: Principal
    sender: str = ""
    run_id: str = attrs.field(factory=lambda: f"run_{fresh_hex(6)}")
    stopped: str = ""


class Arrivals:
    """All of one host, in the order in which they came."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[str, Arrival] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, session: str, principal: Principal, sender: str = "") -> Arrival:
        """Note that something was said, for as long as the note is held."""
        arrival = Arrival(session, principal, sender)
        self._open[arrival.run_id] = arrival
        return arrival

    def leave(self, arrival: Arrival) -> None:
        """It is in the run table, or will never be."""
        self._open.pop(arrival.run_id, None)

    def find(self, meant: Callable[[Arrival], bool]) -> list[Arrival]:
        """Those that are meant, the newest last."""
        return [one for one in self._open.values() if meant(one)]


# When a run was last heard of, and what it waits on: read from its own events. Pure.
#
# Laws: every event is progress, but for the word of a stall, which nobody notes; a stall is told
# once until there is progress again; who waits for a person is not stalled.


_PHASES = {
    "waiting_model": "the model",
    "waiting_children": "its sub-agents",
    "compacting": "a summary by the model",
    "queued": "its turn",
}


@attrs.define(eq=False)
class Progress:
    """Of one run.

    Attributes:
        at: when it was heard of last, by trio's clock; None: not yet.
        doing: its phase, as it has said.
        calls: names of the tools that have not ended, by call.
        people: approvals that somebody has to give.
        told: that it is stalled.
    """

    at: float | None = None
    doing: str = ""
    calls: dict[str, str] = attrs.field(factory=dict[str, str])
    people: set[str] = attrs.field(factory=set[str])
    told: bool = False

    def heard(self, now: float) -> None:
        """A sign of it, or of what works for it."""
        self.at, self.told = now, False

    def note(self, event: AnyEvent, now: float) -> None:
        """Something was heard of it."""
        self.at, self.told = now, False
        match event:
            case events.TextDelta() | events.ThinkingDelta():
                pass
            case events.Activity(phase=phase):
                self.doing = phase
            case events.ToolCall(id=call, name=name):
                self.calls[call] = name
            case events.ToolResult(id=call):
                self.calls.pop(call, None)
            case events.ApprovalRequested(id=approval):
                self.people.add(approval)
            case events.ApprovalResolved(id=approval):
                self.people.discard(approval)
            case _:
                pass
        self.at, self.told = now, False

    def stalled(self, now: float, limit: float) -> float | None:
        """Seconds for which nothing was heard, if they are too many and nobody was told."""
        if self.at is None or self.told or self.people or now - self.at < limit:
            return None
        return now - self.at

    def waits_on(self, *, stopping: bool) -> str:
        """In words for people."""
        if self.calls:
            names = ", ".join(dict.fromkeys(self.calls.values()))
            what = f"the tool {names}" if len(self.calls) == 1 else f"the tools {names}"
        else:
            what = _PHASES.get(self.doing, "what it has begun")
        return f"the clean-up of {what}, since it was stopped" if stopping else what


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
        resumption: where it was left, if it was suspended, or if its host has ended.
        heard: whether its start was told; None: its host is the first one.
        asked: an approval of it is on record; ``missed``: one was answered when its call had left.
        stop_reason: why it is to end, in the words of the first who asked; empty until then.
        by_user: whether a person asked for it, and not the end of who waits, or of the host.
        arrival: its input before it was admitted.
        toolkit: what it works with; None: whatever its host has.
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
    toolkit: Toolkit | None = attrs.field(default=None, repr=False)
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


# The children that work beside a run: who is alive, and whose end it has not been told of.
#
# Invariants: a child's end is taken once, and in the order in which children end; who waits is
# woken by every end; after :meth:`Family.end` none of them is alive, nor anything that they
# started (G1). Touched by one Trio thread only.


StartSoon: TypeAlias = Callable[..., None]
Work: TypeAlias = Callable[[], Awaitable[Any]]

TOGETHER = 1.0
"""Seconds for which an end waits for others, so that the caller's model is told of all at once."""


@attrs.define(eq=False)
class Child:
    """One of them.

    Attributes:
        label: what its caller calls the work.
        told: its caller knows its end.
        begun: its input is on disk, or will never be, which is a ``failure``.
        gone: it has ended, and so has what watches over it.
    """

    run: Run
    label: str = ""
    told: bool = False
    begun: trio.Event = attrs.field(factory=trio.Event)
    gone: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None


@attrs.define(eq=False)
class Family:
    """The children of one run that it does not wait for, in the order in which they began."""

    members: dict[str, Child] = attrs.field(factory=dict[str, Child])
    _ended: list[Child] = attrs.field(factory=list[Child])
    _news: trio.Event = attrs.field(factory=trio.Event)

    @property
    def alive(self) -> tuple[Child, ...]:
        return tuple(child for child in self.members.values() if not child.gone.is_set())

    @property
    def has_news(self) -> bool:
        """Whether a child has ended whose caller has not been told."""
        return any(not child.told for child in self._ended)

    @property
    def open(self) -> bool:
        """Whether there is a child whose end its caller does not know."""
        return any(not child.told for child in self.members.values())

    def begins(self, child: Child) -> None:
        self.members[child.run.id] = child

    def ends(self, child: Child) -> None:
        """Its run has ended, with all that it had started."""
        if child not in self._ended:
            self._ended.append(child)
        self._news.set()

    def never_began(self, child: Child) -> None:
        self.members.pop(child.run.id, None)
        self._news.set()

    def take(self) -> tuple[Child, ...]:
        """Those that have ended since the last time, first the one that ended first."""
        news = tuple(child for child in self._ended if not child.told)
        for child in news:
            child.told = True
        return news

    def nudge(self) -> None:
        """Wake who waits: there is something else for it to look at."""
        self._news.set()

    async def settled(self, enough: Callable[[], bool]) -> None:
        """Wait for news, until nobody is alive, or until it is ``enough``. Cancellable.

        What ends within a moment of the first is waited for too.
        """
        while self.alive and not self.has_news and not enough():
            await self._next()
        with trio.move_on_after(TOGETHER):
            while self.alive and not enough():
                await self._next()

    async def end(self, why: str) -> None:
        """Ask all of them to end, and wait until they have, without limit: less would break G1."""
        for child in self.alive:
            child.run.cancel(why)
        for child in tuple(self.members.values()):
            await child.gone.wait()

    async def _next(self) -> None:
        if self._news.is_set():
            self._news = trio.Event()
        await self._news.wait()
