"""A real host and its gateway under cases that are no good, beside one client that is.

What must hold: no error is logged that nobody foresaw, nobody is told of an internal one, the
good client is answered all the time, and what the others leave behind is nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import attrs
import trio

from motet import Agent, open_host
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.gateway.server import serve_stream
from motet.actors.storage.tokens import new_token
from motet.client import Client, RequestFailed, connect
from motet.protocols.events import InputDropped, Terminal
from motet.protocols.gateway import Limits, Sent
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart
from motet.protocols.sessions import Role
from tests.fuzz.cases import Case, case_of

WORKERS: Final = 8
ENDS: Final = Terminal | InputDropped
ANSWER_SECONDS: Final = 30.0
DELETED: Final = "was deleted"
_STEP_SECONDS: Final = 0.1
_INTERNAL: Final = b'"code":"internal"'


class Echo:
    """A model that says something short."""

    name = "fuzz:echo"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        yield _events()


async def _events() -> AsyncIterator[ModelEvent]:
    for event in (TextPart("well"), Finished("stop")):
        await trio.lowlevel.checkpoint()
        yield event


@attrs.frozen
class Footprint:
    """What a process holds; ``tasks`` are the gateway's.

    ``objects`` and ``blocks``, of which Python's memory is made, tell of leaks. ``kilobytes``, what
    is resident, has what allocators keep for later as well, and the pages that SQLite holds for
    each of its connections, 2 MB at most: it grows for minutes, and tells of large leaks only.
    """

    kilobytes: int
    objects: int
    blocks: int
    files: int
    tasks: int

    @classmethod
    def now(cls, gateway: trio.Nursery) -> Footprint:
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        return cls(
            kilobytes=pages * os.sysconf("SC_PAGE_SIZE") // 1024,
            objects=len(gc.get_objects()),
            blocks=sys.getallocatedblocks(),
            files=len(os.listdir("/proc/self/fd")),
            tasks=_tasks(gateway),
        )

    def leaked_since(self, before: Footprint) -> list[str]:
        """What there is too much of. Stores may fill caches; connections leave nothing."""
        bounds = {
            "kilobytes": before.kilobytes + 24_576,
            "objects": before.objects * 1.1 + 5_000,
            "blocks": before.blocks * 1.1 + 5_000,
            "files": before.files + 3,
            "tasks": before.tasks + 5,
        }
        now = attrs.asdict(self)
        return [
            f"{name}: {now[name]} > {most:.0f}" for name, most in bounds.items() if now[name] > most
        ]


def _tasks(nursery: trio.Nursery) -> int:
    """All that live in a nursery and below."""
    children = nursery.child_tasks
    return len(children) + sum(_tasks(one) for task in children for one in task.child_nurseries)


class Ears(logging.Handler):
    """Keeps the errors that are logged with their traces: nobody foresaw them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.heard.append(self.format(record))


@attrs.define(eq=False)
class Siege:
    """``first``: the seed of the first case."""

    port: int
    context: Context
    gateway: trio.Nursery
    tokens: tuple[str, ...]
    first: int = 0
    cases: int = 0
    findings: list[str] = attrs.field(factory=list[str])
    _ears: Ears = attrs.field(factory=Ears)
    _flying: set[int] = attrs.field(factory=set[int])

    async def go_on(self, seconds: float) -> None:
        """Cases one after the other, several at a time, until something is found."""
        seeds = count(self.first + self.cases)
        logging.getLogger("motet").addHandler(self._ears)
        try:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    for _ in range(WORKERS):
                        nursery.start_soon(self._work, seeds)
            await self._quiet()
        finally:
            self._flying.clear()
            logging.getLogger("motet").removeHandler(self._ears)
        self._listen(set())

    def footprint(self) -> Footprint:
        """What is held now."""
        return Footprint.now(self.gateway)

    async def one(self, seed: int) -> None:
        """A single case."""
        await self._run(case_of(seed, self.tokens))
        self._listen({seed})

    async def _work(self, seeds: count[int]) -> None:
        while not self.findings:
            seed = next(seeds)
            self._flying.add(seed)
            await self._run(case_of(seed, self.tokens))
            self._listen(self._flying)
            self._flying.discard(seed)
            self.cases += 1

    def _listen(self, seeds: set[int]) -> None:
        if self._ears.heard or self.context.counts.total["failed"]:
            failed = f"{self.context.counts.total['failed']} connections failed"
            said = "\n".join(self._ears.heard) or failed
            self.findings.append(f"one of the seeds {sorted(seeds)}: {said}")
            self._ears.heard.clear()

    async def _run(self, case: Case) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        received = _Received(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(received.drain)
                for step in case.steps:
                    with trio.move_on_after(5):
                        await stream.send_all(step.data)
                    await received.more(_STEP_SECONDS if step.wait else 0)
                await received.more(_STEP_SECONDS / 5)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            if case.reset:
                linger = struct.pack("ii", 1, 0)
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await trio.aclose_forcefully(stream)
        if received.internal:
            self.findings.append(f"the seed {case.seed}: a client was told of an internal error")

    async def _quiet(self) -> None:
        """Only the good client is there."""
        with trio.move_on_after(20):
            while self.context.counts.open["socket"] > 1:
                await trio.sleep(0.02)


@attrs.define(eq=False)
class _Received:
    stream: trio.SocketStream
    internal: bool = False
    _tail: bytes = b""
    _some: trio.Event = attrs.field(factory=trio.Event)

    async def drain(self) -> None:
        while data := await self.stream.receive_some(65_536):
            self.internal = self.internal or _INTERNAL in self._tail + data
            self._tail = bytes(data[-len(_INTERNAL) :])
            self._some.set()
        self._some.set()

    async def more(self, seconds: float) -> None:
        """Wait for the server's next word, for a while."""
        self._some = trio.Event()
        with trio.move_on_after(seconds):
            await self._some.wait()


@asynccontextmanager
async def siege(first: int = 0) -> AsyncGenerator[Siege]:
    """A host, its gateway on a port, and a client that is answered all the time."""
    roles: tuple[Role, ...] = ("viewer", "operator", "operator", "admin")
    tokens = tuple(new_token() for _ in (*roles, "calm"))
    entries = [
        token_entry(tokens[number], f"fuzz{number}", role) for number, role in enumerate(roles)
    ]
    entries.append(token_entry(tokens[-1], "calm", "operator"))
    limits = Limits(connections_per_user=100, connect_failures=10**9, messages_per_min=600)
    settings = Settings(tokens=StaticTokens(entries), limits=limits)
    agents = (Agent("echo", model=Echo()),)
    with TemporaryDirectory() as state:
        async with open_host(state, agents=agents) as host, trio.open_nursery() as nursery:
            context = Context(host, settings)
            gateway, listeners = await nursery.start(_serve, context)
            port = listeners[0].socket.getsockname()[1]
            url = f"ws://127.0.0.1:{port}"
            async with connect(url, token=tokens[-1]) as client, trio.open_nursery() as good:
                good.start_soon(_be_good, client)
                yield Siege(port, context, gateway, tokens[:-1], first)
                good.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


Serving: TypeAlias = "tuple[trio.Nursery, list[trio.SocketListener]]"


async def _serve(context: Context, *, task_status: trio.TaskStatus[Serving]) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        await serve_stream(context, stream, "fuzz")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_beat, context)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started((nursery, listeners))
        await trio.serve_listeners(handle, listeners, handler_nursery=nursery)


async def _beat(context: Context) -> None:
    while True:
        await trio.sleep(2)
        context.tick()


async def _be_good(client: Client) -> None:
    """Raises when it is not answered; an admin among the others may end its run, and delete its
    session, which begins anew then.
    """
    while True:
        try:
            await _be_answered(client)
        except RequestFailed as failed:
            if DELETED not in str(failed):
                raise


async def _be_answered(client: Client) -> None:
    async with client.stream("session:good") as events:
        for number in count():
            with trio.fail_after(ANSWER_SECONDS):
                await client.call("ping")
                said = await client.send("good", f"message {number}", agent="echo")
                assert isinstance(said, Sent)
                async for record in events:
                    if record.run_id == said.run_id and isinstance(record.event, ENDS):
                        break
            await trio.sleep(0.3)
