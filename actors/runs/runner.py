"""The runner of one run: carries out the decisions of its turn, and ends it in every case.

Every await is under the run's scope, so a stop ends the model's stream, the tools and their
processes, and waits for them (G1). The end is shielded and has a budget: the transcript is stored
and the one terminal event published even while the whole host is being cancelled (G7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.tracker import Failures, failures_before
from motet.actors.runs.finish import Failure, Outcome, learn, store
from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.inbox import Inbox
from motet.actors.runs.model_step import ModelStep
from motet.actors.runs.output import RunOutput
from motet.actors.runs.publisher import RunPublisher
from motet.actors.runs.queue import SessionQueue
from motet.actors.runs.recall import read_memory
from motet.actors.runs.run import CALLER_ENDED, Run
from motet.actors.runs.services import Services
from motet.actors.runs.suspend import Suspension, counted, resume_turn
from motet.actors.runs.tool_step import ToolStep
from motet.actors.runs.turn import CallModel, Decision, Finish, RunCalls, Turn
from motet.actors.transcript.guards import LoopDetector
from motet.actors.transcript.history import begun_by
from motet.actors.transcript.summary import one_line
from motet.protocols import events
from motet.protocols.approvals import Resumption
from motet.protocols.budget import OverBudget, starting_budget
from motet.protocols.chat import AssistantMessage, ChatMessage, UserMessage
from motet.protocols.errors import AgentError, ConfigError, Internal, Llm
from motet.protocols.hooks import Continue
from motet.protocols.models import ModelResponse
from motet.protocols.redaction.redact import redact_text
from motet.protocols.room_copies import Fix, fixed_answer, fixed_rows, fixed_text
from motet.protocols.run import RunResult
from motet.protocols.session_keys import is_shared
from motet.protocols.sessions import GetSession, HandOver, LoadTranscript, RecordIntent
from motet.protocols.tools import CallResult
from motet.runtime.outside import foreign_code, wall_time

FINISH_BUDGET = 5.0
REASON = 300
"""Code points of the reason of a refusal."""
WITHHELD = "[Input withheld: its gates have not let it pass]"


class Runner:
    """Drives one run from its input to its terminal event. Use once.

    ``first``: it is the first run since the session's actor began. ``cut_off``: called when its
    task is cancelled from outside, before it ends for that.
    """

    def __init__(
        self,
        run: Run,
        queue: SessionQueue,
        services: Services,
        *,
        first: bool = False,
        cut_off: Callable[[], None] | None = None,
    ) -> None:
        services.toolkits.refresh(run)
        run.model = services.toolkits.model_of(run)
        self.run = run
        self.queue = queue
        self.services = services
        self.first = first
        self._cut_off = cut_off
        self.hooks = RunHooks(run, services.hooks)
        self.turn = Turn(
            run.limits,
            budget=run.lineage.budget
            or starting_budget(run.limits, run.carried.resumption, trio.current_time()),
            loops=LoopDetector(services.toolkits.of(run).catalog.kinds(run.agent.name)),
        )
        self.trace = services.tracer.begin(
            run.id,
            session=run.session,
            agent=run.agent.name,
            user=run.input.principal.user,
            text=run.input.text,
            caller=run.lineage.caller,
        )
        run.lineage.budget = self.turn.budget
        self.publisher = RunPublisher(run, services.events)
        output = RunOutput(run, services, self.turn)
        self.model_step = ModelStep(run, services, self.hooks, self.turn, self.publisher, output)
        self.inbox = Inbox(run, queue, services, self.hooks, self.turn, self.publisher)
        run.reads_anew = self._read_anew
        self.failure: Failure | None = None
        self.tool_step: ToolStep | None = None
        self._resumed: Decision | None = None
        self._runs_seen = 0
        if (left := run.carried.resumption) is not None:
            # Before any await, so that a stop finds the run whole.
            self._resumed = resume_turn(self.turn, self.publisher, self.trace, left)
            if isinstance(self._resumed, RunCalls):
                self.tool_step = self._new_tool_step(self._resumed, left)
            run.carried.resumption = None
        for fix in run.carried.fixes:  # since it was loaded
            self._read_anew(fix)

    @cached_property
    def suspension(self) -> Suspension:
        """The way out of memory, for a run that waits for a person or that its host cuts off."""
        return Suspension(self.run, self.services, self.turn, self.publisher, self.trace)

    def _read_anew(self, fix: Fix) -> bool:
        turn, step = self.turn, self.model_step
        before = (*turn.rows, *turn.waiting, *step.view.history, step.recalled)
        step.correct(fix)
        turn.rows[:] = map(fix, turn.rows)
        turn.waiting[:] = [replace(one, text=fixed_text(fix, one.text)) for one in turn.waiting]
        self.inbox.texts.correct(fix)
        if self.tool_step is not None:
            self.tool_step.correct(fix)
        summary = fix(UserMessage(step.view.summary, note="summary")).text
        history = tuple(map(fix, step.view.history))
        now = (*turn.rows, *turn.waiting, *history, step.recalled)
        changed = before != now or summary != step.view.summary
        step.view = replace(step.view, history=history, summary=summary)
        return changed or not history  # which is not loaded yet, perhaps

    async def execute(self) -> RunResult[Any]:
        """The result, stored and announced. Raises nothing but a cancellation from outside."""
        finish: Finish | None = None
        try:
            finish = await self._bounded()
        except AgentError as error:
            finish = self._failed(error)
        except ConfigError as error:
            # No bug: the message says what to install, or to configure.
            self.services.events.log.warning(str(error), run=self.run.id)
            failure = Llm(str(error), kind="bad_request")
            failure.__cause__ = error
            finish = self._failed(failure)
        except Exception as error:
            finish = await self._broken(error)
        finally:
            # Cancelled from outside, there is no finish. The end awaits all the same, shielded.
            if finish is None and self._cut_off is not None:
                self._cut_off()
            result = await self._end(finish)
        return result

    async def _end(self, finish: Finish | None) -> RunResult[Any]:
        """End the run in one of three ways: it is suspended, left to the next host, or over."""
        # Children first: their results belong into the last row, and the run's budget and scope
        # must outlive them.
        if self.run.lineage.children is not None:
            with trio.CancelScope(shield=True):  # without a deadline, as G1 wants it
                await self.inbox.children.end()
        finish = finish or self._stop()
        if finish.status == "waiting":
            if not await self.suspension.suspend(self.tool_step):
                finish = self._stop()  # it could not be stored, or a stop came meanwhile
            elif self.suspension.state == "kept":
                finish = Finish("interrupted", detail=self._why)
        is_over, outcome = finish.status not in ("waiting", "interrupted"), None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FINISH_BUDGET):
            if finish.status == "interrupted":
                await self.suspension.keep_for_next_host(self.tool_step)
            if is_over:
                outcome = await self._conclude(finish)
        outcome = outcome or self._outcome(finish)
        if self.hooks.watch_end and is_over:
            # After the end is stored, and with a budget of their own: a slow observer may delay the
            # caller, but never cost a transcript.
            if (failure := self.failure) is not None:
                await self.hooks.failed(failure.kind, finish.detail, failure.error_id)
            await self.hooks.end(finish.status, finish.output, finish.detail, outcome.usage)
        error, error_id = ("", None) if self.failure is None else self.failure.labels
        self.trace.finish(finish.status, finish.output, error=error, error_id=error_id)
        result = outcome.result()
        # From here on nothing waits: who is woken by the end finds the run suspended already.
        self.services.table.finish(self.run, result)
        if finish.status == "waiting":
            self.suspension.publish()
        return result

    async def _conclude(self, finish: Finish) -> Outcome:
        """Announce cut calls, store the rows, say how the run ended. One transaction, one event."""
        run, turn = self.run, self.turn
        if run.carried.start_published is False:  # a stop has ended it before it went on
            await self._tell_start(again=False)
        if self.tool_step is not None:
            await self.tool_step.report_cut()
        self.inbox.children.conclude()
        last = turn.rows[-1] if turn.rows else None
        if isinstance(last, AssistantMessage) and last.note not in ("", "silent"):
            await self.publisher.say("assistant", run.agent.name, last.text)
        # The terminal event goes into the transaction of the rows. Published here alone, a kill
        # between the two would leave an end that is not on disk, or rows of a run without an end.
        outcome = self._outcome(finish)
        terminal = outcome.terminal()
        is_stored = await store(outcome, terminal, self.queue, self.services)
        if finish.status == "completed":
            await learn(outcome, self.services)
        if is_stored:
            await self.publisher.emit(terminal)
        else:
            self.services.events.show(run, terminal)
        return outcome

    def _outcome(self, finish: Finish) -> Outcome:
        return Outcome(
            run=self.run,
            finish=finish,
            rows=tuple(self.turn.rows),
            usage=self.turn.spent,
            results=self.turn.results,
            failure=self.failure,
            approvals=self.suspension.approvals if finish.status == "waiting" else (),
            structured=self.model_step.output.declared,
            value=self.model_step.output.value(finish),
        )

    async def _bounded(self) -> Finish:
        """Drive the turn under the run's scope, which a stop or the wall time cancels."""
        run = self.run
        try:
            with foreign_code, run.scope:
                if run.lineage.child_limit is None:
                    return await self._drive()
                async with run.lineage.child_limit:
                    return await self._drive()
        except Exception as error:
            if not run.scope.cancel_called:
                raise
            # A part that was cancelled has failed in its clean-up. The run was stopped, whatever
            # its parts make of that.
            self.services.events.log.warning(
                "a part of a stopped run has failed", run=run.id, exc_info=error
            )
        # The scope has swallowed its cancellation here. A stop has left its reason; without one it
        # was a deadline: the run's own limit, or, earlier than that, the limit of its caller.
        is_child, now = run.lineage.caller is not None, trio.current_time()
        if run.is_cut:
            return self._stop()
        if not run.stop_reason and is_child and now < self.turn.budget.own_deadline:
            run.cancel(CALLER_ENDED)  # the wall time of its caller is over
        if not run.stop_reason:  # only the wall time can have cancelled the scope
            return self.turn.finish or self.turn.limit(
                "wall", self.publisher.partial, self._known()
            )
        return self._stop()

    def _stop(self) -> Finish:
        """End the turn at once: suspend it, leave it to the next host, or close its rows.

        The last row says who or what has ended it. A turn that had ended before stays as it is.
        """
        # The order is the rule: an answer that is complete is kept, a question to a person is
        # kept for its answer, work for the next host is left alone, and only the rest is closed.
        if self.turn.finish is not None:
            return self.turn.finish
        if self.tool_step is not None and self.suspension.is_due(self.tool_step):
            return Finish("waiting")
        if self.run.is_for_next_host:
            return Finish("interrupted", detail=self._why)
        cause = "" if self.run.by_user else self._why
        finish = self.turn.stop(self.publisher.partial, self._known(), cause)
        return replace(finish, detail=self._why)

    @property
    def _why(self) -> str:
        return self.run.stop_reason or "the host is closing"

    async def _drive(self) -> Finish:
        self.run.follow_budget()
        decision = self._resumed or await self._begin()
        if self._resumed is not None:
            await self._load()
            await self.inbox.children.load_earlier(self.services.store)
            await self._tell_start(again=True)
        await self._prepare()
        if self.run.agent.memory:
            self.model_step.recalled = await read_memory(self.services, self.run)
        self.turn.failures = await self._failures()
        while True:
            match decision:
                case CallModel() if self.run.soft_stop:
                    # Between two requests: the calls of the last answer have all ended.
                    self.run.cancel("cancelled by the caller", by_user=True)
                    return self._stop()
                case CallModel():
                    decision = await self._think(decision)
                case RunCalls():
                    results = await self._act(decision)
                    if self.tool_step is not None:
                        return Finish("waiting")
                    decision = await self._observe(results)
                    if self.run.next_agent is not None and isinstance(decision, CallModel):
                        await self._change_agent(self.run.next_agent)
                case Finish():
                    return decision

    async def _begin(self) -> Decision:
        """Take the input as the first row; an input that its gates refuse leaves none."""
        run = self.run
        guarded = self.hooks.guard_input
        # Before any await, so that a stop leaves no input without its row.
        decision = None if guarded else self.turn.begin(run.input.text, run.input.sender)
        await self.services.journal.begin(run.id)
        await self._tell_start(again=bool(run.carried.start_published))
        if decision is None:
            decision = await self._admit()
        else:
            await self.publisher.say("user", run.input.principal.user, run.input.text)
            await self._load()
        return decision

    async def _tell_start(self, *, again: bool) -> None:
        """``again``: the run resumes, from an earlier host or from a suspension."""
        run = self.run
        if run.carried.start_published is False or not again:
            if run.carried.start_published is False:
                run.carried.start_published = True
            await self.publisher.emit(events.RunStarted(run.agent.name, self.model_step.full_name))
        if again:
            await self.publisher.emit(events.RunResumed(self.publisher.messages))

    async def _admit(self) -> Decision:
        """Ask the gates of the input. After a crash meanwhile no model may see the input."""
        run = self.run
        # In place of the text: recovery would otherwise give the next host's model an input that
        # no gate has let pass (G10).
        await self._journal_withheld()
        await self._load()
        if self.first:
            await self.hooks.start(resumed=bool(self.model_step.view.history))
        admitted = await self.hooks.input(run.input.text)
        text = admitted if isinstance(admitted, str) else run.input.text
        decision = self.turn.begin(text, run.input.sender)
        await self.services.journal.note(run.id, 0, self.turn.rows[0])
        await self.publisher.say("user", run.input.principal.user, text)
        if isinstance(admitted, str):
            return decision
        return await self._take(await self.model_step.output.passed(admitted))

    async def _prepare(self) -> None:
        """Prepare the folder of the tools and the agent's files for the prompt."""
        run = self.run
        prepared = await self.services.toolkits.current.workspaces.prepare(
            run.agent.name, run.agent.profile, user=run.input.principal.user, session=run.session
        )
        if run.workspace is not None:  # a child that shares its caller's folder
            prepared = attrs.evolve(prepared, folder=run.workspace)
        self.model_step.prepared, run.workspace = prepared, prepared.folder
        for problem in prepared.problems:
            await self.services.events.warn(run, "bootstrap", problem, grave=False)
        mcp = self.services.toolkits.of(run).mcp
        if mcp.servers:
            for problem in await mcp.prepare(run.agent.name):
                await self.services.events.warn(run, "mcp", problem, grave=False)

    async def _journal_withheld(self) -> None:
        try:
            withheld = RecordIntent(self.run.id, 0, UserMessage(WITHHELD))
            await self.services.runs.record_intent(withheld)
        except Exception as error:
            message = f"after a crash now, the input would pass its gates: {error}"
            await self.services.events.warn(self.run, "transcript", message)

    async def _load(self) -> None:
        """Load the conversation: the stored rows, and those that earlier runs could not store."""
        self._runs_seen = self.queue.ended
        async with self.queue.storing():  # or rows would be found twice
            found = await self.services.context(self.run.session)
            rows = found.rows + self._unsaved_rows if self.queue.unsaved else found.rows
            scan = self.services.contexts.scan(self.run.session)
        if self.run.carried.fixes:  # the rows may have been read before
            rows = fixed_rows(self.run.carried.fixes, rows)
        self.model_step.view = self.model_step.view.rebased(rows, found.summary, scan)

    @property
    def _unsaved_rows(self) -> tuple[ChatMessage, ...]:
        """The rows of earlier runs that could not be stored yet."""
        return tuple(row for end in self.queue.unsaved for row in end.rows)

    async def _failures(self) -> Failures | None:
        """The failed calls of the session and of this run.

        An unanswered escalation counts, also when a summary stands for its rows.
        """
        view, needs_review = self.model_step.view, False
        rows, summary = view.history, view.summary
        if not (summary or self._resumed or view.scan.extended_to(rows).any_failed):
            return None
        notes = {row.note for row in rows if isinstance(row, AssistantMessage)}
        if summary or "escalated" in notes:
            session = await self.services.store.ask(GetSession(self.run.session))
            needs_review = session is not None and session.needs_review
        if summary and needs_review:
            rows = (
                await self.services.store.ask(LoadTranscript(self.run.session)) + self._unsaved_rows
            )
        shared, sender = is_shared(self.run.session), self.run.input.sender
        said_by = partial(begun_by, sender=sender) if shared else None
        failures = failures_before(
            rows, self.run.limits, needs_review=needs_review, said_by=said_by
        )
        return failures if self._resumed is None else counted(failures, self.turn.rows)

    async def _think(self, decision: CallModel) -> Decision:
        """Ask the model, then the gates of its answer."""
        await self.publisher.emit(events.Activity("waiting_model", decision.iteration))
        # In a group several runs share the transcript. Each reads it again before a request, since
        # a lock would make one sender wait for the model of another.
        if self.queue.ended != self._runs_seen:
            await self._load()
        try:
            response = await self.model_step.answer(decision)
        except OverBudget as over:
            await trio.lowlevel.checkpoint_if_cancelled()
            return self.turn.limit(over.limit)
        response = await self.hooks.response(response, decision.iteration)
        if response.stop_reason == "content_filter":
            return self._refuse(response)
        is_part = response.stop_reason == "paused" and not response.calls
        if is_part and not self.turn.is_last(response):
            return await self._take(response, whole=False)
        output = self.model_step.output
        if output.withheld and self.turn.draft:  # data is read as a whole
            response = replace(response, text=self.turn.take_draft() + response.text)
        settled = await output.settled(response)
        if not isinstance(settled, ModelResponse):
            return await self._entered(settled)
        response = settled
        if self.run.lineage.children is not None:
            await self.inbox.children.before_end(response, self.inbox.texts)
        texts, inputs = self.inbox.texts, self.queue.inputs
        if inputs and not response.calls:
            await texts.admit()
        if not self.turn.is_last(response, more=bool(inputs and texts.ready())):
            return await self._take(response, whole=False)
        draft = self.turn.draft
        whole = replace(response, text=draft + response.text) if draft else response
        passed = await self.hooks.output(whole)
        if isinstance(passed, Continue):
            return await self._go_on(response, passed.text)
        return await self._take(await self.model_step.output.passed(passed))

    def _refuse(self, response: ModelResponse) -> Finish:
        """End the run: the model refused. Text that no gate has seen, or data, is left out."""
        said = "" if self.hooks.guard_answers else self.turn.draft + response.text
        hides = self.hooks.guard_answers and response.refusal in response.text
        reason = "" if hides else one_line(redact_text(response.refusal), REASON)
        shown = "" if self.model_step.output.withheld else said
        return self.turn.refuse(reason or "no reason was given", shown)

    async def _take(self, response: ModelResponse, *, whole: bool = True) -> Decision:
        """Give the turn an answer; one that was cut off is published when it is whole."""
        text = response.text if whole else self.turn.draft + response.text
        if fixes := self.run.carried.fixes:  # since the model was asked
            response = fixed_answer(fixes, response)
        if is_steered := bool(self.queue.inputs):  # seldom: the calls for nothing are spared
            self.inbox.texts.offer()
        decision = self.turn.answered(response, whole=whole)
        if is_steered:
            await self.inbox.texts.record()
        self.publisher.before = draft = self.turn.draft
        heard = decision.output if isinstance(decision, Finish) else text
        if heard and not draft:
            await self.publisher.say("assistant", self.run.agent.name, heard)
        return await self._entered(decision)

    async def _observe(self, results: list[CallResult]) -> Decision:
        """Give the turn the results of calls, and the messages that arrived meanwhile."""
        self.inbox.children.take()
        if is_steered := bool(self.queue.inputs):
            self.inbox.texts.offer()
        decision = self.turn.observed(results, wall_time())
        if is_steered:
            await self.inbox.texts.record()
        return await self._entered(decision)

    async def _entered(self, decision: Decision) -> Decision:
        """Journal the row of messages that have just entered, and the answer before it.

        Not before it is on disk that they have: until then their texts have another owner there.
        """
        rows, late = self.turn.rows, self.run.carried.entered
        last = rows[-1] if isinstance(decision, CallModel) and not late else None
        if isinstance(last, UserMessage) and last.note == "injected":
            for step in range(len(rows) - 2, len(rows)):
                await self.services.journal.note(self.run.id, step, rows[step])
        for author, text in self.inbox.texts.entered():
            await self.publisher.say("user", author, text)
        return decision

    async def _change_agent(self, agent: AnyAgent) -> None:
        """Hand over to ``agent``: its model, instructions and tools, the same conversation."""
        run, before = self.run, self.run.agent.name
        # A hand-over must not add a right: the policies of all agents so far hold for the next one.
        run.lineage.ancestors = tuple(dict.fromkeys(run.subjects))
        run.agent, run.next_agent, run.workspace = agent, None, None
        try:
            run.carried.handed_to += (agent.name,)
            await self.services.store.ask(HandOver(run.id, run.carried.handed_to))
            run.carried.handed_to = ()
        except Exception as error:
            message = f"that {agent.name!r} takes over is not on disk: {error}"
            await self.services.events.warn(run, "transcript", message)
        self.turn.loops.kinds = self.services.toolkits.of(run).catalog.kinds(agent.name)
        self.model_step.output.change_agent()
        self.model_step.change_agent()
        await self._prepare()
        self.model_step.recalled = await read_memory(self.services, run) if agent.memory else ""
        await self.publisher.emit(
            events.AgentChanged(agent.name, self.model_step.full_name, before)
        )

    async def _go_on(self, response: ModelResponse, text: str) -> Decision:
        """A hook has the model continue: journal and publish the hook's text."""
        decision = self.turn.continued(response, text)
        await self.publisher.say("assistant", self.run.agent.name, response.text)
        if isinstance(decision, CallModel):
            await self.publisher.say("user", "hook", text)
            for step in (len(self.turn.rows) - 2, len(self.turn.rows) - 1):
                await self.services.journal.note(self.run.id, step, self.turn.rows[step])
        return decision

    def _new_tool_step(self, decision: RunCalls, left: Resumption | None = None) -> ToolStep:
        rows, capture = self.turn.rows, self.suspension.capture
        refused = self.turn.not_run.values()
        return ToolStep(self.run, self.services, decision.calls, rows, refused, capture, left)

    async def _act(self, decision: RunCalls) -> list[CallResult]:
        """Run the calls. The tool step stays when some calls are suspended."""
        await self.publisher.emit(events.Activity("tool", self.turn.iteration))
        self.tool_step = self.tool_step or self._new_tool_step(decision)
        results = await self.tool_step.execute()
        # A tool may have swallowed the cancellation. Without this look the run would send its
        # results to the model after a stop.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.tool_step.states.has_any("suspended"):
            return []
        if self.queue.inputs:
            await self.inbox.texts.admit()
        self.tool_step = None
        return list(results)

    def _known(self) -> list[CallResult]:
        return self.tool_step.results if self.tool_step else []

    def _failed(self, error: AgentError, error_id: str | None = None) -> Finish:
        if self.turn.finish is not None:  # what failed came after the end of the turn
            return self.turn.finish
        self.failure = Failure(error, error_id or self.model_step.output.error_id)
        return self.turn.fail(redact_text(str(error)), self.publisher.partial, self._known())

    async def _broken(self, error: Exception) -> Finish:
        """A bug: log and store the whole error, and give its id to the user."""
        run = self.run
        self.services.events.log.error("internal error in a run", run=run.id, exc_info=error)
        error_id: str | None = None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            report = await self.services.errors.report(run.origin("runtime"), error)
            error_id = report.error_id
        where = f" [Error ID: {error_id}]" if error_id else ""
        internal = Internal(f"internal error: {type(error).__name__}{where}")
        internal.__cause__ = error
        return self._failed(internal, error_id)
