"""The cost of serving: frames to a thousand clients, and the memory that is left after they go.

Each figure is of this process only: the clients are in another one (:mod:`bench.crowd`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

import trio

import motet
from bench.clock import Watch, resident
from bench.crowd import BURST, EVENTS, Crowd
from bench.rows import MOTET, RATE, Case, Row
from motet.protocols.config import HostConfig
from motet.protocols.events import MessageAdded

__all__ = ["ROWS"]

MOMENTS = 30
"""Events whose latency is measured."""
SPARE_TASKS = 5
"""Tasks of threads and of periodic work of a host."""


def fan_out(count: int) -> float:
    """Durable events per second that reached their client, of ``count`` clients."""
    return trio.run(_fan_out, count, BURST)


def fan_out_singly(count: int) -> float:
    """The same, if each event is published after all clients have the previous one."""
    return trio.run(_fan_out, count, 1)


async def _fan_out(count: int, burst: int) -> float:
    async with _serving() as (port, publish):
        crowd = await trio.to_thread.run_sync(Crowd, port, count, _lines())
        with crowd:
            watch = Watch()
            for start in range(0, EVENTS, burst):
                for number in range(start, start + burst):
                    await publish(number)
                await trio.to_thread.run_sync(crowd.reached, start + burst)
            return watch.rate(EVENTS * count)


@asynccontextmanager
async def _serving() -> AsyncGenerator[tuple[int, Callable[[int], Awaitable[None]]]]:
    """A gateway's port, and a function that publishes a durable event in its clients' session."""
    gateway = motet.GatewayConfig(
        listen="127.0.0.1:0", connections=1_100, connections_per_user=1_100
    )
    agent = motet.Agent("agent", model="demo")
    async with motet.open_host(config=HostConfig(gateway=gateway), agents=[agent]) as host:
        await host.run("agent", "hi", session="s")
        publisher = host._parts.services.events.publisher  # pyright: ignore[reportPrivateUsage]

        async def publish(number: int) -> None:
            event = MessageAdded("assistant", "agent", f"{number:06} " + "x" * 80)
            await publisher.emit("session:s", event, "run_0")

        yield int((await host.serve()).rpartition(":")[2]), publish


def p99_calm(count: int) -> float:
    """Milliseconds until 99 % of the clients have an event: the median of many events."""
    return trio.run(_p99, count, False)


def p99_troubled(count: int) -> float:
    """The same with two bad clients: one that reads nothing, and one that sends garbage."""
    return trio.run(_p99, count, True)


async def _p99(count: int, troubled: bool) -> float:
    async with _serving() as (port, publish), _trouble(port) if troubled else nullcontext():
        crowd = await trio.to_thread.run_sync(Crowd, port, count, _lines())
        late: list[float] = []
        with crowd:
            for number in range(MOMENTS):
                began = time.monotonic()
                await publish(number)
                came = await trio.to_thread.run_sync(crowd.arrivals, number + 1)
                late.append(sorted(came)[len(came) * 99 // 100] - began)
        return 1000 * statistics.median(late)


@asynccontextmanager
async def _trouble(port: int) -> AsyncGenerator[None]:
    command = [sys.executable, "-m", "bench.trouble", str(port), *_lines()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            await trio.to_thread.run_sync(process.stdout.readline)  # one is stuck
            yield
        finally:
            process.kill()


def _lines() -> list[str]:
    """The first messages of each client of the gateway."""
    connect = {"type": "req", "id": "1", "method": "connect"}
    stream = {"stream": "session:s"}
    subscribe = {"type": "req", "id": "2", "method": "subscribe", "params": stream}
    return [json.dumps(connect), json.dumps(subscribe)]


def left(count: int) -> tuple[float, float]:
    """The memory that is left after ``count`` clients, two of them bad, have gone.

    The additional memory blocks of Python, and the growth of the process in megabytes. The baseline
    is measured after a first crowd, since Python keeps its memory for the next one.
    """
    return trio.run(_left, count)


async def _left(count: int) -> tuple[float, float]:
    async with _serving() as (port, publish):
        await _come_and_go(port, publish, count)
        size, blocks = resident(), sys.getallocatedblocks()
        for _ in range(2):
            await _come_and_go(port, publish, count)
        grown = resident() - size
        return max(0.0, sys.getallocatedblocks() - blocks), max(0.0, grown / 1e6)


async def _come_and_go(port: int, publish: Callable[[int], Awaitable[None]], count: int) -> None:
    """Connect all clients, send one event, disconnect; returns when the gateway has closed all."""
    before = trio.lowlevel.current_statistics().tasks_living
    async with _trouble(port):
        crowd = await trio.to_thread.run_sync(Crowd, port, count, _lines())
        with crowd:
            await publish(0)
            await trio.to_thread.run_sync(crowd.reached, 1)
    with trio.fail_after(60):
        while trio.lowlevel.current_statistics().tasks_living > before + SPARE_TASKS:
            await trio.sleep(0.05)


def _own(function: str, count: int, figure: int = 0) -> Case:
    return Case(MOTET, "bench.gateway", function, count, figure=figure)


def _websockets(function: str, count: int) -> Case:
    return Case("websockets", "bench.peers.websockets_fanout", function, count, "websockets")


def _rest(function: str, count: int, figure: int = 0) -> Case:
    return Case(MOTET, "bench.rest", function, count, figure=figure)


ROWS = (
    Row(
        "fan-out to 1,000 clients",
        RATE,
        (_own("fan_out", 1_000), _websockets("fan_out", 1_000)),
        reference="websockets",
        goal=1.0,
    ),
    Row(
        "same, one event at a time",
        RATE,
        (_own("fan_out_singly", 1_000), _websockets("fan_out_singly", 1_000)),
        reference="websockets",
        goal=1.0,
        rounds=3,
    ),
    Row(
        "p99 of 1,000 clients, two bad",
        "ms",
        (_own("p99_troubled", 1_000), Case("undisturbed", "bench.gateway", "p99_calm", 1_000)),
        reference="undisturbed",
        goal=0.9,
        rounds=3,
    ),
    Row("left by 1,000 clients", "blocks", (_own("left", 1_000),), None, 500, True, rounds=1),
    Row("same, resident", "MB", (_own("left", 1_000, 1),), None, 5, True, rounds=1),
    Row("idle host, 10,000 sessions", "%", (_rest("idle", 10_000),), None, 0.1, True, rounds=1),
    Row("same, memory", "MB", (_rest("idle", 10_000, 1),), None, 100, True, rounds=1),
    Row("import + start", "s", (_rest("start", 1),), goal=0.4, bounded=True),
    Row("same, of the process", "MB", (_rest("start", 1, 1),), goal=45, bounded=True),
)
