"""Envelopes: the wrappers in which messages travel to an actor, and the outcome travels back.

Most told messages need none and travel bare. :class:`Told` wraps one that carries a trace context
or is being retried. :class:`Ask` wraps every request; :class:`ItemsAsk` and :class:`TakingAsk` wrap
a request whose handler sends items before its answer, through :class:`Replies`. :class:`Answer` is
the value that resumes a task.

The asking task itself is the reply slot, and is resumed once. Three parties may settle an ask, and
each only while it has the envelope:

* ``Incarnation.answer`` calls :meth:`Ask.settle` when the handler has ended; workers call it for
  concurrent handlers;
* ``Mailbox`` calls :meth:`Ask.settle` for an ask that no handler has begun, because the mailbox was
  closed or its overflow policy dropped the request;
* the ask itself (:meth:`Ask.expired`, :meth:`Ask.time_out`) does so when its deadline passed before
  a handler began.

Choices not taken. A reply channel or event per ask costs two more objects and can be answered
after the asker left. A cancel scope per ask costs as much as the ask; the actor's turn has one
scope, which is replaced only after it was used (``incarnation.py``).
"""

from __future__ import annotations

import logging
import math
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

import msgspec
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

from motet.protocols.messages import Message
from motet.runtime.errors import ActorDead, unwrapped
from motet.runtime.foreign import PROGRAM_ENDS, ForeignError, divided, shown
from motet.runtime.outside import foreign_code, is_cancelled
from motet.runtime.waits import Groups, Work, current_work

__all__ = [
    "EXPIRED",
    "TIMED_OUT",
    "WOKEN",
    "Address",
    "Answer",
    "Ask",
    "AskerLeft",
    "Deferred",
    "ItemsAsk",
    "Raised",
    "Replies",
    "Result",
    "TakenReplies",
    "TakingAsk",
    "Told",
    "left_behind",
    "outcome_of",
    "reschedule",
]

T_contra = TypeVar("T_contra", contravariant=True)

_log = logging.getLogger("motet.runtime")


# ---------------------------------------------------------------------- values that resume a task


class Answer(msgspec.Struct, frozen=True, eq=False):
    """A value for :func:`reschedule`, cheaper than ``outcome.Value``.

    Every wait that ends makes one, so making and unwrapping it counts: a Struct is made in half the
    time of an ``__init__``. One object may be given to any number of waits, unlike Trio's own.
    """

    value: object

    def unwrap(self) -> object:
        return self.value


class Raised(msgspec.Struct, frozen=True, eq=False):
    """An error for :func:`reschedule`, made in an eighth of the time of ``outcome.Error``."""

    error: BaseException

    def unwrap(self) -> NoReturn:
        error = self.error
        try:
            raise error
        finally:
            del error, self  # the traceback of the error holds this frame, which must not hold it


Result = Answer | Raised

reschedule = cast("Callable[[Task, Result], None]", trio.lowlevel.reschedule)
"""``trio.lowlevel.reschedule``, which calls ``unwrap`` of what it gets and asks for no type."""

WOKEN: Final = Answer(None)  # for a wait without a result

# Two outcomes of an ask whose handler never began, because it was found too late.
EXPIRED: Final = object()  # a deadline around the ask has passed: the asker looks at its own
TIMED_OUT: Final = object()  # the limit of the ask itself has passed


def outcome_of(error: BaseException) -> tuple[Raised | None, BaseException | None]:
    """The outcome of a request whose handler has raised ``error``, and what goes on in its task.

    In the ``except`` clause, within the scope of the handler. No outcome: the error itself goes on,
    such as its Cancelled. Both: a nursery of the handler was cancelled while a task of it failed.
    The asker gets the failures, and Trio must get its Cancelled back.
    """
    in_task = trio.lowlevel.in_trio_task()
    cancelled = in_task and is_cancelled()
    if cancelled and type(error) is trio.Cancelled:  # as almost always
        return None, None
    failure, going_on = divided(error, cancelled=cancelled, in_task=in_task)
    if failure is None:
        return None, None
    # By its own type: `isinstance` would ask the object for its class.
    if type(failure) is ForeignError and issubclass(type(failure.raised), PROGRAM_ENDS):
        return Raised(failure.raised), going_on
    return Raised(unwrapped(failure)), going_on


# ---------------------------------------------------------------------- told messages


class Address:
    """Base of the references to actors: values that may stand in a message."""

    __slots__ = ()


class Told(msgspec.Struct, eq=False):
    """A told message, the trace context of its sender, and the number of failed attempts."""

    message: Message
    context: str | None = None
    attempts: int = 0

    @property
    def is_cancelled(self) -> bool:
        """Whether it is not to be handled any more: its timer was cancelled, or it is too old."""
        return False

    @property
    def lost_by(self) -> str | None:
        """If so, why it is a dead letter; None: it was withdrawn."""
        return None

    def ended(self) -> None:
        """It was handled, or will not be."""


# ---------------------------------------------------------------------- asks


class AskedMailbox(Protocol):
    """The mailbox an ask was put into, as far as the ask needs it."""

    path: str

    def withdraw(self, ask: Ask) -> None: ...
    def groups_of(self, ask: Ask) -> Groups: ...


class Ask(msgspec.Struct, eq=False):
    """One request under way. States: in a queue, in a scope (running), settled.

    A Struct because one is made for every ask, in half the time that an ``__init__`` takes.
    """

    mailbox: AskedMailbox
    message: Message
    target: Work
    task: Task
    until: float  # no handler begins later: the asker's first deadline, or the limit
    limit: float = math.inf  # of the ask itself; both in Trio's clock
    # That holds it; Any: two kinds of items.
    queue: deque[Any] | OrderedDict[Any, None] | None = None
    context: str | None = None  # the asker's trace context
    timed_out: bool = False
    scope: trio.CancelScope | None = None
    raise_cancel: RaiseCancelT | None = None
    cancelled_at: float | None = None
    settled: bool = False
    result: Result | None = None  # what its handler has come to, until it is settled

    @property
    def prompt(self) -> bool:
        """Whether the asker is parked in this ask, so that its cancellation arrives at once."""
        return True

    @property
    def asked_from(self) -> Work | None:
        """The work of the asker; None if it is no actor."""
        return self.task.context.get(current_work)

    def abort(self, raise_cancel: RaiseCancelT) -> Abort:
        """Trio cancels the asker: withdraw, or cancel the handler and keep waiting."""
        if self.queue is not None:
            self.mailbox.withdraw(self)
            return Abort.SUCCEEDED
        # Refused: the asker must not resume before its handler has ended (G1). `settle` calls
        # `raise_cancel` then, unless the handler finished its work nevertheless.
        self.raise_cancel = raise_cancel
        self.cancel()
        return Abort.FAILED

    def time_out(self) -> None:
        """The ask's own limit has passed: withdraw, or cancel the handler and keep waiting."""
        self.timed_out = True
        if self.queue is not None:
            self.mailbox.withdraw(self)
            self._settle_unhandled()
        elif not self.settled:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the running handler."""
        self.cancelled_at = trio.current_time()
        if self.scope is not None:
            self.scope.cancel()

    def drop(self) -> None:
        """Withdraw a request whose asker does not wait. Does nothing if it has an outcome.

        Another loop than Trio's, such as of asyncio.run in a task of Trio, cannot wait for it, and
        throws an error in. Then nobody takes the outcome, and it would resume the wrong wait.
        """
        if not self.settled and self.queue is not None:
            self.mailbox.withdraw(self)

    def expired(self) -> bool:
        """Whether it is too late for the handler to begin; if so, the asker is resumed."""
        if self.until > trio.current_time():
            return False
        self.timed_out = self.limit <= self.until
        self._settle_unhandled()
        return True

    def fail_with(self, error: BaseException) -> bool:
        """Keep the outcome of a handler that has raised ``error``; whether the error itself goes on
        in its task. If a part of it does, raises that.

        In the ``except`` clause, within the scope of the handler.
        """
        # As almost always, and without a question to Trio about all the scopes around.
        scope = self.scope
        if type(error) is trio.Cancelled and scope is not None and scope.cancel_called:
            self.result = None
            return True
        self.result, going_on = outcome_of(error)
        if self.result is None:
            return True  # to raise it here would show its traceback this frame as well
        if going_on is not None:
            raise going_on from None
        return False

    def settle(self, result: Result | None) -> None:
        """Give the asker its only outcome; None if the handler was cancelled."""
        assert not self.settled, f"two outcomes for one ask to {self.mailbox.path}"
        self.settled = True
        self.scope = None
        # The result is in no local variable: the traceback of a Cancelled holds this frame, so a
        # variable that holds the Cancelled would make a reference cycle for each cancelled ask.
        self._deliver(self._cancelled() if result is None else result)

    def groups(self) -> Groups:
        """As an edge of the wait-for graph: the handler, or what has to end before it begins."""
        if self.settled or type(self.queue) is Deferred:
            return ()  # its asker has not taken a step since, or nobody knows who has its token
        return ((self.target,),) if self.queue is None else self.mailbox.groups_of(self)

    def describe(self, now: float) -> str:
        """The reason why the asker waits, for a dump."""
        path = self.mailbox.path
        if self.cancelled_at is None:
            return f"answer of {path}"
        return f"clean-up of {path}, {now - self.cancelled_at:.1f} s"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self.message).__name__} to {self.mailbox.path}>"

    def _cancelled(self) -> Result:
        # The asker's own cancellation comes first: Trio asks for it, and only its `raise_cancel`
        # makes the right Cancelled. Without either reason the actor itself was ended.
        if self.raise_cancel is not None:
            try:
                self.raise_cancel()
            except trio.Cancelled as cancelled:
                return Raised(cancelled)
        if self.timed_out:
            return Answer(TIMED_OUT)
        return Raised(ActorDead(self.mailbox.path, "it ended while handling the request"))

    def _deliver(self, result: Result) -> None:
        reschedule(self.task, result)

    def _settle_unhandled(self) -> None:
        self.settled = True
        self._deliver(Answer(TIMED_OUT if self.timed_out else EXPIRED))


class Deferred(OrderedDict[Ask, None]):
    """The asks of one incarnation whose handlers have returned a token that is still open.

    A mailbox takes an ask out of it as out of its line of senders. ``emptied`` is called when the
    last one has gone.
    """

    def __init__(self, emptied: Callable[[], None]) -> None:
        super().__init__()
        self._emptied = emptied

    def __delitem__(self, ask: Ask) -> None:
        super().__delitem__(ask)
        ask.queue = None
        if not self:
            self._emptied()

    def refuse(self, path: str) -> None:
        """The incarnation has ended: settle all that it has not answered."""
        for ask in [*self]:
            if ask in self:  # an outcome may have effects in this step
                del self[ask]
                ask.settle(Raised(ActorDead(path, "it ended before it answered")))


def left_behind(ask: Ask, error: BaseException) -> None:
    """Log what a handler raised after its asker had left: nobody else will ever see it."""
    if isinstance(error, ActorDead | trio.Cancelled):
        return
    with suppress(Exception), foreign_code:
        name, why = type(ask.message).__name__, shown(error)
        _log.warning("%s failed, its asker had left %s: %s", ask.mailbox.path, name, why)


class AskerLeft(trio.BrokenResourceError):
    """The handler sent an item although its asker was cancelled, timed out or has left.

    Until its next checkpoint this is how a handler learns of its own cancellation.
    """


def is_asker_left(error: BaseException | None) -> bool:
    """Whether an error is nothing but :class:`AskerLeft`, or was raised ``from`` it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_asker_left, cast("BaseExceptionGroup", error).exceptions))
    while error is not None and not isinstance(error, AskerLeft):
        error = error.__cause__
    return error is not None


class ItemsAsk(Ask, eq=False):
    """An ask whose handler sends items before its answer."""

    @property
    def replies(self) -> Replies[object]:
        """The handler's end; this base class has no reader."""
        return Replies()

    def settle(self, result: Result | None) -> None:
        """As of any ask. A handler that ended by :class:`AskerLeft` was cancelled (G3).

        It sent its item between its cancellation and its next checkpoint, which would have raised
        ``Cancelled``. So this is no failure of the handler.
        """
        if self.cancelled_at is not None and isinstance(result, Raised):
            result = None if is_asker_left(result.error) else result
        super().settle(result)


class TakingAsk(ItemsAsk, eq=False, kw_only=True):
    """An ask that calls ``take`` with each item, in the handler's task, while the asker is parked.

    An error of ``take`` ends the handler as a cancellation does, and is the outcome of the ask,
    whatever the handler makes of it (G3).
    """

    take: Callable[[Any], object]
    failure: Exception | None = None  # of `take`

    @property
    def replies(self) -> Replies[object]:
        return TakenReplies(self, self.take)

    def finds_asker_gone(self) -> bool:
        """Whether the asker turns out to be cancelled; asked before an item in a clean-up, or if
        the asker has a deadline.
        """
        return False

    def fail(self, error: Exception) -> None:
        """``take`` has raised: end the handler."""
        self.failure = error
        self.cancel()

    def settle(self, result: Result | None) -> None:
        failure = self.failure
        if failure is None:
            super().settle(result)
            return
        if isinstance(result, Raised) and result.error.__cause__ is not failure:
            failure.add_note(f"after it, the handler failed too: {shown(result.error)}")
        # Not that of the base: if `take` sends on to another asker who has left, that is its error.
        Ask.settle(self, Raised(failure))


# ---------------------------------------------------------------------- items before the answer


class Replies(Generic[T_contra]):
    """The handler's end of a stream. This base class discards: the request was told or asked."""

    async def send(self, item: T_contra) -> None:
        """Send one item; waits while a reader is 64 items behind. Cancelled: it was not sent.

        Raises ``trio.BrokenResourceError`` after the asker has left, or has failed to take an
        item. If the request was told or asked instead of streamed, there is no reader, and the item
        is discarded.
        """
        del item
        await trio.lowlevel.checkpoint()

    def send_nowait(self, item: T_contra) -> None:
        """As ``send``, but raises ``trio.WouldBlock`` while a reader is 64 items behind."""


class TakenReplies(Replies[T_contra]):
    """Passes each item to the asker's function, which has returned when ``send`` returns.

    The first error of that function is the outcome of the ask. No item is passed after it, nor
    after the asker was cancelled or has its outcome (G1, G3).
    """

    # Any: the types were checked where the handler was declared, and where it was asked.
    def __init__(self, ask: TakingAsk, take: Callable[[Any], object]) -> None:
        self._ask = ask
        self._take = take

    async def send(self, item: T_contra) -> None:
        await trio.lowlevel.checkpoint()
        self.send_nowait(item)

    def send_nowait(self, item: T_contra) -> None:
        ask = self._ask
        doubtful = ask.until < math.inf or sys.exc_info()[0] is not None
        gone = ask.cancelled_at is not None or (doubtful and ask.finds_asker_gone())
        if ask.settled or gone:
            if ask.failure is None:
                raise AskerLeft("the asker takes no more items")
            raise trio.BrokenResourceError("the asker takes no more items") from ask.failure
        try:
            try:
                self._take(item)
            except BaseException:
                with foreign_code:  # entered only for an error
                    raise
        except Exception as error:
            ask.fail(error)
            raise trio.BrokenResourceError("the asker failed to take an item") from error
