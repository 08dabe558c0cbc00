"""The ask: a request whose cancellation reaches the handler and waits for its end (G1, G3).

An ask is one envelope and one wait. While the envelope is in a queue, cancelling the asker takes
it out, and the handler never begins. From the handler's first step on the wait
refuses to be aborted: cancelling the asker cancels the scope the handler runs in, and only the
handler's end resumes the asker, with the value if there is one, since a completed effect must not
be reported as cancelled. The handler may be asking others: its wait does the same, so closure is
recursive.

A time limit does the same from the system's timers. A handler's own asks inherit the deadline of
the request it handles, so that nothing begins that would be too late for the first asker.

The envelope, its states, and who may settle it are in ``envelope.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, TypeVar

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, wait_task_rescheduled

from motet.protocols.messages import Asked, Message
from motet.runtime.envelope import (
    EXPIRED,
    TIMED_OUT,
    Answer,
    Ask,
    Raised,
    Result,
    TakingAsk,
    left_behind,
    reschedule,
)
from motet.runtime.errors import AskTimeout
from motet.runtime.handlers import Handler
from motet.runtime.here import HereAsk, Places, nobody
from motet.runtime.kernel import Owner
from motet.runtime.mailbox import Mailbox
from motet.runtime.observe import asking
from motet.runtime.reply import ReplyTo
from motet.runtime.waits import Work, current_work, is_overdue

__all__ = ["AbandoningAsk", "ask", "forward", "may_ask_again", "observed_ask"]

R = TypeVar("R")


async def ask(
    owner: Owner,
    request: Asked[Any, R],
    seconds: float | None,
    context: str | None = None,
    take: Callable[[Any], object] | None = None,
    kind: Callable[..., Ask] = Ask,
) -> R:
    """Put ``request`` in the mailbox (or see ``here.py``), and wait for its outcome (G1, G3)."""
    message: Message = request  # type: ignore[assignment]  # nothing else is `Asked`
    if (
        not owner.kernel.plain_in._is_owned()  # pyright: ignore[reportPrivateUsage]  # see `ThreadMark`
        or (handler := owner.handlers.get(type(message))) is None
    ):
        message = owner.admit(message)
        handler = owner.handlers[type(message)]
    try:
        task = current_task()
    except RuntimeError:
        raise owner.kernel.loop.outside(owner.path) from None
    mailbox = owner.mailbox
    target = owner.turn if handler.concurrent == 1 else Work(owner.path)
    work = current_work.get()
    limit = inf if seconds is None else trio.current_time() + seconds
    if take is not None:
        kind = partial(TakingAsk, take=take)
    # The earlier of the own limit and the deadline of the request this task handles. Trio's scopes
    # around the ask come on top, in each round, since another task may move them meanwhile.
    inherited = limit if work is None else min(limit, work.deadline)
    while True:
        until = trio.current_effective_deadline()
        if inherited < until:
            until = inherited
        aside: HereAsk | None = None
        if handler.here and (places := _place(mailbox, handler, until, task, kind)) is not None:
            aside = HereAsk(
                mailbox, message, target, task, until, limit, None, context, places=places
            )
            aside.asker, aside.take = work, take or nobody
            envelope: Ask = aside
        else:
            # An ask that ends the search at once, as almost all do, is spared the calls of it. A
            # place or the turn is free, or held by work that waits for nothing; and there is room.
            if work is not None:
                busy = target is work or target.waits or owner.halted
                if handler.concurrent > 1:
                    kinds = None if mailbox.places is None else mailbox.places.busy
                    busy = kinds is None or kinds.get(handler.message_type, 0) >= handler.concurrent
                if busy or len(mailbox.queue) >= mailbox.limit:
                    owner.refuse_endless(work, handler.message_type)
            envelope = kind(mailbox, message, target, task, until, limit, mailbox.queue, context)
        timer = None if seconds is None else owner.kernel.timers.start(limit, envelope.time_out)
        if work is not None:
            work.waits.append(envelope)
        else:
            task.custom_sleep_data = envelope  # for dumps: Trio resets it at the wake-up
        try:
            if aside is None:
                if not mailbox.put(envelope):
                    mailbox.put_ask_or_overflow(envelope)
                result = await wait_task_rescheduled(envelope.abort)
            else:
                result = await aside.places.answer_here(aside, handler)
        except BaseException:
            if not envelope.settled:
                envelope.drop()
            raise
        finally:
            if timer is not None:
                owner.kernel.timers.stop(timer)
            if work is not None:
                work.waits.remove(envelope)
        if result is TIMED_OUT:  # without a limit: it was forwarded, and found too late there
            raise AskTimeout(mailbox.path, type(message), seconds or 0)
        if result is not EXPIRED:
            return result  # type: ignore[no-any-return]  # compared at `handles`; a cast is a call
        # Found too late, but no Cancelled has arrived here: the deadline may have been moved.
        if not await may_ask_again(owner, work):
            raise AskTimeout(mailbox.path, type(message), 0)
        inherited = limit


def _place(
    mailbox: Mailbox, handler: Handler, until: float, task: Task, kind: Callable[..., Ask]
) -> Places | None:
    """The handlers of the actor, with a place taken in the asker's task; None: there is none."""
    # None while no handler may begin. The queue: as `put`, which sees whether it is open.
    places = mailbox.places if len(mailbox.queue) < mailbox.limit else None
    if places is None or kind is AbandoningAsk or (until < inf and until <= trio.current_time()):
        return None
    return places if places.take_place(handler, task) else None


class AbandoningAsk(Ask, eq=False):
    """An ask that does not wait for the end of a handler it has cancelled: G1 is given up."""

    left: bool = False

    def abort(self, raise_cancel: RaiseCancelT) -> Abort:
        if self.queue is None:
            self.left = True
            self.cancel()
            return Abort.SUCCEEDED
        return super().abort(raise_cancel)

    def time_out(self) -> None:
        if self.queue is None and not self.settled and not self.left:
            self.timed_out = self.left = True
            self.cancel()
            reschedule(self.task, Answer(TIMED_OUT))
        elif not self.left:
            super().time_out()

    def _deliver(self, result: Result) -> None:
        if not self.left:
            super()._deliver(result)
        elif isinstance(result, Raised):
            left_behind(self, result.error)


def forward(owner: Owner, request: Asked[Any, R], reply_to: ReplyTo[R]) -> bool:
    """Have the actor of ``owner`` answer in place of whoever holds the token."""
    asked: Message = request  # type: ignore[assignment]  # nothing else is `Asked`
    message = owner.admit(asked)

    def put(ask: Ask) -> None:
        mailbox = owner.mailbox
        ask.mailbox, ask.message, ask.target = mailbox, message, owner.work_for(type(message))
        # Found too late there, it has timed out. To ask again, as for one that was not forwarded,
        # would have the first handler run twice.
        ask.limit = ask.until
        ask.queue = mailbox.queue
        try:
            if ask.asked_from is not None:
                owner.refuse_endless(ask.asked_from, type(message))
            if not mailbox.put(ask):
                mailbox.put_ask_or_overflow(ask)
        except Exception as error:
            ask.queue = None
            ask.settle(Raised(error))

    return reply_to.act(put)


async def may_ask_again(owner: Owner, work: Work | None) -> bool:
    """After an ask was found too late: whether to ask again, with no deadline but the own.

    The deadline passed while the actor was busy, before Trio or our timers looked at the clock. Now
    they do, and the checkpoint raises Cancelled, unless the deadline was moved or the asking task
    is shielded. False: its cancellation may still be on the way, and nothing may begin.
    """
    owner.kernel.timers.fire_due()
    await trio.lowlevel.checkpoint()
    return not is_overdue(work)


async def observed_ask(
    owner: Owner,
    request: Asked[Any, R],
    seconds: float | None,
    take: Callable[[Any], object] | None = None,
    kind: Callable[..., Ask] = Ask,
) -> R:
    """As :func:`ask`, with a span and a trace around it."""
    message: Message = request  # type: ignore[assignment]  # nothing else is `Asked`
    owner.kernel.loop.check(owner.path)
    with asking(owner.kernel, owner.path, message) as context:
        return await ask(owner, request, seconds, context, take, kind)
