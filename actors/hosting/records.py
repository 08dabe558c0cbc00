"""What a host has on record, and its upkeep: sessions, runs, traces and errors.

Invariant: what is another's is not found (G16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.actors.hosting.tree import Tree
from motet.protocols.errors import GetError, ListErrors, NotFound, StoredError
from motet.protocols.escalations import EscalationInfo, EscalationState, ListEscalations
from motet.protocols.events import SessionReset
from motet.protocols.models import Model
from motet.protocols.sessions import (
    LOCAL,
    GetSession,
    HistoryRow,
    ListRuns,
    ListSessions,
    Principal,
    ReadHistory,
    ResetSession,
    RunInfo,
    RunStatus,
    SessionInfo,
)
from motet.protocols.traces import GetTrace, ListTraces, Trace, TraceInfo

if TYPE_CHECKING:
    from motet.actors.hosting.replay import Replay, ToolMode


class Records:
    """The part of a host that looks things up and tidies them; see :class:`motet.Host`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def session(self, session: str, *, principal: Principal = LOCAL) -> SessionInfo:
        info = await self._owned_session(session, principal)
        if info is None:
            raise NotFound(f"no session {session!r}")
        return info

    async def sessions(
        self, *, limit: int = 50, cursor: float | None = None, principal: Principal = LOCAL
    ) -> tuple[SessionInfo, ...]:
        return await self._tree.store.ask(ListSessions(scope_of(principal), limit, cursor))

    async def history(
        self,
        session: str,
        *,
        before: int | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[HistoryRow, ...]:
        await self.session(session, principal=principal)
        return await self._tree.store.ask(ReadHistory(session, before, limit))

    async def runs(
        self,
        *,
        session: str | None = None,
        status: RunStatus | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[RunInfo, ...]:
        return await self._tree.store.ask(ListRuns(scope_of(principal), session, status, limit))

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
        ``NotFound``, ``ConfigError`` of :func:`motet.actors.hosting.replay_journal.read_journal`.
        """
        from motet.actors.hosting.replay import read_journal, replay

        await self._tree.journal.settle()
        journal = await read_journal(self._tree.readers, run_id)
        if principal.role != "admin" and journal.info.user != principal.user:
            raise NotFound(f"no run {run_id!r}; `motet traces` lists them")
        agent = await self._tree.resolver.resolve(journal.agent)
        return await replay(
            journal,
            agent,
            config=self._tree.config,
            model=model,
            tools=tools,
            deps=deps,
            workspace=self._tree.workspace,
        )

    async def reset(self, session: str, *, principal: Principal = LOCAL) -> None:
        """The model starts from an empty history; nothing stored is deleted."""
        await self.session(session, principal=principal)
        await self._tree.store.ask(ResetSession(session))
        await self._tree.services.events.emit_to(session, SessionReset())

    async def escalations(
        self,
        *,
        session: str | None = None,
        state: EscalationState | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[EscalationInfo, ...]:
        """Runs that were handed to a person, newest first."""
        request = ListEscalations(scope_of(principal), session, state, limit)
        return await self._tree.store.ask(request)

    async def traces(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        status: RunStatus | None = None,
        since: float | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[TraceInfo, ...]:
        """What runs did and took, in short, newest first. ``since``: Unix seconds."""
        user = scope_of(principal)
        request = ListTraces(user, session, agent, status, since, None, limit)
        return await self._tree.traces.ask(request)

    async def trace(self, run_id: str, *, principal: Principal = LOCAL) -> Trace:
        """The spans of one run, also while it goes on. Raises ``NotFound`` (also for a foreign)."""
        found = await self._tree.traces.ask(GetTrace(run_id))
        if found is None or scope_of(principal) not in (None, found.info.user):
            raise NotFound(f"no trace of a run {run_id!r}")
        return found

    async def errors(
        self,
        *,
        session: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        limit: int = 50,
        principal: Principal = LOCAL,
    ) -> tuple[StoredError, ...]:
        """Stored errors of the principal's sessions, newest first. ``since``: Unix seconds."""
        owner = scope_of(principal)
        request = ListErrors(session, tool, since, None, limit, owner=owner)
        with self._tree.services.tracer.operation("list", session=session or "", tool=tool or ""):
            return await self._tree.error_store.ask(request)

    async def error(self, error_id: str, *, principal: Principal = LOCAL) -> StoredError:
        """One stored error, whole. Raises ``NotFound`` (also for one of a foreign session)."""
        with self._tree.services.tracer.operation("get", error_id=error_id) as trace:
            found = await self._tree.error_store.ask(GetError(error_id))
            if found is not None:
                trace.session, trace.root.tool = found.session_id, found.tool_name
        if found is None or not await self._is_ours(found.session_id, principal):
            raise NotFound(f"no stored error {error_id!r}")
        return found

    # Inside

    async def _owned_session(self, session: str, principal: Principal) -> SessionInfo | None:
        """The session, None if there is none; raises ``NotFound`` if it is another's (G16)."""
        info = await self._tree.store.ask(GetSession(session))
        if info is not None and principal.role != "admin" and info.owner != principal.user:
            raise NotFound(f"no session {session!r}")
        return info

    async def _is_ours(self, session: str, principal: Principal) -> bool:
        """Whether the principal may see what belongs to a session; nobody's is an admin's."""
        if principal.role == "admin":
            return True
        info = await self._tree.store.ask(GetSession(session))
        return info is not None and info.owner == principal.user


def scope_of(principal: Principal) -> str | None:
    """Whose things a principal sees: None is everybody's."""
    return None if principal.role == "admin" else principal.user
