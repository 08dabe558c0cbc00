"""Hosts that end without a farewell: what they have on disk at an instant is copied."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import trio

import motet
from motet.protocols.sessions import FINAL, RunInfo

_numbers = count()


async def crashed(state: Path) -> Path:
    """A state directory as a kill at this instant would leave it.

    What waits to be written is given its time: tests are about what is on disk.
    """
    await trio.sleep(0.05)
    left = state.parent / f"crashed-{next(_numbers)}"
    shutil.copytree(state, left, ignore=shutil.ignore_patterns("lock", "*.lock", "workspace"))
    return left


async def ended(host: motet.Host, *run_ids: str) -> list[RunInfo]:
    """The runs, once they have ended."""
    with trio.fail_after(5):
        while True:
            found = [await host.find_run(run_id) for run_id in run_ids]
            if all(run.status in FINAL for run in found):
                return found
            await trio.sleep(0.005)


@asynccontextmanager
async def opened(
    state: Path, *agents: motet.Agent[None, str], **recovery: float
) -> AsyncGenerator[motet.Host]:
    config = motet.HostConfig(recovery=motet.RecoveryConfig(**recovery))  # type: ignore[arg-type]  # counts, too
    async with motet.open_host(state, config=config, agents=agents) as host:
        yield host
