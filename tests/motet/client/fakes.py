"""A real gateway behind a network that breaks, for the tests of the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import attrs
import trio
import trio.testing

from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.client.client import Change, Client, connect
from motet.client.link import Address, Dial, Link, LinkLost, over
from motet.client.requests import Unreachable
from motet.protocols import gateway as wire
from motet.protocols.events import EventRecord
from tests.actors.gateway.fake_host import FakeHost

ADDRESS = Address("localhost", 80, False, "/ws")

FaultKind: TypeAlias = Literal["cut", "swallow", "twice", "slow", "cut_sending", "unreachable"]


@attrs.frozen
class Fault:
    """A fault of the network, from frame number ``at`` of a connection on.

    ``cut``: it breaks instead of the frame that comes; ``cut_sending``: after the frame that goes
    has arrived, and before any answer; ``swallow``: the events of 10 s are lost; ``twice``: all
    events come again; ``slow``: each frame takes 3 s; ``unreachable``: there is no connection.
    """

    kind: FaultKind
    at: int = 0


class FaultyLink:
    """A connection that has one fault."""

    def __init__(self, link: Link, fault: Fault | None) -> None:
        self._link = link
        self._fault = fault
        self._again: str | None = None
        self._received = 0
        self._sent = 0
        self._deaf_until: float | None = None
        self._severed = False

    async def send(self, text: str) -> None:
        self._sent += 1
        self._severed = self._is("cut_sending", self._sent)
        await self._link.send(text)
        if self._severed:
            await trio.testing.wait_all_tasks_blocked()
            raise LinkLost(1006, "cut")

    async def receive(self) -> str:
        if self._again is not None:
            text, self._again = self._again, None
            return text
        text = await self._link.receive()
        self._received += 1
        if self._severed or self._is("cut", self._received):
            raise LinkLost(1006, "cut")
        if self._is("slow", self._received):
            await trio.sleep(3)
        if _is_event(text):
            if self._is("swallow", self._received):
                self._deaf_until = self._deaf_until or trio.current_time() + 10
                if trio.current_time() < self._deaf_until:
                    return await self.receive()
            if self._is("twice", self._received):
                self._again = text
        return text

    async def aclose(self) -> None:
        await self._link.aclose()

    def _is(self, kind: FaultKind, at: int) -> bool:
        return self._fault is not None and self._fault.kind == kind and self._fault.at <= at


def _is_event(text: str) -> bool:
    frame = wire.decode_frame(text)
    return isinstance(frame, wire.EventFrame) and frame.event != "tick"


def faulty_dial(
    context: Callable[[], Context], servers: trio.Nursery, faults: Sequence[Fault | None] = ()
) -> Dial:
    """Connections to a gateway over memory: one fault for each of the first, then none."""
    left = list(faults)

    async def dial(nursery: trio.Nursery) -> Link:
        fault = left.pop(0) if left else None
        if fault is not None and fault.kind == "unreachable":
            raise Unreachable("cut off")
        theirs, ours = trio.testing.memory_stream_pair()
        servers.start_soon(serve_stream, context(), theirs, "127.0.0.1")
        return FaultyLink(await over(nursery, ours, ADDRESS), fault)

    return dial


Served: TypeAlias = "tuple[FakeHost, Context, trio.Nursery]"


@asynccontextmanager
async def gateway(settings: Settings | None = None) -> AsyncGenerator[Served]:
    """A host in memory, the gateway's context of it, and where its connections live."""
    async with trio.open_nursery() as servers:
        host = FakeHost(servers)
        context = Context(host.api, settings or Settings(), now=lambda: 1000.0)
        servers.start_soon(_beat, context)
        yield host, context, servers
        servers.cancel_scope.cancel()


async def _beat(context: Context) -> None:
    while True:
        await trio.sleep(context.settings.limits.ping_ms / 1000)
        context.tick()


@asynccontextmanager
async def client_of(
    context: Context,
    servers: trio.Nursery,
    faults: Sequence[Fault | None] = (),
    *,
    token: str | None = None,
    on_change: Callable[[Change], None] | None = None,
) -> AsyncGenerator[Client]:
    """A client whose connections have these faults."""
    dial = faulty_dial(lambda: context, servers, faults)
    async with connect("ws://localhost", token=token, on_change=on_change, dial=dial) as client:
        yield client


async def read_to(events: Callable[[], Awaitable[EventRecord]], count: int) -> list[EventRecord]:
    """Numbered events, up to number ``count``."""
    found: list[EventRecord] = []
    while not found or found[-1].seq != count:
        record = await events()
        if record.seq is not None:
            found.append(record)
    return found
