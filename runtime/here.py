"""An ask whose handler runs in the asker's task: no queue, no other task, no wait (G1, G3, G4).

``handles(..., concurrent=k, here=True)`` allows it; ``ask.py`` does it when the actor would begin
the request at once: it is open and takes mail, one of the k places is free, no request of this type
waits before it, and nobody observes the actor. In any other case the request takes the mailbox.

Invariants: the outcome is one that the mailbox could have given; requests of one type begin in the
order in which they were asked; the counters, the places and the edge of the wait-for graph are as
for a task of the actor, and all are given back however the handler ends.

The handler has a scope of its own, below those of its asker, so a stop of its actor ends it and
nothing else. The asker's own cancellation needs no help: it is that of the task.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import trio

from motet.protocols.messages import Message
from motet.runtime.envelope import Replies, Result, TakingAsk
from motet.runtime.handlers import Handler
from motet.runtime.outside import is_cancelled
from motet.runtime.waits import Work

__all__ = ["IN_A_ROW", "HereAsk", "Places", "allowed", "is_only_cancelled", "nobody"]

IN_A_ROW = 64
"""Asks of one task that an actor handles here before one takes the mailbox, which lets other tasks
run: a handler without a checkpoint could starve them. As many as an actor's turn handles in a row.
Asks of many tasks are no such row, since each of them has waited for the one before."""

allowed: Callable[[], bool] | None = None
"""Asked before each, if it is set: False sends the request to the mailbox. A simulation sets it, to
search both ways; it is valid for the whole process (``testing/simulate.py``)."""


def nobody(_: object) -> None:
    """Takes no items: the request was asked and not streamed."""


class HereAsk(TakingAsk, eq=False, kw_only=True):
    """The record of such an ask, as others see it: an edge, a request that is handled (G11).

    ``places``: of the actor, one of which is its own. ``asker``: the work that it was asked from.
    ``left``: the asker is cancelled, and its Cancelled
    is not on the way: an item of the handler met it first, or it is in a group of the handler's.
    ``result`` is empty also if the handler has just returned a value.
    """

    places: Places
    take: Callable[[Any], object] = nobody
    asker: Work | None = None
    left: bool = False

    @property
    def asked_from(self) -> Work | None:
        # The task has the work of the handler now.
        return self.asker

    @property
    def replies(self) -> Replies[object]:
        return Replies() if self.take is nobody else super().replies

    def finds_asker_gone(self) -> bool:
        # Of another task this is noted as it happens. To look for it here costs more than an item,
        # so it is looked for when it may be: the handler cleans up, or a deadline has passed.
        late = self.until < math.inf and self.until < trio.current_time()
        if (late or sys.exc_info()[0] is not None) and is_cancelled():
            self.left = _asker_is_cancelled(self.scope)
            # If the handler was ended by its actor first, only the time tells of the asker.
            if self.left or late:
                self.cancel()
        return self.cancelled_at is not None

    @property
    def has_outcome(self) -> bool:
        """Whether there is an outcome that its cancellation does not change."""
        return self.result is not None or self.failure is not None

    def take_result(self) -> object:
        """The value, or raise the error; once."""
        result, self.result = self.result, None
        assert result is not None, "the outcome is taken once"
        try:
            return result.unwrap()
        finally:
            # The traceback of the error holds this frame, which must not hold the error.
            del result

    def _deliver(self, result: Result) -> None:
        self.result = result


class Places(Protocol):
    """The concurrent handlers of a living incarnation, as far as senders need them.

    ``busy``: how many places of each message type are taken; a type without any may be missing.
    """

    @property
    def busy(self) -> Mapping[type[Message], int]: ...

    def notify(self, kind: type[Message], /) -> None:
        """A message of ``kind`` waits."""

    def take_place(self, handler: Handler, task: trio.lowlevel.Task, /) -> bool:
        """Whether ``task`` may handle its request itself, now; see ``here.py``. Then a place is its
        own, which :meth:`answer_here` gives back.
        """
        ...

    async def answer_here(self, ask: HereAsk, handler: Handler, /) -> Any:
        """Run the handler in the current task; its outcome."""
        ...


def is_only_cancelled(group: BaseExceptionGroup[BaseException]) -> bool:
    """Whether a group has nothing but ``Cancelled``."""
    return group.split(trio.Cancelled)[1] is None


def _asker_is_cancelled(scope: trio.CancelScope | None) -> bool:
    """Whether the cancellation of this task comes from outside of the handler's ``scope``."""
    # Trio has no question for it: so behind a shield, would the task be cancelled still? Nothing
    # runs in between, and no cancellation is delivered but at a checkpoint.
    if scope is None or scope.cancel_called:
        return False
    scope.shield = True
    try:
        return not is_cancelled()
    finally:
        scope.shield = False
