"""A look at a server: whether it starts, what it is, what it offers; it is ended at once."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec
import trio

from motet.actors.errors.hidden import hiding
from motet.actors.mcp.connection import open_connection
from motet.actors.mcp.wire import End
from motet.actors.mcp.words import Words
from motet.protocols.errors import MissingExtra
from motet.protocols.mcp import McpServer, McpTool
from motet.runtime.errors import only_error


class Probe(msgspec.Struct, frozen=True):
    """What a look at a server found.

    Attributes:
        about: the server's own name and version, and the protocol it speaks.
        problem: why it cannot be used; empty when it can.
    """

    name: str
    about: str = ""
    tools: tuple[McpTool, ...] = ()
    problem: str = ""


async def probe(name: str, server: McpServer, limit: float) -> Probe:
    """Look at one server for at most ``limit`` seconds and what its end takes. Never raises."""
    server = attrs.evolve(server, start_timeout=min(server.start_timeout, limit))
    words, end = Words(name), End()
    with hiding(server.secrets):
        try:
            async with open_connection(server, words, end) as (connection, tools):
                return Probe(name, connection.about(), tools)
        except MissingExtra as error:
            return Probe(name, problem=str(error))
        except Exception as raised:
            why, said = end.reason or str(only_error(raised)), words.last()
            return Probe(name, problem=f"{why}; it said: {said}" if said else why)


async def probe_all(servers: Mapping[str, McpServer], limit: float) -> tuple[Probe, ...]:
    """Look at all of them at once; in the order of their names."""
    found: dict[str, Probe] = {}

    async def look(name: str) -> None:
        found[name] = await probe(name, servers[name], limit)

    async with trio.open_nursery() as nursery:
        for name in servers:
            nursery.start_soon(look, name)
    return tuple(found[name] for name in sorted(found))
