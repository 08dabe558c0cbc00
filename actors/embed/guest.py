"""A host in an asyncio program's own thread: Trio as the guest of its loop.

A busy loop delays the agents, and a busy agent the loop: :class:`motet.HostThread` is the first
choice. Invariant: Trio has ended when the block is left, however often the task is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import outcome
import trio

from motet.actors.embed.asyncio_host import AsyncioHost
from motet.actors.embed.options import Opening
from motet.actors.embed.place import OpenHost, portal_into
from motet.actors.embed.portal import HostClosed, Portal
from motet.actors.host import open_host
from motet.protocols.config import HostConfig


@asynccontextmanager
async def guest(
    config: str | Path | HostConfig | None = None, **opening: Unpack[Opening]
) -> AsyncGenerator[AsyncioHost]:
    """A host for the length of an ``async with`` block of asyncio, in the thread of its loop.

    The arguments are those of :class:`motet.HostThread`. Raises what :func:`motet.open_host`
    raises, and ``RuntimeError`` outside of asyncio or when the thread has a guest already.
    Leaving it, by a cancellation too, cancels what runs and waits until it has ended; a
    synchronous tool can delay that for as long as it takes.
    """
    if trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "guest() was called inside trio: use `async with motet.open_host(...)` there"
        )
    trip = _Trip(asyncio.get_running_loop())
    trip.start(partial(open_host, config=config, **opening))
    try:
        yield AsyncioHost(await trip.portal())
    finally:
        await trip.end()


class _Trip:
    """One run of Trio inside of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scope = trio.CancelScope()
        self._ready: asyncio.Future[Portal] = loop.create_future()
        self._over: asyncio.Future[outcome.Outcome[None]] = loop.create_future()
        self._told = False

    def start(self, opening: OpenHost) -> None:
        try:
            trio.lowlevel.start_guest_run(
                self._live,
                opening,
                run_sync_soon_threadsafe=self._loop.call_soon_threadsafe,
                run_sync_soon_not_threadsafe=self._loop.call_soon,
                done_callback=self._over.set_result,
                host_uses_signal_set_wakeup_fd=True,
            )
        except RuntimeError as error:
            raise RuntimeError(
                "this thread has a guest host already: agents share one host, or use HostThread"
            ) from error
        self._token = trio.lowlevel.current_trio_token()

    async def portal(self) -> Portal:
        """The way into the host, when it is open. Raises what kept it from opening."""
        either: list[asyncio.Future[Any]] = [self._ready, self._over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            self._told = True
            self._over.result().unwrap()
            raise HostClosed("the host was not opened")
        return self._ready.result()

    async def end(self) -> None:
        """Have Trio end, and wait for it. Being cancelled meanwhile is raised afterwards."""
        cancelled: asyncio.CancelledError | None = None
        while not self._over.done():
            self._token.run_sync_soon(self._scope.cancel)
            try:
                await asyncio.wait([self._over])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        if not self._told:
            self._over.result().unwrap()

    async def _live(self, opening: OpenHost) -> None:
        with self._scope:
            async with portal_into(opening) as portal:
                self._ready.set_result(portal)
                await trio.sleep_forever()
