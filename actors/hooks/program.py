"""Run a hook's program: an event on its stdin, bounded output, nothing left behind (G2).

Invariant: when :func:`run_program` has ended, by return, error or cancellation, every process that
the program started is dead and reaped, unless the kernel could not end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import trio

from motet.actors.hooks.claude import HookProgramError
from motet.actors.tools.builtin.guard import PATIENCE
from motet.actors.tools.builtin.output import HeadTail
from motet.actors.tools.builtin.sandbox import GRACE, GUARD

MAX_STDOUT = 1 << 18
"""Bytes of an answer; one that is longer is a failure."""

MAX_STDERR = 4_000

# The guard gives its command an empty stdin, so the event comes by a file in memory; the number
# of its descriptor may have several digits, which not every sh takes in a redirection.
_WITH_STDIN = ("/bin/sh", "-c", 'exec "$@" <"$0"')


@attrs.define
class Ended:
    """How a program ended. ``code`` is 128 and the signal for one that a signal killed."""

    code: int
    stdout: bytes
    stderr: str


async def run_program(
    argv: Sequence[str], event: bytes, *, cwd: str, env: Mapping[str, str]
) -> Ended:
    """Run ``argv`` with ``event`` on its stdin until it ends.

    Cancellation ends it, all of its descendants included, and waits until they are gone. Raises
    ``OSError`` if it could not be started, ``HookProgramError`` for a longer answer than allowed.
    """
    with _in_memory(event) as descriptor:
        stdin = f"/proc/self/fd/{descriptor}"
        guard = [sys.executable, "-I", "-S", GUARD, str(GRACE), "RLIMIT_CORE=0"]
        process = await trio.lowlevel.open_process(
            [*guard, *_WITH_STDIN, stdin, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(descriptor,),
            cwd=cwd,
            env=dict(env),
        )
    return await _until_ended(process)


async def _until_ended(process: trio.Process) -> Ended:
    stdout, stderr = bytearray(), HeadTail(MAX_STDERR)
    limit = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain_answer, process, stdout, limit)
        nursery.start_soon(_drain_words, process, stderr)
        try:
            with limit:
                await process.wait()
        finally:
            await _end(process)
        # The guard is gone, and with it all that could write: what is left is in the pipes.
        nursery.cancel_scope.deadline = trio.current_time() + PATIENCE
    if len(stdout) > MAX_STDOUT:
        raise HookProgramError(f"its standard output is longer than {MAX_STDOUT:,} bytes")
    assert process.returncode is not None
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(code, bytes(stdout), stderr.text())


async def _drain_answer(process: trio.Process, kept: bytearray, limit: trio.CancelScope) -> None:
    assert process.stdout is not None
    async with process.stdout:
        async for chunk in process.stdout:
            kept += chunk
            if len(kept) > MAX_STDOUT:
                limit.cancel()
                return


async def _drain_words(process: trio.Process, kept: HeadTail) -> None:
    assert process.stderr is not None
    async with process.stderr:
        async for chunk in process.stderr:
            kept.add(chunk)


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


@contextmanager
def _in_memory(data: bytes) -> Generator[int]:
    """A descriptor of a file in memory with this content."""
    descriptor = os.memfd_create("hook-event", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield descriptor
    finally:
        os.close(descriptor)
