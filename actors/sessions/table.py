"""The runs and queues of a host, as plain data that a stop can reach while everything is stuck.

All of it is touched by one Trio thread only, and no method awaits: a stop that walks this table
sees every run that was admitted, whether its input is still on the way to disk, queued, running
or cleaning up. Invariants: a run is in the table from before its input is stored until it has
ended; a session has at most one active run; ``ended`` is set exactly once, with a result; of many
that stop a run one is the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from motet.actors.agent.budget import Budget
from motet.actors.agent.definition import AnyAgent
from motet.actors.result import RunResult
from motet.actors.tools.threads import held_by
from motet.protocols.limits import Limits
from motet.protocols.policy import Subject
from motet.protocols.sessions import FinishRun, Principal, QueueFull, RunStatus, StopReport

if TYPE_CHECKING:
    from motet.actors.approvals.parked import Parked
    from motet.actors.children.family import Family, StartSoon
    from motet.actors.sessions.session import Submit
    from motet.protocols.approvals import Resumption
    from motet.runtime import ActorRef

QUEUE_CAPACITY = 10
CLOSING = "the host is closing"


@attrs.define(eq=False)
class Run:
    """One run, from the moment its input arrived. ``state`` moves left to right only.

    Attributes:
        workspace: what its tools see; None until it has been prepared.
        caller: the run that this one is a child of, and the call that asked for it.
        steers: the run that its input is to enter; None: it is to be a run of its own.
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
        resumption: where it was left, if it was parked.
        asked: an approval of it is on record.
        stop_reason: why it is to end, in the words of the first who asked; empty until then.
        by_user: whether a person asked for it, and not the end of who waits, or of the host.
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
    beside: bool = False
    among: trio.CapacityLimiter | None = attrs.field(default=None, repr=False)
    family: Family | None = attrs.field(default=None, repr=False)
    next_agent: AnyAgent | None = None
    start_soon: StartSoon | None = attrs.field(default=None, repr=False)
    lineage: tuple[Subject, ...] = attrs.field(default=(), repr=False)
    budget: Budget | None = attrs.field(default=None, repr=False)
    found: set[str] = attrs.field(factory=set[str], repr=False)
    resumption: Resumption | None = attrs.field(default=None, repr=False)
    asked: bool = False
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


@attrs.define(eq=False)
class Slot:
    """What a host knows of one session while it is busy.

    Attributes:
        fence: the highest generation when the session was stopped last; inputs up to it that
            come late are dropped.
        chores: what is still being done for it after its runs, such as a summary.
        unsaved: finished runs whose rows could not be stored yet, oldest first.
        actor: the session's actor, as the router has answered last.
    """

    session: str
    queue: deque[Run] = attrs.field(factory=deque[Run])
    active: Run | None = None
    arriving: int = 0
    fence: int = 0
    chores: int = 0
    unsaved: list[FinishRun] = attrs.field(factory=list[FinishRun])
    touched: float = 0.0
    actor: ActorRef[Submit] | None = attrs.field(default=None, repr=False)

    def steering(self, run_id: str) -> list[Run]:
        """The inputs that are to enter this run, in their order."""
        return [run for run in self.queue if run.steers == run_id]

    @property
    def idle(self) -> bool:
        busy = self.queue or self.active or self.arriving or self.chores
        return not (busy or self.unsaved)


@attrs.frozen
class Stop:
    """What a stop has asked for.

    Attributes:
        runs: they end now, and may still have to clean up.
        already: the same of runs that somebody else had asked to end before.
        dropped: inputs taken out of their queue; they will never start.
    """

    runs: Sequence[Run] = ()
    already: Sequence[Run] = ()
    dropped: Sequence[Run] = ()

    async def wait(self) -> None:
        for run in (*self.runs, *self.already, *self.dropped):
            await run.ended.wait()

    def report(self) -> StopReport:
        """What has come of it by now."""
        ended = [run for run in self.runs if run.result]
        late = [run for run in ended if run.result and run.result.status == "dropped"]
        still_running = [run.id for run in (*self.runs, *self.already) if not run.result]
        return StopReport(
            stopped=[run.id for run in ended if run not in late],
            already_stopping=[run.id for run in self.already],
            dropped_inputs=[run.id for run in (*self.dropped, *late)],
            still_running=still_running,
            held_by=held_by(still_running),
        )


class RunTable:
    """All live runs of one host, and of each session the run that is parked, if one is.

    What is queued behind a parked run waits for its end.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.slots: dict[str, Slot] = {}
        self.parked: dict[str, Parked] = {}
        self._admitted = 0

    def __repr__(self) -> str:
        return f"<RunTable runs={len(self.runs)} sessions={len(self.slots)}>"

    def slot(self, session: str) -> Slot:
        slot = self.slots.get(session)
        if slot is None:
            slot = self.slots[session] = Slot(session)
        return slot

    def active(self, session: str) -> Run | None:
        """The run that goes on in a session."""
        slot = self.slots.get(session)
        return slot.active if slot is not None else None

    def actor(self, session: str) -> ActorRef[Submit] | None:
        """The session's actor if it is known and alive; else the router is to be asked."""
        slot = self.slots.get(session)
        found = slot.actor if slot is not None else None
        return found if found is not None and found.is_alive else None

    def admit(self, run: Run) -> None:
        """Register a run whose input is about to be stored. Raises ``QueueFull``."""
        slot = self.slot(run.session)
        if len(slot.queue) + slot.arriving >= QUEUE_CAPACITY:
            raise QueueFull(
                f"session {run.session!r} has {QUEUE_CAPACITY} inputs waiting; "
                "try again when a run has ended, or stop one"
            )
        self._admitted += 1
        run.generation = self._admitted
        slot.arriving += 1
        slot.touched = trio.current_time()
        self.runs[run.id] = run

    def refuse(self, run: Run) -> None:
        """Forget a run whose input was not stored (or had been stored before)."""
        if run.state == "arriving":
            self.slot(run.session).arriving -= 1
            run.end(run.ends_as("dropped", "the input was not stored"))
            self.runs.pop(run.id, None)

    def enqueue(self, run: Run) -> int | None:
        """Queue a run whose input is on disk; its place, 0 when nothing is before it.

        None when a stop came while the input was on its way: then it is not queued.
        """
        slot = self.slot(run.session)
        slot.arriving -= 1
        run.state = "queued"
        if run.generation <= slot.fence or run.stop_reason:
            return None
        slot.queue.append(run)
        steered = self.runs.get(run.steers or "")
        if steered is not None and steered.family is not None:
            steered.family.nudge()
        return len(slot.queue) - (0 if slot.active or run.session in self.parked else 1)

    def start_next(self, session: str) -> Run | None:
        """The next queued run, now active; None when one is active or none waits."""
        slot = self.slot(session)
        if slot.active or session in self.parked or not slot.queue:
            return None
        run = slot.active = slot.queue.popleft()
        run.state = "running"
        return run

    def revive(self, run: Run) -> None:
        """Take a parked run up again: from here on a stop finds it as a live one."""
        del self.parked[run.session]
        slot = self.slot(run.session)
        assert slot.active is None
        slot.active, slot.touched, run.state = run, trio.current_time(), "running"
        self.runs[run.id] = run

    def finish(self, run: Run, result: RunResult[Any]) -> None:
        """End a run and free its session."""
        slot = self.slot(run.session)
        if slot.active is run:
            slot.active = None
        slot.touched = trio.current_time()
        run.end(result)
        self.runs.pop(run.id, None)

    def cancel(self, sessions: Iterable[str], reason: str, *, by_user: bool = False) -> Stop:
        """Cancel everything in these sessions.

        An input still on its way to disk is fenced by its generation and dropped on arrival.
        """
        active: list[Run] = []
        dropped: list[Run] = []
        for session in list(sessions):
            slot = self.slot(session)
            slot.fence = self._admitted
            dropped += slot.queue
            slot.queue.clear()
            if slot.active:
                active.append(slot.active)
        return _stop(active, dropped, reason, by_user=by_user)

    def cancel_run(self, run: Run, reason: str, *, by_user: bool = False) -> Stop:
        """Cancel one run; it is dropped if it was queued, and so is what was to enter it."""
        slot = self.slot(run.session)
        queued = [run] if run in slot.queue else []
        dropped = queued + slot.steering(run.id)
        for one in dropped:
            slot.queue.remove(one)
        return _stop([] if queued else [run], dropped, reason, by_user=by_user)

    def may(self, principal: Principal, run: Run) -> bool:
        return principal.role == "admin" or run.principal.user == principal.user

    def owned(self, principal: Principal) -> list[str]:
        """Sessions with something live of the principal's; of everybody's for an admin."""
        return list({run.session: None for run in self.runs.values() if self.may(principal, run)})

    def close(self, detail: str) -> None:
        """The host has ended: nobody waits for ever."""
        for run in list(self.runs.values()):
            self.finish(run, run.ends_as("cancelled", detail))


def _stop(active: list[Run], dropped: list[Run], reason: str, *, by_user: bool) -> Stop:
    for run in dropped:
        run.cancel(reason, by_user=by_user)
    first = [run for run in active if run.cancel(reason, by_user=by_user)]
    return Stop(first, [run for run in active if run not in first], dropped)
