"""MCP servers as actors: each starts its server on demand, shares it, restarts it and ends it.

:data:`TABLE` has the states of a server; :class:`Lifecycle` adds the back-off after failures. Pure;
:class:`McpClient` carries it out. Invariants: there is at most one process, or session, at a time,
and one task of the actor owns it; none outlives the actor (G2); a cancelled caller returns when the
server has been told to stop the call (G1). A server that fails costs its callers an error and the
actor nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Literal, TypeAlias

import attrs
import trio

from motet.actors.errors.log import logger
from motet.actors.tools.mcp.session import Connection, open_connection
from motet.actors.tools.mcp.stdio import End, StderrLog
from motet.protocols.mcp import (
    CallMcpTool,
    GetMcpStatus,
    ListMcpTools,
    McpAnswer,
    McpFailed,
    McpServer,
    McpStatus,
    McpTool,
)
from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, Supervision, handles
from motet.runtime.backoff import Backoff
from motet.runtime.errors import only_error
from motet.runtime.outside import foreign_code

State: TypeAlias = Literal["stopped", "starting", "ready", "stopping"]
Event: TypeAlias = Literal["wanted", "listed", "idle", "ended"]
"""A caller needs it; it has listed its tools; it was idle for too long; it has ended."""

BACKOFF = Backoff(0.5, most=60.0, jitter=0.1)
"""Seconds between a failure and the next start."""
STABLE = 60.0
"""Seconds of service after which the count of failures begins again."""

TABLE: dict[tuple[State, Event], State] = {
    ("stopped", "wanted"): "starting",
    ("starting", "listed"): "ready",
    ("starting", "ended"): "stopped",
    ("ready", "idle"): "stopping",
    ("ready", "ended"): "stopped",
    ("stopping", "ended"): "stopped",
}


@attrs.frozen
class Lifecycle:
    """The state of a server.

    Attributes:
        failures: unexpected ends in a row.
        not_before: the earliest time of the next start.
        since: when it became ready; minus infinity while it is not.
    """

    state: State = "stopped"
    failures: int = 0
    not_before: float = -math.inf
    since: float = -math.inf

    def after(self, event: Event, now: float, chance: float = 0.0) -> Lifecycle:
        """The next state. ``chance``: 0 to 1. Raises ``ValueError`` for an event off the table."""
        state = TABLE.get((self.state, event))
        if state is None:
            raise ValueError(f"a server that is {self.state} cannot be {event}")
        if event == "listed":
            return attrs.evolve(self, state=state, since=now)
        if event != "ended":
            return attrs.evolve(self, state=state)
        if self.state == "stopping":
            return Lifecycle()
        stable = self.state == "ready" and now - self.since >= STABLE
        failures = 1 if stable else self.failures + 1
        return Lifecycle(state, failures, now + BACKOFF.delay(failures, chance))

    def wait(self, now: float) -> float:
        """Seconds until the next start is allowed."""
        return max(0.0, self.not_before - now)


AT_ONCE = 256
"""Calls of one server; more of them wait in the mailbox."""
PATIENCE = 0.6
"""Seconds of back-off that a caller waits for; during a longer one, it fails at once."""
REST = 0.2
"""Seconds between two looks at a list that goes on changing."""
LIST_BUDGET = 2.0
"""Seconds that an answer waits for a tool list that the server announced before it."""
END_BUDGET = 5.0
"""Seconds that a caller waits to learn why its server has ended."""

McpProtocol: TypeAlias = CallMcpTool | ListMcpTools | GetMcpStatus
OnTools: TypeAlias = Callable[[tuple[McpTool, ...]], None]

log = logger(__name__)


@attrs.define(eq=False)
class _Incarnation:
    """One process or session of the server, from the first caller that needs it to its end.

    Attributes:
        settled: it is ready, or never will be.
        idle: its deadline ends the server when it has not been used for long enough.
        problem: why it has failed.
    """

    wanted: trio.Event = attrs.field(factory=trio.Event)
    settled: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    idle: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connection: Connection | None = None
    users: int = 0
    problem: str = ""


class McpClient(Actor[McpProtocol]):
    """One configured server. ``on_tools`` gets its tools whenever they change.

    ``closing``: shared by all servers, so that they end at the same time.
    """

    def __init__(
        self,
        server_name: str,
        server: McpServer,
        on_tools: OnTools,
        closing: trio.Event | None = None,
        random: Random | None = None,
    ) -> None:
        self._server_name = server_name
        self._server = server
        self._on_tools = on_tools
        self._closing = trio.Event() if closing is None else closing
        self._random = random or Random()
        self._stderr = StderrLog(server_name)
        self._lifecycle = Lifecycle()
        self._now = _Incarnation()
        self._tools: tuple[McpTool, ...] = ()
        self._problem = ""

    async def on_start(self) -> None:
        if self._server.start == "eager":
            self._now.wanted.set()
        self.start_soon(self._own_until_closing)

    @handles(CallMcpTool, concurrent=AT_ONCE)
    async def call(self, request: CallMcpTool) -> McpAnswer:
        server = await self._ready()
        with self._using(server) as connection:
            try:
                answer = await connection.call(request.tool, request.arguments)
                # A call may add tools; the next request of its run must list them.
                with trio.move_on_after(LIST_BUDGET):
                    await connection.listing.fresh.wait()
                return answer
            except McpFailed as failed:
                if failed.kind != "unavailable":
                    why = f"MCP server {self._server_name!r}: {failed}"
                    raise McpFailed(why, failed.kind) from failed
                connection.end.because(str(failed))
        with trio.move_on_after(END_BUDGET):
            await server.ended.wait()
        why = server.problem or connection.end.reason
        raise McpFailed(
            f"the MCP server {self._server_name!r} ended during the call: {why}; the next call "
            "starts it again",
            "unavailable",
        )

    @handles(ListMcpTools, concurrent=AT_ONCE)
    async def list_tools(self, _: ListMcpTools) -> tuple[McpTool, ...]:
        with self._using(await self._ready()):
            return self._tools

    @handles(GetMcpStatus, concurrent=AT_ONCE)
    async def status(self, _: GetMcpStatus) -> McpStatus:
        names = tuple(tool.name for tool in self._tools if not tool.problem)
        return McpStatus(self._server_name, self._lifecycle.state, names, self._problem)

    # The side of the callers

    async def _ready(self) -> _Incarnation:
        """The server once it is ready, started if need be. Raises ``McpFailed``."""
        while True:
            server = self._now
            if server.connection is None:
                await self._start(server)
            elif server.idle.cancel_called or server.connection.end.happened.is_set():
                # Its owner has not noticed yet; a call now would be lost.
                await server.ended.wait()
            else:
                return server

    async def _start(self, server: _Incarnation) -> None:
        rest = self._lifecycle.wait(trio.current_time())
        if rest > PATIENCE:
            raise self._unavailable(f"{self._problem}; it is started again in {rest:.1f} s")
        server.wanted.set()
        await server.settled.wait()
        if server.problem:
            raise self._unavailable(server.problem)

    @contextmanager
    def _using(self, server: _Incarnation) -> Generator[Connection]:
        assert server.connection is not None
        server.users += 1
        server.idle.deadline = math.inf
        try:
            yield server.connection
        finally:
            server.users -= 1
            self._start_idle_clock(server)

    def _start_idle_clock(self, server: _Incarnation) -> None:
        if not server.users and self._server.idle_stop:
            server.idle.deadline = trio.current_time() + self._server.idle_stop

    def _unavailable(self, why: str) -> McpFailed:
        return McpFailed(
            f"the MCP server {self._server_name!r} is not available: {why}", "unavailable"
        )

    # The side of the owner

    async def _own_until_closing(self) -> None:
        """Own the server until the actor ends, or all servers close."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._own)
            await self._closing.wait()
            nursery.cancel_scope.cancel()

    async def _own(self) -> None:
        """Start the server whenever it is wanted, and run it to its end."""
        while True:
            server = self._now
            await server.wanted.wait()
            await trio.sleep(self._lifecycle.wait(trio.current_time()))
            self._transition("wanted")
            problem = await self._run(server)
            stopped = self._lifecycle.state == "stopping"
            self._transition("ended")
            if not stopped:
                log.warning("an MCP server has ended", server=self._server_name, why=problem)
            self._problem = server.problem = "" if stopped else problem
            # Its successor must be there before the waiting callers are woken: they retry at once.
            self._now = _Incarnation()
            if self._server.start == "eager" and not stopped:
                self._now.wanted.set()
            server.settled.set()
            server.ended.set()

    async def _run(self, server: _Incarnation) -> str:
        """Start the server and serve its callers; returns why it has ended."""
        end, why = End(), ""
        try:
            with foreign_code:
                async with open_connection(self._server, self._stderr, end) as (connection, tools):
                    self._transition("listed")
                    self._publish(tools)
                    await self._serve(server, connection)
        except Exception as raised:
            error = only_error(raised)
            why = str(error) or type(error).__name__
        # The end of the connection says more than the error of a request that it interrupted.
        why = end.reason or why
        last = self._stderr.last()
        return f"{why}; it said: {last}" if last else why

    async def _serve(self, server: _Incarnation, connection: Connection) -> None:
        """Let callers use the connection until it ends, or is idle for too long."""
        self._problem = ""
        server.connection = connection
        connection.listing.read()
        self._start_idle_clock(server)
        server.settled.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.watch)
            nursery.start_soon(self._reread, connection)
            with server.idle:
                await connection.end.happened.wait()
            nursery.cancel_scope.cancel()
        if not connection.end.happened.is_set():
            self._transition("idle")

    async def _reread(self, connection: Connection) -> None:
        """Read the tool list again whenever the server says that it has changed."""
        while True:
            await connection.listing.next()
            why = "no answer in time"
            with trio.move_on_after(self._server.start_timeout):
                try:
                    self._publish(await connection.tools())
                    why = ""
                except McpFailed as failed:
                    why = str(failed)
            if why:
                log.warning("an MCP server's list is lost", server=self._server_name, why=why)
            connection.listing.read()
            await trio.sleep(REST)

    def _publish(self, tools: tuple[McpTool, ...]) -> None:
        if tools != self._tools:
            told = {(tool.name, tool.problem) for tool in self._tools}
            self._tools = tools
            for tool in tools:
                if tool.problem and (tool.name, tool.problem) not in told:
                    what = "a tool of an MCP server is not offered"
                    log.warning(what, server=self._server_name, tool=tool.name, why=tool.problem)
            self._on_tools(tools)

    def _transition(self, event: Event) -> None:
        now = trio.current_time()
        self._lifecycle = self._lifecycle.after(event, now, self._random.random())


OnToolsOf: TypeAlias = Callable[[str, tuple[McpTool, ...]], None]
"""Gets the name of a server and its tools, whenever they change."""


class GetServer(Request[ActorRef[McpProtocol]], frozen=True, tag="mcp.server"):
    """The actor of the server of that name."""

    name: str


class McpServers(Actor[GetServer]):
    """The parent of the servers' actors; one that crashes is restarted alone."""

    supervision = Supervision(intensity=5, period=60.0, backoff=0.5)

    def __init__(self, servers: Mapping[str, McpServer], on_tools: OnToolsOf) -> None:
        self._servers = servers
        self._on_tools = on_tools
        self._closing = trio.Event()

    async def on_start(self) -> None:
        self.start_soon(self._close_all)
        for name, server in self._servers.items():
            on_tools = partial(self._on_tools, name)
            make = partial(McpClient, name, server, on_tools, self._closing)
            await self.start_child(make, name=name)

    @handles(GetServer)
    async def get(self, request: GetServer) -> ActorRef[McpProtocol]:
        child = self.child(request.name)
        assert child is not None, "all servers are started with this actor"
        return child

    async def _close_all(self) -> None:
        """Let all servers end at the same time: each may take seconds."""
        try:
            await trio.sleep_forever()
        finally:
            self._closing.set()
