"""Running a command under the guard: bounded output, bounded time, nothing left behind (G2).

Invariant: when :func:`run_command` has ended, by return, error or cancellation, every process
that the command started is dead and reaped, unless the kernel could not end it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec
import trio

from motet.actors import processes  # the module: it is what begins the import of this one
from motet.actors.tools.builtin.guard import PATIENCE
from motet.actors.tools.builtin.output import HeadTail


class Finished(msgspec.Struct, frozen=True):
    """How a command ended. ``code`` is 128 and the signal for one that was killed by a signal.

    ``total`` counts the bytes of the whole output, of which ``output`` may leave out the middle.
    """

    code: int
    timed_out: bool
    output: str
    total: int


async def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    limits: Mapping[str, int],
    timeout: float,
    room: int,
) -> Finished:
    """Run ``argv`` for at most ``timeout`` seconds; ``limits`` as for a child.

    Cancellation ends the command and waits until it is gone, as does the time-out; a moment of
    grace and then SIGKILL, so that this takes a fraction of a second.

    Raises:
        OSError: it could not be started.
    """
    output = HeadTail(room)
    drained = trio.Event()
    async with (
        processes.open_child(
            argv, cwd=cwd, env=env, limits=limits, reads=False, joined=True
        ) as child,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_drain, child.stdout, output, drained)
        try:
            with trio.move_on_after(timeout) as limit:
                await child.wait()
        finally:
            await child.stop()
        with trio.move_on_after(PATIENCE):
            await drained.wait()
        nursery.cancel_scope.cancel()
    assert child.returncode is not None
    return Finished(child.returncode, limit.cancelled_caught, output.text(), output.total)


async def _drain(stdout: trio.abc.ReceiveStream, output: HeadTail, drained: trio.Event) -> None:
    async for chunk in stdout:
        output.add(chunk)
    drained.set()


def environment() -> dict[str, str]:
    """All that an unconfined command gets to know of the host's environment: no keys, no tokens."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8"}
