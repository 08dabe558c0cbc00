"""Starts what takes up the runs of the last host, and settles when this one ends in order."""

from __future__ import annotations

from motet.actors.recovery.recovery import Recovery
from motet.actors.sessions.router import RouterMessage
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, System, handles


class HeldSessions(Request[dict[str, str]], frozen=True, tag="recovery.held"):
    """Sessions that wait for an agent, and why."""


class Recoverer(Actor[HeldSessions]):
    """Its task lets sessions go on."""

    def __init__(self, recovery: Recovery, router: ActorRef[RouterMessage]) -> None:
        self._recovery = recovery
        self._router = router

    async def on_start(self) -> None:
        self.start_soon(self._recovery.attend, self._router)

    @handles(HeldSessions)
    async def held(self, _: HeldSessions) -> dict[str, str]:
        return dict(self._recovery.waits)

    async def on_stop(self) -> None:
        await self._recovery.settled()


async def start_recoverer(
    system: System, recovery: Recovery, router: ActorRef[RouterMessage]
) -> None:
    await system.start(lambda: Recoverer(recovery, router), name="recovery")
