"""What a host knows of one session while it is busy, as plain data."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from motet.actors.sessions.run import Run
    from motet.actors.sessions.session import SessionMessage
    from motet.protocols.sessions import FinishRun
    from motet.runtime import ActorRef

_ALONE: Final = nullcontext()
"""Has no state, so that one is enough."""


@attrs.define(eq=False)
class Slot:
    """What a host knows of one session while it is busy.

    Attributes:
        starting: those of ``running`` that its actor has not begun yet.
        dropped: inputs that have left the queue, to be put on record by its actor.
        chores: what is still being done for it after its runs, such as a summary.
        unsaved: finished runs whose rows could not be stored yet, oldest first.
        running: its runs that go on, the newest last; several in a ``group``.
        ended: how many of its runs have ended, for who works beside them.
        tokens: of its last request, in a window of ``window``; None: nobody knows.
        actor: the session's actor, as the router has begun it last.
    """

    session: str
    queue: deque[Run] = attrs.field(factory=deque["Run"])
    running: list[Run] = attrs.field(factory=list["Run"])
    starting: list[Run] = attrs.field(factory=list["Run"])
    dropped: list[Run] = attrs.field(factory=list["Run"])
    group: bool = False
    arriving: int = 0
    chores: int = 0
    unsaved: list[FinishRun] = attrs.field(factory=list["FinishRun"])
    ended: int = 0
    tokens: int | None = None
    window: int = 0
    touched: float = 0.0
    actor: ActorRef[SessionMessage] | None = attrs.field(default=None, repr=False)

    _lock: trio.Lock | None = attrs.field(default=None, init=False, repr=False)

    def storing(self) -> AbstractAsyncContextManager[None]:
        """Held by who stores, or reads, what is unsaved: several runs may do so at once."""
        if not self.group:
            return _ALONE
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    def steering(self, run_id: str) -> list[Run]:
        """The inputs that are to enter this run, in their order."""
        return [run for run in self.queue if run.steers == run_id]

    @property
    def active(self) -> Run | None:
        """The newest of its runs that go on."""
        return self.running[-1] if self.running else None

    @property
    def waits(self) -> bool:
        """Whether there is something that its actor has to begin."""
        return bool(self.queue or self.starting or self.dropped)

    def give_up(self, reason: str) -> list[Run]:
        """Take out whatever waits: nobody will begin it."""
        runs = [*self.dropped, *self.starting, *self.queue]
        for waiting in (self.dropped, self.starting, self.queue):
            waiting.clear()
        for run in runs:
            run.cancel(reason)
        return runs

    @property
    def idle(self) -> bool:
        busy = self.running or self.arriving or self.chores or self.waits
        return not (busy or self.unsaved)
