"""A host as coroutines of asyncio see it, wherever it runs: in a thread, or as their guest.

Invariant: cancelling an asyncio task that waits for the host cancels what it waits for, and the
task goes on when all of that has ended (G1); a second cancellation changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    Unpack,
    overload,
)

import trio
from typing_extensions import TypeVar

from motet.actors.embed.options import Asked
from motet.actors.embed.portal import Job, Portal
from motet.actors.embed.started import failed_before
from motet.actors.options import RunOptions
from motet.protocols.sessions import LOCAL, Principal, StopReport

if TYPE_CHECKING:
    from motet.actors.agent.definition import Agent, AnyAgent
    from motet.actors.host import Host
    from motet.actors.result import RunResult
    from motet.actors.stream import RunStream
    from motet.protocols.events import AnyEvent

D = TypeVar("D")
R = TypeVar("R")
O_co = TypeVar("O_co", covariant=True, default=str)
P = ParamSpec("P")
T = TypeVar("T")


class AsyncioStream(Generic[O_co]):
    """``async for`` over the events of a run, in asyncio; see :class:`motet.RunStream`."""

    def __init__(self, portal: Portal, run: RunStream[O_co]) -> None:
        self._portal = portal
        self._run = run

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def session(self) -> str:
        return self._run.session

    @property
    def result(self) -> RunResult[O_co]:
        """The result. Raises ``RuntimeError`` while the run goes on."""
        return self._run.result

    async def wait(self) -> RunResult[O_co]:
        """Wait until the run has ended. Cancelling the wait leaves the run."""
        return await settled(self._portal.start(lambda _: self._run.wait()))

    def cancel(self, mode: Literal["now", "after_turn"] = "now") -> None:
        """Ask the run to end: at once, or before its next model request."""
        self._portal.soon(self._run.cancel, mode)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        event = await settled(self._portal.start(self._next))
        if event is None:
            raise StopAsyncIteration
        return event

    async def _next(self, _: Host) -> AnyEvent | None:
        return await anext(self._run, None)


class AsyncioHost:
    """The calls of :class:`motet.Host` for asyncio: :attr:`motet.HostThread.asyncio`, or
    :func:`motet.guest`.

    They raise what those of the host raise, and ``HostClosed``.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    @overload
    async def run(
        self, agent: Agent[None, R], text: str, *, deps: None = None, **options: Unpack[Asked]
    ) -> RunResult[R]: ...

    @overload
    async def run(
        self, agent: Agent[D, R], text: str, *, deps: D, **options: Unpack[Asked]
    ) -> RunResult[R]: ...

    @overload
    async def run(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[Asked]
    ) -> RunResult[Any]: ...

    async def run(
        self, agent: AnyAgent | str, text: str, *, deps: object = None, **options: Unpack[Asked]
    ) -> RunResult[Any]:
        """Answer one input and wait for it; see :meth:`motet.Host.run`.

        Time-outs are asyncio's: ``async with asyncio.timeout(30): await host.run(...)``.
        """

        async def work(host: Host) -> RunResult[Any]:
            return await host.run(agent, text, deps=deps, **options)

        return await settled(self._portal.start(work))

    @overload
    def stream(
        self, agent: Agent[None, R], text: str, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[AsyncioStream[R]]: ...

    @overload
    def stream(
        self, agent: Agent[D, R], text: str, *, deps: D, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[AsyncioStream[R]]: ...

    @overload
    def stream(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[RunOptions]
    ) -> AbstractAsyncContextManager[AsyncioStream[Any]]: ...

    @asynccontextmanager
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
        begun: Future[RunStream[Any]] = Future()

        async def hold(host: Host) -> None:
            async with host.stream(agent, text, deps=deps, **options) as run:
                begun.set_result(run)
                await trio.sleep_forever()

        job = self._portal.start(hold)
        job.future.add_done_callback(partial(failed_before, begun))
        try:
            await asyncio.wait([_watched(begun)])
            yield AsyncioStream(self._portal, begun.result())
        finally:
            job.cancel()
            await _over(job)

    async def stop(
        self,
        *,
        run_id: str | None = None,
        session: str | None = None,
        everything: bool = False,
        principal: Principal = LOCAL,
        grace: float = 5.0,
    ) -> StopReport:
        """Stop runs and wait for their clean-up; see :meth:`motet.Host.stop`."""

        async def work(host: Host) -> StopReport:
            return await host.stop(
                run_id=run_id,
                session=session,
                everything=everything,
                principal=principal,
                grace=grace,
            )

        return await settled(self._portal.start(work))

    async def call(
        self,
        function: Callable[Concatenate[Host, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The rest of a host: ``await host.call(motet.Host.history, "user:alice", limit=5)``.

        Or any function of one's own, which takes the host first, is written for Trio, and runs
        in the host's loop.
        """

        async def work(host: Host) -> T:
            return await function(host, *args, **kwargs)

        return await settled(self._portal.start(work))


async def settled(job: Job[T]) -> T:
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
    """For :func:`asyncio.wait`; asyncio does not complain when nobody looks at its exception."""
    watched = asyncio.wrap_future(future)
    watched.add_done_callback(lambda done: done.cancelled() or done.exception())
    return watched
