"""Run a hook's program: an event on its stdin, bounded output, nothing left behind (G2).

Invariant: when :func:`run_program` has ended, by return, error or cancellation, every process that
the program started is dead and reaped, unless the kernel could not end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from motet.actors.hooks.claude import HookProgramError
from motet.actors.processes import open_child
from motet.actors.tools.builtin.output import HeadTail

MAX_STDOUT = 1 << 18
"""Bytes of an answer; one that is longer is a failure."""

MAX_STDERR = 4_000


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
    words = HeadTail(MAX_STDERR)
    async with open_child(argv, cwd=cwd, env=env) as child:
        answer = await child.answer(event, room=MAX_STDOUT, words=words)
        if answer is None:
            raise HookProgramError(f"its standard output is longer than {MAX_STDOUT:,} bytes")
        return Ended(await child.wait(), answer, words.text())
    raise AssertionError("leaving the block of a child swallows nothing")
