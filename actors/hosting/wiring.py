"""The wiring of a host: its stores, started in order, and the toolkit of a configuration.

Stores start first and stop last, so that everything above them can still write while it stops.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import trio

from motet.actors.agents.registry import ALWAYS_OFFERED, AgentRegistry
from motet.actors.agents.skills import SKILL_TOOL_GROUP, SkillCatalog, skill_tools
from motet.actors.agents.teams import TASK_TOOL_GROUP, task_tools
from motet.actors.agents.toolkit import Toolkit
from motet.actors.agents.workspace import Users, Workspaces
from motet.actors.models.catalog import ModelCatalog
from motet.actors.rooms.definition import room_tools
from motet.actors.runs.table import RunTable
from motet.actors.sessions.children import ChildRuns, child_tools
from motet.actors.storage.agents import AgentStore
from motet.actors.storage.approvals import ApprovalStore
from motet.actors.storage.boards import TaskBoards
from motet.actors.storage.error_spool import SPILL_FILE, ErrorSpool
from motet.actors.storage.error_store import GIVEN_DEADLINE, ErrorStore
from motet.actors.storage.location import Location
from motet.actors.storage.memory import MemoryStore, StoredMemory
from motet.actors.storage.readers import Readers
from motet.actors.storage.results import ResultStore
from motet.actors.storage.rooms import RoomStore
from motet.actors.storage.run_access import ContextCache, RunJournal
from motet.actors.storage.session_runs import RunTables
from motet.actors.storage.sessions import SessionStore
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.tokens import TokenBook
from motet.actors.storage.traces import TraceStore
from motet.actors.storage.writer import Database, StorageHealth, Writer, through
from motet.actors.telemetry.error_channel import ErrorChannel, error_detail
from motet.actors.telemetry.event_bus import EventBus, Publisher, Subscribers
from motet.actors.telemetry.tracer import Tracer
from motet.actors.tools.builtin.all_tools import (
    GROUPS,
    MEMORY_TOOL_GROUP,
    builtin_tools,
    memory_tools,
)
from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.context import Context
from motet.actors.tools.mcp.directory import McpDirectory
from motet.actors.tools.mcp.tool_search import MCP_SEARCH
from motet.actors.tools.policy.engine import build_policy
from motet.actors.tools.policy.rules import RESULTS, grouped
from motet.actors.tools.results import result_page, tool_result_tools
from motet.actors.tools.tool import Tool
from motet.actors.transcript.grammar import CHILD_TOOL_GROUP as AGENTS_GROUP
from motet.protocols.agents import AgentProtocol
from motet.protocols.approvals import ApprovalProtocol
from motet.protocols.chat import JsonObject
from motet.protocols.config import ErrorsConfig, HostConfig, TracingConfig
from motet.protocols.error_records import Origin
from motet.protocols.errors import ErrorProtocol, ErrorRecord, Errors
from motet.protocols.events import EventRecord
from motet.protocols.mcp import MCP
from motet.protocols.memory import Memory
from motet.protocols.meters import Meters
from motet.protocols.policy import Policy
from motet.protocols.results import ResultProtocol
from motet.protocols.retention import MEGABYTE
from motet.protocols.room_messages import RoomStoreRequest
from motet.protocols.room_turns import ROOM_TOOL_GROUP
from motet.protocols.sessions import IsRelated, SessionStoreMessage
from motet.protocols.storage import Commit, Transact
from motet.protocols.teams import BoardProtocol
from motet.protocols.traces import TraceProtocol
from motet.runtime import ActorRef, System
from motet.runtime.spill import SpillFile

VERBOSE = "MOTET_TRACE_VERBOSE"
_NO = ("", "0", "false", "no", "off")


@attrs.frozen
class Stores:
    """The actors that store data, and the objects through which others write and read them.

    Attributes:
        publisher: the way to the event bus.
        spool: takes errors for the store of errors.
        journal: rows of live runs on their way to disk.
        runs: what ``sessions`` does at the begin and the end of each run, by plain calls.
        contexts: a cache of recently used session contexts.
        transact: runs one transaction in the writer.
        health: whether the writer can store anything now.
    """

    publisher: Publisher
    errors: ActorRef[ErrorProtocol]
    spool: ErrorSpool
    results: ActorRef[ResultProtocol]
    sessions: ActorRef[SessionStoreMessage]
    runs: RunTables
    journal: RunJournal
    contexts: ContextCache
    approvals: ActorRef[ApprovalProtocol]
    agents: ActorRef[AgentProtocol]
    rooms: ActorRef[RoomStoreRequest]
    memory: Memory
    boards: ActorRef[BoardProtocol]
    tracer: Tracer
    traces: ActorRef[TraceProtocol]
    tokens: TokenBook
    users: Users
    transact: Commit
    health: StorageHealth
    meters: Meters


async def start_stores(
    system: System,
    location: Location,
    readers: Readers,
    config: HostConfig,
    memory: Memory | None,
    errors: Errors | None = None,
) -> Stores:
    """Start every store. ``memory`` None: a full-text index; ``errors`` None: the database."""
    subscribers = Subscribers()
    writer = Writer(location)
    database = await system.start(lambda: Database(location, writer), name="database")
    commit = through(database)

    async def store_fault(record: EventRecord, error: Exception) -> None:
        channel = ErrorChannel(spool, lambda _run, _event: None, tracer)
        session, run_id = record.stream.partition(":")[2], record.run_id or ""
        user = record.owner or ""  # the database knows the agent of a run
        await channel.report(Origin(session, "subscriber", run_id, user=user), error)

    await system.start(
        lambda: EventBus(writer.submit, subscribers, writer.health, store_fault), name="events"
    )
    places = location, errors, writer.submit, readers
    spool = error_spool(*places, config.errors)
    error_store = await system.start(
        lambda: ErrorStore(writer.submit, readers, errors=errors, spool=spool), name="errors"
    )
    results = await system.start(
        lambda: ResultStore(commit, readers, changed=spool.changed), name="results"
    )
    journal, contexts = RunJournal(), ContextCache()
    sessions = await system.start(
        lambda: SessionStore(
            writer.submit, readers, journal=journal, contexts=contexts, errors=spool
        ),
        name="sessions",
    )
    approvals = await system.start(
        lambda: ApprovalStore(writer.submit, readers, journal), name="approvals"
    )
    agents = await system.start(lambda: AgentStore(commit, readers), name="agents")
    rooms = await system.start(
        lambda: RoomStore(writer.submit, readers, contexts), name="room-store"
    )
    if memory is None:
        memory = StoredMemory(
            await system.start(lambda: MemoryStore(commit, readers), name="memory")
        )
    boards = await system.start(lambda: TaskBoards(commit, readers, spool.changed), name="boards")
    meters = Meters(writer.commits)
    tracer, traces = await start_tracing(system, database, readers, config.tracing, meters)
    tokens, users = TokenBook(writer.submit, readers), Users()
    await tokens.load()
    users.note((*config.gateway.tokens, *tokens.known))
    tokens.watch(lambda: users.note(tokens.known, late=True))
    users.were_here(str(owner) for (owner,) in await readers.read(OWNERS))
    return Stores(
        publisher=Publisher(subscribers),
        errors=error_store,
        spool=spool,
        results=results,
        sessions=sessions,
        runs=RunTables(writer.submit, readers, journal=journal, contexts=contexts, errors=spool),
        journal=journal,
        contexts=contexts,
        approvals=approvals,
        agents=agents,
        rooms=rooms,
        memory=memory,
        boards=boards,
        tracer=tracer,
        traces=traces,
        tokens=tokens,
        users=users,
        transact=writer.submit,
        health=writer.health,
        meters=meters,
    )


def error_spool(
    location: Location, given: Errors | None, commit: Commit, readers: Readers, config: ErrorsConfig
) -> ErrorSpool:
    """The spool in front of the error store; only a directory has a spill file."""
    spill, store = None, given or SqliteErrors(commit, readers)
    if location.path is not None:
        spill = SpillFile(location.path / SPILL_FILE, ErrorRecord, int(config.spill_mb * MEGABYTE))
    return ErrorSpool(
        store.store,
        spill,
        hex_source=location.hex_source(),
        keep_raw=config.keep_raw,
        threads=location.path is not None,
        limit=int(config.spool_mb * MEGABYTE),
        deadline=math.inf if given is None else GIVEN_DEADLINE,
        is_database=given is None,
    )


# Not those of rooms, and not the user of this machine, who serves the others.
_OWNED = "owner <> 'local' AND owner NOT GLOB 'room:*'"
OWNERS = (
    f"SELECT DISTINCT owner FROM sessions WHERE listed = 1 AND {_OWNED}"
    f" UNION SELECT owner FROM (SELECT user AS owner FROM runs WHERE open = 1) WHERE {_OWNED}"
)


async def start_tracing(
    system: System,
    database: ActorRef[Transact],
    readers: Readers,
    config: TracingConfig,
    meters: Meters,
) -> tuple[Tracer, ActorRef[TraceProtocol]]:
    """The tracer and its store. The exporter starts before the store, so that it stops after it."""
    wanted = os.environ.get(VERBOSE, "").strip().lower() not in _NO
    clock = trio.lowlevel.current_clock().current_time
    tracer = Tracer(verbose=config.verbose or wanted, clock=clock)
    export = None
    if config.otlp is not None:
        from motet.actors.telemetry.exporter import Collector, Exporter, Outbox

        collector, outbox = Collector(config.otlp, config.otlp_headers), Outbox(meters)
        await system.start(lambda: Exporter(collector, outbox), name="exporter")
        export = outbox.put
    store = await system.start(
        lambda: TraceStore(through(database), readers, tracer, export=export, meters=meters),
        name="traces",
    )
    return tracer, store


ALL_GROUPS = {
    **GROUPS,
    **MEMORY_TOOL_GROUP,
    **AGENTS_GROUP,
    **TASK_TOOL_GROUP,
    **SKILL_TOOL_GROUP,
    **ROOM_TOOL_GROUP,
}


def build_toolkit(
    config: HostConfig,
    *,
    stores: Stores,
    children: ChildRuns,
    table: RunTable,
    workspace: Path,
    models: ModelCatalog,
    engine: Policy | None,
    generation: int = 0,
) -> Toolkit:
    """The toolkit of a configuration, with nothing started yet.

    Raises ``ConfigError``, ``MissingExtra``.
    """
    catalog = ToolCatalog()
    skills_of_host = SkillCatalog(tuple(map(Path, config.skills or ())))
    skills = skill_tools(skills_of_host, lambda run_id: table.runs[run_id].agent.profile)
    builtin = _builtin(config, stores, children, skills)
    names = (*builtin, MCP_SEARCH) if config.mcp else tuple(builtin)
    groups = (*ALL_GROUPS, *(f"{MCP}{server}" for server in config.mcp))
    policy = build_policy(config, catalog, names, groups, engine)
    mcp = McpDirectory(config.mcp, catalog, policy, found=lambda run_id: table.runs[run_id].found)
    builtin |= mcp.tools()
    offered = config.models.offered
    registry = AgentRegistry(catalog, models, builtin, ALL_GROUPS, policy, skills_of_host, offered)
    return Toolkit(
        catalog=catalog,
        mcp=mcp,
        skills=skills_of_host,
        policy=policy,
        registry=registry,
        models=models,
        shell=config.tools.shell,
        workspaces=Workspaces(workspace, skills=skills_of_host, users=stores.users),
        guard=config.guard,
        generation=generation,
    )


def _builtin(
    config: HostConfig, stores: Stores, children: ChildRuns, skills: list[Tool]
) -> dict[str, Tool]:
    """Every tool that an agent can name, with the groups it belongs to."""

    def related(session: str) -> Callable[[str], Awaitable[bool]]:
        """Whether a session is one of a sub-agent, or of a caller, of this one."""
        return lambda other: stores.sessions.ask(IsRelated(session, other))

    async def find_error(ctx: Context[object], error_id: object) -> JsonObject:
        wanted = error_id if isinstance(error_id, str) else None
        trace = stores.tracer.of(ctx.run_id)
        with trace.store("get", error_id=wanted, call_id=ctx.call_id) as span:
            return await error_detail(
                stores.errors, ctx.session, error_id, span, related(ctx.session)
            )

    async def read_result(
        session: str, result_id: object, offset: object, limit: object
    ) -> JsonObject:
        return await result_page(
            stores.results, session, result_id, offset, limit, is_related=related(session)
        )

    builtin = builtin_tools(config.tools.shell, config.tools.http, find_error)
    if isinstance(stores.memory, StoredMemory):
        stores.memory.readers = children
    more = [*tool_result_tools(read_result), *memory_tools(stores.memory), *skills]
    more += [*child_tools(children), *task_tools(stores.boards, children.team, children)]
    more += room_tools(children.read_room)
    together = builtin | {tool.name: tool for tool in more}
    return grouped(together, {**ALL_GROUPS, RESULTS: ALWAYS_OFFERED})
