"""Lookups in the name of a principal.

Invariant: what belongs to another user is not found, as if it did not exist (G16).
"""

from __future__ import annotations

from motet.actors.rooms.definition import may_change, room_of
from motet.protocols.approvals import ApprovalInfo, ApprovalProtocol, GetApproval
from motet.protocols.errors import NotFound
from motet.protocols.escalations import EscalationInfo, GetEscalation
from motet.protocols.rooms import FindRoom, RoomStoreMessage
from motet.protocols.sessions import (
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


class Access:
    """Finds one record by its name or id. Raises ``NotFound`` (also for a foreign one)."""

    def __init__(
        self,
        sessions: ActorRef[SessionStoreMessage],
        approvals: ActorRef[ApprovalProtocol],
        rooms: ActorRef[RoomStoreMessage],
    ) -> None:
        self._sessions = sessions
        self._approvals = approvals
        self._rooms = rooms

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
        return info is not None and info.owner == principal.user

    async def run(self, run_id: str, principal: Principal) -> RunInfo:
        info = await self._sessions.ask(GetRun(run_id))
        if info is None or not sees(principal, info.user):
            raise NotFound(f"no run {run_id!r}")
        return info

    async def escalation(self, escalation: str, principal: Principal) -> EscalationInfo:
        info = await self._sessions.ask(GetEscalation(escalation))
        if info is None or not sees(principal, info.user):
            raise NotFound(f"no escalation {escalation!r}")
        return info

    async def approval(self, approval: str, principal: Principal) -> ApprovalInfo:
        info = await self._approvals.ask(GetApproval(approval))
        if info is None or not (
            sees(principal, info.user) or await self.owns_room_of(info.user, principal)
        ):
            raise NotFound(f"no approval {approval!r}")
        return info

    async def owns_room_of(self, user: str, principal: Principal) -> bool:
        """Whether ``user`` stands for a room that the principal may change."""
        room = room_of(user)
        if room is None:
            return False
        record = await self._rooms.ask(FindRoom(room, 0))
        return may_change(principal, record.owner if record else "")
