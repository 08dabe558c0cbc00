"""The runs and queues of a host, as plain data that a stop can reach while everything is stuck.

All of it is touched by one Trio thread only, and no method awaits: a stop that walks this table
sees every run that was admitted, whether its input is still on the way to disk, queued, running
or cleaning up. Invariants: a run is in the table from before its input is stored until it has
ended; a session has at most one active run; ``ended`` is set exactly once, with a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs
import trio

from motet.actors.agent.definition import AnyAgent
from motet.actors.result import RunResult
from motet.protocols.limits import Limits
from motet.protocols.sessions import FinishRun, Principal, QueueFull, RunStatus

if TYPE_CHECKING:
    from motet.actors.sessions.session import Submit
    from motet.runtime import ActorRef

QUEUE_CAPACITY = 10


@attrs.define(eq=False)
class Run:
    """One run, from the moment its input arrived. ``state`` moves left to right only.

    ``workspace``: what its tools see; None until it has been prepared.
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
    generation: int = 0
    state: Literal["arriving", "queued", "running", "ended"] = "arriving"
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    stop_reason: str = ""
    soft_stop: bool = False
    result: RunResult | None = attrs.field(default=None, repr=False)
    ended: trio.Event = attrs.field(factory=trio.Event, repr=False)

    def cancel(self, reason: str) -> None:
        """Ask the run to end now. It has ended when ``ended`` is set, not before."""
        if self.state != "ended":
            self.stop_reason = self.stop_reason or reason
            self.scope.cancel()

    def end(self, result: RunResult) -> None:
        if self.state != "ended":
            self.state = "ended"
            self.result = result
            self.ended.set()

    def ends_as(self, status: RunStatus, detail: str) -> RunResult:
        return RunResult(self.id, self.session, self.agent.name, status, detail=detail)


@attrs.define(eq=False)
class Slot:
    """What a host knows of one session while it is busy.

    Attributes:
        generation: raised by every stop of the session; inputs admitted before it are dropped.
        chores: what is still being done for it after its runs, such as a summary.
        unsaved: finished runs whose rows could not be stored yet, oldest first.
        actor: the session's actor, as the router has answered last.
    """

    session: str
    queue: deque[Run] = attrs.field(factory=deque[Run])
    active: Run | None = None
    arriving: int = 0
    generation: int = 0
    chores: int = 0
    unsaved: list[FinishRun] = attrs.field(factory=list[FinishRun])
    touched: float = 0.0
    actor: ActorRef[Submit] | None = attrs.field(default=None, repr=False)

    @property
    def idle(self) -> bool:
        busy = self.queue or self.active or self.arriving or self.chores
        return not (busy or self.unsaved)


class RunTable:
    """All live runs of one host."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.slots: dict[str, Slot] = {}

    def __repr__(self) -> str:
        return f"<RunTable runs={len(self.runs)} sessions={len(self.slots)}>"

    def slot(self, session: str) -> Slot:
        return self.slots.setdefault(session, Slot(session))

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
        run.generation = slot.generation
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
        if run.generation != slot.generation or run.stop_reason:
            return None
        slot.queue.append(run)
        return len(slot.queue) - (0 if slot.active else 1)

    def start_next(self, session: str) -> Run | None:
        """The next queued run, now active; None when one is active or none waits."""
        slot = self.slot(session)
        if slot.active or not slot.queue:
            return None
        run = slot.active = slot.queue.popleft()
        run.state = "running"
        return run

    def finish(self, run: Run, result: RunResult) -> None:
        """End a run and free its session."""
        slot = self.slot(run.session)
        if slot.active is run:
            slot.active = None
        slot.touched = trio.current_time()
        run.end(result)
        self.runs.pop(run.id, None)

    def cancel(self, sessions: Iterable[str], reason: str) -> tuple[list[Run], list[Run]]:
        """Cancel everything in these sessions; returns (active runs, dropped inputs).

        An input still on its way to disk is fenced by the generation and dropped on arrival.
        """
        active: list[Run] = []
        dropped: list[Run] = []
        for session in list(sessions):
            slot = self.slot(session)
            slot.generation += 1
            dropped += slot.queue
            slot.queue.clear()
            if slot.active:
                active.append(slot.active)
        for run in active + dropped:
            run.cancel(reason)
        return active, dropped

    def cancel_run(self, run: Run, reason: str) -> list[Run]:
        """Cancel one run; returns it if it was queued and will therefore never start."""
        run.cancel(reason)
        queue = self.slot(run.session).queue
        if run not in queue:
            return []
        queue.remove(run)
        return [run]

    def may(self, principal: Principal, run: Run) -> bool:
        return principal.role == "admin" or run.principal.user == principal.user

    def owned(self, principal: Principal) -> list[str]:
        """Sessions with something live of the principal's; of everybody's for an admin."""
        return list({run.session: None for run in self.runs.values() if self.may(principal, run)})

    def close(self, detail: str) -> None:
        """The host has ended: nobody waits for ever."""
        for run in list(self.runs.values()):
            self.finish(run, run.ends_as("cancelled", detail))
