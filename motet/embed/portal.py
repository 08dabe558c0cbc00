"""The way into a running host from other threads and other event loops: jobs that it carries out.

Invariants: a job's future is settled exactly once, when everything that the job started has ended,
unless the caller cancelled that future before; ``ended`` is set in both cases, after the clean-up.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, copy_context
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
)

import outcome
import trio
from typing_extensions import TypeVar

from motet.actors.agents.spec import AnyAgent
from motet.actors.hosting.inputs import RunStream, RunView
from motet.protocols.errors import MotetError, RunCancelled
from motet.protocols.mcp import McpServer
from motet.protocols.memory import Memory
from motet.protocols.policy import Policy
from motet.protocols.run import RunOptions, RunResult
from motet.protocols.sessions import Principal, StopReport
from motet.runtime.scopes import open_hidden_nursery

if TYPE_CHECKING:
    from motet.actors.host import Host
    from motet.protocols.events import AnyEvent

P = ParamSpec("P")
T = TypeVar("T")
O_co = TypeVar("O_co", covariant=True, default=str)

Work: TypeAlias = "Callable[[Host], Awaitable[T]]"
OpenHost: TypeAlias = "Callable[[], AbstractAsyncContextManager[Host]]"


class HostOptions(TypedDict, total=False):
    """As :func:`motet.open_host`."""

    state: str | Path | None
    agents: Sequence[AnyAgent]
    workspace: str | Path | None
    memory: Memory | None
    policy: Policy | None
    mcp: Mapping[str, McpServer] | None


class CheckedRunOptions(RunOptions, total=False):
    """As :meth:`motet.Host.run`.

    check: whether a run that did not complete raises; it does if absent.
    """

    check: bool


class BlockingRunOptions(CheckedRunOptions, total=False):
    """As a call that blocks.

    timeout: seconds after which the run is cancelled; no limit if absent.
    """

    timeout: float | None


class StopOptions(TypedDict, total=False):
    """As :meth:`motet.Host.stop`."""

    run_id: str | None
    session: str | None
    everything: bool
    principal: Principal
    grace: float


class HostClosed(MotetError):
    """The host was closed, or died, before it could answer. Inputs it accepted are on record."""


class Job(Generic[T]):
    """Work that a host was asked to do. :meth:`cancel` and the future are for any thread.

    Attributes:
        future: the outcome; cancelling it cancels the work, and does not wait for the clean-up.
        ended: set when nothing of the work is left.
    """

    def __init__(self, portal: HostPortal) -> None:
        self.future: Future[T] = Future()
        self.ended = threading.Event()
        self._portal = portal
        self._scope = trio.CancelScope()
        self.future.add_done_callback(self._future_done)

    def cancel(self) -> None:
        """Ask the work to end; the future is settled when it has, with ``RunCancelled``."""
        self._portal.soon(self._scope.cancel)

    async def carry_out(self, host: Host, work: Work[T]) -> None:
        """Do it, as a task of the host's block."""
        result: outcome.Outcome[T] = outcome.Error(HostClosed("the host was closed meanwhile"))
        try:
            with self._scope:
                result = outcome.Value(await work(host))
            if self._scope.cancelled_caught:
                result = outcome.Error(RunCancelled("cancelled by its caller"))
        except Exception as error:
            result = outcome.Error(error)
        finally:
            self.settle(result)

    def settle(self, result: outcome.Outcome[T]) -> None:
        """Give the outcome to the waiting thread, unless the future was cancelled before."""
        if self.future.set_running_or_notify_cancel():
            if isinstance(result, outcome.Error):
                self.future.set_exception(result.error)
            else:
                self.future.set_result(result.unwrap())
        self.ended.set()

    def _future_done(self, future: Future[T]) -> None:
        if future.cancelled():
            self.cancel()


class HostPortal:
    """The entry to one host, for any thread. Made inside its block; jobs run in ``nursery``.

    Both faces of a host, the blocking one and asyncio's, ask for the same four kinds of job.
    """

    def __init__(self, host: Host, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._open = True

    def run(
        self,
        agent: AnyAgent | str,
        text: str,
        deps: object,
        options: CheckedRunOptions,
        timeout: float | None = None,
    ) -> Job[RunResult[Any]]:
        """See :meth:`motet.Host.run`. ``timeout``: seconds, then ``TimeoutError``."""

        async def work(host: Host) -> RunResult[Any]:
            if timeout is None:
                return await host.run(agent, text, deps=deps, **options)
            with trio.move_on_after(timeout) as scope:
                return await host.run(agent, text, deps=deps, **options)
            assert scope.cancelled_caught
            raise TimeoutError(
                f"no answer within {timeout:g} s: the run was cancelled and has ended"
            )

        return self.start(work)

    def stream(
        self, agent: AnyAgent | str, text: str, deps: object, options: RunOptions
    ) -> tuple[Job[None], Future[RunStream[Any]]]:
        """A job that keeps :meth:`motet.Host.stream` open, and the stream when it has begun."""
        begun: Future[RunStream[Any]] = Future()

        async def work(host: Host) -> None:
            async with host.stream(agent, text, deps=deps, **options) as run:
                begun.set_result(run)
                await trio.sleep_forever()

        def failed(job: Future[None]) -> None:
            if not begun.done():
                begun.set_exception(job.exception() or HostClosed("the run was cancelled"))

        job = self.start(work)
        job.future.add_done_callback(failed)
        return job, begun

    def stop(self, options: StopOptions) -> Job[StopReport]:
        """See :meth:`motet.Host.stop`."""
        return self.start(lambda host: host.stop(**options))

    def call(
        self,
        function: Callable[Concatenate[Host, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[T]:
        """Any function that takes the host first."""
        return self.start(lambda host: function(host, *args, **kwargs))

    def start(self, work: Work[T]) -> Job[T]:
        """Have the host do something. Returns at once."""
        job: Job[T] = Job(self)
        if not self.soon(self._begin, job, work, copy_context()):
            job.settle(_closed())
        return job

    def soon(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function in the host's thread; False if that thread has ended."""
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    def close(self) -> None:
        """Take no more jobs. In the host's thread."""
        self._open = False

    def _begin(self, job: Job[T], work: Work[T], context: Context) -> None:
        if self._open:
            # The caller's context: a span that is open there is the parent of what happens here.
            context.run(self._nursery.start_soon, job.carry_out, self._host, work)
        else:
            job.settle(_closed())


def _closed() -> outcome.Error:
    return outcome.Error(HostClosed("the host is closed: open another one"))


@asynccontextmanager
async def open_portal(open_host: OpenHost) -> AsyncGenerator[HostPortal]:
    """A host with a portal. Leaving cancels the jobs, waits for their clean-up, closes the host."""
    async with open_host() as host, open_hidden_nursery() as nursery:
        portal = HostPortal(host, nursery)
        try:
            yield portal
        finally:
            portal.close()
            nursery.cancel_scope.cancel()


class PortalStream(RunView[O_co]):
    """A :class:`motet.RunStream` seen from another loop: what both faces share."""

    def __init__(self, portal: HostPortal, stream: RunStream[O_co]) -> None:
        super().__init__(stream._run)
        self._portal = portal
        self._stream = stream

    def cancel(self, mode: Literal["now", "after_turn"] = "now") -> None:
        """Ask the run to end: at once, or before its next model request."""
        self._portal.soon(self._stream.cancel, mode)

    def _waiting(self) -> Job[RunResult[O_co]]:
        return self._portal.start(lambda _: self._stream.wait())

    def _next(self) -> Job[AnyEvent | None]:
        return self._portal.start(self._next_event)

    async def _next_event(self, _: Host) -> AnyEvent | None:
        return await anext(self._stream, None)
