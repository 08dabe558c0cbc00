"""Parts of the tests of MCP servers: a server by its fault, its actor, and its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import attrs
import pytest

from motet.actors.tools.mcp.server import McpClient, McpProtocol
from motet.protocols.mcp import CallMcpTool, McpServer, McpTool
from motet.runtime import ActorRef, open_system
from tests.aimock import ROOT

SERVER = Path(__file__).with_name("server.py")
EVERYTHING = Path("@modelcontextprotocol", "server-everything", "dist", "index.js")


def faulty(*words: str, journal: Path | None = None, idle_stop: float = 0.0) -> McpServer:
    """The configuration of our own server, with or without a fault."""
    noted = ("--journal", str(journal)) if journal else ()
    command = (sys.executable, "-I", str(SERVER), *words, *noted)
    return McpServer(command=command, idle_stop=idle_stop, timeout=20, start_timeout=20)


def everything(node: Path) -> McpServer:
    """The reference server of the protocol's authors, from npm."""
    folders = [ROOT / "node_modules", *map(Path, os.environ.get("NODE_PATH", "").split(os.pathsep))]
    for folder in folders:
        if (folder / EVERYTHING).is_file():
            return McpServer(command=(str(node), str(folder / EVERYTHING), "stdio"))
    if os.environ.get("CI"):
        pytest.fail("no @modelcontextprotocol/server-everything: make install")
    pytest.skip("no @modelcontextprotocol/server-everything: make install")


@attrs.define
class Stage:
    """One server's actor, and every list of tools that it has published."""

    ref: ActorRef[McpProtocol]
    lists: list[tuple[McpTool, ...]]

    async def call(self, tool: str, **arguments: object) -> object:
        return (await self.ref.ask(CallMcpTool(tool, arguments))).value


@asynccontextmanager
async def acting(server: McpServer) -> AsyncGenerator[Stage]:
    """The actor of a server for the length of the block."""
    lists: list[tuple[McpTool, ...]] = []
    async with open_system(check_messages=True) as system:
        make = lambda: McpClient("it", server, lists.append, random=Random(0))  # noqa: E731
        yield Stage(await system.start(make, name="it"), lists)


def children(pid: int | None = None) -> list[int]:
    """The processes whose parent is ``pid``, or this one; zombies included.

    The servers that tests of one process share, of models and of forks, are none of them.
    """
    of = pid or os.getpid()
    found = [child for task in Path(f"/proc/{of}/task").iterdir() for child in _children(task)]
    return [child for child in found if not _is_shared(child)]


def _is_shared(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"aimock" in command or b"tests.forks" in command


def _children(task: Path) -> list[int]:
    try:
        return [int(word) for word in (task / "children").read_text().split()]
    except FileNotFoundError:  # the thread has ended
        return []


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
