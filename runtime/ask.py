"""The ask: a request whose cancellation reaches the handler and waits for its end (G1, G3).

An ask is one envelope and one wait. While the envelope is at home in some queue, cancelling the
asker takes it out, and the handler never begins. From the handler's first step on the wait
refuses to be aborted: cancelling the asker cancels the scope the handler runs in, and only the
handler's end resumes the asker, with the value if there is one, since a completed effect must not
be reported as cancelled. The handler may be asking others: its wait does the same, so closure is
recursive.

The asking task itself is the reply slot. It is resumed in one place, :meth:`Ask.settle`.

Choices not taken. A reply channel or event per ask costs two more objects and can be answered after
the asker left. A cancel scope per ask costs as much as the ask; the actor's turn has one scope
which is replaced only after it was used (``incarnation.py``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, reschedule, wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime.errors import ActorDead, AskTimeout
from motet.runtime.waits import Work, current_work, refuse_cycle

if TYPE_CHECKING:
    from motet.runtime.mailbox import Mailbox

__all__ = ["Ask", "Result", "ask", "ask_within"]

Result = outcome.Value[object] | outcome.Error

# The outcome of an envelope that was found too late: only its deadline can say what follows.
_EXPIRED: Final = object()


class Ask:
    """One request under way. States: at home in a queue, in a scope (running), settled."""

    __slots__ = (
        "cancelled_at",
        "deadline",
        "home",
        "mailbox",
        "message",
        "raise_cancel",
        "scope",
        "settled",
        "target",
        "task",
    )

    def __init__(
        self, mailbox: Mailbox, message: Message, target: Work, task: Task, deadline: float
    ) -> None:
        self.mailbox = mailbox
        self.message = message
        self.target = target
        self.task = task
        self.deadline = deadline
        self.home: deque[Any] | None = None  # the deque that holds it; Any: two kinds of deque
        self.scope: trio.CancelScope | None = None
        self.raise_cancel: RaiseCancelT | None = None
        self.cancelled_at: float | None = None
        self.settled = False

    def abort(self, raise_cancel: RaiseCancelT) -> Abort:
        """Trio wants the asker cancelled: withdraw, or cancel the handler and go on waiting."""
        if self.home is not None:
            self.mailbox.withdraw(self)
            return Abort.SUCCEEDED
        self.raise_cancel = raise_cancel
        self.cancel()
        return Abort.FAILED

    def cancel(self) -> None:
        """Cancel the running handler."""
        self.cancelled_at = trio.current_time()
        if self.scope is not None:
            self.scope.cancel()

    def begin(self, scope: trio.CancelScope) -> bool:
        """The handler is about to start in ``scope``; False if its asker's deadline has passed."""
        self.home = None
        if self.deadline <= trio.current_time():
            self._expire()
            return False
        self.scope = scope
        return True

    def settle(self, result: Result | None) -> None:
        """Give the asker its only outcome; None if the handler was cancelled."""
        assert not self.settled, f"two outcomes for one ask to {self.mailbox.path}"
        self.settled = True
        self.scope = None
        if result is None:
            result = self._cancelled()
        self._deliver(result)

    def describe(self, now: float) -> str:
        """What the asker waits for, for a dump."""
        path = self.mailbox.path
        if self.cancelled_at is None:
            return f"answer of {path}"
        return f"clean-up of {path}, {now - self.cancelled_at:.1f} s"

    def _cancelled(self) -> Result:
        if self.raise_cancel is not None:
            return outcome.capture(self.raise_cancel)
        return outcome.Error(ActorDead(self.mailbox.path, "it ended while handling the request"))

    def _deliver(self, result: Result) -> None:
        reschedule(self.task, result)

    def _expire(self) -> None:
        self.settled = True
        self._deliver(outcome.Value(_EXPIRED))


async def ask(mailbox: Mailbox, request: Message, target: Work) -> object:
    """Put ``request`` in ``mailbox`` and wait for its one outcome (G1, G3, G11)."""
    work = current_work.get()
    while True:
        deadline = trio.current_effective_deadline()
        envelope = Ask(mailbox, request, target, current_task(), deadline)
        if work is None:
            mailbox.offer(envelope)
            result: object = await wait_task_rescheduled(envelope.abort)
        else:
            refuse_cycle(work, target)
            work.waits.append(envelope)
            try:
                mailbox.offer(envelope)
                result = await wait_task_rescheduled(envelope.abort)
            finally:
                work.waits.remove(envelope)
        if result is not _EXPIRED:
            return result
        # The deadline passed while the actor was busy, before Trio looked at its clock. This
        # checkpoint raises Cancelled, unless somebody moved the deadline: then ask again.
        await trio.lowlevel.checkpoint()


async def ask_within(mailbox: Mailbox, request: Message, target: Work, seconds: float) -> object:
    """As :func:`ask`; AskTimeout if there is no answer in time, after the handler's clean-up."""
    with trio.move_on_after(seconds):
        return await ask(mailbox, request, target)
    raise AskTimeout(mailbox.path, type(request), seconds)
