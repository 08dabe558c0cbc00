"""Model requests of one run, and the conversation kept within the model's window.

:class:`ContextWindow` decides what a request holds, and is pure; this module does the I/O.
"""

from __future__ import annotations

import trio
from msgspec.structs import replace

from motet.actors.agents.prompt import CachedPrompt
from motet.actors.agents.workspace import PromptRun, prompt_input
from motet.actors.runs.hooks import RunHooks
from motet.actors.runs.output import RunOutput
from motet.actors.runs.publisher import RunPublisher
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services, payer_of
from motet.actors.runs.turn import CallModel, Turn
from motet.actors.tools.mcp.tool_search import PREFIX
from motet.actors.transcript.grammar import CALL_ID_LENGTH, CHILD_TOOLS, with_unique_ids
from motet.actors.transcript.history import UNCALIBRATED, usage_of
from motet.actors.transcript.summary import SUMMARY_DEADLINE
from motet.actors.transcript.window import ContextWindow, Plan, PreparedRows, due_after_run
from motet.protocols import events
from motet.protocols.budget import NOTHING, OverBudget
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import Llm
from motet.protocols.models import (
    Generate,
    ModelRequest,
    ModelResponse,
    Queued,
    Retrying,
    Streamed,
    TextPart,
    ThinkingPart,
)
from motet.protocols.room_copies import Fix, fixed_lines, fixed_request
from motet.protocols.tool_schemas import MOST_TOOLS, within
from motet.protocols.tools import ToolSpec


class ModelStep:
    """The model of one run.

    Attributes:
        view: the conversation as requests show it.
        recalled: found in the memory, for the system prompt.
        prepared: the folder and the files of the agent and its user.
        output: of the run; it says what a request asks for.
        full_name: of the model, provider first.
        around: estimated tokens of the system prompt and the tools.
    """

    def __init__(
        self,
        run: Run,
        services: Services,
        hooks: RunHooks,
        turn: Turn,
        publisher: RunPublisher,
        output: RunOutput,
    ) -> None:
        self.view = ContextWindow(window=run.agent.window, turns=run.agent.history)
        self.recalled = ""
        self.prepared = services.toolkits.current.workspaces.bare
        self._run = run
        self._payer = payer_of(run)
        self._services = services
        self._hooks = hooks
        self._turn = turn
        self._publisher = publisher
        self.output = output
        self.full_name = run.model_name
        self.around = 0
        self._tokens = 0
        self._toolkit = services.toolkits.of(run)
        self._trace = services.tracer.of(run.id)
        self._prompt: CachedPrompt | None = None
        self._own: tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]] | None = None
        self._fits: tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...], str] | None = None
        self._warned: set[str] = set()

    def change_agent(self) -> None:
        """After a hand-over: use the model, the window and the prompt of the new agent."""
        agent, self._prompt = self._run.agent, None
        self.full_name = self._run.model_name
        self.view = replace(
            self.view, window=agent.window, turns=agent.history, calibration=UNCALIBRATED
        )

    @property
    def _model(self) -> str:
        """The provider's own name of the model."""
        return self.full_name.partition(":")[2] or self.full_name

    async def answer(self, decision: CallModel) -> ModelResponse:
        """The model's answer. A conversation that is too long is compacted, before or after.

        What was streamed of an answer that did not fit is withdrawn.

        Raises ``Llm``, ``OverBudget`` when the budget has no room for the request, and ``Aborted``
        when a gate ends the run.
        """
        request, sent = await self._fitting(decision)
        try:
            return await self._asked(request, sent, decision)
        except Llm as error:
            too_long = error.kind == "context_exhausted"
            if not (too_long and await self._compact(sent, decision, overflow=True)):
                raise
            self._publisher.part(Retrying(1, 0.0, str(error)))
        return await self._asked(*self._request(decision), decision)

    def correct(self, fix: Fix) -> None:
        """Read what was recalled as it is after a change of a message."""
        recalled = fixed_lines([fix], self.recalled)
        if recalled != self.recalled:
            self.recalled, self._prompt = recalled, None

    @property
    def filled(self) -> tuple[int | None, int]:
        """The tokens of its last request, if there was one, and how many the model takes."""
        return self._tokens or None, self.view.window

    @property
    def is_long(self) -> bool:
        """Whether the conversation should be summarised now that the run is over."""
        rows = self.view.count(self._turn.rows)
        return due_after_run(rows, self._tokens, self.view.window, self.view.compacting)

    async def _fitting(self, decision: CallModel) -> tuple[ModelRequest, PreparedRows]:
        while True:
            request, sent = self._request(decision)
            if not await self._compact(sent, decision):
                return request, sent
            if self.view.stuck:
                raise Llm(self.view.stuck, kind="context_exhausted")

    async def _asked(
        self, request: ModelRequest, sent: PreparedRows, decision: CallModel
    ) -> ModelResponse:
        """Let the gates see the request, stream the answer out, and spend what it used."""
        left_out = self._fits[2] if self._fits is not None else ""
        if left_out and left_out not in self._warned:
            self._warned.add(left_out)
            await self._services.events.warn(self._run, "tools", left_out, grave=False)
        asked = await self._hooks.request(request, decision.iteration)
        if isinstance(asked, ModelResponse):
            return asked
        budget = self._turn.budget
        metered, expected = budget.metered, NOTHING
        if metered:
            expected = budget.expects(sent.tokens, asked.max_output_tokens)
            budget.hold(expected)
        shown, publish = self._shown_parts(), self._publisher.part
        try:
            with self._trace.model(self.full_name, asked, iteration=budget.turns) as span:
                if (asks := self._run.agent.name) != self._trace.agent:
                    span.agent = asks

                def take(part: Streamed) -> None:
                    if span.first_token is None or type(part) is Retrying:
                        span.part(part)
                    if type(part) in shown:  # `isinstance` is slow for the many that are not
                        publish(part)

                provider = await self._services.models.provider(
                    self.full_name, self._toolkit.generation
                )
                # As it is to be read now, if a message was changed since it was made.
                run = self._run
                final = fixed_request(run.carried.fixes, asked) if run.carried.fixes else asked
                self._services.models.asked[run.id] = run, provider, final
                response = await provider.stream_to(Generate(final, *self._payer, run.id), take)
                span.answered(response)
                self._turn.spend(usage_of(response, sent.tokens))
            # A stop that came before the turn takes the answer wins, and keeps what was shown.
            await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self._services.models.asked.pop(self._run.id, None)
            if metered:
                budget.release(expected)
        if response.stop_reason == "context_exhausted":
            raise Llm(
                f"{self.full_name}: the answer did not fit in the model's context window",
                kind="context_exhausted",
            )
        self._publisher.end()
        if asked is request:
            self.view = self.view.calibrated(sent, response.usage.input_tokens)
        if response.calls:
            response = self._with_unique_calls(response, decision.iteration)
        if metered and (unchecked := budget.warning()):
            await self._services.events.warn(self._run, "limits", unchecked, grave=False)
        return response

    def _with_unique_calls(self, response: ModelResponse, iteration: int) -> ModelResponse:
        """The response with real names of tools, and ids of calls that are new to the conversation.

        Models abbreviate names, and some servers count ids anew in each response.
        """
        calls = self._toolkit.policy.called(self._run.agent.name, response.calls)
        if calls is not response.calls:
            response = replace(response, calls=calls)
        used = {
            call.id
            for row in (*self.view.history, *self._turn.rows)
            if isinstance(row, AssistantMessage)
            for call in row.calls
        }
        new = [call.id for call in response.calls]
        if used.isdisjoint(new) and max(map(len, new)) <= CALL_ID_LENGTH:
            return response
        return replace(response, calls=with_unique_ids(response.calls, self._run.id, iteration))

    def _shown_parts(self) -> tuple[type[Streamed], ...]:
        """The parts of an unfinished answer that people see.

        Not the parts that a gate may refuse, nor data that has to be checked.
        """
        if self._hooks.guard_answers:
            return (Retrying, Queued)
        if self.output.withheld:
            return (Retrying, Queued, ThinkingPart)
        return (Retrying, Queued, ThinkingPart, TextPart)

    def _request(self, decision: CallModel) -> tuple[ModelRequest, PreparedRows]:
        tools, missing = self._offered() if decision.offer_tools else ((), [])
        closing = "" if decision.offer_tools else self.output.closing
        hint = "\n".join(filter(None, [decision.hint, *missing, closing]))
        tools, form = self.output.asking(self._within(tools))
        system = self._system(tools)
        sent = self.view.prepare(self._turn.rows, self.around)
        self._tokens = sent.tokens
        self.view = replace(self.view, scan=sent.scan)
        messages = (*sent.messages, UserMessage(hint, note="hint")) if hint else sent.messages
        return ModelRequest(self._model, messages, system, tools, output=form), sent

    def _system(self, tools: tuple[ToolSpec, ...]) -> str:
        """The system prompt, made anew only when other tools are offered."""
        if self._prompt is None or self._prompt.tools is not tools:
            run, agent, toolkit = self._run, self._run.agent, self._toolkit
            occasion = PromptRun(
                agent=agent.name,
                instructions=agent.instructions,
                profile=agent.profile,
                workspace=self.prepared,
                today=self._services.today(),
                session=run.session,
                user=run.input.principal.user,
                model=self.full_name,
                tools=tools,
                memory=agent.memory,
                recalled=self.recalled,
                extra=run.input.extra,
                shell=toolkit.shell,
                mcp=toolkit.mcp.listed(agent.name, run.subjects) if toolkit.mcp.servers else (),
            )
            self._prompt = self._services.prompts.write(prompt_input(occasion), tools)
        self.around = self._prompt.around
        return self._prompt.text

    def _offered(self) -> tuple[tuple[ToolSpec, ...], list[str]]:
        """The tools the model may call, and a line for each that its breaker has taken out."""
        name, said = self._run.agent.name, self._run.input
        breakers, out = self._services.breakers, dict[str, str]()
        if breakers.scopes:
            out = breakers.taken_out(name, said.principal.user, said.sender)
        toolkit = self._toolkit
        specs = toolkit.policy.offered(self._run.subjects, toolkit.catalog.specs(name))
        if toolkit.mcp.servers:
            specs = toolkit.mcp.shown(name, specs, self._run.found, self.view.history)
        if self._turn.budget.too_deep():
            specs = self._alone(specs)
        if not out:
            return specs, []
        missing = [out[spec.name] for spec in specs if spec.name in out]
        return tuple(spec for spec in specs if spec.name not in out), missing

    def _alone(self, specs: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """Without the tools that start children; the same object for the same tools."""
        if self._own is None or self._own[0] is not specs:
            self._own = specs, tuple(spec for spec in specs if spec.name not in CHILD_TOOLS)
        return self._own[1]

    def _within(self, specs: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """As many tools as the provider takes; the same object for the same tools."""
        provider = self.full_name.partition(":")[0]
        most = MOST_TOOLS.get(provider)
        if most is None or len(specs) <= (room := most - len(self.output.asking(())[0])):
            return specs
        if self._fits is None or self._fits[0] is not specs:
            kept = within(specs, room, PREFIX)
            out = [spec.name for spec in specs if spec not in kept]
            names = ", ".join(out[:5]) + (f" and {len(out) - 5} more" if len(out) > 5 else "")
            self._fits = (
                specs,
                kept,
                f"{len(specs)} tools are offered, and {provider} takes {most} in a request: "
                f"left out: {names}. Give the agent fewer tools",
            )
        return self._fits[1]

    async def _compact(
        self, sent: PreparedRows, decision: CallModel, *, overflow: bool = False
    ) -> bool:
        """Compact the conversation if it is due; whether the view has moved."""
        plan = self.view.plan(sent, self._turn.rows, overflow=overflow)
        if plan is None or not await self._hooks.compact(len(plan.rows), sent.tokens):
            return False
        await self._publisher.emit(events.Activity("compacting", decision.iteration))
        summary = await self._summary(plan)
        self.view = self.view.compacted(plan, summary, self._turn.rows, self.around)
        self._hooks.compacted(len(plan.rows), self.view.summary)
        return True

    async def _summary(self, plan: Plan) -> ModelResponse | None:
        """The model's summary of the rows; None, with a warning, when it fails."""
        why = f"no answer within {SUMMARY_DEADLINE:g} s"
        with trio.move_on_after(SUMMARY_DEADLINE):
            ask = self._services.models.asking(
                self._run, self.full_name, self._trace, "summary", self._turn
            )
            try:
                return await ask(plan.request(self._model))
            except (Llm, OverBudget) as error:
                why = str(error)
        message = f"the conversation is summarised without a model: {why}"
        await self._services.events.warn(self._run, "compaction", message, grave=False)
        return None
