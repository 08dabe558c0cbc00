"""A loss of power in the middle of a commit, where no step of a simulated world ends.

Between two steps a commit is whole or has not begun: the host waits for its disk within a step.
So what a crash between steps can never show is an input that is on disk while nobody was told, or
a commit of which half was written.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import attrs

from motet.runtime.testing.loop import Interrupted
from motet.testing.world import HostWorld

__all__ = ["Power", "power_cut"]


@attrs.define
class Power:
    """Whether the power has ``failed``."""

    failed: bool = False


@contextmanager
def power_cut(host: HostWorld, change: int) -> Generator[Power]:
    """In the block the power fails: before the ``change``-th change of the disk from now.

    At once nobody hears the host any more; at the end of its step the call that drives it is left,
    and with it the block, after which a new host has opened what the disk has kept. A block that
    changes the disk less often goes to its end.

        with mt.power_cut(host, 3) as power:
            host.start(agent, "go", key="once")
        assert power.failed
    """
    power = Power()

    def fail() -> None:
        power.failed = True
        host._fall_silent(True)  # pyright: ignore[reportPrivateUsage]  # of this package
        host.loop.at(0, _leave)

    host.disk.crash_at(change, fail)
    try:
        yield power
    except Interrupted:
        if not power.failed:
            raise
    finally:
        host.disk.crash_at(None)
    if power.failed:
        host.crash()


def _leave() -> None:
    raise Interrupted
