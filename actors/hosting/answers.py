"""The part of a host that shows what waits for a person, and takes the answers.

Invariants: an answer is on disk before anything comes of it; of many who answer one is first, and
the others are told who; what is another's is not found (G16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from motet.actors.hosting.records import Records, scope_of
from motet.actors.hosting.tree import Tree
from motet.actors.rooms.definition import acts_as, may_change, room_of
from motet.actors.runs.run import Run
from motet.actors.runs.suspend import SuspendedRuns
from motet.actors.sessions.intake import Intake
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
from motet.protocols.escalations import Answer, AnswerEscalation, EscalationInfo, GetEscalation
from motet.protocols.events import EscalationResolved
from motet.protocols.rooms import FindRoom
from motet.protocols.sessions import LOCAL, GetRun, Principal
from motet.protocols.storage import storable

if TYPE_CHECKING:
    from motet.actors.runs.table import SuspendedRun


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
        found = await self._suspended_runs.approvals.ask(request)
        return tuple(map(self._suspended_runs.with_block, found))

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
            return await self._suspended_runs.answer(answer, deps)
        raise AssertionError("nobody cancels this scope")

    async def grants(
        self, *, agent: str | None = None, principal: Principal = LOCAL
    ) -> tuple[Grant, ...]:
        """What ``allow-always`` has left, newest first."""
        return await self._suspended_runs.approvals.ask(ListGrants(scope_of(principal), agent))

    async def revoke(self, grant: str, *, principal: Principal = LOCAL) -> None:
        """Have people asked again. Calls that were begun go on. Raises ``NotFound``."""
        if not await self._suspended_runs.approvals.ask(RevokeGrant(grant, scope_of(principal))):
            raise NotFound(f"no grant {grant!r}")

    # Inside

    @property
    def _suspended_runs(self) -> SuspendedRuns:
        return self._tree.suspended_runs

    async def _owned_approval(self, approval: str, principal: Principal) -> ApprovalInfo:
        info = await self._suspended_runs.approvals.ask(GetApproval(approval))
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

    def _resumed(
        self, principal: Principal, sessions: Sequence[str | None] | None, run_id: str | None
    ) -> list[Run]:
        """The suspended runs that a stop is about, as live ones. Nothing is awaited."""

        def meant(one: SuspendedRun) -> bool:
            mine = scope_of(principal) in (None, one.user)
            if run_id is not None:
                return mine and one.run_id == run_id
            return mine and (sessions is None or one.session in sessions)

        return [
            self._suspended_runs.resume_to_stop(one)
            for one in self._tree.table.all_suspended()
            if meant(one)
        ]


# What a person's answer to an escalation says: to the model, and to those who watch.


RETRY = "Try again, and go on from where you stopped."


def follow_up(decision: Answer, note: str) -> str | None:
    """The text of the next run; None when the answer is to give up.

    Raises ``InputValidation`` for advice that says nothing.
    """
    match decision:
        case "retry":
            return f"{RETRY}\n\n{note}" if note.strip() else RETRY
        case "advice" if note.strip():
            return note
        case "advice":
            raise InputValidation("advice needs a note: say what the agent should do")
        case "give_up":
            return None


def resolved(info: EscalationInfo) -> EscalationResolved:
    """The event that tells of an answer."""
    assert info.decision is not None
    assert info.resolved_by is not None
    return EscalationResolved(info.id, info.decision, info.note, info.resolved_by, info.next_run)


# What people answer to a host: escalations of runs that could not go on by themselves.
#
# Invariant: an answer counts once; what it starts is started once.


class Answering(Approving):
    """The part of a host that takes answers; see :class:`motet.Host`."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self._intake = tree.children.intake = Intake(
            tree.table,
            tree.store,
            tree.router,
            lambda: tree.registry,
            tree.resolver,
            tree.services,
        )

    async def resolve(
        self,
        escalation: str,
        decision: Answer,
        *,
        note: str = "",
        deps: object = None,
        principal: Principal = LOCAL,
    ) -> EscalationInfo:
        """Answer an escalation; ``retry`` and ``advice`` have a run of its session started.

        The same answer given again changes nothing, but starts the run if that was prevented.
        Raises ``NotFound`` (also for a foreign one), ``EscalationAnswered`` when there is another
        answer, ``InputValidation`` for advice without a note, ``QueueFull`` and ``UnknownName``.
        """
        text = follow_up(decision, note)
        known = await self._owned_escalation(escalation, principal)
        owner = Principal(known.user)
        run = None
        if text is not None:
            run = await self._intake.new_run(
                known.agent, text, known.session, deps, None, owner, None
            )
        answer = AnswerEscalation(
            known.id, decision, storable(note), principal.user, run.id if run else None
        )
        fresh = await self._tree.store.ask(answer)
        info = await self._owned_escalation(escalation, principal)
        if fresh:
            await self._tree.services.events.emit_to(info.session, resolved(info), info.run_id)
        if run and info.next_run is not None:
            await self._follow_up(run, info.next_run)
        return info

    async def _owned_escalation(self, escalation: str, principal: Principal) -> EscalationInfo:
        info = await self._tree.store.ask(GetEscalation(escalation))
        if info is None or (principal.role != "admin" and info.user != principal.user):
            raise NotFound(f"no escalation {escalation!r}")
        return info

    async def _follow_up(self, run: Run, run_id: str) -> None:
        """Start the run of an answer, unless it was started before."""
        run.id = run_id
        stored = await self._tree.store.ask(GetRun(run_id))
        if stored is None and run_id not in self._tree.table.runs:
            await self._intake.deliver(run)
