"""``motet serve`` reads its configuration again: at a signal, or when the file has changed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
import trio

from motet.actors.host import Host
from motet.cli.exits import explained
from motet.protocols.errors import MotetError
from motet.runtime import StartFailed

LOOK_EVERY = 0.5
"""Seconds between two looks at the file."""


async def reload_on(signals: AsyncIterator[int], host: Host) -> None:
    async for _ in signals:
        await reload(host)


async def reload_when_changed(file: Path, host: Host) -> None:
    """By polling, which also sees what editors and deployments rename into place."""
    seen = _stamp(file)
    while True:
        await trio.sleep(LOOK_EVERY)
        now = _stamp(file)
        if now != seen:
            seen = now
            await reload(host)


async def reload(host: Host) -> None:
    """Never fails: what is wrong with the file is logged, and the last good one stays."""
    log = structlog.get_logger("motet")
    try:
        done = await host.reload()
    except (MotetError, StartFailed) as error:
        log.error("the configuration was not reloaded", problem=explained(error))
    else:
        log.info("the configuration was reloaded", changes=[str(one) for one in done.changes])


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
