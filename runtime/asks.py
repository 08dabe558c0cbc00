"""Several asks of one task at once, without a task for each (G1, G3, G8, G11).

Each is an :class:`Ask` like any other, except that its outcome goes into a list, and that the asker
is resumed if it waits for any outcome. So each has the guarantees of an ask. The invariants: each
has one outcome, at the index it was begun with; none is under way when the block of :class:`Asks`
has been left.

The alternative is a nursery with a task for each ask, as in ``gather.py``. It does the same and
takes about twice the time, most of it in starting and ending the tasks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Generic, Self, TypeVar

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, wait_task_rescheduled

from motet.protocols.messages import Asked, Message
from motet.runtime.ask import may_ask_again
from motet.runtime.envelope import WOKEN, Answer, Ask, Deferred, Raised, Result, reschedule
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.foreign import ForeignError
from motet.runtime.gather import Cut, Done, Failed, Settled
from motet.runtime.kernel import Owner
from motet.runtime.observe import AskSpan, CutOff
from motet.runtime.ref import ActorRef, cell_of
from motet.runtime.timers import Timer
from motet.runtime.waits import Work, current_work

__all__ = ["Asks", "ask_each"]

P = TypeVar("P", bound=Message)
R = TypeVar("R")

_UNBEGUN: Final = Cut(started=False)
_CUT: Final = Cut(started=True)
_CUT_ANSWER: Final = Answer(_CUT)  # of an ask whose handler was cancelled for its asker


async def ask_each(
    ref: ActorRef[P], requests: Sequence[Asked[P, R]], *, limit: int, deadline: float = math.inf
) -> list[Settled[R]]:
    """Ask every request once and return all outcomes by index, in whatever order they end (G8).

    As :func:`gather_ordered` with an ask for each call, but without their tasks. At most ``limit``
    are under way, begun in their order. At ``deadline``, on Trio's clock, waiting requests are
    withdrawn, running handlers are cancelled and waited for, and no further request is sent; a
    handler that finishes nevertheless is :class:`Done`. Cancelled: the same, and ``Cancelled`` goes
    on.
    """
    if limit < 1:
        raise ValueError(f"limit is the number of asks at once, so >= 1, not {limit}")
    await trio.lowlevel.checkpoint_if_cancelled()
    waiting = iter(requests)
    asks: Asks[R] = Asks(deadline=deadline)
    async with asks:
        for request in islice(waiting, limit):
            asks.begin(ref, request)
        async for _ in asks:
            for request in islice(waiting, 1):
                asks.begin(ref, request)
    return asks.results


class Asks(Generic[R]):
    """The asks that one task has under way: ``async with Asks[R]() as asks``.

    :meth:`begin` sends one, also while iterating. ``async for index, outcome in asks`` gives each
    outcome as it comes, until none is under way. The failure of one ask changes no other.

    Leaving the block early, or being cancelled in it, withdraws the requests that still wait,
    cancels the running handlers and waits for their ends (G1). Iterating after the block gives the
    outcomes that were not seen in it, without waiting. ``results`` has all outcomes by index at any
    time, with :class:`Cut` where there is none yet. At ``deadline``, on Trio's clock, all are cut.
    """

    def __init__(self, *, deadline: float = math.inf) -> None:
        self.results: list[Settled[R]] = []
        self._deadline = deadline
        self._work = current_work.get()
        self._until = deadline  # for the next ask: the own one, or that of the scopes around it
        self._task: Task | None = None  # within the block
        self._parked = False
        self._paused = False
        # A dict for its order: a set would cut them in the order of their addresses (G12).
        self._under_way: dict[_OneOfMany, None] = {}
        self._ended: deque[int] = deque()  # indices that the iteration has not given yet
        self._late: list[_OneOfMany] = []  # found too late by their handlers; see `_ask_again`

    def __len__(self) -> int:
        """The number of asks without an outcome."""
        return len(self._under_way) + len(self._late)

    def begin(self, ref: ActorRef[P], request: Asked[P, R]) -> int:
        """Ask without waiting; returns the index of the outcome. Only in the block's own task.

        Every error of an ask, ActorDead and AskCycle (G11) included, is an outcome:
        :class:`Failed`.
        """
        if self._task is None:
            raise MotetRuntimeError(
                "asks are begun in the block of `async with`, which waits for them"
            )
        index = len(self.results)
        self.results.append(_UNBEGUN)
        message: Message = request  # type: ignore[assignment]  # nothing else is `Asked`
        self._begin(index, cell_of(ref), message)
        return index

    @property
    def is_parked(self) -> bool:
        """Whether the asker waits for an outcome, so that its cancellation reaches all at once."""
        return self._parked

    def pause(self) -> None:
        """End the iteration where it would wait; for another task that has more to begin.

        The asks that are under way are not affected. Another ``async for`` continues.
        """
        self._paused = True
        self._wake()

    # ------------------------------------------------------------------ waiting

    async def __aenter__(self) -> Self:
        self._task = current_task()
        self._read_deadlines(inherited=math.inf if self._work is None else self._work.deadline)
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Settled[R]]:
        """The next outcome, in the order of their ends. A checkpoint only if it has to wait."""
        while not self._ended:
            if self._paused or not len(self):
                self._paused = False
                raise StopAsyncIteration
            if self._late:
                await self._ask_again()
            else:
                await self._park(self._abort)
        index = self._ended.popleft()
        return index, self.results[index]

    async def __aexit__(self, *_: object) -> None:
        # Also after an error in the block, which goes on when all handlers have ended.
        self._cut()
        while self._under_way:
            # The wait of G1, as long as the clean-ups take. It cannot be aborted: that would leave
            # handlers running for an asker that has gone on.
            await self._park(_refuse)
        self._task = None

    async def _park(self, abort: Callable[[RaiseCancelT], Abort]) -> None:
        self._parked = True
        await wait_task_rescheduled(abort)

    def _abort(self, _: RaiseCancelT) -> Abort:
        """The asker is cancelled. It waits for the ends when it leaves the block."""
        self._parked = False
        self._cut()
        return Abort.SUCCEEDED

    def _cut(self) -> None:
        # A copy, since `end` removes each ask that is withdrawn. An ask whose handler runs stays
        # under way until that has ended.
        for ask in tuple(self._under_way):
            if ask.queue is not None:
                begun = isinstance(ask.queue, Deferred)
                ask.mailbox.withdraw(ask)
                self.end(ask, _CUT if begun else _UNBEGUN)
            elif ask.cancelled_at is None:
                ask.cancel()
        for late in self._late:
            self._note(late.index, _UNBEGUN)
        self._late.clear()

    # ------------------------------------------------------------------ one ask

    def _begin(self, index: int, owner: Owner, request: Message) -> None:
        assert self._task is not None
        if self._deadline < math.inf and self._deadline <= trio.current_time():
            self._note(index, _UNBEGUN)
            return
        span: AskSpan | None = None
        try:
            # As in ``ask.py``: what is usual costs no calls.
            plain_in = owner.kernel.plain_in
            is_plain = plain_in._is_owned() and type(request) in owner.handlers  # pyright: ignore[reportPrivateUsage]  # see `ThreadMark`
            message = request if is_plain else owner.admit(request)
            mailbox, target = owner.mailbox, owner.turn
            if owner.handlers[type(message)].concurrent > 1:
                target = Work(owner.path)
            if self._work is not None:
                owner.refuse_endless(self._work, type(message))
            if owner.kernel.observing:
                span = AskSpan(owner, message)
            ask = _OneOfMany(
                mailbox, message, target, self._task, self._until, self._deadline, mailbox.queue,
                None if span is None else span.context,
                owner=owner, asks=self, index=index, span=span,
            )  # fmt: skip
            if not mailbox.put(ask):
                mailbox.put_ask_or_overflow(ask)
        except Exception as error:
            if span is not None:
                span.end(error)
            self._note(index, Failed(error))
            return
        self._under_way[ask] = None
        if self._work is not None:
            self._work.waits.append(ask)
        if self._deadline < math.inf:
            ask.timer = owner.kernel.timers.start(self._deadline, ask.time_out)

    def _read_deadlines(self, *, inherited: float = math.inf) -> None:
        """No handler begins after the own deadline, the inherited one, and Trio's scopes."""
        self._until = min(trio.current_effective_deadline(), inherited, self._deadline)

    def end(self, ask: _OneOfMany, result: Settled[Any] | None) -> None:
        """``ask`` is no longer under way. None: it was found too late, as :func:`ask` explains."""
        del self._under_way[ask]
        if self._work is not None:
            self._work.waits.remove(ask)
        if ask.timer is not None:
            ask.owner.kernel.timers.stop(ask.timer)
        if ask.span is not None:
            ask.span.end(_error_in(result))
        if result is None:
            # To be asked again or cut, which takes a checkpoint. This runs in the actor's task, so
            # the asker does it.
            self._late.append(ask)
        else:
            self._note(ask.index, result)
        if self._parked:
            self._wake()

    def _wake(self) -> None:
        if self._parked and self._task is not None:
            self._parked = False
            reschedule(self._task, WOKEN)

    def _note(self, index: int, result: Settled[R]) -> None:
        self.results[index] = result
        self._ended.append(index)

    async def _ask_again(self) -> None:
        may = await may_ask_again(self._late[-1].owner, self._work)
        late = self._late.pop()
        if may:
            self._read_deadlines()
            self._begin(late.index, late.owner, late.message)
        else:
            self._note(late.index, _UNBEGUN)


def _refuse(_: RaiseCancelT) -> Abort:
    return Abort.FAILED


class _OneOfMany(Ask, eq=False, kw_only=True):
    """One envelope: its outcome goes into the list, and resumes an asker that waits for any."""

    owner: Owner
    asks: Asks[Any]
    index: int
    timer: Timer | None = None
    span: AskSpan | None = None

    @property
    def prompt(self) -> bool:
        return self.asks.is_parked

    def time_out(self) -> None:
        if not isinstance(self.queue, Deferred):
            super().time_out()
            return
        self.mailbox.withdraw(self)
        self.settled = True
        self.asks.end(self, _CUT)

    def _cancelled(self) -> Result:
        return super()._cancelled() if self.cancelled_at is None else _CUT_ANSWER

    def _deliver(self, result: Result) -> None:
        if type(result) is Answer:
            self.asks.end(self, _CUT if result is _CUT_ANSWER else Done(result.value))
        else:
            # Never a Cancelled of the asker, which is not parked in this ask: so it is an error of
            # the handler or of the mailbox.
            assert isinstance(result, Raised)
            error = result.error
            # One of many is a value, which cannot end the program.
            self.asks.end(
                self, Failed(error if isinstance(error, Exception) else ForeignError(error))
            )

    def _settle_unhandled(self) -> None:
        self.settled = True
        self.asks.end(self, _UNBEGUN if self.timed_out else None)


def _error_in(result: Settled[Any] | None) -> BaseException | None:
    match result:
        case Done():
            return None
        case Failed(error):
            return error
        case _:
            return CutOff()
