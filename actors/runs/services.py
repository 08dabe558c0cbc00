"""The objects that the runs of one host share: refs to actors, and plain objects.

Nothing here is replaced while a host lives: what a reload changes is in :class:`Toolkits`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import date
from typing import Protocol

import attrs

from motet.actors.agents.prompt import PromptCache
from motet.actors.agents.toolkit import Toolkit
from motet.actors.hooks.chain import HooksClient
from motet.actors.models.provider import ForgetModels, Provide
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.queue import SessionSettings
from motet.actors.runs.run import Run
from motet.actors.runs.table import RunEvents, RunTable
from motet.actors.runs.turn import Turn
from motet.actors.storage.run_access import ContextCache, RunJournal
from motet.actors.storage.session_runs import RunTables
from motet.actors.storage.writer import StorageHealth
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.actors.telemetry.tracer import RunTrace, Tracer
from motet.actors.tools.breakers import Breakers
from motet.actors.transcript.history import estimate, estimate_text, usage_of
from motet.protocols.approvals import ApprovalProtocol
from motet.protocols.events import InputSteered
from motet.protocols.limits import Limits
from motet.protocols.memory import Memory
from motet.protocols.models import Generate, ModelProtocol, ModelRequest, ModelResponse, Revise
from motet.protocols.room_copies import Fix, fixed_request
from motet.protocols.session_keys import ROOM_CHANNEL
from motet.protocols.sessions import LoadContext, SessionContext, SessionStoreMessage
from motet.protocols.tools import ExecuteCall
from motet.runtime import ActorDead, ActorRef
from motet.runtime.outside import wall_time


class Suspending(Protocol):
    """Where runs go that wait for a person, and how they come back."""

    @property
    def approvals(self) -> ActorRef[ApprovalProtocol]: ...
    def add(self, run: Run) -> None: ...
    def agent_added(self, name: str) -> None: ...


class Toolkits:
    """The toolkit that is configured now, and the one of each run.

    A reload puts another one in force; runs that go on keep theirs.
    """

    def __init__(self, current: Toolkit, table: RunTable, settings: SessionSettings) -> None:
        self.current = current
        self._table = table
        self._settings = settings

    def adopt(self, toolkit: Toolkit) -> None:
        """Give this toolkit to runs that start from now on."""
        self.current = toolkit

    def of(self, run: Run) -> Toolkit:
        """The toolkit of a run."""
        return run.toolkit or self.current

    def of_id(self, run_id: str) -> Toolkit | None:
        """The own toolkit of a live run; None: it has none, or is over."""
        run = self._table.runs.get(run_id)
        return run.toolkit if run is not None else None

    def refresh(self, run: Run) -> None:
        """Give a run that is about to start the current toolkit; a child keeps its caller's."""
        toolkit = self.current
        if run.toolkit is toolkit or (run.toolkit is not None and run.lineage.caller is not None):
            return
        latest = toolkit.registry.own(run.agent.name)
        if latest is not None and latest is not run.agent:
            if run.limits is run.agent.limits:
                run.limits = latest.limits
            run.agent = latest
        if latest is not None or run.toolkit is None:
            run.toolkit = toolkit

    def model_of(self, run: Run) -> str:
        """The model that was chosen for the session of a run; empty: none, or it is gone."""
        chosen = self._settings.of(run.session, run.input.principal.user).model
        known = self.current.registry.models() if chosen else ()
        return chosen if chosen in known else ""


class ModelAccess:
    """The actors that speak to models: looked up once for each model and generation."""

    def __init__(self, models: ActorRef[Provide | ForgetModels], toolkits: Toolkits) -> None:
        self._models = models
        self._toolkits = toolkits
        self._providers: dict[tuple[str, int], ActorRef[ModelProtocol]] = {}
        self.asked: dict[str, tuple[Run, ActorRef[ModelProtocol], ModelRequest]] = {}

    async def provider(self, model: str, generation: int) -> ActorRef[ModelProtocol]:
        """The actor that speaks to a model, as it was configured in ``generation``.

        Looked up again when it has ended.
        """
        known = self._providers.get((model, generation))
        if known is None or not known.is_alive:
            known = await self._models.ask(Provide(model, generation))
            self._providers[model, generation] = known
        return known

    async def forget(self, generation: int) -> None:
        """End the actors of models that are configured otherwise now, and that no run uses."""
        for key in [key for key in self._providers if key[1] == generation]:
            del self._providers[key]
        await self._models.ask(ForgetModels(generation))

    def correct(self, user: str, fix: Fix) -> None:
        """Change the requests for a user that may wait for a place at their models, or a retry."""
        for key, (run, provider, request) in self.asked.items():
            if run.input.principal.user == user:
                self.asked[key] = run, provider, (fixed := fixed_request([fix], request))
                with suppress(ActorDead):  # then it is asked for no more
                    provider.tell_nowait(Revise(key, fixed))

    def asking(
        self, run: Run, model: str, trace: RunTrace, purpose: str, turn: Turn | None = None
    ) -> Callable[[ModelRequest], Awaitable[ModelResponse]]:
        """A function that asks a model for ``run``, for an answer nobody watches, as a span.

        It raises ``Llm``, and ``OverBudget`` when the run that pays for it, ``turn``, cannot.
        ``purpose``: of the request, such as ``summary``.
        """
        payer = turn if turn is not None else Turn(Limits())

        async def ask(request: ModelRequest) -> ModelResponse:
            tokens = estimate(request.messages) + estimate_text(request.system)
            expected = payer.budget.expects(tokens, request.max_output_tokens)
            with trace.model(model, request, purpose=purpose) as span:
                payer.budget.hold(expected)
                try:
                    provider = await self.provider(model, self._toolkits.current.generation)
                    self.asked[run.id] = run, provider, request
                    asked = Generate(request, *payer_of(run), run.id)
                    response = await provider.stream_to(asked, span.part)
                    span.answered(response)
                    payer.spend(usage_of(response, tokens))
                finally:
                    self.asked.pop(run.id, None)
                    payer.budget.release(expected)
                return response

        return ask


def payer_of(run: Run) -> tuple[str, str]:
    """The room or the session that a run works for, with all that works for it; and the user.

    In a room that is the first of those whose words the turn answers.
    """
    user, above = run.input.principal.user, run.lineage.ancestors
    if user.startswith(f"{ROOM_CHANNEL}:"):
        return user, run.input.payers[0] if run.input.payers else user
    return above[0].session if above else run.session, user


async def publish_entered(run: Run, inputs: Sequence[str], services: Services) -> None:
    """Publish that inputs have entered a run, once the disk has that."""
    for one in inputs:
        event, owner = InputSteered(run.id), run.input.principal.user
        await services.events.emit_to(run.session, owner, event, one)


@attrs.frozen(eq=False, kw_only=True)
class Services:
    """Refs stay valid across restarts of what they point to.

    Attributes:
        runs: what ``store`` does at the begin and the end of each run, without a message.
        tools: the executor of calls.
        events: publishes what happens to runs.
        journal: rows of unfinished runs, on their way to disk.
        health: whether anything can be stored now.
        contexts: of recently used sessions; read only.
        pending_approvals: calls that wait for a person in this process.
        suspended_runs: runs that wait for long; None: no run can be suspended.
        today: for the system prompt.
    """

    table: RunTable
    store: ActorRef[SessionStoreMessage]
    runs: RunTables
    tools: ActorRef[ExecuteCall]
    toolkits: Toolkits
    settings: SessionSettings
    models: ModelAccess
    events: RunEvents
    hooks: HooksClient
    errors: ErrorChannel
    breakers: Breakers
    tracer: Tracer
    memory: Memory | None
    journal: RunJournal
    health: StorageHealth
    contexts: ContextCache
    pending_approvals: PendingApprovals
    suspended_runs: Suspending | None
    prompts: PromptCache = attrs.field(factory=PromptCache)
    today: Callable[[], date] = lambda: date.fromtimestamp(wall_time())

    async def context(self, session: str) -> SessionContext:
        """The summary and rows that a run shows of its session, from the cache or the store."""
        known = self.contexts.get(session)
        return known if known is not None else await self.store.ask(LoadContext(session))
