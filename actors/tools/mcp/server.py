"""When a server runs, and when it may be started again: a table and a little arithmetic.

Pure; the actor in ``client.py`` carries it out. Two rules: only what the table allows happens, and
who fails rests twice as long each time, until it has stayed well for :data:`WELL` seconds.
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
from motet.actors.tools.mcp.stdio import End, Words
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

State: TypeAlias = Literal["stopped", "starting", "ready", "stopping"]
Event: TypeAlias = Literal["wanted", "listed", "idle", "ended"]
"""Somebody needs it; it has started and told its tools; nobody has used it; it is gone."""

BACKOFF = Backoff(0.5, most=60.0, jitter=0.1)
"""Seconds that a server rests after each failure in a row."""
WELL = 60.0
"""Seconds after which an end is no longer counted with those before it."""

TABLE: dict[tuple[State, Event], State] = {
    ("stopped", "wanted"): "starting",
    ("starting", "listed"): "ready",
    ("starting", "ended"): "stopped",
    ("ready", "idle"): "stopping",
    ("ready", "ended"): "stopped",
    ("stopping", "ended"): "stopped",
}


@attrs.frozen
class Upkeep:
    """Where a server stands.

    Attributes:
        failures: how often in a row it has ended by itself.
        not_before: time before which it is not started again.
        since: when it was ready; minus infinity when it is not.
    """

    state: State = "stopped"
    failures: int = 0
    not_before: float = -math.inf
    since: float = -math.inf

    def after(self, event: Event, now: float, chance: float = 0.0) -> Upkeep:
        """Where it stands then. ``chance`` is from 0 to 1. Raises ``ValueError`` off the table."""
        state = TABLE.get((self.state, event))
        if state is None:
            raise ValueError(f"a server that is {self.state} cannot be {event}")
        if event == "listed":
            return attrs.evolve(self, state=state, since=now)
        if event != "ended":
            return attrs.evolve(self, state=state)
        if self.state == "stopping":
            return Upkeep()
        well = self.state == "ready" and now - self.since >= WELL
        failures = 1 if well else self.failures + 1
        return Upkeep(state, failures, now + BACKOFF.delay(failures, chance))

    def wait(self, now: float) -> float:
        """Seconds until it may be started."""
        return max(0.0, self.not_before - now)


# The actor in front of one server: it starts it, keeps it, shares it, and ends it.
#
# Invariants: there is at most one process, or session, at a time, and one task of this actor owns
# it; none outlives the actor (G2); a caller that is cancelled returns when the server has been
# told to stop (G1). A server that fails costs its callers an error and this actor nothing.


AT_ONCE = 256
"""Calls of one server; more of them wait in the mailbox."""
PATIENCE = 0.6
"""Seconds that a caller waits for a server that rests after a failure; else it is told at once."""
RELISTING = 2.0
"""Seconds that an answer waits for a list that the server has announced before it."""
LEAVING = 5.0
"""Seconds that a caller waits to learn why its server has ended."""

McpProtocol: TypeAlias = CallMcpTool | ListMcpTools | GetMcpStatus
Offer: TypeAlias = Callable[[tuple[McpTool, ...]], None]

log = logger(__name__)


@attrs.define(eq=False)
class _Life:
    """One life of the server, from the first who wants it until it is gone.

    Attributes:
        settled: it is ready, or never will be.
        idle: its deadline is when nobody has used it for long enough.
    """

    wanted: trio.Event = attrs.field(factory=trio.Event)
    settled: trio.Event = attrs.field(factory=trio.Event)
    gone: trio.Event = attrs.field(factory=trio.Event)
    idle: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connection: Connection | None = None
    users: int = 0
    problem: str = ""


class McpClient(Actor[McpProtocol]):
    """One configured server. ``offer`` is told of its tools whenever they are others.

    ``closing``: the server is to end, in the time that others take for it too.
    """

    def __init__(
        self,
        server_name: str,
        server: McpServer,
        offer: Offer,
        closing: trio.Event | None = None,
        random: Random | None = None,
    ) -> None:
        self._server_name = server_name
        self._server = server
        self._offer = offer
        self._closing = trio.Event() if closing is None else closing
        self._random = random or Random()
        self._words = Words(server_name)
        self._upkeep = Upkeep()
        self._life = _Life()
        self._tools: tuple[McpTool, ...] = ()
        self._problem = ""

    async def on_start(self) -> None:
        if self._server.start == "eager":
            self._life.wanted.set()
        self.start_soon(self._keep)

    @handles(CallMcpTool, concurrent=AT_ONCE)
    async def call(self, request: CallMcpTool) -> McpAnswer:
        life = await self._running()
        with self._using(life) as connection:
            try:
                answer = await connection.call(request.tool, request.arguments)
                # A tool may bring others; who called it is to find them in the next list.
                with trio.move_on_after(RELISTING):
                    await connection.listing.fresh.wait()
                return answer
            except McpFailed as failed:
                if failed.kind != "unavailable":
                    raise self._failed(str(failed), failed) from failed
                connection.end.because(str(failed))
        with trio.move_on_after(LEAVING):
            await life.gone.wait()
        why = life.problem or connection.end.reason
        raise McpFailed(
            f"the MCP server {self._server_name!r} ended during the call: {why}", "unavailable"
        )

    @handles(ListMcpTools, concurrent=AT_ONCE)
    async def list_tools(self, _: ListMcpTools) -> tuple[McpTool, ...]:
        with self._using(await self._running()):
            return self._tools

    @handles(GetMcpStatus, concurrent=AT_ONCE)
    async def status(self, _: GetMcpStatus) -> McpStatus:
        names = tuple(tool.name for tool in self._tools)
        return McpStatus(self._server_name, self._upkeep.state, names, self._problem)

    # What callers do

    async def _running(self) -> _Life:
        """The life of a server that is ready. Raises ``McpFailed``."""
        while True:
            life = self._life
            if life.connection is None:
                await self._start(life)
            elif life.idle.cancel_called or life.connection.end.happened.is_set():
                await life.gone.wait()
            else:
                return life

    async def _start(self, life: _Life) -> None:
        rest = self._upkeep.wait(trio.current_time())
        if rest > PATIENCE:
            raise self._unavailable(f"{self._problem}; it is started again in {rest:.1f} s")
        life.wanted.set()
        await life.settled.wait()
        if life.problem:
            raise self._unavailable(life.problem)

    @contextmanager
    def _using(self, life: _Life) -> Generator[Connection]:
        assert life.connection is not None
        life.users += 1
        life.idle.deadline = math.inf
        try:
            yield life.connection
        finally:
            life.users -= 1
            self._rest(life)

    def _rest(self, life: _Life) -> None:
        if not life.users and self._server.idle_stop:
            life.idle.deadline = trio.current_time() + self._server.idle_stop

    def _failed(self, why: str, failed: McpFailed) -> McpFailed:
        return McpFailed(f"MCP server {self._server_name!r}: {why}", failed.kind)

    def _unavailable(self, why: str) -> McpFailed:
        return McpFailed(
            f"the MCP server {self._server_name!r} is not available: {why}", "unavailable"
        )

    # What the owner does

    async def _keep(self) -> None:
        """Own the server until the actor ends, or all servers do."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._own)
            await self._closing.wait()
            nursery.cancel_scope.cancel()

    async def _own(self) -> None:
        """One life of the server after the other."""
        while True:
            life = self._life
            await life.wanted.wait()
            await trio.sleep(self._upkeep.wait(trio.current_time()))
            self._step("wanted")
            problem = await self._live(life)
            stopped = self._upkeep.state == "stopping"
            self._step("ended")
            if not stopped:
                log.warning("an MCP server has ended", server=self._server_name, why=problem)
            self._problem = life.problem = "" if stopped else problem
            self._life = _Life()
            if self._server.start == "eager" and not stopped:
                self._life.wanted.set()
            life.settled.set()
            life.gone.set()

    async def _live(self, life: _Life) -> str:
        """Start it and let it serve; why it is over."""
        end, why = End(), ""
        try:
            async with open_connection(self._server, self._words, end) as (connection, tools):
                self._step("listed")
                self._take(tools)
                await self._serve(life, connection)
        except Exception as raised:
            error = only_error(raised)
            why = str(error) or type(error).__name__
        # What ended it says more than what that did to a request.
        why = end.reason or why
        last = self._words.last()
        return f"{why}; it said: {last}" if last else why

    async def _serve(self, life: _Life, connection: Connection) -> None:
        """Until it is over, or nobody has used it for long enough."""
        self._problem = ""
        life.connection = connection
        connection.listing.read()
        self._rest(life)
        life.settled.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.watch)
            nursery.start_soon(self._follow, connection)
            with life.idle:
                await connection.end.happened.wait()
            nursery.cancel_scope.cancel()
        if not connection.end.happened.is_set():
            self._step("idle")

    async def _follow(self, connection: Connection) -> None:
        """Read the list again whenever the server says that it is another."""
        while True:
            await connection.listing.next()
            why = "no answer in time"
            with trio.move_on_after(self._server.start_timeout):
                try:
                    self._take(await connection.tools())
                    why = ""
                except McpFailed as failed:
                    why = str(failed)
            if why:
                log.warning("an MCP server's list is lost", server=self._server_name, why=why)
            connection.listing.read()

    def _take(self, tools: tuple[McpTool, ...]) -> None:
        if tools != self._tools:
            self._tools = tools
            self._offer(tools)

    def _step(self, event: Event) -> None:
        now = trio.current_time()
        self._upkeep = self._upkeep.after(event, now, self._random.random())


# The actors of MCP servers, one for each, and what they say that theirs offers.


OfferFrom: TypeAlias = Callable[[str, tuple[McpTool, ...]], None]
"""Called with the name of a server and its tools, whenever they change."""


class GetServer(Request[ActorRef[McpProtocol]], frozen=True, tag="mcp.server"):
    """The actor in front of the server of that name."""

    name: str


class McpServers(Actor[GetServer]):
    """Parent of the servers' actors. One that crashes is restarted alone."""

    supervision = Supervision(intensity=5, period=60.0, backoff=0.5)

    def __init__(self, servers: Mapping[str, McpServer], offer: OfferFrom) -> None:
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
