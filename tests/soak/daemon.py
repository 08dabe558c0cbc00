"""A daemon that works without a pause: a host on a real disk, used in all ways that hosts are."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import trio
import trio.testing

import motet
from motet.actors.host import Host
from motet.actors.storage.location import DATABASE_FILE
from motet.protocols.chat import AssistantMessage, JsonObject, UserMessage
from motet.protocols.config import GatewayConfig
from motet.protocols.events import EventRecord
from motet.protocols.gateway import Sent
from motet.protocols.models import ModelEvent, ModelRequest
from tests.scripted import Step, call, say
from tests.soak.judge import Sample

__all__ = ["KINDS", "WAYS", "Daemon", "Kind", "daemon"]

Kind: TypeAlias = Literal["embedded", "served"]
KINDS: tuple[Kind, ...] = ("embedded", "served")

PATHS = ("work", "fail", "late", "block", "ask", "helper", "big")
"""The tools of its agent, each another path: it returns, raises, is out of time, blocks a thread,
waits for a person, is a sub-agent, and returns more than a model is shown."""
ARGUMENTS: dict[str, JsonObject] = {"helper": {"task": "go"}}
WAYS: dict[Kind, tuple[str, ...]] = {
    "embedded": (*PATHS, "hook", "room", "stop", "delete"),
    "served": (*PATHS, "hook", "room", "left"),
}
"""All that has to have happened, for a soak to say anything of it."""
_SESSIONS = 12
_WORKERS = 8


class _Worker:
    """A model that has the tools called that the last input names, all at once.

    It keeps no requests, as the models of ``motet.testing`` do.
    """

    name = "worker"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        rows = request.messages
        at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage))
        wanted = [word for word in rows[at].text.split() if word in PATHS and request.tools]
        if wanted and not any(isinstance(row, AssistantMessage) for row in rows[at:]):
            yield _sent(call(*((name, ARGUMENTS.get(name, {})) for name in wanted)))
        else:
            yield _sent(say("done"))


async def _sent(step: Step) -> AsyncGenerator[ModelEvent]:
    assert isinstance(step, list)
    for event in step:
        await trio.lowlevel.checkpoint()
        yield event


class Daemon:
    """One host with its users. ``ran`` counts the ends of each path."""

    def __init__(
        self,
        host: Host,
        room: motet.OpenRoom,
        url: str | None,
        seed: int,
        ran: Counter[str],
    ) -> None:
        self.host, self._room, self._url = host, room, url
        self._chance = Random(seed)
        self._number = 0
        self.ran = ran
        self.runs = 0

    async def work(self, seconds: float) -> None:
        """Have it used for so long. When this returns nothing is under way."""
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for worker in range(_WORKERS):
                nursery.start_soon(self._use, worker, until)
            nursery.start_soon(self._approve, until)

    async def sample(self, log: Path) -> Sample:
        """What it holds, at rest."""
        await trio.testing.wait_all_tasks_blocked(0.2)
        gc.collect()
        return Sample(
            runs=self.runs,
            blocks=sys.getallocatedblocks(),
            files=len(os.listdir("/proc/self/fd")),
            tasks=trio.lowlevel.current_statistics().tasks_living,
            threads=threading.active_count(),
            log=log.stat().st_size if log.exists() else 0,
        )

    async def _use(self, worker: int, until: float) -> None:
        chance = Random(self._chance.random())
        use = self._embedded if self._url is None else self._connected
        while trio.current_time() < until:
            await use(worker, chance)

    async def _embedded(self, worker: int, chance: Random) -> None:
        session = f"{worker}-{chance.randrange(_SESSIONS)}"
        match chance.randrange(20):
            case 0:
                await self._post()
            case 1:
                await self._stop(session)
            case 2:
                await self._delete(session)
            case _:
                await self._run(session, chance)

    async def _connected(self, worker: int, chance: Random) -> None:
        """A client that connects, uses the host a few times, and leaves, sometimes in a stream."""
        assert self._url is not None
        async with motet.connect(self._url) as client:
            for _ in range(chance.randrange(1, 6)):
                session = f"{worker}-{chance.randrange(_SESSIONS)}"
                async with client.stream(f"session:{session}") as events:
                    text = self._text(chance)
                    sent = await client.send(session, text, agent="ops", mode="followup")
                    assert isinstance(sent, Sent)
                    self.runs += 1
                    if chance.randrange(8) == 0:
                        self.ran["left"] += 1
                        break
                    async for record in events:
                        if record.run_id == sent.run_id and _is_end(record):
                            break
            if chance.randrange(10) == 0:
                await self._post()

    def _text(self, chance: Random) -> str:
        self._number += 1
        wanted = chance.sample(PATHS, chance.randrange(0, 3))
        return f"{self._number}: {' '.join(wanted)} please"

    async def _run(self, session: str, chance: Random) -> None:
        await self.host.run("ops", self._text(chance), session=session, check=False)
        self.runs += 1

    async def _post(self) -> None:
        self._number += 1
        await self._room.post(f"@ops {self._number}: work", user="ann")
        await self._room.wait()
        self.ran["room"] += 1
        self.runs += 1

    async def _stop(self, session: str) -> None:
        async with self.host.stream("ops", "late", session=session):
            pass  # to leave it is to stop it
        self.ran["stop"] += 1
        self.runs += 1

    async def _delete(self, session: str) -> None:
        try:
            await self.host.delete(session)
        except (motet.NotFound, motet.SessionBusy):
            return
        self.ran["delete"] += 1

    async def _approve(self, until: float) -> None:
        while trio.current_time() < until + 1.0:
            for info in await self.host.approvals(state="pending"):
                await self.host.approve(info.id, "allow-once" if info.created % 2 else "deny")
            await trio.sleep(0.02)


def _is_end(record: EventRecord) -> bool:
    tag = str(record.event.__struct_config__.tag)
    return tag.startswith("run.") and tag != "run.started"


@asynccontextmanager
async def daemon(kind: Kind, seed: int = 0) -> AsyncGenerator[tuple[Daemon, Path]]:
    """A daemon on a temporary state, and the file of its write-ahead log."""
    ran = Counter[str]()
    agent = _agent(ran)
    config = motet.HostConfig(gateway=GatewayConfig(messages_per_minute=10**6))
    with TemporaryDirectory(prefix="motet-soak-") as state:
        async with motet.open_host(state, agents=[agent], config=config) as host:

            @host.on("before_tool")
            async def watch(_: motet.BeforeTool) -> motet.Decision:
                ran["hook"] += 1
                return motet.Allow()

            @host.on("after_child")
            async def helped(_: motet.AfterChild) -> None:
                ran["helper"] += 1

            room = await host.open_room(motet.Room("hall", members=[agent], max_turns=1))
            url = None
            if kind == "served":
                url = await host.serve(
                    GatewayConfig(listen="127.0.0.1:0", messages_per_minute=10**6)
                )
            yield Daemon(host, room, url, seed, ran), Path(state, f"{DATABASE_FILE}-wal")


def _agent(ran: Counter[str]) -> motet.Agent[None, str]:
    model = _Worker()
    child = motet.Agent("helper", model=model)
    agent = motet.Agent("ops", model=model, tools=[child.as_tool()])

    @agent.tool
    async def work() -> str:
        ran["work"] += 1
        return "worked"

    @agent.tool
    async def fail() -> str:
        ran["fail"] += 1
        raise OSError("no such thing today")

    @agent.tool(timeout=0.05)
    async def late() -> str:
        try:
            await trio.sleep(60)
        finally:
            ran["late"] += 1
        return "too late"

    @agent.tool
    def block() -> str:
        ran["block"] += 1
        return "blocked"

    @agent.tool(approval=True)
    async def ask() -> str:
        ran["ask"] += 1
        return "allowed"

    @agent.tool
    async def big() -> str:
        ran["big"] += 1
        return "much " * 20_000

    return agent
