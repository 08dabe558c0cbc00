"""What people answer to a host: escalations of runs that could not go on by themselves.

Invariant: an answer counts once; what it starts is started once.
"""

from __future__ import annotations

from motet.actors.approvals.answers import Approving
from motet.actors.intake import Intake
from motet.actors.sessions.review import follow_up, resolved
from motet.actors.sessions.run import Run
from motet.actors.tree import Tree
from motet.protocols.errors import NotFound
from motet.protocols.escalations import (
    Answer,
    AnswerEscalation,
    EscalationInfo,
    GetEscalation,
)
from motet.protocols.sessions import (
    LOCAL,
    GetRun,
    Principal,
)
from motet.protocols.storage import storable


class Answering(Approving):
    """The part of a host that takes answers; see :class:`motet.Host`."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self._intake = tree.children.intake = Intake(tree)

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
            await self._tree.services.announce(info.session, resolved(info), info.run_id)
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
