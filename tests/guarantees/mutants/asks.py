"""Defects of the ask: it cancels the waiter only, loses replies, or mixes them up."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from typing import Any

import trio
from trio.lowlevel import Abort, RaiseCancelT

from motet.runtime.asks import Asks, _OneOfMany
from motet.runtime.envelope import Ask, Result, TakenReplies, TakingAsk
from motet.runtime.errors import ActorDead
from motet.runtime.gather import Settled
from motet.runtime.incarnation import Incarnation
from motet.runtime.mailbox import Item, Mailbox
from motet.runtime.testing.scheduler import Patch
from motet.runtime.waits import Work
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]

_Many = Asks[Any]  # of which type the answers are does not matter to a defect


class _Cancellation:
    """An abort function gone wrong. The task it let go must not be resumed a second time."""

    def __init__(self, *, withdraws: bool, cancels: bool, waits: bool) -> None:
        self.withdraws = withdraws
        self.cancels = cancels
        self.waits = waits
        self.let_go: set[Ask] = set()

    def patches(self) -> list[Patch]:
        original_abort, original_deliver = Ask.abort, Ask._deliver

        def abort(ask: Ask, raise_cancel: RaiseCancelT) -> Abort:
            queued = ask.queue is not None
            if self.withdraws if queued else self.waits:
                return original_abort(ask, raise_cancel)
            if self.cancels and not queued:
                ask.cancel()
            self.let_go.add(ask)
            return Abort.SUCCEEDED

        def deliver(ask: Ask, result: Result) -> None:
            if ask not in self.let_go:
                original_deliver(ask, result)

        return [(Ask, "abort", abort), (Ask, "_deliver", deliver)]


def _cancel_only_the_waiter() -> list[Patch]:
    return _Cancellation(withdraws=True, cancels=False, waits=False).patches()


def _do_not_wait() -> list[Patch]:
    return _Cancellation(withdraws=True, cancels=True, waits=False).patches()


def _do_not_withdraw() -> list[Patch]:
    return _Cancellation(withdraws=False, cancels=True, waits=True).patches()


def _begin_late() -> list[Patch]:
    """What was asked is done, however late."""

    def expired(_: Ask) -> bool:
        return False

    return [(Ask, "expired", expired)]


def _keep_deadlines_to_oneself() -> list[Patch]:
    """What a handler asks does not have the deadline of the request it handles."""

    def only_own(_: Work) -> float:
        return math.inf

    return [(Work, "deadline", property(only_own))]


def _leave_many_running() -> list[Patch]:
    """Who has asked many and is cancelled, cancels their handlers and goes on at once."""
    end = _Many.end

    async def leave(many: _Many, *_: object) -> None:
        many._cut()
        many._task = None
        many._under_way.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def end_those_left(many: _Many, ask: _OneOfMany, became: Settled[Any] | None) -> None:
        if ask in many._under_way:
            end(many, ask, became)

    return [(Asks, "__aexit__", leave), (Asks, "end", end_those_left)]


def _leave_many_queued() -> list[Patch]:
    """Who has asked many and leaves cancels what runs, and what still waits is done."""

    def cancel_the_running(many: _Many) -> None:
        for ask in tuple(many._under_way):
            if ask.queue is not None:
                del many._under_way[ask]
            elif ask.cancelled_at is None:
                ask.cancel()

    return [(Asks, "_cut", cancel_the_running), _leave_many_running()[1]]


def _wait_a_bounded_time() -> list[Patch]:
    """The handler is cancelled, but after half a second the asker goes on without its end."""
    cancel, deliver = Ask.cancel, Ask._deliver
    let_go: set[Ask] = set()

    async def give_up(ask: Ask) -> None:
        await trio.sleep(0.5)
        if not ask.settled and ask not in let_go and ask.raise_cancel is not None:
            let_go.add(ask)
            deliver(ask, ask._cancelled())

    def cancel_and_give_up(ask: Ask) -> None:
        cancel(ask)
        trio.lowlevel.spawn_system_task(give_up, ask)

    def deliver_once(ask: Ask, result: Result) -> None:
        if ask not in let_go:
            deliver(ask, result)

    return [(Ask, "cancel", cancel_and_give_up), (Ask, "_deliver", deliver_once)]


# ---------------------------------------------------------------------- one outcome


def _leave_queued_asks_at_the_end() -> list[Patch]:
    """The end of an actor drops its queue without an answer to those who wait."""
    close = Mailbox.close

    def close_silently(box: Mailbox, reason: str) -> None:
        for item in box.queue:
            if isinstance(item, Ask):
                item.queue = None
        box.dead_lettered += len(box.queue)
        box.queue.clear()
        close(box, reason)

    return [(Mailbox, "close", close_silently)]


def _accept_after_the_end() -> list[Patch]:
    """Closing and accepting are not the same step: what comes between them is never answered."""
    close = Mailbox.close

    def close_but_accept(box: Mailbox, reason: str) -> None:
        close(box, reason)
        box.limit = box.spec.capacity

    return [(Mailbox, "close", close_but_accept)]


def _swallow_errors() -> list[Patch]:
    """An error of a handler reaches nobody."""
    deliver = Ask._deliver

    def deliver_values(ask: Ask, result: Result) -> None:
        error = getattr(result, "error", None)
        if not isinstance(error, Exception) or isinstance(error, ActorDead):
            deliver(ask, result)

    return [(Ask, "_deliver", deliver_values)]


def _mix_up_replies() -> list[Patch]:
    """The reply slot is the mailbox's: of two asks that wait, each gets the other's answer."""
    put = Mailbox.put

    def put_and_swap(box: Mailbox, item: Item) -> bool:
        before = box.queue[-1] if box.queue else None
        accepted = put(box, item)
        if isinstance(before, Ask) and isinstance(item, Ask) and item in box.queue:
            before.message, item.message = item.message, before.message
        return accepted

    return [(Mailbox, "put", put_and_swap)]


def _forget_the_interrupted() -> list[Patch]:
    """A handler that ends by cancellation settles nothing, as without a ``finally``."""
    settle = Ask.settle

    def settle_results(ask: Ask, result: Result | None) -> None:
        if result is not None or ask.raise_cancel is not None or ask.timed_out:
            settle(ask, result)

    return [(Ask, "settle", settle_results)]


def _lose_errors_of_taking() -> list[Patch]:
    """An asker that fails to take an item ends the handler, and gets what that makes of it."""
    return [(TakingAsk, "settle", Ask.settle)]


def _give_on_after_the_end() -> list[Patch]:
    """Items are given as long as the handler sends some."""

    def send_nowait(replies: TakenReplies[object], item: object) -> None:
        replies._take(item)

    return [(TakenReplies, "send_nowait", send_nowait)]


# ---------------------------------------------------------------------- one handler at a time


def _task_per_request() -> list[Patch]:
    """Each request is handled in a task of its own, as soon as it comes."""
    answer = Incarnation.answer

    async def answer_aside(life: Incarnation, ask: Ask, scope: trio.CancelScope) -> None:
        if life.is_over or ask.message.__class__ in life.owner.mailbox.concurrent:
            await answer(life, ask, scope)
        else:
            life.start_soon(answer, life, ask, scope, name="request")
            await trio.lowlevel.checkpoint()

    return [(Incarnation, "answer", answer_aside)]


MUTANTS = (
    Mutant("G1", "cancels only the waiter", _cancel_only_the_waiter),
    Mutant("G1", "does not wait for the handler", _do_not_wait),
    Mutant("G1", "does not wait for many handlers", _leave_many_running),
    Mutant("G1", "does not withdraw many", _leave_many_queued),
    Mutant("G1", "waits a bounded time", _wait_a_bounded_time),
    Mutant("G1", "does not withdraw", _do_not_withdraw),
    Mutant("G1", "begins after the deadline", _begin_late),
    Mutant("G1", "keeps deadlines to itself", _keep_deadlines_to_oneself),
    Mutant("G3", "drops queued asks at the end", _leave_queued_asks_at_the_end),
    Mutant("G3", "accepts after the end", _accept_after_the_end),
    Mutant("G3", "swallows handlers' errors", _swallow_errors),
    Mutant("G3", "mixes up replies", _mix_up_replies),
    Mutant("G3", "does not settle interrupted asks", _forget_the_interrupted),
    Mutant("G3", "loses errors of taking", _lose_errors_of_taking),
    Mutant("G3", "gives items after the end", _give_on_after_the_end),
    Mutant("G5", "runs a task per request", _task_per_request),
)
