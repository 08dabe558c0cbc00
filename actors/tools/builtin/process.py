"""Running a command under the guard: bounded output, bounded time, nothing left behind (G2).

Invariant: when :func:`run_command` has ended, by return, error or cancellation, every process
that the command started is dead and reaped, unless the kernel could not end it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

import msgspec
import trio

from motet.actors.tools.builtin.guard import PATIENCE
from motet.actors.tools.builtin.output import HeadTail

CHUNK = 1 << 16


class Finished(msgspec.Struct, frozen=True):
    """How a command ended. ``code`` is 128 and the signal for one that was killed by a signal.

    ``total`` counts the bytes of the whole output, of which ``output`` may leave out the middle.
    """

    code: int
    timed_out: bool
    output: str
    total: int


async def run_command(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout: float, room: int
) -> Finished:
    """Run ``argv``, a guarded command line, for at most ``timeout`` seconds.

    Cancellation ends the command and waits until it is gone, as does the time-out; a moment of
    grace and then SIGKILL, so that this takes a fraction of a second.

    Raises:
        OSError: it could not be started.
    """
    process = await trio.lowlevel.open_process(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=cwd,
        env=dict(env),
    )
    output = HeadTail(room)
    drained = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, process, output, drained)
        try:
            with trio.move_on_after(timeout) as limit:
                await process.wait()
        finally:
            await _end(process)
        with trio.move_on_after(PATIENCE):
            await drained.wait()
        nursery.cancel_scope.cancel()
    assert process.returncode is not None
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Finished(code, limit.cancelled_caught, output.text(), output.total)


async def _drain(process: trio.Process, output: HeadTail, drained: trio.Event) -> None:
    assert process.stdout is not None
    async with process.stdout:
        async for chunk in process.stdout:
            output.add(chunk)
    drained.set()


async def _end(process: trio.Process) -> None:
    """Let go of the lifeline and wait for the guard, which then ends all that is left."""
    assert process.stdin is not None
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * PATIENCE):
        await process.stdin.aclose()
        await process.wait()
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
            await process.wait()


def environment() -> dict[str, str]:
    """All that an unconfined command gets to know of the host's environment: no keys, no tokens."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8"}
