"""Starts what a host needs for approvals, and takes up what the last host left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.actors.approvals.keeper import Keeper
from motet.actors.approvals.parking import Parking
from motet.actors.approvals.store import ApprovalProtocol
from motet.protocols.approvals import WithdrawLeft
from motet.runtime import ActorRef, System

if TYPE_CHECKING:
    from motet.actors.agents.resolver import Resolver
    from motet.actors.events.journal import EventJournal
    from motet.actors.services import Services


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
