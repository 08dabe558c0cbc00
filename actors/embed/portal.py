"""The way into a running host from other threads and other loops: jobs, carried out as its tasks.

Invariants: a job's future is settled exactly once, when all that the job started has ended, unless
whoever asked cancelled that future before; ``ended`` is set in both cases, after the clean-up.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import outcome
import trio

from motet.protocols.errors import MotetError, RunCancelled

if TYPE_CHECKING:
    from motet.actors.host import Host

T = TypeVar("T")
Work: TypeAlias = "Callable[[Host], Awaitable[T]]"


class HostClosed(MotetError):
    """The host was closed, or died, before it could answer. Inputs it accepted are on record."""


class Job(Generic[T]):
    """Something a host was asked to do. :meth:`cancel` and the future are for any thread.

    Attributes:
        future: the outcome; cancelling it cancels the work, and does not wait for the clean-up.
        ended: set when nothing of the work is left.
    """

    def __init__(self, portal: Portal) -> None:
        self.future: Future[T] = Future()
        self.ended = threading.Event()
        self._portal = portal
        self._scope = trio.CancelScope()
        self.future.add_done_callback(self._given_up)

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
        """Give the outcome to whoever waits, unless the future was cancelled before."""
        if self.future.set_running_or_notify_cancel():
            if isinstance(result, outcome.Error):
                self.future.set_exception(result.error)
            else:
                self.future.set_result(result.unwrap())
        self.ended.set()

    def _given_up(self, future: Future[T]) -> None:
        if future.cancelled():
            self.cancel()


class Portal:
    """A door of one host. Made inside of its block; ``nursery`` is where the jobs run."""

    def __init__(self, host: Host, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._open = True

    def start(self, work: Work[T]) -> Job[T]:
        """Have the host do something. From any thread; returns at once."""
        job: Job[T] = Job(self)
        if not self.soon(self._begin, job, work, copy_context()):
            job.settle(_closed())
        return job

    def soon(self, function: Callable[..., object], *args: object) -> bool:
        """Call something in the host's thread; whether there still is one that could."""
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
