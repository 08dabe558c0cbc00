"""Answers of people: to approvals, and to escalations of runs that needed help.

Invariants: an answer is on disk before it has any effect; of several answers the first counts, and
the others are told who gave it; the run that an answer starts is started once.
"""

from __future__ import annotations

from typing import get_args

import attrs
import trio
from msgspec.structs import replace

from motet.actors.rooms.api import RoomApi
from motet.actors.rooms.definition import acts_as, room_of
from motet.actors.runs.run import PendingInput, Run
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.runs.table import RunEvents, RunTable
from motet.actors.sessions.intake import Intake
from motet.actors.storage.tables import storable
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalDecision,
    ApprovalInfo,
    ApprovalProtocol,
    GetApproval,
    RevokeGrant,
    is_told,
)
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.escalations import (
    Answer,
    AnswerEscalation,
    EscalationInfo,
    GetEscalation,
    follow_up,
    with_history,
)
from motet.protocols.events import EscalationResolved
from motet.protocols.room_people import RoomRight
from motet.protocols.session_keys import split_key
from motet.protocols.sessions import (
    FINAL,
    FinishRun,
    GetRun,
    GetSession,
    Principal,
    RunInfo,
    SessionInfo,
    SessionStoreMessage,
)
from motet.runtime import ActorRef


def scope_of(principal: Principal) -> str | None:
    """The user whose records a principal sees; None: of all users, for an admin."""
    return None if principal.role == "admin" else principal.user


def sees(principal: Principal, owner: str | None) -> bool:
    """Whether a principal sees the records of ``owner``."""
    return scope_of(principal) in (None, owner)


def with_end(info: RunInfo, end: FinishRun | None) -> RunInfo:
    """A stored run with its end, which is not stored yet."""
    if end is None or info.status in FINAL:
        return info
    return replace(info, status=end.status, usage=end.usage, detail=end.detail, unsaved=True)


@attrs.frozen(eq=False)
class Access:
    """Finds one record by its name or id. Raises ``NotFound`` (also for a foreign one)."""

    _sessions: ActorRef[SessionStoreMessage]
    _approvals: ActorRef[ApprovalProtocol]
    _rooms: RoomApi
    _table: RunTable

    async def find_session(self, session: str, principal: Principal) -> SessionInfo | None:
        """None if there is no such session."""
        info = await self._sessions.ask(GetSession(session))
        if info is not None and not sees(principal, info.owner):
            raise NotFound(f"no session {session!r}")
        return info

    async def session(self, session: str, principal: Principal) -> SessionInfo:
        info = await self.find_session(session, principal)
        if info is None:
            raise NotFound(f"no session {session!r}")
        return info

    async def sees_session(self, session: str, principal: Principal) -> bool:
        """Records of a session that does not exist are for admins only."""
        if principal.role == "admin":
            return True
        info = await self._sessions.ask(GetSession(session))
        return info is not None and await self.may(principal, "inspect", info.owner)

    async def run(self, run_id: str, principal: Principal) -> RunInfo:
        info = await self._sessions.ask(GetRun(run_id))
        if info is None or not sees(principal, info.user):
            raise NotFound(f"no run {run_id!r}")
        return with_end(info, self._table.unsaved().get(run_id))

    async def escalation(self, escalation: str, principal: Principal) -> EscalationInfo:
        info = await self._sessions.ask(GetEscalation(escalation))
        if info is None or not await self.may(principal, "answer", info.user):
            raise NotFound(f"no escalation {escalation!r}")
        return info

    async def approval(self, approval: str, principal: Principal) -> ApprovalInfo:
        info = await self._approvals.ask(GetApproval(approval))
        if info is None or not await self.may(principal, "answer", info.user):
            raise NotFound(f"no approval {approval!r}")
        return info

    async def may(self, principal: Principal, right: RoomRight, user: str) -> bool:
        """Whether a record of ``user`` is the principal's: their own, or that of the members of a
        room in which they have the right.
        """
        room = room_of(user)
        if room is None or sees(principal, user):
            return sees(principal, user)
        try:
            standing = (await self._rooms.standing(room))[1]
        except NotFound:
            return False
        # The room of a call belongs to the user of its run, which may be a room itself.
        return standing.may(principal, right) or (
            room_of(standing.owner) is not None and await self.may(principal, right, standing.owner)
        )

    async def scope(self, room: str | None, principal: Principal, right: RoomRight) -> str | None:
        """The user whose records are meant: the principal, or the members of a room in which they
        have the right; None: all users. Raises ``NotFound`` without it.
        """
        if room is None:
            return scope_of(principal)
        if not await self.may(principal, right, acts_as(room).user):
            raise NotFound(f"no room {room!r} of yours")
        return acts_as(room).user


@attrs.frozen(eq=False)
class Answers:
    """See the methods of these names of :class:`motet.Host`."""

    _suspended_runs: SuspendedRuns
    _access: Access
    _intake: Intake
    _store: ActorRef[SessionStoreMessage]
    _events: RunEvents
    _rooms: RoomApi

    async def approve(
        self,
        approval: str,
        decision: ApprovalDecision,
        by: str | None,
        note: str,
        deps: object,
        principal: Principal,
    ) -> ApprovalInfo:
        if decision not in (decisions := get_args(ApprovalDecision)):
            raise InputValidation(f"{decision!r} is not a decision: {', '.join(decisions)}")
        known = await self._access.approval(approval, principal)
        answer = AnswerApproval(known.id, decision, by or principal.user, note)
        # Shielded: an answer that is on disk has to reach the call that waits for it.
        with trio.CancelScope(shield=True):
            if is_told(decision, note) and room_of(known.user) is not None:
                # Before the note is read: whoever is heard too early only takes rights away.
                who = Principal(by) if by else principal
                runs = await self._rooms.hear(known.run_id, known.session, who)
                answer = replace(answer, who=who, runs=runs, session=known.session)
            return await self._suspended_runs.answer(answer, deps)
        raise AssertionError("nobody cancels this scope")

    async def revoke(self, grant: str, room: str | None, principal: Principal) -> None:
        request = RevokeGrant(grant, await self._access.scope(room, principal, "answer"))
        if not await self._suspended_runs.approvals.ask(request):
            raise NotFound(f"no grant {grant!r}")

    async def resolve(
        self, escalation: str, decision: Answer, note: str, deps: object, principal: Principal
    ) -> EscalationInfo:
        arrival = self._intake.expect(None, principal)  # from now on, a stop finds the next run
        try:
            known = await self._access.escalation(escalation, principal)
            text = follow_up(decision, note, known.tool)
            answer = AnswerEscalation(known.id, decision, storable(note), principal.user)
            if text is None:
                fresh = await self._store.ask(answer)
            elif (room := room_of(known.user)) is not None:
                # Its member answers in a round of the room, where everybody can read it.
                member = split_key(known.session)[0]
                post = self._rooms.post
                said = await post(room, f"@{member} {text}", answers=answer, principal=principal)
                fresh = not said.duplicate
            else:
                run = await self._next_run(known, text, deps, arrival)
                answer = replace(answer, next_run=run.id)
                # Both are stored together: a crash leaves neither, or both.
                run.input = attrs.evolve(run.input, answers=answer)
                fresh = (await self._intake.deliver(run)).status != "duplicate"
        finally:
            self._intake.forget(arrival)
        # Shielded: an answer that is on disk is announced.
        with trio.CancelScope(shield=True):
            info = await self._access.escalation(escalation, principal)
            if fresh:
                await self._events.emit_to(info.session, info.user, resolved(info), info.run_id)
            return info
        raise AssertionError("nobody cancels this scope")

    async def _next_run(
        self, known: EscalationInfo, text: str, deps: object, arrival: PendingInput
    ) -> Run:
        """The run that an answer starts, for the person of the escalated one."""
        if arrival.principal.user != known.user:
            arrival.principal = Principal(known.user)
        run = await self._intake.new_run(
            known.agent,
            text,
            known.session,
            deps,
            None,
            arrival.principal,
            sender=known.sender,
            arrival=arrival,
        )
        # The input guard has judged the answer; the history behind it is the host's own.
        told = with_history(run.input.text, known.error_history)
        run.input = attrs.evolve(run.input, text=told)
        return run


def resolved(info: EscalationInfo) -> EscalationResolved:
    """The event that announces an answer."""
    assert info.decision is not None
    assert info.resolved_by is not None
    return EscalationResolved(info.id, info.decision, info.note, info.resolved_by, info.next_run)
