"""What serving costs: frames to a thousand clients, a host at rest, and its start.

Each figure is of this process alone: the clients are in another one (:mod:`bench.crowd`).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from tempfile import TemporaryDirectory

import trio

import motet
from bench.clock import Watch, resident
from bench.crowd import BURST, Crowd
from bench.rows import MOTET, RATE, Case, Row
from bench.turns import FakeModel
from motet.protocols.config import HostConfig
from motet.protocols.events import MessageAdded, Publish

__all__ = ["ROWS"]

SETTLING = 5.0  # seconds after the last run
REST = 5.0  # seconds for which a host at rest is watched
_START = """
import time; began = time.process_time()
import motet, trio
async def main():
    async with motet.open_host():
        took = time.process_time() - began
        with open("/proc/self/statm") as file: pages = int(file.read().split()[1])
        print(took, pages)
trio.run(main)
"""


def fan_out(count: int) -> float:
    """Durable events a second that reached their client; ``count`` for each of them."""
    return trio.run(_fan_out, count)


async def _fan_out(count: int) -> float:
    async with _serving() as (port, publish):
        crowd = await trio.to_thread.run_sync(Crowd, port, _lines())
        with crowd:
            watch = Watch()
            for start in range(0, count, BURST):
                for number in range(start, min(start + BURST, count)):
                    await publish(number)
                await trio.to_thread.run_sync(crowd.reached, min(start + BURST, count))
            return watch.rate(count * crowd.size)


@asynccontextmanager
async def _serving() -> AsyncGenerator[tuple[int, Callable[[int], Awaitable[None]]]]:
    """A gateway's port, and what publishes a durable event in the session of its clients."""
    gateway = motet.GatewayConfig(
        listen="127.0.0.1:0", connections=1_100, connections_per_user=1_100
    )
    agent = motet.Agent("agent", model="demo")
    async with motet.open_host(config=HostConfig(gateway=gateway), agents=[agent]) as host:
        await host.run("agent", "hi", session="s")
        events = host.system.find("/host/events")
        assert events is not None

        async def publish(number: int) -> None:
            event = MessageAdded("assistant", "agent", f"{number:06} " + "x" * 80)
            await events.tell(Publish("session:s", event, "run_0"))

        yield int((await host.serve()).rpartition(":")[2]), publish


def p99_calm(count: int) -> float:
    """Milliseconds in which 99 of 100 of a thousand clients have an event; the median of many."""
    return trio.run(_p99, count, False)


def p99_troubled(count: int) -> float:
    """The same with one more that reads nothing, and one that sends rubbish."""
    return trio.run(_p99, count, True)


async def _p99(count: int, troubled: bool) -> float:
    async with _serving() as (port, publish):
        with _trouble(port) if troubled else nullcontext():
            crowd = await trio.to_thread.run_sync(Crowd, port, _lines())
            late: list[float] = []
            with crowd:
                for number in range(count):
                    began = time.monotonic()
                    await publish(number)
                    came = await trio.to_thread.run_sync(crowd.arrivals, number + 1)
                    late.append(sorted(came)[len(came) * 99 // 100] - began)
            return 1000 * statistics.median(late)


@contextmanager
def _trouble(port: int) -> Generator[None]:
    command = [sys.executable, "-m", "bench.trouble", str(port), *_lines()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _lines() -> list[str]:
    """What each client of the gateway says first."""
    connect = {"type": "req", "id": "1", "method": "connect"}
    stream = {"stream": "session:s"}
    subscribe = {"type": "req", "id": "2", "method": "subscribe", "params": stream}
    return [json.dumps(connect), json.dumps(subscribe)]


def idle_cpu(count: int) -> float:
    """Percent of one processor that a host with so many sessions takes while nothing happens."""
    return trio.run(_idle, count, _cpu_at_rest)


def idle_memory(count: int) -> float:
    """Megabytes of the process."""
    return trio.run(_idle, count, _memory)


async def _idle(count: int, figure: Callable[[], Awaitable[float]]) -> float:
    agent = motet.Agent("agent", model=FakeModel(tools=False))
    gateway = motet.GatewayConfig(listen="127.0.0.1:0")
    config = HostConfig(gateway=gateway)
    with TemporaryDirectory() as state:
        return await _idle_in(state, config, agent, count, figure)


async def _idle_in(
    state: str,
    config: HostConfig,
    agent: motet.Agent[None, str],
    count: int,
    figure: Callable[[], Awaitable[float]],
) -> float:
    async with motet.open_host(state, config=config, agents=[agent]) as host:
        await host.serve()
        await _work(host, iter(range(count)))
        await trio.sleep(SETTLING)
        return await figure()


async def _work(host: motet.Host, numbers: Iterator[int]) -> None:
    """One run in each session, 50 at once."""

    async def some() -> None:
        for number in numbers:
            await host.run("agent", "hi", session=f"s{number}")

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(some)


async def _cpu_at_rest() -> float:
    watch, wall = Watch(), Watch(time.perf_counter)
    await trio.sleep(REST)
    return 100 * watch.seconds() / wall.seconds()


async def _memory() -> float:
    await trio.lowlevel.checkpoint()
    return resident() / 1e6


def start_seconds(_count: int) -> float:
    """Processor time of import and start of a host in a new process, from its first line on."""
    return _start()[0]


def start_memory(_count: int) -> float:
    """Megabytes of that process."""
    return _start()[1] * os.sysconf("SC_PAGE_SIZE") / 1e6


def _start() -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", _START], capture_output=True, text=True, check=True
    )
    seconds, pages = done.stdout.split()
    return float(seconds), float(pages)


def _own(function: str, count: int, goal: float | None = None) -> Case:
    return Case(MOTET, "bench.gateway", function, count, goal=goal)


ROWS = (
    Row(
        "fan-out to 1,000 clients",
        RATE,
        (
            _own("fan_out", 200),
            Case("websockets", "bench.peers.websockets_fanout", "fan_out", 200, "websockets"),
        ),
        reference="websockets",
        goal=1.0,
    ),
    Row(
        "p99 of 1,000 clients, two bad",
        "ms",
        (_own("p99_troubled", 30), Case("undisturbed", "bench.gateway", "p99_calm", 30)),
        reference="undisturbed",
        goal=0.9,
    ),
    Row("idle host, 10,000 sessions", "%", (_own("idle_cpu", 10_000),), goal=0.1, bounded=True),
    Row("same, memory", "MB", (_own("idle_memory", 10_000),), goal=100, bounded=True),
    Row("import + start", "s", (_own("start_seconds", 1),), goal=0.4, bounded=True),
    Row("same, of the process", "MB", (_own("start_memory", 1),), goal=45, bounded=True),
)
