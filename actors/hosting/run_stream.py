"""A run as its caller sees it: events while it is live, the result when it has ended."""

from __future__ import annotations

from typing import Generic, Literal, Self

import trio
from typing_extensions import TypeVar

from motet.actors.runs.run import Run
from motet.actors.telemetry.subscription import Subscription
from motet.protocols.events import AnyEvent, RunWaiting, Terminal
from motet.protocols.run import RunResult

# How long the terminal event may lag behind the run's end before the stream closes without it:
# the bus first tries to journal it, and a locked database is waited for, twice over.
_LAG = 15.0

O_co = TypeVar("O_co", covariant=True, default=str)


class RunView(Generic[O_co]):
    """The part of a view that needs no loop: for any thread, nothing waits."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._run.state}>"

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def session(self) -> str:
        return self._run.session

    @property
    def result(self) -> RunResult[O_co]:
        """The result. Raises ``RuntimeError`` while the run goes on."""
        if self._run.result is None:
            raise RuntimeError(f"run {self.id} has not ended: await wait() first")
        return self._run.result


class RunStream(RunView[O_co]):
    """Iterate its events; the last one is terminal, or says that the run waits for a person.

    Only this run's events are seen.

    Leaving the ``async with`` block early cancels the run and waits until it has ended.
    """

    def __init__(self, run: Run, subscription: Subscription) -> None:
        super().__init__(run)
        self._subscription = subscription
        self._over = False

    async def wait(self) -> RunResult[O_co]:
        """Wait until the run and all it started have ended. Cancelling the wait leaves the run."""
        await self._run.ended.wait()
        return self.result

    def cancel(self, mode: Literal["now", "after_turn"] = "now") -> None:
        """Ask the run to end: at once, or before its next model request. It is a request only."""
        if mode == "after_turn":
            self._run.soft_stop = True
        else:
            self._run.cancel("cancelled by the caller", by_user=True)

    def events(self) -> Self:
        """Itself: ``async for event in run.events()`` is ``async for event in run``."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        event = None if self._over else await self._next()
        if event is None:
            raise StopAsyncIteration
        self._over = isinstance(event, Terminal)
        if isinstance(event, RunWaiting):
            # If the caller leaves the block now, it must not cancel a run that is being suspended.
            await self._run.ended.wait()
            self._over = self.result.status == "waiting"
        return event

    async def _next(self) -> AnyEvent | None:
        """The run's next event; None when the bus has lost the end of a run that has ended."""
        while True:
            over = self._run.ended.is_set()
            with trio.move_on_after(_LAG):
                record = await anext(self._subscription)
                if record.run_id == self.id:
                    return record.event
                continue
            if over:
                return None
