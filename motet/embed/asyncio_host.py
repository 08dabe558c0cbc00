"""A host for coroutines of asyncio, whether it runs in a thread of its own or as their guest.

Invariants: cancelling an asyncio task that waits for the host cancels the work it waits for, and
the task goes on when all of that has ended (G1); a second cancellation changes nothing. When the
block of a guest is left, Trio has ended, however often the task is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Self,
    Unpack,
    overload,
)

import outcome
import trio
from typing_extensions import TypeVar

from motet.actors.host import open_host
from motet.embed.portal import (
    CheckedRunOptions,
    HostClosed,
    HostOptions,
    HostPortal,
    Job,
    OpenHost,
    PortalStream,
    StopOptions,
    open_portal,
)
from motet.protocols.config import HostConfig
from motet.protocols.run import RunOptions
from motet.protocols.sessions import StopReport
from motet.runtime.scopes import only_in_a_block

if TYPE_CHECKING:
    from motet.actors.agents.spec import AgentSpec, AnyAgent
    from motet.actors.host import Host
    from motet.protocols.events import AnyEvent
    from motet.protocols.run import RunResult


D = TypeVar("D")
R = TypeVar("R")
O_co = TypeVar("O_co", covariant=True, default=str)
P = ParamSpec("P")
T = TypeVar("T")


class AsyncioStream(PortalStream[O_co]):
    """``async for`` over the events of a run, in asyncio; see :class:`motet.RunStream`."""

    async def wait(self) -> RunResult[O_co]:
        """Wait until the run has ended. Cancelling the wait leaves the run."""
        return await _settled(self._waiting())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        event = await _settled(self._next())
        if event is None:
            raise StopAsyncIteration
        return event


class AsyncioHost:
    """The calls of :class:`motet.Host` for asyncio: :attr:`motet.HostThread.asyncio`, or
    :func:`motet.guest`.

    They raise what those of the host raise, and ``HostClosed``.
    """

    def __init__(self, portal: HostPortal) -> None:
        self._portal = portal

    @overload
    async def run(
        self,
        agent: AgentSpec[None, R],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[CheckedRunOptions],
    ) -> RunResult[R]: ...

    @overload
    async def run(
        self, agent: AgentSpec[D, R], text: str, *, deps: D, **options: Unpack[CheckedRunOptions]
    ) -> RunResult[R]: ...

    @overload
    async def run(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[CheckedRunOptions]
    ) -> RunResult[Any]: ...

    async def run(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[CheckedRunOptions],
    ) -> RunResult[Any]:
        """Answer one input and wait for it; see :meth:`motet.Host.run`.

        Time-outs are asyncio's: ``async with asyncio.timeout(30): await host.run(...)``.
        """
        return await _settled(self._portal.run(agent, text, deps, options))

    @overload
    def stream(
        self,
        agent: AgentSpec[None, R],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[RunOptions],
    ) -> AbstractAsyncContextManager[AsyncioStream[R]]: ...

    @overload
    def stream(
        self, agent: AgentSpec[D, R], text: str, *, deps: D, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[AsyncioStream[R]]: ...

    @overload
    def stream(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[AsyncioStream[Any]]: ...

    @only_in_a_block
    async def stream(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[AsyncioStream[Any]]:
        """Watch a run: ``async with host.stream(...) as run: async for event in run: ...``.

        Leaving the block early cancels the run and waits until all it started has ended.
        """
        job, begun = self._portal.stream(agent, text, deps, options)
        try:
            await asyncio.wait([_watched(begun)])
            yield AsyncioStream(self._portal, begun.result())
        finally:
            job.cancel()
            await _over(job)

    async def stop(self, **which: Unpack[StopOptions]) -> StopReport:
        """Stop runs and wait for their clean-up; see :meth:`motet.Host.stop`."""
        return await _settled(self._portal.stop(which))

    async def call(
        self,
        function: Callable[Concatenate[Host, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The rest of a host: ``await host.call(motet.Host.history, "user:alice", limit=5)``.

        Also for functions of your own: they take the host first, are written for Trio, and run
        in the host's loop.
        """
        return await _settled(self._portal.call(function, *args, **kwargs))


async def _settled(job: Job[T]) -> T:
    """The outcome of a job; see the invariant of this module."""
    await _over(job)
    return job.future.result()


async def _over(job: Job[T]) -> None:
    """Wait for the end of a job. Being cancelled cancels it first; then this raises after it."""
    ended = _watched(job.future)
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            cancelled = error
            job.cancel()
    if cancelled is not None:
        raise cancelled


def _watched(future: Future[T]) -> asyncio.Future[T]:
    """For :func:`asyncio.wait`. Reads the exception, or asyncio would log it as never retrieved."""
    watched = asyncio.wrap_future(future)
    watched.add_done_callback(lambda done: done.cancelled() or done.exception())
    return watched


@only_in_a_block
async def guest(
    config: str | Path | HostConfig | None = None, **opening: Unpack[HostOptions]
) -> AsyncGenerator[AsyncioHost]:
    """A host for the length of an ``async with`` block of asyncio, in the thread of its loop.

    Trio runs as the guest of that loop: a busy loop delays the agents, and a busy agent the loop.
    :class:`motet.HostThread` is the first choice.

    The arguments are those of :class:`motet.HostThread`. Raises what :func:`motet.open_host`
    raises, and ``RuntimeError`` outside of asyncio or when the thread has a guest already.
    Leaving it, by a cancellation too, cancels what runs and waits until it has ended; a
    synchronous tool can delay that for as long as it takes.
    """
    if trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "guest() was called inside trio: use `async with motet.open_host(...)` there"
        )
    guest_run = _GuestRun(asyncio.get_running_loop())
    guest_run.start(partial(open_host, config=config, **opening))
    try:
        yield AsyncioHost(await guest_run.portal())
    finally:
        await guest_run.end()


class _GuestRun:
    """One run of Trio inside an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scope = trio.CancelScope()
        self._ready: asyncio.Future[HostPortal] = loop.create_future()
        self._over: asyncio.Future[outcome.Outcome[None]] = loop.create_future()
        self._raised = False

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

    async def portal(self) -> HostPortal:
        """The portal, when the host is open. Raises what kept it from opening."""
        either: list[asyncio.Future[Any]] = [self._ready, self._over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            self._raised = True
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
        if not self._raised:
            self._over.result().unwrap()

    async def _live(self, opening: OpenHost) -> None:
        with self._scope:
            async with open_portal(opening) as portal:
                self._ready.set_result(portal)
                await trio.sleep_forever()
