"""The life of a host in a thread of its own.

Invariants: the thread has ended when the block is left, or ``TimeoutError`` says that it has not;
a program that leaves no block has its host ended in order when the interpreter exits. The thread
is a daemon so that one which does not end in time cannot keep the process alive, and an ``atexit``
callback, which the interpreter calls before it abandons daemons, ends it: nothing is lost.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack

import outcome
import trio
from typing_extensions import TypeVar as TypeVar_in_started

from motet.actors.agents.spec import AnyAgent
from motet.actors.errors.log import logger
from motet.actors.host import open_host
from motet.protocols.config import HostConfig
from motet.protocols.errors import MotetError, RunCancelled
from motet.protocols.mcp import McpServer
from motet.protocols.memory import Memory
from motet.protocols.policy import Policy
from motet.protocols.run import RunOptions
from motet.runtime.loops import loop_here

if TYPE_CHECKING:
    from motet.actors.host import Host
    from motet.actors.hosting.inputs import RunStream
    from motet.protocols.events import AnyEvent
    from motet.protocols.run import RunResult


# The way into a running host from other threads and other loops: jobs, carried out as its tasks.
#
# Invariants: a job's future is settled exactly once, when all that the job started has ended,
# unless whoever asked cancelled that future before; ``ended`` is set in both cases, after the
# clean-up.


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


# A host with a door, for the length of a block.


OpenHost: TypeAlias = "Callable[[], AbstractAsyncContextManager[Host]]"


@asynccontextmanager
async def portal_into(open_host: OpenHost) -> AsyncGenerator[Portal]:
    """Leaving the block cancels the jobs, waits for their clean-up, and closes the host."""
    async with open_host() as host, trio.open_nursery() as nursery:
        portal = Portal(host, nursery)
        try:
            yield portal
        finally:
            portal.close()
            nursery.cancel_scope.cancel()


# Runs of a host in another thread, as the threads see them that asked for one.


O_co = TypeVar_in_started("O_co", covariant=True, default=str)
T_of_started = TypeVar_in_started("T_of_started")

GRACE = 30.0
"""Seconds in which the clean-up of what was cancelled is expected to end."""


class StartedRun(Generic[O_co]):
    """A run under way, made by :meth:`motet.HostThread.start`. For any thread.

    Attributes:
        future: its :class:`motet.RunResult`, or what :meth:`motet.Host.run` raises, when all that
            the run started has ended. For asyncio: ``await asyncio.wrap_future(run.future)``.
            Cancelling the future cancels the run; :meth:`wait` then tells when it has ended.
    """

    def __init__(self, job: Job[RunResult[O_co]]) -> None:
        self.future: Future[RunResult[O_co]] = job.future
        self._job = job

    def __repr__(self) -> str:
        return f"<StartedRun {'ended' if self._job.ended.is_set() else 'under way'}>"

    def cancel(self) -> None:
        """Ask the run to end; its future then raises ``RunCancelled`` when it has."""
        self._job.cancel()

    def result(self, timeout: float | None = None) -> RunResult[O_co]:
        """Wait for the result. ``TimeoutError`` after ``timeout`` seconds; the run goes on."""
        return self.future.result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing of the run is left; False: it was not over after ``timeout``."""
        return self._job.ended.wait(timeout)


class ThreadStream(Generic[O_co]):
    """Iterate the events of a run; see :class:`motet.RunStream`. One thread at a time."""

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

    def wait(self, timeout: float | None = None) -> RunResult[O_co]:
        """Wait until the run has ended. ``TimeoutError`` after ``timeout``; the run goes on."""
        return waited(self._portal.start(lambda _: self._run.wait()), timeout)

    def cancel(self, mode: Literal["now", "after_turn"] = "now") -> None:
        """Ask the run to end: at once, or before its next model request."""
        self._portal.soon(self._run.cancel, mode)

    def __iter__(self) -> Iterator[AnyEvent]:
        while (event := waited(self._portal.start(self._next))) is not None:
            yield event

    async def _next(self, _: Host) -> AnyEvent | None:
        return await anext(self._run, None)


def waited(
    job: Job[T_of_started], timeout: float | None = None, grace: float = GRACE
) -> T_of_started:
    """The outcome of a job.

    Whoever stops waiting, by Ctrl-C too, cancels it, and waits ``grace`` seconds for its end.
    """
    try:
        return job.future.result(timeout)
    finally:
        if not job.future.done():
            job.cancel()
            job.ended.wait(grace)


def failed_before(begun: Future[RunStream[Any]], job: Future[None]) -> None:
    """A run that could not begin: whoever waits for its beginning is told why."""
    if not begun.done():
        begun.set_exception(job.exception() or HostClosed("the run was cancelled"))


# What a host, and a run of it, can be asked for from outside of the host's loop.


class Opening(TypedDict, total=False):
    """As :func:`motet.open_host`."""

    state: str | Path | None
    agents: Sequence[AnyAgent]
    workspace: str | Path | None
    memory: Memory | None
    policy: Policy | None
    mcp: Mapping[str, McpServer] | None


class Asked(RunOptions, total=False):
    """As :meth:`motet.Host.run`.

    check: whether a run that did not complete raises; it does if absent.
    """

    check: bool


class AskedInTime(Asked, total=False):
    """As a call that blocks.

    timeout: seconds after which the run is cancelled; no limit if absent.
    """

    timeout: float | None


_log = logger("motet.embed")


class HostLife:
    """The part of :class:`motet.HostThread` that opens and closes it."""

    def __init__(
        self,
        config: str | Path | HostConfig | None = None,
        *,
        grace: float = GRACE,
        **opening: Unpack[Opening],
    ) -> None:
        self.grace = grace
        self._open_host = partial(open_host, config=config, **opening)
        self._thread = threading.Thread(target=self._live, name="motet host", daemon=True)
        self._scope = trio.CancelScope()
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        self._portal: Future[Portal] = Future()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"<HostThread {self._state}>"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as unclean:
            if error is None:
                raise
            _log.error("the host did not end well", exc_info=unclean)

    def open(self) -> Self:
        """Start the host, as entering the ``with`` block does. Once; raises as ``open_host``."""
        if loop_here() == "trio":
            raise RuntimeError(
                "HostThread was opened inside trio: use `async with motet.open_host(...)` there"
            )
        if self._pid:
            raise RuntimeError("this HostThread was opened before: make another one")
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self.close)
        try:
            self._portal.result()
        except BaseException:  # Ctrl-C too: then it was still being opened
            self._failure = None  # the caller gets it now
            self.close()
            raise
        return self

    def close(self) -> None:
        """Cancel what runs, wait for its clean-up, close the database. Twice changes nothing.

        Raises ``TimeoutError`` when that took longer than ``grace``, and the failure of a host
        that had died. Ctrl-C leaves at once; the host goes on closing.
        """
        if self._pid != os.getpid():
            return  # never opened, or a copy in a forked process, which has no such thread
        if threading.current_thread() is self._thread:
            raise RuntimeError("a host cannot wait for its own end: close it from another thread")
        with suppress(trio.RunFinishedError):
            if not self._over.is_set():
                self._token.result().run_sync_soon(self._scope.cancel)
        if not self._over.wait(self.grace):
            raise TimeoutError(
                f"the host has not ended within {self.grace:g} s: something that it runs does not "
                "end when cancelled, such as a synchronous tool; a process can be killed instead"
            )
        atexit.unregister(self.close)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _entered(self) -> Portal:
        """The way in. Raises ``RuntimeError`` where there is none, and says why."""
        if not self._pid:
            raise RuntimeError("the host is not open: use it inside of `with HostThread(...)`")
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this host lives in process {self._pid}, of which this one is a fork: threads "
                "are not forked; open a HostThread in each worker process, after the fork"
            )
        if self._over.is_set() and self._failure is not None:
            raise HostClosed(f"the host has died: {self._failure!r}") from self._failure
        if self._over.is_set():
            raise HostClosed("the host is closed: open another one")
        return self._portal.result()

    @property
    def _state(self) -> str:
        if not self._pid:
            return "not open"
        return "closed" if self._over.is_set() else f"open in process {self._pid}"

    def _live(self) -> None:
        """The host's thread, from its beginning to its end."""
        try:
            trio.run(self._host)
        except BaseException as error:
            self._failure = error
        finally:
            self._over.set()
            if not self._token.done():
                self._token.set_exception(trio.RunFinishedError())
            if not self._portal.done():
                self._portal.set_exception(self._failure or HostClosed("it was not opened"))

    async def _host(self) -> None:
        self._token.set_result(trio.lowlevel.current_trio_token())
        with self._scope:
            async with portal_into(self._open_host) as portal:
                self._portal.set_result(portal)
                await trio.sleep_forever()
