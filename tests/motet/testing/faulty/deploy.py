"""A project whose deployments go on after a stop: a job is nobody's while it is announced.

The job runs in the background of the program, so that it has to be ended by hand. That is done,
but only from the line on that comes after the announcement.
"""

from __future__ import annotations

import logging
from contextvars import copy_context

import attrs
import trio

import motet

log = logging.getLogger(__name__)

agent = motet.Agent("ops", instructions="You deploy services.")


@attrs.define(eq=False)
class Job:
    """A deployment in the background."""

    service: str
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)

    def start(self) -> None:
        trio.lowlevel.spawn_system_task(
            self._work, name=f"deployment of {self.service}", context=copy_context()
        )

    async def _work(self) -> None:
        with self.scope:
            await trio.sleep(300)
        self.over.set()

    async def end(self) -> None:
        self.scope.cancel()
        with trio.CancelScope(shield=True):
            await self.over.wait()


@agent.tool
async def deploy(service: str) -> str:
    """Deploy a service; takes some minutes."""
    job = Job(service)
    job.start()
    await announce(f"{service} is being deployed")
    try:
        await job.over.wait()
    finally:
        await job.end()
    return f"{service} is deployed"


async def announce(text: str) -> None:
    """Tell the dashboard, which takes its time."""
    log.info(text)
    await trio.sleep(2)
