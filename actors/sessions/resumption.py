"""The tasks behind approvals: they expire in time, and parked runs go on when they can."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import trio

from motet.actors.errors.log import logger
from motet.actors.runs.run import Run
from motet.actors.runs.suspend import Parked, Parking
from motet.actors.sessions.session import wake
from motet.protocols.approvals import (
    ApprovalProtocol,
    ExpireApproval,
    GetApproval,
    ListApprovals,
    WithdrawLeft,
)
from motet.protocols.events import Warned
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, System, handles
from motet.runtime.outside import wall_time

if TYPE_CHECKING:
    from motet.actors.agents.registry import Resolver
    from motet.actors.runs.services import Services
    from motet.actors.telemetry.subscription import EventJournal


ALL = 1_000
LOOK = 2.0
"""Seconds between two looks at whether somebody answered beside this host: ``motet approvals``."""
AGAIN = 5.0
"""Seconds after which something is tried again that the store could not do."""

log = logger(__name__)


class PendingCount(Request[int], frozen=True, tag="approvals.pending"):
    """How many approvals are pending in this host."""


class Keeper(Actor[PendingCount]):
    """``clock`` gives Unix seconds, by which approvals of before are known to expire."""

    def __init__(self, parking: Parking, clock: Callable[[], float] = wall_time) -> None:
        self._parking = parking
        self._clock = clock

    async def on_start(self) -> None:
        self.start_soon(self._expire)
        self.start_soon(self._attend)
        self.start_soon(self._watch)

    @handles(PendingCount)
    async def pending(self, _: PendingCount) -> int:
        return len(self._parking.desk.deadlines)

    # Expiring

    async def _expire(self) -> None:
        await self._remember()
        desk = self._parking.desk
        while True:
            first = min(desk.deadlines, key=desk.deadlines.__getitem__, default=None)
            with trio.move_on_at(inf if first is None else desk.deadlines[first]):
                await desk.news.wait()
            desk.news = trio.Event()
            if first is not None and desk.deadlines.get(first, inf) <= trio.current_time():
                await self._end(first)

    async def _remember(self) -> None:
        """What a host before has left pending."""
        desk = self._parking.desk
        while True:
            try:
                left = await self._parking.approvals.ask(ListApprovals(state="pending", limit=ALL))
            except Exception as error:
                log.warning("approvals not read", why=str(error))
                await trio.sleep(AGAIN)
                continue
            for info in left:
                if info.id not in desk.deadlines:
                    desk.expect(info, max(0.0, info.expires - self._clock()))
            return

    async def _end(self, approval: str) -> None:
        desk = self._parking.desk
        del desk.deadlines[approval]  # so that nobody else tells of it
        try:
            settled = await self._parking.approvals.ask(ExpireApproval(approval))
        except Exception as error:
            log.warning("approval not expired", approval=approval, why=str(error))
            desk.deadlines[approval] = trio.current_time() + AGAIN
            return
        if settled.info.state == "expired":
            await self._parking.tell(settled.info)
        self._parking.settled(settled.info)

    # Answers by another process

    async def _watch(self) -> None:
        """While something is pending, look whether somebody answered it on disk."""
        desk = self._parking.desk
        while True:
            while not desk.deadlines:
                await desk.asked.wait()
            desk.asked = trio.Event()
            await trio.sleep(LOOK)
            if desk.deadlines:
                desk.asked.set()
                await self._look()

    async def _look(self) -> None:
        parking, known = self._parking, set(self._parking.desk.deadlines)
        try:
            left = await parking.approvals.ask(ListApprovals(state="pending", limit=ALL))
            for approval in known - {info.id for info in left} if len(left) < ALL else ():
                info = await parking.approvals.ask(GetApproval(approval))
                mine = approval in parking.answering or approval not in parking.desk.deadlines
                if info is not None and info.state != "pending" and not mine:
                    parking.desk.deadlines.pop(approval)
                    await parking.tell(info)
                    parking.settled(info)
        except Exception as error:
            log.warning("approvals not looked at", why=str(error))

    # Going on

    async def _attend(self) -> None:
        parking = self._parking
        await parking.opened.wait()
        while True:
            await parking.news.wait()
            parking.news = trio.Event()
            while parking.revived:
                self.start_soon(self._go_on, *parking.revived.popleft())
            while parking.due:
                self.start_soon(self._look_at, parking.due.popleft())

    async def _look_at(self, run_id: str) -> None:
        """Take a run up again, if its agent and all it needs are there."""
        parking = self._parking
        parked = parking.find(run_id)
        if parked is None:
            return
        agent = await parking.agent(parked)
        if parking.find(run_id) is not parked:
            return  # somebody else was faster
        if agent is not None:
            parking.revive(parked, agent)
        elif parked.blocked != parked.warned:
            parked.warned = parked.blocked
            log.warning("a parked run cannot go on", run=run_id, why=parked.blocked)
            warned = Warned("approvals", f"the run is answered and waits: {parked.blocked}")
            await parking.services.announce(parked.session, warned, run_id)

    async def _go_on(self, run: Run, parked: Parked) -> None:
        """Give a revived run its rows, and its session the run."""
        if not run.stop_reason and await self._parking.agent(parked) is None:
            self._back(run, parked)  # it was revived to be stopped, and then was not
            return
        try:
            found = await self._parking.rows(run, parked)
        except Exception as error:
            log.error("a parked run cannot be read", run=run.id, why=str(error))
            parked.blocked = f"what is stored of it cannot be read: {error}"
            self._back(run, parked)
            return
        table = self._parking.table
        if found is None:
            table.finish(run, run.ends_as("dropped", "it is not parked any more"))
        else:
            table.slot(run.session).starting.append(run)
        wake(table, run.session)

    def _back(self, run: Run, parked: Parked) -> None:
        """It stays parked."""
        table = self._parking.table
        table.finish(run, run.ends_as("waiting", parked.blocked))
        table.park(parked)


# Starts what a host needs for approvals, and takes up what the last host left of them.


async def load_parking(
    approvals: ActorRef[ApprovalProtocol],
    resolver: Resolver,
    journal: EventJournal,
    services: Services,
) -> Parking:
    """To be called before runs are recovered: those that wait are none of them."""
    services.desk.emit = services.emit
    parking = Parking(approvals, services.desk, services.table, resolver, journal, services)
    services.parking = parking
    await parking.load()
    return parking


async def start_keeper(system: System, parking: Parking) -> None:
    """To be called when runs have been recovered: parked ones may go on from now on."""
    for info in await parking.approvals.ask(WithdrawLeft()):
        await parking.tell(info)
    await system.start(lambda: Keeper(parking), name="approvals-keeper")
