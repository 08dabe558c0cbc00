"""What the sessions of one host share: refs to the actors beside them, and plain read-only data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Protocol

import attrs

from motet.actors.agents.prompt import Prompts
from motet.actors.agents.toolkit import Toolkit
from motet.actors.agents.workspace import Workbench
from motet.actors.errors.log import Logger, logger
from motet.actors.hooks.chain import HooksClient
from motet.actors.models.provider import ForgetModels, Provide
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.run import Run
from motet.actors.runs.table import RunTable, SuspendedRun
from motet.actors.runs.turn import Turn
from motet.actors.runs.watchdog import hear
from motet.actors.storage import session_sql as sql
from motet.actors.storage.context_cache import ContextCache
from motet.actors.storage.run_journal import RunJournal
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.actors.telemetry.event_bus import Fanout
from motet.actors.telemetry.tracer import RunTrace, Tracer
from motet.actors.tools.breakers import Breakers
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.mcp.directory import McpDirectory
from motet.actors.tools.policy.engine import PolicyEngine
from motet.actors.transcript.history import estimate, estimate_text, usage_of
from motet.actors.transcript.input_guard import Finding
from motet.protocols.approvals import ApprovalProtocol, Mark, SuspendedState
from motet.protocols.chat import ChatMessage
from motet.protocols.config import GuardAction, ShellConfig
from motet.protocols.events import AnyEvent, Publish, Warned
from motet.protocols.hooks import RunWarning
from motet.protocols.limits import Limits
from motet.protocols.memory import Memory
from motet.protocols.models import Generate, Model, ModelRequest, ModelResponse
from motet.protocols.sessions import LoadContext, SessionContext, SessionStoreMessage
from motet.protocols.tools import ExecuteCall
from motet.runtime import ActorDead, ActorRef
from motet.runtime.outside import wall_time


class Suspending(Protocol):
    """Where runs go that wait for a person, and how they come back."""

    @property
    def approvals(self) -> ActorRef[ApprovalProtocol]: ...
    async def store(
        self, run_id: str, suspended: SuspendedState, rows: tuple[Mark, ...]
    ) -> bool: ...
    def add(self, run: Run) -> None: ...
    def resume_to_stop(self, suspended: SuspendedRun) -> Run: ...
    def agent_known(self, name: str) -> None: ...


@attrs.define
class Services:
    """Refs stay valid across restarts of what they point to.

    Attributes:
        pending_approvals: what waits for a person in this process.
        suspended_runs: where runs go that wait for long; None: nowhere.
        dropped: events that there was no event bus for.
        today: for the system prompt.
        shell: how commands are run, for the system prompt.
        workbench: folders and files of agents and their users.
        journal: rows of runs that go on, on their way to disk.
        contexts: of sessions that were used lately; read only.
        find_model: by the name that an agent has it by, to know what it can do.
        guard: what happens to a text that looks like an attempt to take the agent over.
        toolkit: what is configured now. Its parts are here, too.
        generation: of the models' configuration.
    """

    table: RunTable
    catalog: ToolCatalog
    store: ActorRef[SessionStoreMessage]
    bus: ActorRef[Publish]
    models: ActorRef[Provide | ForgetModels]
    tools: ActorRef[ExecuteCall]
    errors: ErrorChannel
    hooks: HooksClient
    breakers: Breakers = attrs.field(factory=Breakers)
    policy: PolicyEngine = attrs.field(factory=PolicyEngine)
    pending_approvals: PendingApprovals = attrs.field(factory=PendingApprovals)
    suspended_runs: Suspending | None = None
    memory: Memory | None = None
    tracer: Tracer = attrs.field(factory=Tracer)
    today: Callable[[], date] = lambda: date.fromtimestamp(wall_time())
    find_model: Callable[[str], Model] | None = None
    mcp: McpDirectory = attrs.field(factory=McpDirectory)
    guard: GuardAction = "warn"
    shell: ShellConfig | None = None
    workbench: Workbench = attrs.field(factory=lambda: Workbench(Path("workspace")))
    prompts: Prompts = attrs.field(factory=Prompts)
    journal: RunJournal = attrs.field(factory=RunJournal)
    contexts: ContextCache = attrs.field(factory=ContextCache)
    fanout: Fanout = attrs.field(factory=Fanout)
    dropped: int = 0
    log: Logger = attrs.field(factory=lambda: logger("motet.run"))
    toolkit: Toolkit = attrs.field(kw_only=True)
    generation: int = 0
    _providers: dict[tuple[str, int], ActorRef[Generate]] = attrs.field(
        factory=dict["tuple[str, int]", ActorRef[Generate]], init=False
    )

    def of(self, run: Run) -> Toolkit:
        """What the run works with."""
        return run.toolkit or self.toolkit

    def refresh(self, run: Run) -> None:
        """Give a run that is about to start what is configured now; a child has its caller's."""
        toolkit = self.toolkit
        if run.toolkit is toolkit or (run.toolkit is not None and run.caller is not None):
            return
        latest = toolkit.registry.own(run.agent.name)
        if latest is not None and latest is not run.agent:
            if run.limits is run.agent.limits:
                run.limits = latest.limits
            run.agent = latest
        if latest is not None or run.toolkit is None:
            run.toolkit = toolkit

    def model_of(self, run: Run) -> str:
        """The model that was chosen for the session of a run; empty: none that there is now."""
        chosen = self.table.models.get(run.session, "")
        known = self.toolkit.registry.models() if chosen else ()
        return chosen if chosen in known else ""

    def adopt(self, toolkit: Toolkit) -> None:
        """Work with another toolkit from now on; runs keep theirs."""
        self.toolkit, self.generation, self.shell = toolkit, toolkit.generation, toolkit.shell
        self.catalog, self.policy, self.mcp = toolkit.catalog, toolkit.policy, toolkit.mcp
        self.find_model = toolkit.registry.model
        self.workbench = attrs.evolve(self.workbench, shelf=toolkit.shelf)

    async def warn(self, run: Run, source: str, message: str, *, grave: bool = True) -> None:
        """Something degraded and the run goes on (seed 001): log it and say so.

        ``grave``: something may be lost, so that it is logged as an error.
        """
        log = self.log.error if grave else self.log.warning
        log(message, source=source, run=run.id, session=run.session)
        await self.emit(run, Warned(source, message))
        base = (run.id, run.session, run.agent.name, run.principal)
        self.hooks.notify(RunWarning(*base, source, message))

    def log_finding(self, run: Run, finding: Finding) -> None:
        """Log what the input guard has found; never the text itself."""
        log = self.log.info if finding.level == "info" else self.log.warning
        log(finding.event, run=run.id, user=run.principal.user, patterns=list(finding.names))

    async def provider(self, model: str, generation: int | None = None) -> ActorRef[Generate]:
        """The actor that speaks to a model; asked for once, and again when it has ended.

        ``generation``: as was configured then; None: now.
        """
        generation = self.generation if generation is None else generation
        known = self._providers.get((model, generation))
        if known is None or not known.is_alive:
            known = await self.models.ask(Provide(model, generation))
            self._providers[model, generation] = known
        return known

    async def forget_models(self, generation: int) -> None:
        """End the actors of models that are configured otherwise now, and that no run uses."""
        for key in [key for key in self._providers if key[1] == generation]:
            del self._providers[key]
        await self.models.ask(ForgetModels(generation))

    def asking(
        self, model: str, trace: RunTrace, purpose: str, turn: Turn | None = None
    ) -> Callable[[ModelRequest], Awaitable[ModelResponse]]:
        """Asks a model for one answer that nobody watches, as a span of ``trace``.

        Raises ``Llm``, and ``OverBudget`` when the run that pays for it, ``turn``, cannot.
        ``purpose``: what for, such as ``summary``.
        """
        payer = turn if turn is not None else Turn(Limits())

        async def ask(request: ModelRequest) -> ModelResponse:
            tokens = estimate(request.messages) + estimate_text(request.system)
            expected = payer.budget.expects(tokens, request.max_output_tokens)
            with trace.model(model, request, purpose=purpose) as span:
                payer.budget.hold(expected)
                try:
                    provider = await self.provider(model)
                    response = await provider.stream_to(Generate(request), span.part)
                    span.answered(response)
                    payer.spend(usage_of(response, tokens))
                finally:
                    payer.budget.release(expected)
                return response

        return ask

    async def begin(self, run: Run) -> None:
        """Put on record that a queued run starts now."""
        await self.journal.add(run.id, sql.begin(run.id, wall_time()))

    async def note(self, run: Run, step: int, row: ChatMessage) -> None:
        """Journal a row of a run that goes on; what could not be written is counted."""
        await self.journal.add(run.id, sql.record(run.id, step, row))

    async def context(self, session: str) -> SessionContext:
        """What a run shows of its session; where that is known, nobody is asked."""
        known = self.contexts.get(session)
        return known if known is not None else await self.store.ask(LoadContext(session))

    async def announce(self, session: str, event: AnyEvent, run_id: str | None = None) -> None:
        """Publish what happened to a session outside of its runs."""
        with suppress(ActorDead):
            await self.bus.tell(Publish(f"session:{session}", event, run_id))

    def tell(self, run: Run, event: AnyEvent) -> bool:
        """Publish an event of a run without waiting; False if it is durable and has no room yet.

        Event failures are silent (seed 001): a host without a bus runs as well as one with it.
        """
        hear(self.table, run.id, event)
        feed = self.fanout.feed
        if feed is None or feed.closed:
            self.dropped += 1
            return True
        return feed.put(f"session:{run.session}", event, run.id)

    async def emit(self, run: Run, event: AnyEvent) -> None:
        """Publish an event of a run. Waits for room when it is durable; never fails the run."""
        if not self.tell(run, event):
            await self._tell_when_room(run.session, event, run.id)

    async def publish(self, session: str, event: AnyEvent, run_id: str) -> None:
        """The same for a run of which only the names are known."""
        hear(self.table, run_id, event)
        await self._tell_when_room(session, event, run_id)

    async def _tell_when_room(self, session: str, event: AnyEvent, run_id: str) -> None:
        while (feed := self.fanout.feed) is not None and not feed.closed:
            if feed.put(f"session:{session}", event, run_id):
                return
            await feed.room()
        self.dropped += 1
