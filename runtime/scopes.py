"""Cancel scopes of Trio, used in two ways that Trio has no function for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

__all__ = ["cancel_at", "shielded_close"]


def cancel_at(scope: trio.CancelScope, when: float) -> None:
    """Cancel ``scope`` at ``when``, or earlier if that was ordered before."""
    # A deadline that has passed would take effect at Trio's next look at the clock only. `cancel`
    # reaches the tasks in this step, so that they cannot begin anything in between.
    if when <= trio.current_time():
        scope.cancel()
    elif when < scope.deadline:
        scope.deadline = when


@asynccontextmanager
async def shielded_close() -> AsyncGenerator[trio.CancelScope]:
    """Let a closing handshake finish despite cancellation.

    ``async with shielded_close() as scope``: the block is shielded, and a cancellation from outside
    cancels the yielded scope instead. So the conversation goes inside of ``with scope:``, and the
    handshake after it, in the same block. The handshake must have a deadline of its own, since
    nothing else ends it. After the block the cancellation goes on.
    """
    scope = trio.CancelScope()

    async def pass_on() -> None:
        # Beside the shield and not inside of it: this task is the one that the outer cancellation
        # reaches.
        try:
            await trio.sleep_forever()
        finally:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        with trio.CancelScope(shield=True):
            yield scope
        nursery.cancel_scope.cancel()
