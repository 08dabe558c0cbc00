"""A host with a door, for the length of a block."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import trio

from motet.actors.embed.portal import Portal

if TYPE_CHECKING:
    from motet.actors.host import Host

OpenHost: TypeAlias = "Callable[[], AbstractAsyncContextManager[Host]]"


@asynccontextmanager
async def portal_into(open_host: OpenHost) -> AsyncGenerator[Portal]:
    """Leaving the block cancels the jobs, waits for their clean-up, and closes the host."""
    async with open_host() as host, trio.open_nursery() as nursery:
        portal = Portal(host, nursery)
        try:
            yield portal
        finally:
            portal.close()
            nursery.cancel_scope.cancel()
