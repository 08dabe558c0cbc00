"""A host in a thread of its own, for programs that are synchronous or asyncio's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

import trio

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.host import Host
from motet.embed.life import (
    Asked,
    AskedInTime,
    HostLife,
    Job,
    StartedRun,
    ThreadStream,
    failed_before,
    waited,
)
from motet.protocols.run import RunOptions, RunResult
from motet.protocols.sessions import LOCAL, Principal, StopReport
from motet.runtime.loops import refuse_in_loop

if TYPE_CHECKING:
    from motet.actors.hosting.inputs import RunStream
    from motet.embed.asyncio_host import AsyncioHost

D = TypeVar("D")
R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")


class HostThread(HostLife):
    """A host for other loops and other threads: ``with motet.HostThread("motet.toml") as host:``.

    Args:
        config: a TOML file or a :class:`motet.HostConfig`.
        grace: seconds that :meth:`close` waits for the runs, their tools and the database.

    The others are those of :func:`motet.open_host`. Entering raises what that raises: in the
    calling thread. Every method is for any thread. A host does not survive
    ``fork``: open one in each worker process, after it was forked.
    """

    # Running

    @overload
    def run(
        self,
        agent: AgentSpec[None, R],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[AskedInTime],
    ) -> RunResult[R]: ...

    @overload
    def run(
        self,
        agent: AgentSpec[D, R],
        text: str,
        *,
        deps: D,
        **options: Unpack[AskedInTime],
    ) -> RunResult[R]: ...

    @overload
    def run(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[AskedInTime]
    ) -> RunResult[Any]: ...

    def run(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[AskedInTime],
    ) -> RunResult[Any]:
        """Answer one input and block until it is there. Raises as :meth:`motet.Host.run`.

        After ``timeout`` seconds the run is cancelled, and ``TimeoutError`` raised when all it
        started has ended. Ctrl-C cancels it too.
        """
        refuse_in_loop(
            "HostThread.run()",
            trio="use the host that is open there, `await host.run(...)`",
            asyncio="use `await host.asyncio.run(...)`, or `host.start(...)` and its future",
        )

        timeout = options.pop("timeout", None)
        asked = cast("Asked", options)  # popping takes it out of the type, too

        async def work(host: Host) -> RunResult[Any]:
            return await host.run(agent, text, deps=deps, **asked)

        return waited(self._job(partial(_bounded, work, timeout)), grace=self.grace)

    @overload
    def start(
        self, agent: AgentSpec[None, R], text: str, *, deps: None = None, **options: Unpack[Asked]
    ) -> StartedRun[R]: ...

    @overload
    def start(
        self, agent: AgentSpec[D, R], text: str, *, deps: D, **options: Unpack[Asked]
    ) -> StartedRun[R]: ...

    @overload
    def start(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[Asked]
    ) -> StartedRun[Any]: ...

    def start(
        self, agent: AnyAgent | str, text: str, *, deps: object = None, **options: Unpack[Asked]
    ) -> StartedRun[Any]:
        """Have one input answered and return at once, inside of a loop too."""

        async def work(host: Host) -> RunResult[Any]:
            return await host.run(agent, text, deps=deps, **options)

        return StartedRun(self._job(work))

    @overload
    def stream(
        self,
        agent: AgentSpec[None, R],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[RunOptions],
    ) -> AbstractContextManager[ThreadStream[R]]: ...

    @overload
    def stream(
        self, agent: AgentSpec[D, R], text: str, *, deps: D, **options: Unpack[RunOptions]
    ) -> AbstractContextManager[ThreadStream[R]]: ...

    @overload
    def stream(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[RunOptions]
    ) -> AbstractContextManager[ThreadStream[Any]]: ...

    @contextmanager
    def stream(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[RunOptions],
    ) -> Generator[ThreadStream[Any]]:
        """Watch a run: ``with host.stream(...) as run: for event in run: ...``.

        Leaving the block early cancels the run and waits until all it started has ended.
        """
        refuse_in_loop(
            "HostThread.stream()",
            trio="use `async with host.stream(...)` of the host that is open there",
            asyncio="use `async with host.asyncio.stream(...)`",
        )
        begun: Future[RunStream[Any]] = Future()

        async def hold(host: Host) -> None:
            async with host.stream(agent, text, deps=deps, **options) as run:
                begun.set_result(run)
                await trio.sleep_forever()

        job = self._job(hold)
        job.future.add_done_callback(partial(failed_before, begun))
        try:
            yield ThreadStream(self._entered(), begun.result())
        finally:
            job.cancel()
            job.ended.wait(self.grace)

    def stop(
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

        return self._blocking("HostThread.stop()", work)

    def call(
        self,
        function: Callable[Concatenate[Host, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The rest of a host: ``host.call(motet.Host.history, "user:alice", limit=5)``.

        Or any async function of one's own that takes the host first: it runs in the host's
        thread. Blocks until it has ended; Ctrl-C cancels it.
        """

        async def work(host: Host) -> T:
            return await function(host, *args, **kwargs)

        return self._blocking("HostThread.call()", work)

    @property
    def asyncio(self) -> AsyncioHost:
        """The same host for coroutines of any asyncio loop: ``await host.asyncio.run(...)``."""
        from motet.embed.asyncio_host import AsyncioHost

        return AsyncioHost(self._entered())

    # Inside

    def _blocking(self, what: str, work: Callable[[Host], Awaitable[T]]) -> T:
        refuse_in_loop(
            what,
            trio="use the host that is open there",
            asyncio="use the method of that name of `host.asyncio`",
        )
        return waited(self._job(work), grace=self.grace)

    def _job(self, work: Callable[[Host], Awaitable[T]]) -> Job[T]:
        return self._entered().start(work)


async def _bounded(work: Callable[[Host], Awaitable[T]], timeout: float | None, host: Host) -> T:
    if timeout is None:
        return await work(host)
    with trio.move_on_after(timeout) as scope:
        return await work(host)
    assert scope.cancelled_caught
    raise TimeoutError(f"no answer within {timeout:g} s: the run was cancelled and has ended")
