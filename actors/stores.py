"""The actors of a host that keep things: they start first and stop last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from motet.actors.agents.store import AgentProtocol, AgentStore
from motet.actors.approvals.store import ApprovalProtocol, ApprovalStore
from motet.actors.errors.retention import ErrorRetention, Keep
from motet.actors.errors.store import ErrorProtocol, ErrorStore
from motet.actors.events.bus import EventBus
from motet.actors.events.fanout import Fanout
from motet.actors.memory.store import MemoryStore, StoredMemory
from motet.actors.results.messages import ResultProtocol
from motet.actors.results.store import ResultStore
from motet.actors.rooms.store import RoomStore, RoomStoreMessage
from motet.actors.sessions.behind import WriteBehind
from motet.actors.sessions.known import KnownContexts
from motet.actors.sessions.store import SessionStore, SessionStoreMessage
from motet.actors.storage.database import Database
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.transactions import Rows, Transaction
from motet.actors.storage.writer import Writer
from motet.actors.teams.board import BoardProtocol, TaskBoards
from motet.actors.tokens import TokenBook
from motet.actors.tracing.recorder import Tracer
from motet.actors.tracing.start import start_tracing
from motet.actors.tracing.store import TraceProtocol
from motet.protocols.config import HostConfig
from motet.protocols.events import Publish
from motet.protocols.memory import Memory
from motet.runtime import ActorRef, System


@attrs.frozen
class Stores:
    """The actors that keep things: they start first and stop last."""

    fanout: Fanout
    bus: ActorRef[Publish]
    errors: ActorRef[ErrorProtocol]
    results: ActorRef[ResultProtocol]
    sessions: ActorRef[SessionStoreMessage]
    journal: WriteBehind
    contexts: KnownContexts
    approvals: ActorRef[ApprovalProtocol]
    agents: ActorRef[AgentProtocol]
    rooms: ActorRef[RoomStoreMessage]
    memory: Memory
    boards: ActorRef[BoardProtocol]
    tracer: Tracer
    traces: ActorRef[TraceProtocol]
    tokens: TokenBook
    transact: Callable[[Transaction], Awaitable[Rows]]


async def start_stores(
    system: System,
    location: Location,
    readers: Readers,
    config: HostConfig,
    memory: Memory | None,
) -> Stores:
    fanout, errors = Fanout(), config.errors
    writer = Writer(location)
    database = await system.start(lambda: Database(location, writer), name="database")
    bus = await system.start(lambda: EventBus(writer.submit, fanout), name="events")
    error_store = await system.start(
        lambda: ErrorStore(writer.submit, readers, keep_raw=errors.keep_raw), name="errors"
    )
    results = await system.start(lambda: ResultStore(database, readers), name="results")
    journal, contexts = WriteBehind(), KnownContexts()
    sessions = await system.start(
        lambda: SessionStore(writer.submit, readers, behind=journal, contexts=contexts),
        name="sessions",
    )
    approvals = await system.start(
        lambda: ApprovalStore(writer.submit, readers, journal), name="approvals"
    )
    agents = await system.start(lambda: AgentStore(database, readers), name="agents")
    rooms = await system.start(lambda: RoomStore(database, readers), name="room-store")
    if memory is None:
        memory = StoredMemory(
            await system.start(lambda: MemoryStore(database, readers), name="memory")
        )
    boards = await system.start(lambda: TaskBoards(database, readers), name="boards")
    tracer, traces = await start_tracing(system, database, readers, config.tracing)
    if keep := Keep(errors.keep_days, errors.keep_mb):
        await system.start(lambda: ErrorRetention(database, readers, keep), name="retention")
    return Stores(
        fanout,
        bus,
        error_store,
        results,
        sessions,
        journal,
        contexts,
        approvals,
        agents,
        rooms,
        memory,
        boards,
        tracer,
        traces,
        TokenBook(writer.submit, readers),
        writer.submit,
    )
