"""The tree of a host: its actors, started in an order in which each needs only earlier ones.

They stop in reverse order: the gateway refuses inputs first, the runs end while models, tools and
stores are still there, and the database commits the last transcript before it closes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import trio

from motet.actors.agents.registry import Resolver
from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.log import LogTail, logger, redact_logs
from motet.actors.hooks.chain import Hooks, HooksClient
from motet.actors.hooks.programs import add_configured
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.answers import Access, Answers
from motet.actors.hosting.config import ConfigSource
from motet.actors.hosting.generations import Generations, secrets_of
from motet.actors.hosting.inputs import Inputs
from motet.actors.hosting.stop import Stops
from motet.actors.hosting.wiring import Stores, build_toolkit, start_stores
from motet.actors.models.provider import Models
from motet.actors.rooms.access import for_runs
from motet.actors.rooms.api import RoomApi
from motet.actors.rooms.opening import RoomParts
from motet.actors.rooms.table import Close, Open, Rooms, RoomTable
from motet.actors.runs.approval_gate import ApprovalGate
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.queue import SessionSettings
from motet.actors.runs.run import CLOSING
from motet.actors.runs.services import ModelAccess, Services, Toolkits
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.runs.table import RunEvents, RunTable, SessionActors
from motet.actors.sessions.children import ChildRuns
from motet.actors.sessions.intake import Intake
from motet.actors.sessions.recovery import Recoverer, Recovery
from motet.actors.sessions.resumption import start_resumer
from motet.actors.sessions.router import Router, RouterMessage
from motet.actors.storage.agents import StoredAgents
from motet.actors.storage.idempotency import SqliteConversations, SqliteIdempotency
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.actors.telemetry.event_bus import Publisher
from motet.actors.telemetry.subscription import EventJournal
from motet.actors.tools.breakers import Breakers
from motet.actors.tools.context import Context
from motet.actors.tools.executor import ToolExecutor
from motet.protocols.config import HostConfig
from motet.protocols.error_records import Origin
from motet.protocols.errors import ConfigError, Errors
from motet.protocols.events import AnyEvent, Warned
from motet.protocols.gateway_stores import GatewayStores
from motet.protocols.hook_rules import HookFault
from motet.protocols.hooks import AfterTool, AnyHookEvent, BeforeTool
from motet.protocols.memory import Memory
from motet.protocols.models import Model
from motet.protocols.redaction.redact import registered_secrets
from motet.protocols.sessions import ListSettings, ListUnpublishedEnds, RunInfo
from motet.protocols.tokens import Operator
from motet.protocols.tools import ExecuteCall
from motet.protocols.traces import CloseTraces, TraceProtocol
from motet.runtime import Actor, ActorRef, Supervision, System, open_system
from motet.runtime.outside import fresh_hex, wall_time

if TYPE_CHECKING:
    from motet.actors.gateway.server import Served
    from motet.protocols.config import GatewayConfig
    from motet.protocols.host import HostApi

SUPERVISION = Supervision(strategy="rest_for_one", intensity=5, period=60.0)


@attrs.frozen
class Parts:
    """The actors and objects of an open host that no reload replaces.

    Attributes:
        hooks: all hooks, those of the configuration among them.
        add: registers an agent by its name. Raises ``ConfigError``, ``UnknownName``.
        interrupted: runs that the last host on this state left, and that cannot go on.
        instance: an id of this start.
        started: Unix seconds.
    """

    system: System
    location: Location
    workspace: Path
    readers: Readers
    stores: Stores
    table: RunTable
    hooks: HookSet
    gate: ApprovalGate
    services: Services
    router: ActorRef[RouterMessage]
    session_actors: SessionActors
    resolver: Resolver
    journal: EventJournal
    intake: Intake
    room_table: RoomTable
    rooms: RoomApi
    suspended_runs: SuspendedRuns
    recovery: Recovery
    generations: Generations
    gateway: GatewaySlot
    access: Access
    inputs: Inputs
    stops: Stops
    answers: Answers
    interrupted: tuple[RunInfo, ...]
    add: Callable[[AnyAgent], None]
    instance: str = attrs.field(factory=lambda: f"boot_{fresh_hex(6)}")
    started: float = attrs.field(factory=wall_time)


class GatewaySlot:
    """The gateway of a host, once it serves one. Most hosts do not."""

    def __init__(self, system: System, stores: Stores, readers: Readers) -> None:
        self._system = system
        self._stores = stores
        self._readers = readers
        self.log_tail = LogTail()
        self.served: Served | None = None

    async def serve(
        self, host: HostApi, config: GatewayConfig, operator: Operator | None, own: GatewayConfig
    ) -> str:
        """Start it and return its URL. ``own``: the gateway of the host's configuration."""
        from motet.actors.gateway.server import open_gateway

        redact_logs()  # the gateway's loggers exist now
        self.log_tail.attach()
        tokens, disk = self._stores.tokens, (self._stores.transact, self._readers)
        await tokens.load()
        self._stores.users.note(config.tokens)
        stores = GatewayStores(SqliteIdempotency(*disk), SqliteConversations(*disk))
        extra = tuple(one for one in config.tokens if one not in own.tokens)
        self.served = await open_gateway(
            self._system, host, config, tokens, operator, stores, extra
        )
        return self.served.url


@attrs.frozen
class StandIns:
    """Replacements for the workers of a host that replays a run."""

    find_model: Callable[[str], Model] | None = None
    tools: Callable[[], Actor[ExecuteCall]] | None = None


EXECUTE = StandIns()
"""No replacement: models are asked and tools are executed."""


@asynccontextmanager
async def open_tree(
    state: str | Path | Location | None,
    workspace: str | Path | None,
    config: HostConfig,
    source: ConfigSource | None = None,
    *,
    check_messages: bool = False,
    memory: Memory | None = None,
    errors: Errors | None = None,
    stand_ins: StandIns = EXECUTE,
) -> AsyncGenerator[Parts]:
    """The actors of one host for the length of the block."""
    place = state if isinstance(state, Location) else _place(state)
    with ExitStack() as block, place as location:
        own, key = config.redaction, location.redaction_key()
        block.enter_context(registered_secrets(secrets_of(config), own=own, key=key))
        redact_logs()
        folder = _workspace(location, workspace, block)
        readers = Readers(location)
        generations = Generations(source or ConfigSource(), config, block)
        table = RunTable(config.queue)
        try:
            async with open_system(
                "host", supervision=SUPERVISION, check_messages=check_messages
            ) as system:
                stores = await start_stores(system, location, readers, config, memory, errors)
                parts = await start_actors(
                    system, location, stores, readers, generations, table, folder, stand_ins
                )
                try:
                    yield parts
                finally:
                    parts.gateway.log_tail.detach()
                    table.draining.set()  # the rest of a room's round is for the next host
                    table.cancel(list(table.queues), CLOSING)
        finally:
            table.close("the host has closed")
            # Awaits while being cancelled: connections and files have to be closed.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await generations.aclose()
                await readers.aclose()


def _place(state: str | Path | None) -> Location:
    return Location.directory(state) if state is not None else Location.memory()


def _workspace(location: Location, chosen: str | Path | None, block: ExitStack) -> Path:
    """The directory of the tools, created if it is missing. Blocks for some disk access.

    A host in memory keeps nothing: without a chosen one, its files end with the ``block``. Raises
    ``ConfigError`` if the tools could reach the database.
    """
    state = location.path
    if chosen is None and state is None:
        made = TemporaryDirectory(prefix="motet-", ignore_cleanup_errors=True)
        chosen = block.enter_context(made)
        logger("motet.workspaces").info(
            "the workspace is a temporary directory, removed when the host closes: give one to "
            "keep files",
            folder=chosen,
        )
    folder = Path(chosen or state or "", "" if chosen else "workspace").resolve()
    if state is not None and state.resolve().is_relative_to(folder):
        raise ConfigError(
            f"the state directory {str(state)!r} is inside the workspace {str(folder)!r}, where "
            "tools could write to it: choose another workspace or state directory"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def start_actors(
    system: System,
    location: Location,
    stores: Stores,
    readers: Readers,
    generations: Generations,
    table: RunTable,
    workspace: Path,
    stand_ins: StandIns,
) -> Parts:
    """Start every other actor, and resume what the last host left unfinished."""
    config = generations.config
    channel = ErrorChannel(stores.spool, partial(_warn, stores.publisher, table), stores.tracer)
    hooks = await _start_hooks(system, stores.publisher, channel, workspace, config)
    workers = await start_workers(
        system, stores, readers, generations, table, hooks, channel, workspace, stand_ins
    )
    services, resolver, suspended_runs = workers.services, workers.resolver, workers.suspended_runs
    sessions = await start_sessions(system, stores, generations, table, workers)
    session_actors, intake = sessions.actors, sessions.intake
    recovery = Recovery(
        config.recovery,
        readers,
        stores.transact,
        stores.sessions,
        table,
        resolver,
        services,
        session_actors,
    )
    interrupted = await _recover(recovery, stores.traces)
    await system.start(lambda: Recoverer(recovery), name="recovery")
    await start_resumer(system, suspended_runs, session_actors)
    room_parts = RoomParts(
        table=sessions.room_table,
        actor=sessions.rooms,
        store=stores.rooms,
        sessions=stores.sessions,
        journal=workers.journal,
        publisher=stores.publisher,
        services=services,
        resolver=resolver,
        intake=intake,
        closing=table.draining,
        config=lambda: generations.config,
        add=partial(_add_agent, generations, suspended_runs, recovery),
    )
    workers.children.connect_rooms(*for_runs(room_parts))
    access = Access(stores.sessions, stores.approvals, rooms := RoomApi(room_parts), table)
    resumable = location.outlives_host and config.recovery.resume_within > 0
    return Parts(
        system=system,
        location=location,
        workspace=workspace,
        readers=readers,
        stores=stores,
        table=table,
        hooks=hooks.hooks,
        gate=workers.gate,
        services=services,
        router=sessions.router,
        session_actors=session_actors,
        resolver=resolver,
        journal=workers.journal,
        intake=intake,
        room_table=sessions.room_table,
        rooms=rooms,
        suspended_runs=suspended_runs,
        recovery=recovery,
        generations=generations,
        gateway=GatewaySlot(system, stores, readers),
        access=access,
        inputs=Inputs(
            intake, access, table, stores.sessions, services, lambda: generations.registry, readers
        ),
        stops=Stops(table, rooms, suspended_runs, intake, resumable=resumable),
        answers=Answers(suspended_runs, access, intake, stores.sessions, services.events, rooms),
        interrupted=interrupted,
        add=room_parts.add,
    )


@attrs.frozen
class Workers:
    """The actors and objects that do the work of runs, started after the stores."""

    children: ChildRuns
    gate: ApprovalGate
    resolver: Resolver
    journal: EventJournal
    suspended_runs: SuspendedRuns
    services: Services


async def start_workers(
    system: System,
    stores: Stores,
    readers: Readers,
    generations: Generations,
    table: RunTable,
    hooks: HooksClient,
    channel: ErrorChannel,
    workspace: Path,
    stand_ins: StandIns,
) -> Workers:
    """Start models, MCP servers and the executor of tools."""
    config, publisher, breakers = generations.config, stores.publisher, Breakers()
    events = RunEvents(table, publisher, hooks)
    children = ChildRuns(table, hooks, events)
    build = partial(
        build_toolkit, stores=stores, children=children, table=table, workspace=workspace
    )
    toolkit = generations.begin(build, hooks.hooks.all())
    pending = PendingApprovals(events.emit)
    gate = ApprovalGate(pending, stores.approvals, table, config.approvals, stores.health)
    resolver = Resolver(toolkit.registry, StoredAgents(stores.agents), limits=config.limits)
    journal = EventJournal(readers, publisher.subscribers)
    suspended_runs = SuspendedRuns(
        stores.approvals, pending, table, resolver, journal, events, stores.health, config.recovery
    )
    await suspended_runs.load()
    models = await system.start(
        lambda: (
            Models(generations.find, generations.finders, generations.places)
            if stand_ins.find_model is None
            else Models(stand_ins.find_model)
        ),
        name="models",
    )
    await toolkit.mcp.start(system)
    context = partial(_context, table, workspace, children, events)
    settings = SessionSettings()
    toolkits = Toolkits(toolkit, table, settings)

    def executor() -> Actor[ExecuteCall]:
        return ToolExecutor(
            toolkit.catalog,
            hooks,
            channel,
            context,
            policy=toolkit.policy,
            toolset_of=toolkits.of_id,
            results=stores.results,
            breakers=breakers,
            approvals=gate,
            warn=channel.warn,
        )

    tools = await system.start(stand_ins.tools or executor, name="tools")
    services = Services(
        table=table,
        store=stores.sessions,
        runs=stores.runs,
        tools=tools,
        toolkits=toolkits,
        settings=settings,
        models=ModelAccess(models, toolkits),
        events=events,
        hooks=hooks,
        errors=channel,
        breakers=breakers,
        tracer=stores.tracer,
        memory=stores.memory,
        journal=stores.journal,
        health=stores.health,
        contexts=stores.contexts,
        pending_approvals=pending,
        suspended_runs=suspended_runs,
    )
    return Workers(children, gate, resolver, journal, suspended_runs, services)


@attrs.frozen
class Sessions:
    """The actors that own sessions and rooms, started after the workers."""

    actors: SessionActors
    router: ActorRef[RouterMessage]
    intake: Intake
    room_table: RoomTable
    rooms: ActorRef[Open | Close]


async def start_sessions(
    system: System, stores: Stores, generations: Generations, table: RunTable, workers: Workers
) -> Sessions:
    """Start the router of sessions and the parent of rooms; nothing is resumed yet."""
    services, actors, room_table = workers.services, SessionActors(), RoomTable()
    stalled = generations.config.watchdog.stalled
    router = await system.start(lambda: Router(services, actors, stalled), name="router")
    rooms = await system.start(lambda: Rooms(room_table), name="rooms")
    intake = Intake(table, stores.sessions, router, workers.resolver, services, actors)
    workers.children.connect(intake)
    return Sessions(actors, router, intake, room_table, rooms)


def _add_agent(
    generations: Generations, suspended_runs: SuspendedRuns, recovery: Recovery, agent: AnyAgent
) -> None:
    generations.registry.add(agent)
    suspended_runs.agent_added(agent.name)
    recovery.agent_added()


async def _start_hooks(
    system: System, publisher: Publisher, channel: ErrorChannel, workspace: Path, config: HostConfig
) -> HooksClient:
    hooks, mark = HookSet(), partial(_mark, publisher)
    add_configured(hooks, config.hooks, workspace)

    async def keep(event: AnyHookEvent, hook: str, error: Exception) -> str | None:
        call_id, arguments = "", ""
        if isinstance(event, BeforeTool | AfterTool):
            call_id, arguments = event.call_id, json.dumps(event.args)
        whose = event.agent, event.principal.user
        origin = Origin(event.session, f"hook {hook}", event.run_id, call_id, *whose, arguments)
        report = await channel.report(origin, error)
        return report.error_id

    ref = await system.start(lambda: Hooks(hooks, mark, keep), name="hooks")
    return HooksClient(hooks, ref, mark)


async def _recover(recovery: Recovery, traces: ActorRef[TraceProtocol]) -> tuple[RunInfo, ...]:
    store, events = recovery.store, recovery.events
    recovery.services.settings.load(await store.ask(ListSettings()))
    interrupted = await store.ask(await recovery.plan())
    await traces.ask(CloseTraces(interrupted))
    for end in await store.ask(ListUnpublishedEnds()):
        await events.publish_end(end.session, end.user, end.run_id, end.event)
    await events.publish_unfinished(recovery.resumable)
    return interrupted


def _warn(publisher: Publisher, table: RunTable, run_id: str, event: AnyEvent) -> None:
    """Publish that something degraded in a live run; never waits, never fails."""
    run = table.runs.get(run_id)
    if run is not None:
        publisher.put(f"session:{run.session}", event, run_id, run.input.principal.user)


def _mark(publisher: Publisher, fault: HookFault) -> None:
    """Publish that a hook failed, where, and with which consequence (G10)."""
    event = fault.event
    stream, owner = f"session:{event.session}", event.principal.user
    publisher.put(stream, Warned("hook", str(fault)), event.run_id, owner)


def _context(
    table: RunTable, workspace: Path, children: ChildRuns, events: RunEvents, request: ExecuteCall
) -> Context[object]:
    run = table.runs[request.run_id]
    return Context(
        deps=run.input.deps,
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        principal=run.input.principal,
        asked_by=run.input.asked_by,
        call_id=request.call.id,
        workspace=run.workspace or workspace,
        subjects=run.subjects,
        delegate=children.run,
        consult=children.consult,
        hand_over=children.hand_over,
        tell=partial(events.put, run),
    )
