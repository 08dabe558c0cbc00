"""One actor per session: it starts the session's runs in order, and owns their tasks.

Invariants: two runs never write one transcript at once, because only this actor starts them; its
work is in its queue of the run table and not in its messages, so that nothing is lost when it
crashes or is passivated.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import trio

from motet.actors.runs.finish import publish_withdrawn, store_late
from motet.actors.runs.hooks import END_BUDGET
from motet.actors.runs.queue import SessionQueue, wakes
from motet.actors.runs.run import Run
from motet.actors.runs.runner import Runner
from motet.actors.runs.services import Services
from motet.actors.runs.tool_step import ARGUMENT_PREVIEW, PREVIEW
from motet.actors.sessions.compaction import CompactionJob, SessionSummariser, compact_session
from motet.actors.tools.arguments import preview
from motet.actors.transcript.grammar import close_calls, held, stopped_row
from motet.protocols import events
from motet.protocols.approvals import Resumption, SuspendedState
from motet.protocols.chat import AssistantMessage, ToolMessage
from motet.protocols.errors import NotFound
from motet.protocols.events import SessionCompacted
from motet.protocols.hooks import SessionEnd
from motet.protocols.queueing import JoinInputs
from motet.protocols.room_copies import fixed_rows
from motet.protocols.sessions import Compact, FinishRun, Pump, RunStatus, SessionMessage
from motet.protocols.storage import StorageUnavailable
from motet.runtime import Actor, handles

JOIN_BUDGET = 5.0
"""Seconds to store which inputs are answered together, also while being cancelled."""

SAVE_AGAIN = 5.0
"""Seconds until an end is stored again that failed for another reason than the storage."""


class Session(Actor[SessionMessage]):
    """Owns the order of one session. Its runs are tasks of this actor, and end with it."""

    cleanup_budget = 10.0

    def __init__(self, key: str, services: Services) -> None:
        self.key = key
        self.queue = services.table.queue(key)
        self.services = services
        self.end: SessionEnd | None = None  # for the hooks at its end; an idle session keeps no run
        self.summariser = SessionSummariser(key, services.store)
        self._alarm = inf

    async def on_start(self) -> None:
        self.queue.saving = False
        self._pump()

    @handles(Pump)
    async def pump(self, _: Pump) -> None:
        self._pump()

    def _pump(self) -> None:
        """Start the runs that may start, record dropped inputs, and set the next alarm."""
        queue = self.queue
        self.services.table.advance(queue)
        while queue.dropped:
            self.start_soon(self._drop, queue.dropped.pop(0))
        while queue.tasks:
            queue.tasks.pop(0)(self)
        while queue.starting:
            run = queue.starting.pop(0)
            self.start_soon(self._execute, run, name=run.id)
        if queue.unsaved and not queue.saving:
            queue.saving = True
            self.start_soon(self._save, name="unsaved ends")
        at = wakes(queue.inputs, trio.current_time()) if queue.inputs else inf
        if at < self._alarm:
            self._alarm = at
            self.start_soon(self._wake_at, at)

    async def _wake_at(self, at: float) -> None:
        await trio.sleep_until(at)
        if self._alarm == at:
            self._alarm = inf
        self._pump()

    async def _execute(self, run: Run) -> None:
        first, self.end = self.end is None, _end_after(run)
        run.lineage.start_soon = self.start_soon
        if run.placement.joined:
            await self._join(run)
        runner = Runner(run, self.queue, self.services, first=first)
        try:
            await runner.execute()
            note_end(runner)
        finally:
            self.end = _end_after(run)  # a hand-over may have changed its agent
        self._pump()
        if is_to_summarise(runner):
            await self.summarise(runner)

    async def summarise(self, runner: Runner) -> None:
        """Summarise the session after a run that has left it long."""
        run = runner.run
        with self.services.table.summarising(run.agent, run.session, run.input.principal):
            await self._compact(CompactionJob.after_run(runner))

    async def _drop(self, run: Run) -> None:
        await drop(run, self.services)
        self._pump()

    async def _save(self) -> None:
        """Store the ends that could not be stored, as soon as the storage takes them."""
        queue = self.queue
        try:
            while queue.unsaved:
                await self.services.health.retry()
                async with queue.storing():
                    failed = await self._save_now()
                if failed:
                    await trio.sleep(SAVE_AGAIN)
        finally:
            queue.saving = False

    async def _save_now(self) -> bool:
        """Store what the storage takes now; true: it works, and has not taken all."""
        queue, services = self.queue, self.services
        try:
            while queue.unsaved:
                await store_late(queue, services)
        except StorageUnavailable:
            pass
        except NotFound:  # the session was deleted
            del queue.unsaved[0]
        except Exception as error:
            end = queue.unsaved[0].run_id
            services.events.log.error("an end cannot be stored", run=end, exc_info=error)
            return True
        return False

    async def _join(self, run: Run) -> None:
        """Store which inputs a run answers together with its own; they have left the queue."""
        event, joined = events.InputSteered(run.id), run.placement.joined
        with trio.CancelScope(shield=True, deadline=trio.current_time() + JOIN_BUDGET):
            run.carried.entered += joined  # until it is known to be on disk
            try:
                await self.services.store.ask(JoinInputs(run.id, run.input.text, joined))
            except Exception as error:
                message = f"that inputs are answered together is not on disk yet: {error}"
                await self.services.events.warn(run, "transcript", message)
                return
            run.carried.entered = ()
            for one in joined:
                await self.services.events.emit_to(
                    run.session, run.input.principal.user, event, one
                )

    @handles(Compact, concurrent=4)
    async def compact(self, message: Compact) -> SessionCompacted | None:
        self._pump()
        run = self.services.table.runs[message.run_id]
        run.model = self.services.toolkits.model_of(run)
        prepared = await self.services.toolkits.current.workspaces.prepare(
            run.agent.name, run.agent.profile, user=run.input.principal.user, session=self.key
        )
        return await self._compact(CompactionJob.on_request(run, prepared, message.generation))

    async def _compact(self, job: CompactionJob) -> SessionCompacted | None:
        done = await compact_session(job, self.services, self.summariser)
        if done is not None:
            self.queue.filled = None, 0  # not counted since the summary
        return done

    async def on_stop(self) -> None:
        if self.queue.unsaved and self.services.health.problem is None:
            with trio.move_on_after(JOIN_BUDGET):
                await self._save_now()
        if self.end is not None and "session_end" in self.services.hooks.hooks.points:
            with trio.move_on_after(END_BUDGET):
                await self.services.hooks.ask(self.end)


def note_end(runner: Runner) -> None:
    """Tell the session's queue of a run that has its result."""
    run, queue = runner.run, runner.queue
    queue.filled = runner.model_step.filled
    if run.was_stopped:  # else they stay in the queue, also for the next host
        _drop_steering(run, queue)


def is_to_summarise(runner: Runner) -> bool:
    """Whether its session is to be summarised after this run.

    The session of a child has no next run; after a stop the next run looks again.
    """
    run = runner.run
    return runner.model_step.is_long and run.lineage.caller is None and not run.stop_reason


def _drop_steering(ended: Run, queue: SessionQueue) -> None:
    """Drop what a stopped run's author sent to enter it; inputs of others become runs."""
    for run in queue.steering(ended.id):
        if run.author != ended.author:
            run.free()
            continue
        queue.inputs.remove(run)
        run.drop(ended.stop_reason)
        queue.dropped.append(run)


def _end_after(run: Run) -> SessionEnd:
    return SessionEnd(run.id, run.session, run.agent.name, run.input.principal)


async def drop(run: Run, services: Services) -> None:
    """Record that a stored input will not be answered, and end its run."""
    reason = run.stop_reason or "stopped before it started"
    event: events.InputDropped | events.RunCancelled = events.InputDropped(reason)
    end = FinishRun(run.id, "dropped", (), detail=reason, event=event)
    left = run.carried.resumption or run.carried.started
    if left is not None:  # it had begun in an earlier host
        event = events.RunCancelled(left.suspended.turn.spent, reason)
        end = _end_of_begun(run, left, reason, event)
    is_stored = False
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
        try:
            for cut in _cut_events(run, left, end) if left is not None else ():
                await services.events.emit(run, cut)
            if services.health.problem is not None:
                raise services.health.problem
            withdrawn = await services.store.ask(end)
            is_stored = True
        except Exception as error:
            await services.events.warn(
                run, "transcript", f"a dropped input is not on record: {error}"
            )
            services.events.show(run, event)
        else:
            user = run.input.principal.user
            await publish_withdrawn(run.session, user, run.id, withdrawn, services)
            await services.events.emit(run, event)
        finally:
            if not is_stored:
                services.table.queue(run.session).unsaved.append(end)
    if left is not None and left.suspended.started:
        _end_trace(run, left.suspended, end.status, services)
    services.table.finish(run, run.ends_as(end.status, reason))


def _end_trace(run: Run, left: SuspendedState, status: RunStatus, services: Services) -> None:
    """Open the trace of a begun run again, which its host has left interrupted, and end it."""
    user, text = run.input.principal.user, run.input.text
    trace = services.tracer.begin(
        run.id, session=run.session, agent=run.agent.name, user=user, text=text
    )
    trace.go_on(left.spans, left.started, left.errors, left.turn.usage)
    trace.finish(status)


def _end_of_begun(run: Run, left: Resumption, reason: str, event: events.RunCancelled) -> FinishRun:
    """The end of a begun run that was stopped before it could resume."""
    spent, cause = left.suspended.turn.spent, "" if run.by_user else reason
    last = left.suspended.rows[-1:]
    calls = [call for row in last if isinstance(row, AssistantMessage) for call in row.calls]
    never = [held(call) for call in calls if call.id not in left.suspended.repeats]
    rows = close_calls((*left.suspended.rows, *left.results, *never), "unknown")
    rows = (*rows, stopped_row("", cause)) if rows else ()
    return FinishRun(
        run_id=run.id,
        status="cancelled",
        rows=fixed_rows(run.carried.fixes, rows),
        usage=spent,
        detail=reason,
        withdraw=True,
        event=event,
        user=run.input.principal.user,
    )


def _cut_events(run: Run, left: Resumption, end: FinishRun) -> Iterator[events.AnyEvent]:
    """The events of the open calls of a begun run that ends before it could resume, and its last
    message."""
    if run.carried.start_published is False:  # its host ended when it was about to start
        yield events.RunStarted(run.agent.name, run.model_name)
    if not end.rows:
        return
    step = left.suspended.step
    results = {row.call_id: row for row in end.rows[step + 1 :] if isinstance(row, ToolMessage)}
    answer = end.rows[step]
    for index, call in enumerate(answer.calls if isinstance(answer, AssistantMessage) else ()):
        if call.id not in left.announced:
            shown = preview(call.arguments, ARGUMENT_PREVIEW)
            yield events.ToolCall(call.id, call.name, shown, index)
        if call.id not in left.reported:
            row = results[call.id]
            ok, text = row.outcome == "done", row.text[:PREVIEW]
            yield events.ToolResult(row.call_id, row.name, ok, row.outcome, text, 0.0, index)
    text = end.rows[-1].text
    yield events.MessageAdded("assistant", run.agent.name, text, left.suspended.messages)
