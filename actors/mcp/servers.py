"""The actors of MCP servers, one for each, and what they say that theirs offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import trio

from motet.actors.mcp.client import McpClient, McpProtocol
from motet.protocols.mcp import McpServer, McpTool
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, Supervision, handles

Offer: TypeAlias = Callable[[str, tuple[McpTool, ...]], None]
"""Called with the name of a server and its tools, whenever they change."""


class GetServer(Request[ActorRef[McpProtocol]], frozen=True, tag="mcp.server"):
    """The actor in front of the server of that name."""

    name: str


class McpServers(Actor[GetServer]):
    """Parent of the servers' actors. One that crashes is restarted alone."""

    supervision = Supervision(intensity=5, period=60.0, backoff=0.5)

    def __init__(self, servers: Mapping[str, McpServer], offer: Offer) -> None:
        self._servers = servers
        self._offer = offer
        self._closing = trio.Event()

    async def on_start(self) -> None:
        self.start_soon(self._close_all)
        for name, server in self._servers.items():
            offer = partial(self._offer, name)
            make = partial(McpClient, name, server, offer, self._closing)
            await self.start_child(make, name=name)

    @handles(GetServer)
    async def get(self, request: GetServer) -> ActorRef[McpProtocol]:
        child = self.child(request.name)
        assert child is not None, "all servers are started with this actor"
        return child

    async def _close_all(self) -> None:
        """Servers that are slow to end are so at the same time, not one after the other."""
        try:
            await trio.sleep_forever()
        finally:
            self._closing.set()
