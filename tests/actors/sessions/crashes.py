"""Hosts that end without a farewell: what they have on disk at an instant is copied."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import apsw
import trio

import motet
from motet.protocols.sessions import FINAL, RunInfo

_numbers = count()


async def crashed(state: Path, event: str = "", times: int = 1) -> Path:
    """A state directory as a kill at this instant would leave it.

    The instant is when ``event`` is on disk so many ``times``. What waits to be written besides is
    given its time: tests are about what is on disk.
    """
    with trio.fail_after(60):
        while event and _on_disk(state, event) < times:
            await trio.sleep(0.005)
    await trio.sleep(0.05)
    left = state.parent / f"crashed-{next(_numbers)}"
    shutil.copytree(state, left, ignore=shutil.ignore_patterns("lock", "*.lock", "workspace"))
    return left


def _on_disk(state: Path, event: str) -> int:
    connection = apsw.Connection(str(state / "motet.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(5_000)
        query = "SELECT count(*) FROM events WHERE event = ?"
        ((found,),) = connection.execute(query, (event,))  # pyright: ignore[reportUnknownMemberType]  # its stub
    finally:
        connection.close()
    assert isinstance(found, int)
    return found


async def ended(host: motet.Host, *run_ids: str) -> list[RunInfo]:
    """The runs, once they have ended."""
    with trio.fail_after(60):
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
