"""The ask: a request whose cancellation reaches the handler and waits for its end (G1, G3).

An ask is one envelope and one wait. While the envelope is at home in some queue, cancelling the
asker takes it out, and the handler never begins. From the handler's first step on the wait
refuses to be aborted: cancelling the asker cancels the scope the handler runs in, and only the
handler's end resumes the asker, with the value if there is one, since a completed effect must not
be reported as cancelled. The handler may be asking others: its wait does the same, so closure is
recursive.

The asking task itself is the reply slot. It is resumed in one place, :meth:`Ask.settle`.

A time limit does the same from the system's timers. What a handler asks has the deadline of the
request it handles, too, so that nothing begins that would be too late for whoever asked first.

Choices not taken. A reply channel or event per ask costs two more objects and can be answered
after the asker left. A cancel scope per ask costs as much as the ask; the actor's turn has one
scope, which is replaced only after it was used (``incarnation.py``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, reschedule, wait_task_rescheduled

from motet.protocols.messages import Asked, Message
from motet.runtime.answer import Answer
from motet.runtime.errors import ActorDead, AskTimeout
from motet.runtime.replies import Replies, Taken
from motet.runtime.waits import Work, current_work, is_overdue, refuse_cycle

if TYPE_CHECKING:
    from motet.runtime.cell import Cell
    from motet.runtime.mailbox import Mailbox

__all__ = ["Ask", "ItemsAsk", "Result", "TakingAsk", "ask", "may_ask_again"]

R = TypeVar("R")

Result = Answer | outcome.Error

# The outcome of an envelope that was found too late: only its deadline can say what follows.
_EXPIRED: Final = object()
# The outcome of an envelope whose own time limit has passed.
_TIMED_OUT: Final = object()


class Ask(msgspec.Struct, eq=False):
    """One request under way. States: at home in a queue, in a scope (running), settled.

    A Struct because one is made for every ask, in half the time that an ``__init__`` takes.
    """

    mailbox: Mailbox
    message: Message
    target: Work
    task: Task
    until: float  # the handler must not begin later: the first deadline of the asker, or the limit
    limit: float = math.inf  # of the ask itself; both in Trio's clock
    home: deque[Any] | list[Any] | None = None  # what holds it; Any: two kinds of items
    context: str | None = None  # of the asker's span
    timed_out: bool = False
    scope: trio.CancelScope | None = None
    raise_cancel: RaiseCancelT | None = None
    cancelled_at: float | None = None
    settled: bool = False

    @property
    def prompt(self) -> bool:
        """Whether the asker is parked in it now, so that its cancellation comes at once."""
        return True

    def abort(self, raise_cancel: RaiseCancelT) -> Abort:
        """Trio wants the asker cancelled: withdraw, or cancel the handler and go on waiting."""
        if self.home is not None:
            self.mailbox.withdraw(self)
            return Abort.SUCCEEDED
        self.raise_cancel = raise_cancel
        self.cancel()
        return Abort.FAILED

    def time_out(self) -> None:
        """The ask's own limit has passed: withdraw, or cancel the handler and go on waiting."""
        self.timed_out = True
        if self.home is not None:
            self.mailbox.withdraw(self)
            self._settle_unhandled()
        elif not self.settled:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the running handler."""
        self.cancelled_at = trio.current_time()
        if self.scope is not None:
            self.scope.cancel()

    def expired(self) -> bool:
        """Whether it is too late for the handler to begin; if so, the asker is told."""
        if self.until > trio.current_time():
            return False
        self.timed_out = self.limit <= self.until
        self._settle_unhandled()
        return True

    def settle(self, result: Result | None) -> None:
        """Give the asker its only outcome; None if the handler was cancelled."""
        assert not self.settled, f"two outcomes for one ask to {self.mailbox.path}"
        self.settled = True
        self.scope = None
        # In no variable: the traceback of a Cancelled knows this frame, and would make a cycle.
        self._deliver(self._cancelled() if result is None else result)

    def describe(self, now: float) -> str:
        """What the asker waits for, for a dump."""
        path = self.mailbox.path
        if self.cancelled_at is None:
            return f"answer of {path}"
        return f"clean-up of {path}, {now - self.cancelled_at:.1f} s"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self.message).__name__} to {self.mailbox.path}>"

    def _cancelled(self) -> Result:
        if self.raise_cancel is not None:
            try:
                self.raise_cancel()
            except trio.Cancelled as cancelled:
                return outcome.Error(cancelled)
        if self.timed_out:
            return Answer(_TIMED_OUT)
        return outcome.Error(ActorDead(self.mailbox.path, "it ended while handling the request"))

    def _deliver(self, result: Result) -> None:
        reschedule(self.task, result)

    def _settle_unhandled(self) -> None:
        self.settled = True
        self._deliver(Answer(_TIMED_OUT if self.timed_out else _EXPIRED))


class ItemsAsk(Ask, eq=False):
    """An ask of one who wants the items before the answer, too."""

    @property
    def replies(self) -> Replies[object]:
        """The handler's end; here nobody is at the other one."""
        return Replies()


class TakingAsk(ItemsAsk, eq=False, kw_only=True):
    """The asker is parked as ever, and ``take`` is called with each item in the handler's task.

    Its error ends the handler as a cancellation does, and is the outcome of the ask, whatever the
    handler makes of it (G3).
    """

    take: Callable[[Any], object]
    failure: Exception | None = None  # of `take`

    @property
    def replies(self) -> Replies[object]:
        return Taken(self, self.take)

    def fail(self, error: Exception) -> None:
        """``take`` has raised: end the handler."""
        self.failure = error
        self.cancel()

    def settle(self, result: Result | None) -> None:
        failure = self.failure
        if failure is not None:
            if isinstance(result, outcome.Error) and result.error.__cause__ is not failure:
                failure.add_note(f"after it, the handler failed too: {result.error!r}")
            result = outcome.Error(failure)
        super().settle(result)


async def ask(
    cell: Cell,
    request: Asked[Any, R],
    seconds: float | None,
    context: str | None = None,
    take: Callable[[Any], object] | None = None,
) -> R:
    """Put ``request`` in the actor's mailbox and wait for its one outcome (G1, G3, G11)."""
    message: Message = request  # type: ignore[assignment]  # nothing else is `Asked`
    if not (cell.system.plain and type(message) in cell.handlers):
        message = cell.admit(message)
    mailbox = cell.mailbox
    target = cell.work_for(type(message)) if mailbox.stashes else cell.turn
    work = current_work.get()
    if work is not None:
        refuse_cycle(work, target)
    limit = math.inf if seconds is None else trio.current_time() + seconds
    kind: Callable[..., Ask] = Ask if take is None else partial(TakingAsk, take=take)
    # The earliest of what was said from outside of this task.
    told = limit if work is None else min(limit, work.deadline)
    while True:
        until = trio.current_effective_deadline()
        if told < until:
            until = told
        envelope = kind(
            mailbox, message, target, current_task(), until, limit, mailbox.queue, context
        )
        timer = None if seconds is None else cell.system.timers.start(limit, envelope.time_out)
        if work is not None:
            work.waits.append(envelope)
        try:
            if not mailbox.put(envelope):
                mailbox.offer(envelope)
            result = await wait_task_rescheduled(envelope.abort)
        finally:
            if timer is not None:
                cell.system.timers.stop(timer)
            if work is not None:
                work.waits.remove(envelope)
        if result is _TIMED_OUT:
            assert seconds is not None
            raise AskTimeout(mailbox.path, type(message), seconds)
        if result is not _EXPIRED:
            # `handles` made the checkers compare the handler's type. No `cast`, here and above:
            # it would be a call for each ask.
            return result  # type: ignore[no-any-return]
        if not await may_ask_again(cell, work):
            raise AskTimeout(mailbox.path, type(message), 0)
        told = limit


async def may_ask_again(cell: Cell, work: Work | None) -> bool:
    """After an ask was found too late: whether to ask again, with no deadline but the own.

    The deadline passed while the actor was busy, before Trio or our timers looked at the clock. Now
    they do, and the checkpoint raises Cancelled, unless somebody moved the deadline, or what asks
    is shielded. False: its cancellation may be on the way still, and nothing may begin.
    """
    cell.system.timers.fire_due()
    await trio.lowlevel.checkpoint()
    return not is_overdue(work)
