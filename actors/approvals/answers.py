"""The part of a host that shows what waits for a person, and takes the answers.

Invariants: an answer is on disk before anything comes of it; of many who answer one is first, and
the others are told who; what is another's is not found (G16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from motet.actors.approvals.parking import Parking
from motet.actors.records import Records, scope_of
from motet.actors.rooms.access import acts_as, may_change, room_of
from motet.actors.sessions.run import Run
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalDecision,
    ApprovalInfo,
    ApprovalState,
    GetApproval,
    Grant,
    ListApprovals,
    ListGrants,
    RevokeGrant,
)
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.rooms import FindRoom
from motet.protocols.sessions import LOCAL, Principal

if TYPE_CHECKING:
    from motet.actors.approvals.parked import Parked

DECISIONS: tuple[ApprovalDecision, ...] = ("allow-once", "allow-always", "deny")


class Approving(Records):
    """See :class:`motet.Host`."""

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
        whose = scope_of(principal)
        if room is not None:
            whose = acts_as(room).user
            if not await self._owns(whose, principal):
                raise NotFound(f"no room {room!r} of yours")
        request = ListApprovals(whose, session, state, None, limit)
        found = await self._parking.approvals.ask(request)
        return tuple(map(self._parking.blocked, found))

    async def approve(
        self,
        approval: str,
        decision: ApprovalDecision,
        *,
        by: str | None = None,
        note: str = "",
        deps: object = None,
        principal: Principal = LOCAL,
    ) -> ApprovalInfo:
        """Answer an approval; its run goes on, also one that waited when its host was killed.

        ``allow-always`` allows this tool of this agent for this user from now on, whatever the
        arguments; :meth:`grants` lists that. ``by``: who decides, for the record; the principal if
        absent. ``note``: with a denial, the model reads it. ``deps``: for a run that was left by an
        earlier process and whose agent has them. What keeps an answered run from going on is in
        ``blocked``.

        The same answer given again changes nothing, but has a run go on that could not. Cancelling
        does not take an answer back that is on its way to disk. Raises ``NotFound`` (also for a
        foreign one), and ``ApprovalAnswered`` when there is another answer, or it is too late.
        """
        if decision not in DECISIONS:
            raise InputValidation(f"{decision!r} is no decision: {', '.join(DECISIONS)}")
        known = await self._owned_approval(approval, principal)
        answer = AnswerApproval(known.id, decision, by or principal.user, note)
        # Shielded: an answer that is on disk has to reach whoever waits for it.
        with trio.CancelScope(shield=True):
            return await self._parking.answer(answer, deps)
        raise AssertionError("nobody cancels this scope")

    async def grants(
        self, *, agent: str | None = None, principal: Principal = LOCAL
    ) -> tuple[Grant, ...]:
        """What ``allow-always`` has left, newest first."""
        return await self._parking.approvals.ask(ListGrants(scope_of(principal), agent))

    async def revoke(self, grant: str, *, principal: Principal = LOCAL) -> None:
        """Have people asked again. Calls that were begun go on. Raises ``NotFound``."""
        if not await self._parking.approvals.ask(RevokeGrant(grant, scope_of(principal))):
            raise NotFound(f"no grant {grant!r}")

    # Inside

    @property
    def _parking(self) -> Parking:
        parking = self._tree.services.parking
        assert parking is not None
        return parking

    async def _owned_approval(self, approval: str, principal: Principal) -> ApprovalInfo:
        info = await self._parking.approvals.ask(GetApproval(approval))
        mine = info is not None and scope_of(principal) in (None, info.user)
        if info is None or not (mine or await self._owns(info.user, principal)):
            raise NotFound(f"no approval {approval!r}")
        return info

    async def _owns(self, user: str, principal: Principal) -> bool:
        """Whether that is who acts for a room of the principal's."""
        room = room_of(user)
        if room is None:
            return False
        record = await self._tree.rooms_store.ask(FindRoom(room, 0))
        return may_change(principal, record.owner if record else "")

    def _revived(
        self, principal: Principal, sessions: Sequence[str | None] | None, run_id: str | None
    ) -> list[Run]:
        """The parked runs that a stop is about, as live ones. Nothing is awaited."""

        def meant(one: Parked) -> bool:
            mine = scope_of(principal) in (None, one.user)
            if run_id is not None:
                return mine and one.run_id == run_id
            return mine and (sessions is None or one.session in sessions)

        return [self._parking.stopped(one) for one in self._tree.table.all_parked() if meant(one)]
