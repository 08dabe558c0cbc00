"""Grows the tree of a host: every actor in order, so that what stands later needs what is earlier.

Stopping goes the other way round: the gateway closes its intake first, the runs end while models,
tools and stores are still there, and the database commits the last transcript before it closes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from motet.actors.agents.registry import AgentRegistry, Resolver
from motet.actors.agents.toolkit import Toolkit
from motet.actors.errors.log import LogTail, redact_logs
from motet.actors.errors.redact import registered_secrets
from motet.actors.hooks.chain import HookFault, Hooks, HooksClient
from motet.actors.hooks.programs import add_configured
from motet.actors.hooks.registry import HookSet
from motet.actors.hosting.config import Origin
from motet.actors.hosting.generations import Ground
from motet.actors.hosting.wiring import Stores, build_toolkit, start_stores
from motet.actors.models.catalog import ModelCatalog, keys_of, providers_of
from motet.actors.models.provider import Models
from motet.actors.rooms.opening import Open, Rooms, RoomTable
from motet.actors.runs.approval_gate import ApprovalGate
from motet.actors.runs.pending_approvals import PendingApprovals
from motet.actors.runs.publisher import RunEvents
from motet.actors.runs.services import ModelAccess, Services, Toolkits
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.runs.table import RunTable
from motet.actors.sessions.children import Children
from motet.actors.sessions.recovery import Recovery, start_recoverer
from motet.actors.sessions.resumption import load_suspended, start_resumer
from motet.actors.sessions.router import Router, RouterMessage
from motet.actors.storage.agents import StoredAgents
from motet.actors.storage.idempotency import SqliteConversations, SqliteIdempotency
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.tokens import TokenBook
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.actors.telemetry.event_bus import Publisher
from motet.actors.telemetry.subscription import EventJournal
from motet.actors.tools.breakers import Breakers
from motet.actors.tools.context import Context
from motet.actors.tools.executor import ToolExecutor
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, ErrorProtocol
from motet.protocols.events import AnyEvent, Warned
from motet.protocols.gateway_stores import GatewayStores
from motet.protocols.host import HostStatus
from motet.protocols.memory import Memory
from motet.protocols.queueing import QueueModes
from motet.protocols.rooms import RoomStoreMessage
from motet.protocols.sessions import EndsToTell, RunInfo, SessionModels, SessionStoreMessage
from motet.protocols.tools import ExecuteCall
from motet.protocols.traces import CloseTraces, TraceProtocol
from motet.protocols.version import __version__
from motet.runtime import ActorRef, Supervision, System, open_system
from motet.runtime.outside import fresh_hex, wall_time

if TYPE_CHECKING:
    from motet.actors.gateway.server import Served
    from motet.protocols.config import GatewayConfig
    from motet.protocols.host import HostApi

Substitute: TypeAlias = Callable[[System, Services], Awaitable[Services]]

SUPERVISION = Supervision(strategy="rest_for_one", intensity=5, period=60.0)


@attrs.define
class Tree:
    """A grown tree: the refs and the plain objects that a :class:`Host` speaks to."""

    config: HostConfig
    system: System
    location: Location
    workspace: Path
    table: RunTable
    registry: AgentRegistry
    children: Children
    resolver: Resolver
    hooks: HookSet
    journal: EventJournal
    publisher: Publisher
    services: Services
    store: ActorRef[SessionStoreMessage]
    error_store: ActorRef[ErrorProtocol]
    router: ActorRef[RouterMessage]
    traces: ActorRef[TraceProtocol]
    rooms_store: ActorRef[RoomStoreMessage]
    rooms: ActorRef[Open]
    places: RoomTable
    readers: Readers
    tokens: TokenBook
    recovery: Recovery
    suspended_runs: SuspendedRuns
    ground: Ground
    described: frozenset[str] = frozenset()
    gateway: Served | None = None
    log_tail: LogTail = attrs.field(factory=LogTail)
    interrupted: tuple[RunInfo, ...] = ()
    instance: str = attrs.field(factory=lambda: f"boot_{fresh_hex(6)}")
    started: float = attrs.field(factory=wall_time)

    def status(self) -> HostStatus:
        slots = self.table.slots.values()
        return HostStatus(
            instance=self.instance,
            version=__version__,
            time=wall_time(),
            started=self.started,
            agents=len(self.registry.infos()),
            live_sessions=len(slots),
            running=sum(len(slot.running) for slot in slots),
            queued=sum(len(slot.queue) for slot in slots),
            dropped_events=self.publisher.dropped + self.publisher.fanout.dropped,
        )

    async def serve(self, host: HostApi, config: GatewayConfig, operator: str | None) -> str:
        # Most hosts have no gateway.
        from motet.actors.gateway.server import open_gateway

        redact_logs()  # the gateway's are there now
        self.log_tail.attach()
        await self.tokens.load()
        disk = self.recovery.transact, self.readers
        stores = GatewayStores(SqliteIdempotency(*disk), SqliteConversations(*disk))
        known = self.config.gateway.tokens
        extra = tuple(token for token in config.tokens if token not in known)
        self.gateway = await open_gateway(
            self.system, host, config, self.tokens, operator, stores, extra
        )
        return self.gateway.url


@asynccontextmanager
async def grow(
    state: str | Path | Location | None,
    workspace: str | Path | None,
    config: HostConfig,
    origin: Origin | None = None,
    *,
    check_messages: bool,
    memory: Memory | None,
    substitute: Substitute | None = None,
) -> AsyncGenerator[Tree]:
    """The tree of one host for the length of the block.

    ``substitute`` may put other services in place before a run uses them.
    """
    place = state if isinstance(state, Location) else _place(state)
    with ExitStack() as secrets, place as location:
        secrets.enter_context(registered_secrets(secrets_of(config)))
        redact_logs()
        folder = _workspace(location, workspace)
        readers = Readers(location)
        ground = Ground(origin or Origin(), secrets, ModelCatalog(providers_of(config.models)))
        table = RunTable(config.queue)
        try:
            async with open_system(
                "host", supervision=SUPERVISION, check_messages=check_messages
            ) as system:
                tree = await _plant(
                    system, location, readers, ground, table, folder, config, memory, substitute
                )
                try:
                    yield tree
                finally:
                    tree.log_tail.detach()
                    table.cancel(list(table.slots), "the host is closing")
        finally:
            table.close("the host has closed")
            # Awaits while being cancelled: connections and files have to be closed.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await ground.aclose()
                await readers.aclose()


def _place(state: str | Path | None) -> Location:
    return Location.directory(state) if state is not None else Location.memory()


def _workspace(location: Location, chosen: str | Path | None) -> Path:
    """The directory of the tools, made if need be. Blocks for some disk access.

    Raises ``ConfigError`` when the database would be within reach of the tools.
    """
    state = location.path
    folder = Path(chosen or (state / "workspace" if state else ".")).resolve()
    if state is not None and state.resolve().is_relative_to(folder):
        raise ConfigError(
            f"the state directory {str(state)!r} is inside the workspace {str(folder)!r}, where "
            "tools could write to it: choose another workspace or state directory"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def _plant(
    system: System,
    location: Location,
    readers: Readers,
    ground: Ground,
    table: RunTable,
    workspace: Path,
    config: HostConfig,
    memory: Memory | None,
    substitute: Substitute | None,
) -> Tree:
    """Start every actor, stores first, and take up what the last host left unfinished."""
    stores = await start_stores(system, location, readers, config, memory)
    publisher = stores.publisher
    hooks = await _start_hooks(system, publisher, workspace, config)
    events = RunEvents(table, publisher, hooks)
    children, ground.hooks = Children(table, hooks, events), hooks.hooks.all()
    equip = partial(
        build_toolkit, stores=stores, children=children, table=table, workspace=workspace
    )
    toolkit = ground.begin(equip, config)
    ground.gate = ApprovalGate(
        PendingApprovals(events.emit), stores.approvals, table, config.approvals
    )
    resolver = Resolver(toolkit.registry, StoredAgents(stores.agents), limits=config.limits)
    journal = EventJournal(readers, publisher.fanout)
    suspended_runs = await load_suspended(
        stores.approvals, ground.gate.pending, table, resolver, journal, events
    )
    context = partial(_context, table, workspace, children, events)
    services = await _start_services(
        system, ground, stores, toolkit, events, suspended_runs, context
    )
    if substitute is not None:
        services = await substitute(system, services)
    router = await system.start(lambda: Router(services, config.watchdog.stalled), name="router")
    places = RoomTable()
    rooms = await system.start(lambda: Rooms(places), name="rooms")
    recovery = Recovery(
        config.recovery, readers, stores.transact, stores.sessions, table, resolver, services
    )
    tree = Tree(
        config=config,
        system=system,
        location=location,
        workspace=workspace,
        table=table,
        registry=toolkit.registry,
        children=children,
        resolver=resolver,
        hooks=hooks.hooks,
        journal=journal,
        publisher=publisher,
        services=services,
        store=stores.sessions,
        error_store=stores.errors,
        router=router,
        traces=stores.traces,
        rooms_store=stores.rooms,
        rooms=rooms,
        places=places,
        readers=readers,
        tokens=stores.tokens,
        recovery=recovery,
        suspended_runs=suspended_runs,
        ground=ground,
    )
    await _choices(table, stores)
    tree.interrupted = await _recover(tree.recovery, stores.traces)
    await start_recoverer(system, tree.recovery)
    await start_resumer(system, suspended_runs)
    return tree


async def _choices(table: RunTable, stores: Stores) -> None:
    """What people have set for their sessions."""
    table.modes |= await stores.sessions.ask(QueueModes())
    table.models |= await stores.sessions.ask(SessionModels())


async def _start_services(
    system: System,
    ground: Ground,
    stores: Stores,
    toolkit: Toolkit,
    events: RunEvents,
    suspended_runs: SuspendedRuns,
    context: Callable[[ExecuteCall], Context[object]],
) -> Services:
    """Start what works for sessions: models, MCP servers, the executor of tools."""
    table, hooks, breakers = events.table, events.hooks, Breakers()
    models = await system.start(lambda: Models(ground.find, ground.finders), name="models")
    await toolkit.mcp.start(system)
    warn = partial(_warn, events.publisher, table)
    channel = ErrorChannel(stores.errors, warn, stores.tracer)
    tools = await system.start(
        lambda: ToolExecutor(
            toolkit.catalog,
            hooks,
            channel,
            context,
            policy=toolkit.policy,
            toolset_of=table.toolkit_of,
            results=stores.results,
            breakers=breakers,
            approvals=ground.gate,
            warn=warn,
        ),
        name="tools",
    )
    toolkits = Toolkits(toolkit, table)
    return Services(
        table=table,
        store=stores.sessions,
        tools=tools,
        toolkits=toolkits,
        models=ModelAccess(models, toolkits),
        events=events,
        hooks=hooks,
        errors=channel,
        breakers=breakers,
        tracer=stores.tracer,
        memory=stores.memory,
        journal=stores.journal,
        contexts=stores.contexts,
        pending_approvals=ground.gate.pending,
        suspended_runs=suspended_runs,
    )


async def _start_hooks(
    system: System, publisher: Publisher, workspace: Path, config: HostConfig
) -> HooksClient:
    hooks, mark = HookSet(), partial(_mark, publisher)
    add_configured(hooks, config.hooks, workspace)
    ref = await system.start(lambda: Hooks(hooks, mark), name="hooks")
    return HooksClient(hooks, ref, mark)


async def _recover(recovery: Recovery, traces: ActorRef[TraceProtocol]) -> tuple[RunInfo, ...]:
    store, events = recovery.store, recovery.events
    interrupted = await store.ask(await recovery.plan())
    await traces.ask(CloseTraces(interrupted))
    for end in await store.ask(EndsToTell()):
        await events.end(end.session, end.run_id, end.event)
    await events.of_unfinished(recovery.resumable)
    return interrupted


def _warn(publisher: Publisher, table: RunTable, run_id: str, event: AnyEvent) -> None:
    """Publish that something degraded in a live run; never waits, never fails."""
    run = table.runs.get(run_id)
    if run is not None:
        publisher.put(f"session:{run.session}", event, run_id)


def _mark(publisher: Publisher, fault: HookFault) -> None:
    """A hook failed: its mark in the event log says where, and what that meant (G10)."""
    event = fault.event
    publisher.put(f"session:{event.session}", Warned("hook", str(fault)), event.run_id)


def _context(
    table: RunTable,
    workspace: Path,
    children: Children,
    events: RunEvents,
    request: ExecuteCall,
) -> Context[object]:
    run = table.runs[request.run_id]
    return Context(
        deps=run.deps,
        run_id=run.id,
        session=run.session,
        agent=run.agent.name,
        principal=run.principal,
        call_id=request.call.id,
        workspace=run.workspace or workspace,
        lineage=run.lineage,
        delegate=children.run,
        hand_over=children.hand_over,
        tell=partial(events.put, run),
    )


def secrets_of(config: HostConfig) -> list[str | None]:
    """The values of the configuration and its environment that nobody may be shown."""
    tokens = [token.token for token in config.gateway.tokens]
    servers = [secret for server in config.mcp.values() for secret in server.secrets]
    headers = config.tracing.otlp_headers.values()
    return [*keys_of(config.models), *tokens, *headers, *servers]
