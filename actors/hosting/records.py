"""The records of a host: its queries, and changes of records that have no part in a run.

Invariant: what belongs to another user is not found (G16).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from motet.actors.hosting.answers import scope_of, sees, with_end
from motet.actors.hosting.tree import Parts
from motet.protocols.agents import AgentRecord
from motet.protocols.approvals import ApprovalInfo, ApprovalState, Grant, ListApprovals, ListGrants
from motet.protocols.config_changes import view_of
from motet.protocols.errors import (
    ErrorPage,
    ErrorText,
    ErrorType,
    GetError,
    GroupErrors,
    GroupPage,
    InputValidation,
    ListErrors,
    NotFound,
    PageErrors,
    ReadError,
    StoredError,
)
from motet.protocols.escalations import EscalationInfo, EscalationState, ListEscalations
from motet.protocols.events import EventRecord, SessionReset
from motet.protocols.host import AgentInfo, HostStatus
from motet.protocols.host_records import ConfigView, LiveActor, LogLine
from motet.protocols.mcp import McpStatus
from motet.protocols.meters import Figures
from motet.protocols.models import Model
from motet.protocols.policy import Judged, Subject
from motet.protocols.queueing import QueueMode
from motet.protocols.recovery import Quarantined
from motet.protocols.session_keys import is_group
from motet.protocols.sessions import (
    FINAL,
    LOCAL,
    FinishRun,
    GetRun,
    HistoryRow,
    ListRuns,
    ListSessions,
    Principal,
    ReadHistory,
    ResetSession,
    Role,
    RunInfo,
    RunStatus,
    SessionInfo,
)
from motet.protocols.tokens import NewToken, TokenInfo
from motet.protocols.traces import GetTrace, ListTraces, Trace, TraceInfo
from motet.protocols.version import __version__
from motet.runtime.describe import EXAMPLE_ID, is_id
from motet.runtime.outside import wall_time

if TYPE_CHECKING:
    from motet.actors.hosting.replay import Replay, ToolMode


class Records:
    """The base of :class:`motet.Host`.

    It is a base class rather than a part, because nearly every body is one request to one store:
    as a part it would repeat each signature for nothing.
    """

    def __init__(self, parts: Parts, interrupted: tuple[RunInfo, ...]) -> None:
        self._parts = parts
        self._interrupted = interrupted
        self._stores = parts.stores
        self._access = parts.access

    # Agents, tools and models

    def agents(self) -> tuple[AgentInfo, ...]:
        """The agents of the program and its configuration; :meth:`stored_agents` has the others."""
        return self._parts.generations.registry.infos()

    async def workspace_notes(self) -> tuple[str, ...]:
        """Sentences about the files of users, once the gateway has tokens of several: whether each
        of them has a folder, or an agent is configured to share one.
        """
        current = self._parts.generations.current
        if not current.workspaces.users.several:
            return ()
        stored = [(one.name, one.profile) for one in await self.stored_agents()]
        own = [(one.name, one.profile) for one in current.registry.own_agents()]
        notes = partial(current.workspaces.notes, (*own, *stored))
        return await trio.to_thread.run_sync(notes)

    async def stored_agents(self) -> tuple[AgentRecord, ...]:
        """The stored agents, by name."""
        return await self._parts.resolver.records()

    async def tools(
        self, agent: str, *, session: str = "", principal: Principal = LOCAL
    ) -> tuple[Judged, ...]:
        """The tools of an agent by name, and the ruling of the policy on each for the principal.

        ``session``: as in this one. Raises ``UnknownName``.
        """
        known = await self._parts.resolver.resolve(agent)
        subject = Subject(known.name, principal.user, principal.role, session)
        return self._parts.generations.current.policy.judged((subject,))

    async def mcp_servers(self) -> tuple[McpStatus, ...]:
        """The state of each MCP server, in the order of the configuration; starts none."""
        return await self._parts.generations.current.mcp.statuses()

    def models(self) -> tuple[str, ...]:
        """The models that a session may have: those of the agents, and ``models.offered``."""
        return self._parts.generations.registry.models()

    def session_model(self, session: str, *, principal: Principal = LOCAL) -> str | None:
        """The model that was set for a session, if the host still has it; None: its agent's."""
        chosen = self._parts.services.settings.of(session, scope_of(principal)).model
        return chosen if chosen in self.models() else None

    def queue_mode(self, session: str, *, principal: Principal = LOCAL) -> QueueMode:
        """The mode of inputs of a session that name none themselves."""
        rules = self._parts.table.rules
        default = rules.group if is_group(session) else rules.direct
        return self._parts.services.settings.of(session, scope_of(principal)).mode or default

    # Sessions and runs

    async def session(self, session: str, *, principal: Principal = LOCAL) -> SessionInfo:
        """Raises ``NotFound``, also for a session of another user."""
        return await self._access.session(session, principal)

    async def sessions(
        self, *, limit: int = 50, cursor: float | None = None, principal: Principal = LOCAL
    ) -> tuple[SessionInfo, ...]:
        """A page, newest first. ``cursor``: the ``updated`` of the last one of the page before."""
        return await self._stores.sessions.ask(ListSessions(scope_of(principal), limit, cursor))

    async def history(
        self,
        session: str,
        *,
        before: int | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[HistoryRow, ...]:
        """A page of stored rows in order: the newest ``limit`` before position ``before``.

        The rows of a run are stored when it ends; meanwhile its events show them. Raises
        ``NotFound``.
        """
        info = await self.session(session, principal=principal)
        request = ReadHistory(session, before, limit, info.generation)
        return await self._stores.sessions.ask(request)

    async def reset(self, session: str, *, principal: Principal = LOCAL) -> None:
        """The model starts from an empty history; nothing stored is deleted."""
        info = await self.session(session, principal=principal)
        await self._stores.sessions.ask(ResetSession(session, info.generation))
        await self._parts.services.events.emit_to(session, info.owner, SessionReset())

    async def runs(
        self,
        *,
        session: str | None = None,
        status: RunStatus | None = None,
        limit: int = 50,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> tuple[RunInfo, ...]:
        """The runs, newest first. ``unsaved``: the end of a run is not on disk yet, and follows."""
        user = await self._access.scope(room, principal, "inspect")
        request = ListRuns(user, session, status, limit)
        late = self._parts.table.unsaved()
        found = await self._stores.sessions.ask(request)
        return await self._with_late_ends(found, late, request) if late else found

    async def _with_late_ends(
        self, found: tuple[RunInfo, ...], late: Mapping[str, FinishRun], request: ListRuns
    ) -> tuple[RunInfo, ...]:
        """The runs with the ends that are not on disk yet, and so with another status there."""
        known = {info.run_id: info for info in found}
        for run_id in late.keys() - known.keys() if request.status in FINAL else ():
            info = await self._stores.sessions.ask(GetRun(run_id))
            if (
                info is not None
                and request.user in (None, info.user)
                and request.session in (None, info.session)
            ):
                known[run_id] = info
        ended = [with_end(info, late.get(info.run_id)) for info in known.values()]
        wanted = [info for info in ended if request.status in (None, info.status)]
        wanted.sort(key=lambda info: info.created, reverse=True)
        return tuple(wanted[: request.limit])

    async def is_resend(self, method: str, key: str, *, principal: Principal = LOCAL) -> bool:
        """Whether this idempotency key of the method stands for something already."""
        return await self._parts.inputs.is_resend(method, key, principal.user)

    async def find_run(self, run_id: str, *, principal: Principal = LOCAL) -> RunInfo:
        """One run, live or not. Raises ``NotFound`` (also for a foreign one)."""
        return await self._access.run(run_id, principal)

    async def wait_run(
        self, run_id: str, *, timeout: float = 30.0, principal: Principal = LOCAL
    ) -> RunInfo:
        """The run when it has ended, or as it is after ``timeout`` seconds.

        Raises ``NotFound``. Cancelling ends the waiting, never the run.
        """
        info = await self.find_run(run_id, principal=principal)
        news = trio.Event()

        def hear(record: EventRecord) -> None:
            if record.run_id == run_id and record.seq is not None:
                news.set()

        detach = self._parts.journal.attach(f"session:{info.session}", hear)
        try:
            with trio.move_on_after(timeout):
                while (info := await self.find_run(run_id)).status not in FINAL:
                    await news.wait()
                    news = trio.Event()
        finally:
            detach()
        return info

    async def replay(
        self,
        run_id: str,
        *,
        model: str | Model | None = None,
        tools: ToolMode = "journal",
        deps: object = None,
        principal: Principal = LOCAL,
    ) -> Replay:
        """Run a run that has ended once more, in a host of its own, and compare the two.

        Nothing is executed and no model is asked, unless ``model`` or ``tools="live"`` says so;
        nothing of this host changes. See :func:`motet.actors.hosting.replay.replay`, and
        ``NotFound``, ``ConfigError`` of :func:`motet.actors.hosting.replay.read_journal`.
        """
        # Most hosts replay nothing.
        from motet.actors.hosting.replay import read_journal, replay

        await self._parts.journal.settle()
        journal = await read_journal(self._parts.readers, run_id)
        if not sees(principal, journal.info.user):
            raise NotFound(f"no run {run_id!r}; `motet traces` lists them")
        return await replay(
            journal,
            await self._parts.resolver.resolve(journal.agent),
            config=self._parts.generations.config,
            model=model,
            tools=tools,
            deps=deps,
            workspace=self._parts.workspace,
        )

    @property
    def interrupted(self) -> tuple[RunInfo, ...]:
        """Runs that the end of the last host on this state cut off, and that cannot be resumed."""
        return self._interrupted

    @property
    def resumed(self) -> tuple[RunInfo, ...]:
        """Runs that the last host on this state left unfinished, and that this one resumes."""
        return self._parts.recovery.resumed

    async def quarantined(self, *, principal: Principal = LOCAL) -> tuple[Quarantined, ...]:
        """Sessions that are not resumed any more, oldest first (G14)."""
        return await self._parts.recovery.quarantined(scope_of(principal))

    async def release(self, session: str, *, principal: Principal = LOCAL) -> None:
        """Let a quarantined session be resumed again from the next start on.

        Its unfinished runs are listed as interrupted; :meth:`resend` sends their inputs again.
        Raises ``NotFound``.
        """
        await self.session(session, principal=principal)
        if not await self._parts.recovery.release(session):
            raise NotFound(f"the session {session!r} is not quarantined")

    # Runs that wait for people

    async def escalations(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: EscalationState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[EscalationInfo, ...]:
        """Runs that were handed to a person, newest first.

        ``room``: those of a room of the principal's. Raises ``NotFound`` for another room.
        """
        user = await self._access.scope(room, principal, "answer")
        return await self._stores.sessions.ask(ListEscalations(user, session, state, limit))

    async def approvals(
        self,
        *,
        session: str | None = None,
        room: str | None = None,
        state: ApprovalState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[ApprovalInfo, ...]:
        """Calls that wait for a person, or did, newest first.

        ``room``: those of a room of the principal's. Raises ``NotFound`` for another room.
        """
        user = await self._access.scope(room, principal, "answer")
        found = await self._stores.approvals.ask(ListApprovals(user, session, state, None, limit))
        return tuple(map(self._parts.suspended_runs.with_block, found))

    async def grants(
        self, *, agent: str | None = None, room: str | None = None, principal: Principal = LOCAL
    ) -> tuple[Grant, ...]:
        """The permissions that ``allow-always`` has left, newest first.

        ``room``: those of a room whose owner the principal is, here and in the lists below.
        """
        user = await self._access.scope(room, principal, "inspect")
        return await self._stores.approvals.ask(ListGrants(user, agent))

    # Traces and errors

    async def traces(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        status: RunStatus | None = None,
        since: float | None = None,
        limit: int = 50,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> tuple[TraceInfo, ...]:
        """Summaries of runs, their steps and costs, newest first. ``since``: Unix seconds."""
        user = await self._access.scope(room, principal, "inspect")
        request = ListTraces(user, session, agent, status, since, None, limit)
        return await self._stores.traces.ask(request)

    async def trace(self, run_id: str, *, principal: Principal = LOCAL) -> Trace:
        """The spans of one run, also of a live one. Raises ``NotFound`` (also for a foreign)."""
        found = await self._stores.traces.ask(GetTrace(run_id))
        if found is None or not await self._access.may(principal, "inspect", found.info.user):
            raise NotFound(f"no trace of a run {run_id!r}")
        return found

    async def errors(
        self,
        *,
        session: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        limit: int = 50,
        kind: ErrorType | None = None,
        agent: str | None = None,
        run: str | None = None,
        resolved: bool | None = None,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> tuple[StoredError, ...]:
        """Stored errors of the principal's sessions, newest first. ``since``: Unix seconds.

        A raw error of more than 64 KiB is left out; :meth:`error` has it.
        """
        which = ListErrors(
            session, tool, since, None, limit, kind, agent=agent, run_id=run, resolved=resolved
        )
        return (await self.error_page(which, room=room, principal=principal)).errors

    async def error_page(
        self,
        which: ListErrors,
        *,
        cursor: str | None = None,
        room: str | None = None,
        principal: Principal = LOCAL,
    ) -> ErrorPage:
        """A page of stored errors, with a cursor for the next one. ``which.limit``: 1,000 at most.

        Raises ``InputValidation`` for a cursor that is none.
        """
        own = await self._access.scope(room, principal, "inspect")
        if own is not None:
            which = replace(which, owner=own)
        of = which.session_id
        if of is not None and not await self._access.sees_session(of, principal):
            return ErrorPage(())
        with self._stores.tracer.operation("list", session=of or "", tool=which.tool_name or ""):
            return await self._stores.errors.ask(PageErrors(which, cursor))

    async def error_groups(
        self, which: GroupErrors, *, room: str | None = None, principal: Principal = LOCAL
    ) -> GroupPage:
        """A page of the groups of equal errors of the principal, the last seen first."""
        own = await self._access.scope(room, principal, "inspect")
        which = which if own is None else replace(which, owner=own)
        with self._stores.tracer.operation("list", tool=which.tool_name or ""):
            return await self._stores.errors.ask(which)

    async def error(self, error_id: str, *, principal: Principal = LOCAL) -> StoredError:
        """One stored error, whole. Raises ``NotFound`` (also for one of a foreign session), and
        ``InputValidation`` for what is no id.
        """
        return await self._error(GetError(error_id, grouped=True), principal)

    async def error_text(
        self, error_id: str, offset: int = 0, *, principal: Principal = LOCAL
    ) -> tuple[StoredError, ErrorText]:
        """One stored error, and its raw error as JSON text from an offset, 131,072 characters of it
        at most. A large ``raw_error`` is left out. Raises as :meth:`error`.
        """
        request = GetError(error_id, grouped=True, brief=True)
        error = await self._error(request, principal)
        text = await self._stores.errors.ask(ReadError(error_id, offset))
        if text is None:
            raise NotFound(f"no stored error {error_id!r}")
        return error, text

    async def _error(self, request: GetError, principal: Principal) -> StoredError:
        if not is_id(request.id):
            raise InputValidation(f"{request.id!r:.60} is no error id: those are like {EXAMPLE_ID}")
        with self._stores.tracer.operation("get", error_id=request.id) as trace:
            found = await self._stores.errors.ask(request)
            if found is not None:
                trace.about(found.session_id, found.tool_name)
        if found is not None and await self._access.sees_session(found.session_id, principal):
            # Again: it goes with its session, whose name may be the principal's only since then.
            found = await self._stores.errors.ask(request)
            if found is not None:
                return found
        raise NotFound(f"no stored error {request.id!r}")

    # The host itself

    def status(self) -> HostStatus:
        """Counts of agents, sessions and runs, and the problem of the storage, if any."""
        parts, publisher = self._parts, self._stores.publisher
        problem = self._stores.health.current()
        queues = parts.table.queues.values()
        database, log = parts.location.sizes()
        return HostStatus(
            instance=parts.instance,
            version=__version__,
            time=wall_time(),
            started=parts.started,
            agents=len(self.agents()),
            live_sessions=len(queues),
            running=sum(len(queue.running) for queue in queues),
            queued=sum(len(queue.inputs) for queue in queues),
            dropped_events=publisher.subscribers.dropped,
            storage="" if problem is None else problem.reason,
            unsaved_ends=len(parts.table.unsaved()),
            draining=parts.table.draining.is_set(),
            database_bytes=database,
            log_bytes=log,
        )

    def figures(self) -> Figures:
        """What the metrics of the host show."""
        services, lost = self._parts.services, self._stores.meters.lost_traces
        return Figures(
            self._stores.meters,
            approvals=len(services.pending_approvals.deadlines),
            breakers=services.breakers.open(),
            lost_traces=lost + self._stores.tracer.lost,
        )

    def actors(self) -> tuple[LiveActor, ...]:
        """Every actor that is there now, parents first, siblings in start order."""
        return tuple(
            LiveActor(one.path, one.state, one.queued, one.age_s, one.waiting_on, one.paused)
            for one in self._parts.system.snapshot()
        )

    def configuration(self) -> ConfigView:
        """The configuration in force, its secrets left out."""
        return view_of(self._parts.generations.config)

    def log_tail(self, limit: int = 100) -> tuple[LogLine, ...]:
        """The newest lines of the library's log since this host serves, oldest first."""
        return self._parts.gateway.log_tail.lines(limit)

    async def tokens(self) -> tuple[TokenInfo, ...]:
        """The stored tokens without their secrets, the revoked included, oldest first."""
        return await self._stores.tokens.tokens()

    async def new_token(
        self,
        user: str,
        role: Role = "operator",
        *,
        label: str = "",
        expires: float | None = None,
        impersonate: bool = False,
    ) -> NewToken:
        """Make a token for one user, valid at once; it is shown in the answer and never again.

        ``expires``: Unix seconds. ``impersonate``: for a bridge, which may act as other users.
        Raises ``InputValidation``.
        """
        return await self._stores.tokens.add(
            user, role, label=label, expires=expires, impersonate=impersonate
        )

    async def revoke_token(self, token_id: str) -> TokenInfo:
        """End a token: connections that came with it are closed at once. Raises ``NotFound``."""
        return await self._stores.tokens.revoke(token_id)
