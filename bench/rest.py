"""The cost of an idle host: with 10,000 sessions, and just after its start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import trio

import motet
from bench.clock import Watch, resident
from bench.turns import FakeModel
from motet.protocols.config import HostConfig

__all__ = ["idle", "start"]

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


def idle(count: int) -> tuple[float, float]:
    """An idle host with ``count`` sessions: percent of one processor, megabytes."""
    return trio.run(_idle, count)


async def _idle(count: int) -> tuple[float, float]:
    agent = motet.Agent("agent", model=FakeModel(tools=False))
    config = HostConfig(gateway=motet.GatewayConfig(listen="127.0.0.1:0"))
    with TemporaryDirectory() as state:
        async with motet.open_host(state, config=config, agents=[agent]) as host:
            await host.serve()
            await _work(host, iter(range(count)))
            await trio.sleep(SETTLING)
            watch, wall = Watch(), Watch(time.perf_counter)
            await trio.sleep(REST)
            return 100 * watch.seconds() / wall.seconds(), resident() / 1e6


async def _work(host: motet.Host, numbers: Iterator[int]) -> None:
    """One run in each session, 50 at once."""

    async def some() -> None:
        for number in numbers:
            await host.run("agent", "hi", session=f"s{number}")

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(some)


def start(_count: int) -> tuple[float, float]:
    """Import and start of a host in a new process: CPU seconds from its first line on, megabytes.

    All modules have bytecode, as after an installation.
    """
    done = subprocess.run(
        [sys.executable, "-c", _START], capture_output=True, text=True, check=True
    )
    seconds, pages = done.stdout.split()
    return float(seconds), int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6
