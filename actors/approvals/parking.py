"""Where runs go that wait for long, and how they go on: by their answer, or by a stop.

Plain data and short steps; the :class:`Keeper` has the tasks. Invariants: who takes a run up has
taken it out of the table in the same step; what cannot be taken up now stays parked and says why.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agent.definition import Agent, AnyAgent
from motet.actors.approvals.desk import Desk
from motet.actors.approvals.parked import Parked
from motet.actors.approvals.store import ApprovalProtocol
from motet.actors.sessions.run import Run
from motet.actors.sessions.table import RunTable
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalInfo,
    ListParked,
    Mark,
    ParkRun,
    ResumeRun,
    Resumption,
    Suspended,
)
from motet.protocols.errors import MotetError
from motet.protocols.events import ApprovalResolved
from motet.protocols.sessions import Principal
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.agents.resolver import Resolver
    from motet.actors.events.journal import EventJournal
    from motet.actors.services import Services

MOST_RESUMED = 3
"""Times in a row that a run is taken up by itself; if nothing came of it, a person has to (G14)."""


@attrs.define(eq=False)
class Parking:
    """The parked runs of one host.

    Attributes:
        due: ids of runs to be looked at; ``news`` is set when there are some.
        answering: ids of approvals that are being answered in this process.
        revived: runs that were taken out of the table and wait for their rows.
        opened: set when the block of the host begins: none goes on before, so that hooks are there.
    """

    approvals: ActorRef[ApprovalProtocol]
    desk: Desk
    table: RunTable
    resolver: Resolver
    journal: EventJournal
    services: Services
    answering: set[str] = attrs.field(factory=set[str])
    due: deque[str] = attrs.field(factory=deque[str])
    revived: deque[tuple[Run, Parked]] = attrs.field(factory=deque[tuple[Run, Parked]])
    news: trio.Event = attrs.field(factory=trio.Event)
    opened: trio.Event = attrs.field(factory=trio.Event)

    # Leaving

    async def store(self, run_id: str, suspended: Suspended, rows: tuple[Mark, ...]) -> bool:
        return await self.approvals.ask(ParkRun(run_id, suspended, rows))

    def left(self, run: Run) -> None:
        """A run has left its task; it goes on at once if it has an answer already."""
        agent = run.agent
        user = run.principal.user
        self.table.park(Parked(run.id, run.session, agent.name, user, run.text, agent, run.deps))
        if run.missed:
            self.wake(run.id)

    async def load(self) -> None:
        """Once, before runs are recovered: what the last host left parked or waiting."""
        for run in await self.approvals.ask(ListParked()):
            self.table.park(Parked.stored(run))
            if run.due:
                self.wake(run.run_id)

    # Going on

    def find(self, run_id: str) -> Parked | None:
        return next((one for one in self.table.all_parked() if one.run_id == run_id), None)

    async def answer(self, request: AnswerApproval, deps: object) -> ApprovalInfo:
        """Put an answer on record, tell of it, and have its run go on. Shield it."""
        self.answering.add(request.id)
        try:
            settled = await self.approvals.ask(request)
            if settled.fresh:
                await self.tell(settled.info)
            parked = self.find(settled.info.run_id)
            if parked is not None:
                parked.resumed = 0
                parked.deps = deps if deps is not None else parked.deps
                await self.agent(parked)
            info = self.blocked(settled.info)
            self.settled(settled.info)
            return info
        finally:
            self.answering.discard(request.id)

    def settled(self, info: ApprovalInfo) -> None:
        """Pass an answer on to whoever waits for it: a call that runs, or a parked run.

        A run that is leaving just now will find that it was answered.
        """
        if self.desk.settled(info):
            return
        run = self.table.runs.get(info.run_id)
        if run is not None:
            run.missed = True
        self.wake(info.run_id)

    async def tell(self, info: ApprovalInfo) -> None:
        """Announce an answer, before anything comes of it."""
        await self.services.publish(info.session, resolved(info), info.run_id)

    def wake(self, run_id: str) -> None:
        """Have a run go on that has an answer, if it is parked and can."""
        parked = self.find(run_id)
        if parked is not None:
            parked.due = True
            self.due.append(run_id)
            self.news.set()

    def agent_known(self, name: str) -> None:
        """Runs that only waited for this agent can go on now."""
        for parked in self.table.all_parked():
            if parked.due and (parked.blocked or parked.agent == name):
                self.wake(parked.run_id)

    async def agent(self, parked: Parked) -> AnyAgent | None:
        """The agent that it goes on with; None, and it says why, when it cannot."""
        try:
            agent = parked.code or await self.resolver.resolve(parked.agent)
        except MotetError as error:
            parked.blocked = f"{error}: it goes on when host.add(...) makes the agent known"
            return None
        if agent.deps_type is not None and parked.deps is None:
            parked.blocked = (
                f"the agent {agent.name!r} needs deps, which are not stored: "
                "give them with host.approve(id, decision, deps=...)"
            )
            return None
        if parked.resumed >= MOST_RESUMED:
            parked.blocked = (
                f"it was taken up {parked.resumed} times and each time the host ended: "
                "answer again to have it tried once more, or stop it"
            )
            return None
        parked.blocked = ""
        return agent

    def revive(self, parked: Parked, agent: AnyAgent) -> Run:
        """A parked run as a live one, whose rows are not there yet. Nothing may be awaited before.

        The keeper goes on with it.
        """
        run = Run(
            parked.run_id,
            parked.session,
            agent,
            Principal(parked.user),
            parked.text,
            agent.limits,
            parked.deps,
        )
        self.table.revive(run)
        self.revived.append((run, parked))
        self.news.set()
        return run

    def stopped(self, parked: Parked) -> Run:
        """Revive a parked run so that it can be stopped; no agent is needed."""
        known = self.resolver.known(parked.agent)
        return self.revive(parked, parked.code or known or Agent(parked.agent))

    async def rows(self, run: Run, parked: Parked) -> Resumption | None:
        """Give a revived run what it was left with; None when it is not parked on disk any more."""
        await self.journal.settle()  # what has been told of it is there to be read
        found = await self.approvals.ask(ResumeRun(run.id))
        if found is not None:
            left = found.suspended
            run.resumption, run.limits, run.asked = found, left.limits, True
            run.principal = Principal(parked.user, left.role)
            run.found, run.extra, run.lineage = set(left.found), left.extra, left.lineage
            if left.next_agent:
                run.next_agent = await self.resolver.resolve(left.next_agent)
        return found

    def blocked(self, info: ApprovalInfo) -> ApprovalInfo:
        """The approval, with what keeps its run from going on."""
        parked = self.find(info.run_id)
        return info if parked is None else replace(info, blocked=parked.blocked)


def resolved(info: ApprovalInfo) -> ApprovalResolved:
    """The event that tells of a settled approval."""
    decision: Literal["allow", "deny", "expired", "cancelled"]
    match info.state:
        case "allowed":
            decision = "allow"
        case "denied":
            decision = "deny"
        case "expired":
            decision = "expired"
        case _:
            decision = "cancelled"
    return ApprovalResolved(info.id, decision, info.resolved_by or "", info.note)
