"""Say good-bye when cancelled: for talks whose end takes an answer of the other side."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def cancelled_inside() -> AsyncGenerator[trio.CancelScope]:
    """Shield the block; a cancellation from outside cancels the yielded scope instead.

    What follows that scope in the block must bound itself by a deadline. After the block the
    cancellation goes on as ever.
    """
    scope = trio.CancelScope()

    async def pass_on() -> None:
        try:
            await trio.sleep_forever()
        finally:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        with trio.CancelScope(shield=True):
            yield scope
        nursery.cancel_scope.cancel()
