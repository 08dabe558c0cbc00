"""Runs of a host in another thread, as the threads see them that asked for one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import TypeVar

from motet.actors.embed.portal import HostClosed, Job, Portal

if TYPE_CHECKING:
    from motet.actors.host import Host
    from motet.actors.result import RunResult
    from motet.actors.stream import RunStream
    from motet.protocols.events import AnyEvent

O_co = TypeVar("O_co", covariant=True, default=str)
T = TypeVar("T")

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


def waited(job: Job[T], timeout: float | None = None, grace: float = GRACE) -> T:
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
