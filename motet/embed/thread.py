"""A host in a thread of its own, for programs that are synchronous or asyncio's.

Invariants: the thread has ended when the block is left, or ``TimeoutError`` says that it has not;
if a program leaves no block, its host is closed in order when the interpreter exits. The thread is
a daemon, so that one which does not end in time cannot keep the process alive; an ``atexit``
callback, which the interpreter calls before it abandons daemons, closes the host: nothing is lost.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, Unpack, cast, overload

import trio
from typing_extensions import TypeVar

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.errors.log import logger
from motet.actors.host import Host, open_host
from motet.embed.portal import (
    BlockingRunOptions,
    CheckedRunOptions,
    HostClosed,
    HostOptions,
    HostPortal,
    Job,
    PortalStream,
    StopOptions,
    open_portal,
)
from motet.protocols.config import HostConfig
from motet.protocols.run import RunOptions, RunResult
from motet.protocols.sessions import StopReport
from motet.runtime.loops import loop_here, refuse_in_loop

if TYPE_CHECKING:
    from motet.embed.asyncio_host import AsyncioHost
    from motet.protocols.events import AnyEvent

D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")
O_co = TypeVar("O_co", covariant=True, default=str)

GRACE = 30.0
"""Seconds in which the clean-up after a cancellation is expected to end."""

_log = logger("motet.embed")


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


class ThreadStream(PortalStream[O_co]):
    """Iterate the events of a run; see :class:`motet.RunStream`. One thread at a time."""

    def wait(self, timeout: float | None = None) -> RunResult[O_co]:
        """Wait until the run has ended. ``TimeoutError`` after ``timeout``; the run goes on."""
        return _waited(self._waiting(), timeout)

    def __iter__(self) -> Iterator[AnyEvent]:
        while (event := _waited(self._next())) is not None:
            yield event


class HostThread:
    """A host for other loops and other threads: ``with motet.HostThread("motet.toml") as host:``.

    Args:
        config: a TOML file or a :class:`motet.HostConfig`.
        grace: seconds that :meth:`close` waits for the runs, their tools and the database.

    The others are those of :func:`motet.open_host`. Entering raises what that raises: in the
    calling thread. Every method is for any thread. A host does not survive
    ``fork``: open one in each worker process, after it was forked.
    """

    def __init__(
        self,
        config: str | Path | HostConfig | None = None,
        *,
        grace: float = GRACE,
        **opening: Unpack[HostOptions],
    ) -> None:
        self.grace = grace
        self._open_host = partial(open_host, config=config, **opening)
        self._thread = threading.Thread(target=self._live, name="motet host", daemon=True)
        self._scope = trio.CancelScope()
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        self._portal: Future[HostPortal] = Future()
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

    # Running

    @overload
    def run(
        self,
        agent: AgentSpec[None, R],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[BlockingRunOptions],
    ) -> RunResult[R]: ...

    @overload
    def run(
        self,
        agent: AgentSpec[D, R],
        text: str,
        *,
        deps: D,
        **options: Unpack[BlockingRunOptions],
    ) -> RunResult[R]: ...

    @overload
    def run(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[BlockingRunOptions]
    ) -> RunResult[Any]: ...

    def run(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[BlockingRunOptions],
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
        checked = cast("CheckedRunOptions", options)  # popping takes it out of the type, too
        job = self._entered().run(agent, text, deps, checked, timeout)
        return _waited(job, grace=self.grace)

    @overload
    def start(
        self,
        agent: AgentSpec[None, R],
        text: str,
        *,
        deps: None = None,
        **options: Unpack[CheckedRunOptions],
    ) -> StartedRun[R]: ...

    @overload
    def start(
        self, agent: AgentSpec[D, R], text: str, *, deps: D, **options: Unpack[CheckedRunOptions]
    ) -> StartedRun[R]: ...

    @overload
    def start(
        self, agent: str, text: str, *, deps: object = None, **options: Unpack[CheckedRunOptions]
    ) -> StartedRun[Any]: ...

    def start(
        self,
        agent: AnyAgent | str,
        text: str,
        *,
        deps: object = None,
        **options: Unpack[CheckedRunOptions],
    ) -> StartedRun[Any]:
        """Have one input answered and return at once, inside a loop, too."""
        return StartedRun(self._entered().run(agent, text, deps, options))

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
        portal = self._entered()
        job, begun = portal.stream(agent, text, deps, options)
        try:
            yield ThreadStream(portal, begun.result())
        finally:
            job.cancel()
            job.ended.wait(self.grace)

    def stop(self, **which: Unpack[StopOptions]) -> StopReport:
        """Stop runs and wait for their clean-up; see :meth:`motet.Host.stop`."""
        _refuse("HostThread.stop()")
        return _waited(self._entered().stop(which), grace=self.grace)

    def call(
        self,
        function: Callable[Concatenate[Host, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The rest of a host: ``host.call(motet.Host.history, "user:alice", limit=5)``.

        Also for async functions of your own: they take the host first, and run in its thread.
        Blocks until the function has ended; Ctrl-C cancels it.
        """

        _refuse("HostThread.call()")
        return _waited(self._entered().call(function, *args, **kwargs), grace=self.grace)

    @property
    def asyncio(self) -> AsyncioHost:
        """The same host for coroutines of any asyncio loop: ``await host.asyncio.run(...)``."""
        from motet.embed.asyncio_host import AsyncioHost

        return AsyncioHost(self._entered())

    # Inside

    def _entered(self) -> HostPortal:
        """The portal. Raises ``RuntimeError`` if there is none, and says why."""
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
        """The host's thread."""
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
            async with open_portal(self._open_host) as portal:
                self._portal.set_result(portal)
                await trio.sleep_forever()


def _waited(job: Job[T], timeout: float | None = None, grace: float = GRACE) -> T:
    """The outcome of a job.

    If the wait ends early, by Ctrl-C too, the job is cancelled, and has ``grace`` seconds to end.
    """
    try:
        return job.future.result(timeout)
    finally:
        if not job.future.done():
            job.cancel()
            job.ended.wait(grace)


def _refuse(what: str) -> None:
    refuse_in_loop(
        what,
        trio="use the host that is open there",
        asyncio="use the method of that name of `host.asyncio`",
    )
