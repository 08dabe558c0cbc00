"""The run table: the live runs and queues of a host, reachable while everything else is stuck.

One Trio thread touches it, and no method awaits. A stop that walks the table sees every admitted
run, whether its input is on the way to disk, queued, running or cleaning up. Two objects change
with the table and stand beside it: :class:`RunEvents`, since an event of a run is its progress
too, and :class:`SessionActors`, since an input in the queue has to wake its session.

Invariants: a run is in the table from before its input is stored until it has ended; a session
never has more running runs than allowed; a stop ends only runs of its principal (G16).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias

import attrs
import trio

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.errors.log import Logger, logger
from motet.actors.hooks.chain import HooksClient
from motet.actors.runs.queue import INTERRUPTED, PlacedRun, SessionQueue, SuspendedRun, Way, is_held
from motet.actors.runs.run import CALLER_ENDED, Input, PendingInput, PendingInputs, Run
from motet.actors.telemetry.event_bus import Publisher
from motet.actors.transcript.guards import Finding
from motet.protocols import events
from motet.protocols.events import AnyEvent, EventRecord, RunStalled
from motet.protocols.hooks import RunWarning
from motet.protocols.queueing import QueueConfig
from motet.protocols.run import RunResult
from motet.protocols.run_states import OUT_OF_QUEUE
from motet.protocols.session_keys import is_group
from motet.protocols.sessions import (
    FinishRun,
    Principal,
    Pump,
    RunStatus,
    SessionMessage,
    ShuttingDown,
    StopReport,
)
from motet.runtime import ActorRef, MailboxFull, held_by
from motet.runtime.outside import fresh_hex


@attrs.frozen
class Stop:
    """The runs and inputs that a stop was about.

    Attributes:
        runs: they were asked to end by this stop, and may still clean up.
        already: they had been asked to end before.
        dropped: inputs taken out of their queue; they never start, or, if the last host had begun
            them, never resume.
        unheard: ids of the runs of inputs that were not registered yet; they never start.
    """

    runs: Sequence[Run] = ()
    already: Sequence[Run] = ()
    dropped: Sequence[Run] = ()
    unheard: Sequence[str] = ()

    async def wait(self) -> None:
        for run in (*self.runs, *self.already, *self.dropped):
            await run.ended.wait()

    def report(self) -> StopReport:
        """The effect of the stop so far."""
        never = [run for run in (*self.dropped, *self.runs) if run.never_starts]
        begun = [run for run in (*self.runs, *self.dropped) if run not in never]
        still_running = [run.id for run in (*begun, *self.already) if not run.result]
        return StopReport(
            stopped=[run.id for run in begun if run.result],
            already_stopping=[run.id for run in self.already],
            dropped_inputs=[*(run.id for run in never), *self.unheard],
            still_running=still_running,
            held_by=held_by(still_running),
        )


QUEUE = QueueConfig()


class RunTable:
    """All live runs of one host, and by session those that are suspended.

    A suspended run is under way: inputs wait for its end, enter it, or end it, as they would a
    running one. Sessions that are ``held`` wait until the agents of their queued inputs are known.

    Attributes:
        resuming: runs that are live again and wait for their stored state.
        resumes: set when there is one.
    """

    def __init__(self, rules: QueueConfig = QUEUE) -> None:
        self.rules = rules
        self.runs: dict[str, Run] = {}
        self.queues = OrderedDict[str, SessionQueue]()  # least recently used first
        self.suspended: dict[str, dict[str, SuspendedRun]] = {}
        self.resuming = deque[tuple[Run, SuspendedRun]]()
        self.resumes = trio.Event()
        self.held: set[str] = set()
        self.draining = trio.Event()
        self.pending_inputs = PendingInputs()
        self._admissions = count(1)

    def reconfigure(self, rules: QueueConfig) -> None:
        """Use other queue rules from the next input on."""
        self.rules = rules

    def __repr__(self) -> str:
        return f"<RunTable runs={len(self.runs)} sessions={len(self.queues)}>"

    @cached_property
    def now(self) -> Callable[[], float]:
        """The clock behind ``trio.current_time``, without the look-up."""
        return trio.lowlevel.current_clock().current_time

    def queue(self, session: str) -> SessionQueue:
        queue = self.queues.get(session)
        if queue is None:
            queue = self.queues[session] = SessionQueue(session, group=is_group(session))
            queue.touched = self.now()
        return queue

    def idle_at(self, after: float) -> float:
        """When a session may have been idle for ``after`` seconds, at the earliest.

        No later use of a session makes it earlier, so one sleep until then misses none.
        """
        oldest = next(iter(self.queues.values()), None)
        return (self.now() if oldest is None else oldest.touched) + after

    def idle(self, after: float, most: int) -> list[str]:
        """Idle sessions, least recently used first.

        All that are idle for ``after`` seconds, plus enough others to get down to ``most``.
        """
        found: list[str] = []
        spare, now = len(self.queues) - most, self.now()
        for session, queue in self.queues.items():
            if queue.touched + after > now and len(found) >= spare:
                break
            if queue.idle:
                found.append(session)
        return found

    def unsaved(self) -> dict[str, FinishRun]:
        """The ends of runs and inputs that are not on disk yet, by their runs."""
        late = {end.run_id: end for queue in self.queues.values() for end in queue.unsaved}
        for run in self.runs.values():
            for one in run.carried.entered:
                late[one] = FinishRun(one, "steered", (), detail=f"it has entered {run.id}")
        return late

    def _touch(self, queue: SessionQueue) -> None:
        queue.touched = self.now()
        self.queues.move_to_end(queue.session)

    def find(self, run_id: str) -> Run | SuspendedRun | None:
        """A run that has not ended, or an input that waits."""
        return self.runs.get(run_id) or self.find_suspended(run_id)

    def find_suspended(self, run_id: str) -> SuspendedRun | None:
        return next((one for one in self.all_suspended() if one.id == run_id), None)

    def suspended_in(self, session: str) -> tuple[SuspendedRun, ...]:
        """The suspended runs of a session, oldest first."""
        return tuple(self.suspended.get(session, {}).values())

    def active(self, session: str, author: str) -> Run | SuspendedRun | None:
        """The run that a sender means who names none: their latest, else the latest of all."""
        queue = self.queues.get(session)
        running = queue.running if queue is not None else ()
        going = (*self.suspended_in(session), *running)
        own = [run for run in going if run.author == author] or going
        return own[-1] if own else None

    def admit(self, run: Run) -> None:
        """Register a run whose input is about to be stored.

        Raises ``QueueFull``, ``SessionBusy`` for an input that must not wait, and ``ShuttingDown``
        while the host drains, unless it is a part of another run or of a round.
        """
        if self.draining.is_set() and not run.is_part:
            raise ShuttingDown("the host is shutting down: try again when it is back")
        queue, suspended = self.queue(run.session), self.suspended_in(run.session)
        queue.check(run, self.rules, suspended, held=run.session in self.held)
        run.admission = next(self._admissions)
        run.move("register")
        queue.arriving += 1
        self._touch(queue)
        self.runs[run.id] = run
        if (caller := self._caller(run)) is not None:
            caller.lineage.below.append(run)
        if run.pending is not None:
            self.pending_inputs.remove(run.pending)
            if run.pending.stopped:
                run.cancel(run.pending.stopped, by_user=True)
        if caller is not None and caller.stop_reason:
            run.cancel(CALLER_ENDED)

    @contextmanager
    def summarising(
        self, agent: AnyAgent, session: str, principal: Principal, noted: PendingInput | None = None
    ) -> Generator[Run]:
        """Have stops reach a summary, by a run that stands for it and never starts.

        A stop of the session ends the block. That of the newest run does so for a summary that a
        person waits for, of which ``noted`` is the note.
        """
        run = Run(Input(f"compact_{fresh_hex(6)}", session, principal, ""), agent, agent.limits)
        queue = self.queue(session)
        self.runs[run.id] = run
        queue.chores += 1
        if noted is not None:
            run.admission = next(self._admissions)
            self.pending_inputs.remove(noted)
            if noted.stopped:
                run.cancel(noted.stopped, by_user=True)
        try:
            with run.scope:
                yield run
        finally:
            queue.chores -= 1
            status: RunStatus = "cancelled" if run.stop_reason else "completed"
            run.end(run.ends_as(status, run.stop_reason))
            self.runs.pop(run.id, None)

    def refuse(self, run: Run) -> None:
        """Forget a run whose input was not stored (or had been stored before)."""
        if run.state in ("arriving", "overtaken"):
            self.queue(run.session).arriving -= 1
            run.end(run.ends_as("dropped", "the input was not stored"))
            self._forget(run)

    def enqueue(self, run: Run) -> Way:
        """Queue a run whose input is on disk, or let it enter a run, as its mode says.

        If a stop came before the input was on disk, the input is dropped; a host that closes leaves
        it to the next one.
        """
        queue = self.queue(run.session)
        queue.arriving -= 1
        # The stop may have come while the disk worked. The life cycle has noted it, so that one
        # look here is enough: between this step and the queue nothing awaits.
        run.move("store")
        if run.state == "dropped":
            if not run.was_stopped and (run.carried.durable or run.input.key is not None):
                self.finish(run, run.ends_as("interrupted", run.stop_reason))
                return "wait"
            queue.dropped.append(run)
            return "drop"
        suspended = self.suspended_in(run.session)
        placed = queue.arrive(run, self.rules, suspended, self.now())
        self._make_way(run, placed)
        return placed.way

    def _make_way(self, run: Run, placed: PlacedRun) -> None:
        """End the runs that give way to an input, or wake the one that it steers.

        That one may wait for its children.
        """
        for one in placed.ends:
            ending = self.resume_to_stop(one) if isinstance(one, SuspendedRun) else one
            ending.cancel(INTERRUPTED)
        steered = self.runs.get(run.placement.steers or "")
        if steered is not None and steered.lineage.children is not None:
            steered.lineage.children.nudge()

    def advance(self, queue: SessionQueue) -> None:
        """Pick the inputs to start and to drop.

        The decision takes effect immediately; the session's actor only executes it.
        """
        if queue.inputs:
            # In this order: an input that is placed now may enter a run or end one, and what was
            # waiting for a run that has ended must not be started by the loop below.
            self._ripen(queue)
            queue.drop_strays()
            while queue.inputs and (run := self.start_next(queue)) is not None:
                queue.starting.append(run)

    def _ripen(self, queue: SessionQueue) -> None:
        """Place inputs that were held, in case their senders type on."""
        held = [run for run in queue.inputs if run.placement.burst and not run.placement.placed]
        for run in held:
            if run in queue.inputs and not is_held(run, self.now()):
                suspended = self.suspended_in(queue.session)
                placed = queue.place(run, self.rules, (*suspended, *queue.running))
                self._make_way(run, placed)

    def start_next(self, queue: SessionQueue) -> Run | None:
        """Start the next queued run; None when none waits, or enough are running.

        Inputs that are answered with it end here; the session's actor stores that.
        """
        if not queue.inputs or queue.session in self.held:
            return None
        if self.draining.is_set() and not any(run.is_part for run in queue.inputs):
            return None
        batch = queue.take_next(self.rules, self.suspended_in(queue.session), self.now())
        if not batch:
            return None
        # The oldest stands for all: so the joined text has its place in the order of arrival.
        run, *others = batch
        queue.running.append(run)
        run.move("start")
        if run.stop_reason:  # its caller wanted its end while it was queued
            run.move("stop")
        for one in others:
            one.move("enter")
            self.finish(one, one.ends_as("steered", f"it has entered {run.id}"))
        return run

    def hold(self, run: Run) -> None:
        """Queue a run that the last host has left; its session is held until it is released.

        The oldest comes first. An input that has not begun is placed once more: its host may have
        ended before the runs that gave way to it.
        """
        queue, suspended = self.queue(run.session), self.suspended_in(run.session)
        begun = [one for one in queue.inputs if one.carried.resumption is not None]
        run.admission = next(self._admissions)
        run.move("restore")
        self.held.add(run.session)
        queue.inputs.append(run)
        self.runs[run.id] = run
        if run.carried.resumption is None:
            self._make_way(run, queue.place(run, self.rules, (*suspended, *begun)))

    def suspend(self, suspended: SuspendedRun) -> None:
        """Keep a run that waits for a person. Nothing else starts in its session meanwhile."""
        self.suspended.setdefault(suspended.session, {})[suspended.id] = suspended

    def all_suspended(self) -> list[SuspendedRun]:
        return [one for ours in self.suspended.values() for one in ours.values()]

    def resume(self, suspended: SuspendedRun, agent: AnyAgent) -> Run:
        """Make a suspended run live: from here on a stop finds it among the others.

        The ``Resumer`` loads its stored state. The caller awaits nothing between finding it and
        this.
        """
        run, ours = suspended.live(agent), self.suspended[suspended.session]
        del ours[run.id]
        if not ours:
            del self.suspended[run.session]
        run.admission = next(self._admissions)
        self.queue(run.session).running.append(run)
        run.move("resume")
        self._touch(self.queue(run.session))
        self.runs[run.id] = run
        self.resuming.append((run, suspended))
        self.resumes.set()
        return run

    def resume_to_stop(self, suspended: SuspendedRun) -> Run:
        """Make a suspended run live, so that it can be stopped; no agent is needed."""
        return self.resume(suspended, suspended.code or AgentSpec(suspended.agent))

    def finish(self, run: Run, result: RunResult[Any]) -> None:
        """End a run and free its session."""
        queue = self.queue(run.session)
        if run in queue.running:
            queue.running.remove(run)
            queue.ended += 1
        self._touch(queue)
        run.end(result)
        self._forget(run)

    def _caller(self, run: Run) -> Run | None:
        """The live run that it works for, if it is a child."""
        return None if run.lineage.caller is None else self.runs.get(run.lineage.caller[0])

    def with_callers(self, run: Run) -> list[Run]:
        """The run and the live ones that wait for it."""
        runs = [run]
        while (caller := self._caller(runs[-1])) is not None:
            runs.append(caller)
        return runs

    def _forget(self, run: Run) -> None:
        if (caller := self._caller(run)) is not None and run in caller.lineage.below:
            caller.lineage.below.remove(run)
        self.runs.pop(run.id, None)

    def cancel(
        self,
        sessions: Iterable[str],
        reason: str,
        *,
        by_user: bool = False,
        principal: Principal | None = None,
    ) -> Stop:
        """Cancel everything in these sessions; with a ``principal``, what is theirs.

        An input that is still on its way to disk is dropped when it gets there.
        """
        wanted = set(sessions)
        runs = [run for run in self.runs.values() if run.session in wanted]
        if principal is not None:
            runs = [run for run in runs if self.may(principal, run)]
        return self.cancel_runs(runs, reason, by_user=by_user)

    def cancel_run(self, run: Run, reason: str, *, by_user: bool = False) -> Stop:
        """Cancel one run; one that was queued is dropped, as is what its sender had enter it."""
        return self.cancel_runs([run], reason, by_user=by_user)

    def cancel_runs(self, runs: Sequence[Run], reason: str, *, by_user: bool = False) -> Stop:
        """Cancel these, and the runs that work for them, which end with them and are not named.

        Nothing is awaited: what was queued is out of its queue at once.
        """
        active: list[Run] = []
        dropped: list[Run] = []
        # Queues before runs: the end of a run starts the next input of its session, and what this
        # stop covers must not be there to be started.
        for run in runs:
            queue = self.queue(run.session)
            queued = [run] if run in queue.inputs else []
            if not queued and run.state in OUT_OF_QUEUE:
                active.append(run)
                queued = [one for one in queue.steering(run.id) if one.author == run.author]
            for one in queued:
                queue.inputs.remove(one)
            dropped += queued
        for run in dropped:
            run.drop(reason, by_user=by_user)
        # A child before its caller, which would give it another reason.
        first = [run for run in reversed(active) if run.cancel(reason, by_user=by_user)][::-1]
        return Stop(first, [run for run in active if run not in first], dropped)

    def may(self, principal: Principal, run: Run | SuspendedRun) -> bool:
        user = run.user if isinstance(run, SuspendedRun) else run.input.principal.user
        return principal.role == "admin" or user == principal.user

    def of(self, session: str, principal: Principal) -> list[Run]:
        """The admitted live runs of the principal in a session."""
        runs = self.runs.values()
        return [r for r in runs if r.session == session and r.admission and self.may(principal, r)]

    def owned(self, principal: Principal) -> list[str]:
        """Sessions with something live of the principal's; of everybody's for an admin."""
        return list({run.session: None for run in self.runs.values() if self.may(principal, run)})

    def close(self, detail: str) -> None:
        """The host has ended: end all runs, so that no waiter waits for ever."""
        for run in list(self.runs.values()):
            self.finish(run, run.ends_as("cancelled", detail))

    def note(self, run_id: str, event: AnyEvent) -> None:
        """Count an event as progress of its run, and of the runs that wait for that one."""
        run = self.runs.get(run_id)
        if run is None or type(event) is RunStalled:
            return
        now = self.now()
        run.progress.note(event, now)
        for caller in self.with_callers(run)[1:] if run.lineage.caller is not None else ():
            caller.progress.touch(now)


@attrs.frozen(eq=False)
class RunEvents:
    """Publishes events of the runs and sessions of a host, and logs what degraded."""

    table: RunTable
    publisher: Publisher
    hooks: HooksClient
    log: Logger = attrs.field(factory=lambda: logger("motet.run"))

    def put(self, run: Run, event: AnyEvent) -> bool:
        """Publish without waiting; False if the event is durable and there is no room yet."""
        # As `note` and `Publisher.put` do, without a dozen calls of each for a turn.
        if run.lineage.caller is None and type(event) is not RunStalled:
            run.progress.note(event, self.table.now())
        else:
            self.table.note(run.id, event)
        feed, owner = self.publisher.subscribers.feed, run.input.principal.user
        return feed.put(f"session:{run.session}", event, run.id, owner)

    async def emit(self, run: Run, event: AnyEvent) -> None:
        """Publish; wait for room when the event is durable."""
        while not self.put(run, event):
            await self.publisher.subscribers.feed.room()

    def show(self, run: Run, event: AnyEvent) -> None:
        """Publish the end of a run that is not on disk yet, to those who listen now."""
        self.table.note(run.id, event)
        owner = run.input.principal.user
        self.publisher.show(f"session:{run.session}", event, run.id, owner)

    async def emit_to(
        self, session: str, owner: str, event: AnyEvent, run_id: str | None = None
    ) -> None:
        """Publish an event of a user's session, or of a run whose object is not at hand."""
        if run_id is not None:
            self.table.note(run_id, event)
        await self.publisher.emit(f"session:{session}", event, run_id, owner)

    def listen(self, session: str, sink: Callable[[EventRecord], None]) -> Callable[[], None]:
        """Call ``sink`` with each event of a session, until the returned function is called."""
        return self.publisher.subscribers.attach(f"session:{session}", sink)

    async def warn(self, run: Run, source: str, message: str, *, grave: bool = True) -> None:
        """Log and publish that something degraded while the run goes on (seed 001).

        ``grave``: something may be lost, so that it is logged as an error.
        """
        log = self.log.error if grave else self.log.warning
        log(message, source=source, run=run.id, session=run.session)
        await self.emit(run, events.Warned(source, message))
        base = (run.id, run.session, run.agent.name, run.input.principal)
        self.hooks.notify(RunWarning(*base, source, message))

    def log_finding(self, run: Run, finding: Finding) -> None:
        """Log a finding of the input guard; never the text itself."""
        log = self.log.info if finding.level == "info" else self.log.warning
        log(finding.event, run=run.id, user=run.input.principal.user, patterns=list(finding.names))


Start: TypeAlias = Callable[[str], ActorRef[SessionMessage] | None]


class SessionActors:
    """The live actors of sessions by key, and the way to start one while there is a router.

    Attributes:
        crowded: set when there are many sessions in memory.
        alone: runs that go on in their callers' tasks, in sessions without an actor.
    """

    def __init__(self) -> None:
        self.crowded = trio.Event()
        self.alone: dict[Run, None] = {}
        self._actors: dict[str, ActorRef[SessionMessage]] = {}
        self._start: Start | None = None
        self._most = 0

    async def end_alone(self) -> None:
        """Cancel the runs in their callers' tasks, and wait for their ends. Shield it."""
        for run in self.alone:
            run.cut()
        for run in tuple(self.alone):
            await run.ended.wait()

    def begin(self, start: Start, most: int) -> None:
        """A router is there. ``start``: the actor of a session; None while one is ending.

        ``most``: idle sessions that may stay in memory.
        """
        self._start, self._most = start, most

    def count(self, sessions: int) -> None:
        """So many are in memory."""
        if sessions > self._most:
            self.crowded.set()

    def close(self) -> None:
        """The router has ended."""
        self._start = None

    def add(self, session: str, actor: ActorRef[SessionMessage]) -> None:
        self._actors[session] = actor

    def remove(self, session: str) -> None:
        """The actor of a session is about to end."""
        self._actors.pop(session, None)

    def find(self, session: str) -> ActorRef[SessionMessage] | None:
        """The actor of a session if it is alive."""
        found = self._actors.get(session)
        return found if found is not None and found.is_alive else None

    def open(self, session: str) -> ActorRef[SessionMessage] | None:
        """The actor of a session, started if there is none; it takes mail at once.

        None without a router, or while the actor before is ending: the router starts the next one
        if something waits. If it cannot start, its mail is settled with the reason, and the inputs
        that wait are dropped.
        """
        found = self.find(session)
        return self._start(session) if found is None and self._start is not None else found

    def wake(self, session: str) -> bool:
        """Have the actor of a session process its queue, without awaiting.

        False: there is no actor; the next one processes the queue when it starts.
        """
        actor = self.find(session)
        if actor is None:
            return self.open(session) is not None
        with suppress(MailboxFull):  # any message has it process its queue
            actor.tell_nowait(Pump())
        return True
