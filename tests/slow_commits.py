"""Commits that take their time in a simulated host, as where another program holds the lock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar
from unittest import mock

import attrs
import trio

from motet.actors.storage.connection import InlineJobs

T = TypeVar("T")


@attrs.define
class SlowCommits:
    """``seconds``: gives those that the next one takes."""

    seconds: Callable[[], float] = float


@contextmanager
def slow_commits() -> Generator[SlowCommits]:
    """A block in which the commits of simulated hosts take as long as is set."""
    slow, run = SlowCommits(), InlineJobs.run

    async def late(jobs: InlineJobs, job: Callable[[], T]) -> T:
        if seconds := slow.seconds():
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
        return await run(jobs, job)

    with mock.patch.object(InlineJobs, "run", late):
        yield slow
