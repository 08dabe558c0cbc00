"""Starts what takes up the runs of the last host, and settles when this one ends in order."""

from __future__ import annotations

from motet.actors.recovery.recovery import Recovery
from motet.protocols.messages import Request
from motet.runtime import Actor, System, handles


class HeldSessions(Request[dict[str, str]], frozen=True, tag="recovery.held"):
    """Sessions that wait for an agent, and why."""


class Recoverer(Actor[HeldSessions]):
    """Its task lets sessions go on."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery

    async def on_start(self) -> None:
        self.start_soon(self._recovery.attend)

    @handles(HeldSessions)
    async def held(self, _: HeldSessions) -> dict[str, str]:
        return dict(self._recovery.waits)

    async def on_stop(self) -> None:
        await self._recovery.settled()


async def start_recoverer(system: System, recovery: Recovery) -> None:
    await system.start(lambda: Recoverer(recovery), name="recovery")
