"""Ways into a system from other threads and loops: references, futures, and the portal.

A system has no locks: all of it runs in one thread, and other callers get :class:`WrongLoop`.
:class:`ThreadsafeRef` and :class:`Portal` pass calls into the system's loop instead, by Trio's
token. The invariants:

* the messages of one thread to one actor arrive in their order, tells and asks alike, and before
  all that a task of the loop sends after it has seen the thread's end;
* an :class:`Inbox` is in front of each mailbox used so. It holds at most as many tells as the
  mailbox; a thread with one more waits;
* a message that was accepted is in the inbox, in the mailbox, handled, or a dead letter (G4);
* every future gets its one outcome (G3), at the latest when the system ends.

A blocking call from the system's own thread would wait for itself, so it raises. Choices not
taken: a round trip to the loop for each tell costs 50 us instead of 2; with one queue for all
actors a full mailbox would hold up the others; a future that is cancelled at once would say that
its handler has ended while that still runs (G1).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Condition, get_ident
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, cast

import trio

from motet.protocols.messages import Asked, Message
from motet.runtime.ask import ask
from motet.runtime.envelope import TIMED_OUT, Answer, Ask, Raised, Result, Told
from motet.runtime.errors import ActorDead, AskTimeout, MailboxFull, unwrapped
from motet.runtime.kernel import HomeLoop, Kernel, Owner
from motet.runtime.loops import loop_here
from motet.runtime.monitors import on_end
from motet.runtime.observe import AskSpan, CutOff
from motet.runtime.outside import foreign_code, monotonic
from motet.runtime.queues import WaitingTell
from motet.runtime.timers import Timer
from motet.runtime.waits import Work, current_work

__all__ = ["Inbox", "LoopFuture", "Portal", "ThreadsafeRef"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_CANCELLED: Final = Answer(None)  # of an ask whose future was cancelled


class LoopFuture(Future[R]):
    """The outcome of work in the system's loop, for any other thread.

    ``cancel`` takes back what has not begun, and cancels what runs. It returns at once; the future
    is cancelled when that has ended with its clean-up, or has its value if it finished nevertheless
    (G1). ``result`` and ``exception`` raise :class:`WrongLoop` in the system's own thread instead
    of waiting for themselves. Functions of ``add_done_callback`` run in the system's thread, and
    must not wait there.
    """

    def __init__(self, loop: HomeLoop, path: str) -> None:
        super().__init__()
        self._loop = loop
        self._path = path
        self._withdraw: Callable[[], object] | None = None

    def cancel(self) -> bool:
        """Order the cancellation; False if there is an outcome already."""
        if self.done():
            return self.cancelled()
        withdraw = self._withdraw
        if withdraw is not None:
            with suppress(ActorDead):  # the loop has ended, and has settled this
                self._loop.post(withdraw)
        return True

    def result(self, timeout: float | None = None) -> R:
        """The value; raises the error. ``timeout`` in seconds bounds this wait, not the work."""
        self._refuse_to_block()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None. As :meth:`result`."""
        self._refuse_to_block()
        return super().exception(timeout)

    def wait(self) -> R:
        """As :meth:`result`; interrupted, it cancels the work."""
        try:
            return self.result()
        except BaseException:
            # Such as KeyboardInterrupt. After an error of the work itself this does nothing.
            self.cancel()
            raise

    def _refuse_to_block(self) -> None:
        if not self.done() and get_ident() == self._loop.thread:
            self._loop.refuse_to_block(self._path)

    # -------------------------------------------------------------- in the loop

    def on_cancel(self, withdraw: Callable[[], object]) -> None:
        """Call ``withdraw`` in the loop when this is cancelled."""
        self._withdraw = withdraw

    def settle(self, result: Result | None) -> None:
        """Give the only outcome; None: cancelled."""
        with suppress(Exception), foreign_code:  # of a callback, which `Future` does not catch all
            if result is None:
                super().cancel()
                self.set_running_or_notify_cancel()  # tells those in `concurrent.futures.wait`
            elif isinstance(result, Raised):
                self.set_exception(result.error)
            else:
                self.set_result(cast("R", result.value))  # the handler's type was checked


class FutureAsk(Ask, eq=False, kw_only=True):
    """The envelope of an ask whose outcome is a future."""

    owner: Owner
    future: LoopFuture[Any]
    seconds: float | None
    timer: Timer | None = None
    span: AskSpan | None = None
    given_up: bool = False  # the future was cancelled
    begun: bool = False  # it was put into the mailbox

    @property
    def asked_from(self) -> Work | None:
        return None  # no actor waits for it

    def arm(self) -> None:
        """Start the time limit."""
        if self.seconds is not None and not self.settled:
            self.limit = self.until = trio.current_time() + self.seconds
            self.timer = self.owner.kernel.timers.start(self.limit, self.time_out)

    def begin(self) -> None:
        """Leave the inbox for the mailbox, in the loop."""
        if self.settled:
            return  # it was cancelled, or its time ran out, in the inbox
        self.begun = True
        mailbox = self.owner.mailbox
        self.queue = mailbox.queue
        try:
            if self.owner.kernel.observing:
                self.span = AskSpan(self.owner, self.message)
                self.context = self.span.context
            if not mailbox.put(self):
                mailbox.put_ask_or_overflow(self)
        except Exception as error:
            self.queue = None
            self.settled = True
            self._deliver(Raised(error))

    def give_up(self) -> None:
        """The future was cancelled: withdraw, or cancel the handler."""
        if self.settled or self.given_up:
            return
        self.given_up = True
        if self._is_waiting():
            self.settled = True
            self._deliver(_CANCELLED)
        else:
            self.cancel()

    def time_out(self) -> None:
        if not self.begun and not self.settled:
            self.timed_out = True
            self._settle_unhandled()
        else:
            super().time_out()

    def _is_waiting(self) -> bool:
        """Whether no handler has begun; it is withdrawn from the mailbox."""
        if self.queue is not None:
            self.mailbox.withdraw(self)
            return True
        return not self.begun

    def _cancelled(self) -> Result:
        return _CANCELLED if self.given_up else super()._cancelled()

    def _deliver(self, result: Result) -> None:
        if self.timer is not None:
            self.owner.kernel.timers.stop(self.timer)
        if type(result) is Answer and result.value is TIMED_OUT:
            assert self.seconds is not None
            result = Raised(AskTimeout(self.owner.path, type(self.message), self.seconds))
        if self.span is not None:
            error = result.error if isinstance(result, Raised) else None
            self.span.end(CutOff() if result is _CANCELLED else error)
        self.future.settle(None if result is _CANCELLED else result)


class WaitingInbox(WaitingTell):
    """A message of an inbox, which waits for room in the mailbox like any sender."""

    __slots__ = ("inbox",)

    def __init__(self, message: Message | Told, inbox: Inbox) -> None:
        self.message = message
        self.path = inbox.owner.path
        self.holder = None
        self.task = inbox.owner.kernel.loop.task  # is never resumed by this
        self.work = None
        self.inbox = inbox

    def admitted(self) -> None:
        self.inbox.leave_line()

    def refused(self, error: Exception) -> None:
        reason = error.reason if isinstance(error, ActorDead) else str(error)
        self.inbox.owner.mailbox.discard(self.message, reason)
        self.inbox.leave_line()


class Inbox:
    """The messages of other threads to one actor, before they are in its mailbox.

    ``put`` and ``put_ask`` are for all threads, the other methods for the loop.

    The loop moves all of them at once, and those without room wait in the line of senders. With
    only the first in line, a task that sends after the thread's end, or the ``ask_sync`` of the
    thread, which is an ask of its task, would overtake the others.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._items: deque[Message | Told | FutureAsk] = deque()
        self._room = Condition()
        self._blocked = 0  # threads that wait for room
        self._scheduled = False  # the loop will look into it
        self._in_line = 0  # tells that wait for room in the mailbox
        self._is_known = False  # to the actor, whose end removes this from the kernel's table

    def put(self, message: Message, seconds: float | None, *, wait: bool) -> None:
        """Accept a told message. Waits while there is no room, or raises MailboxFull."""
        owner = self.owner
        item = owner.with_context(owner.checked(message))
        spec = owner.mailbox.spec
        until = math.inf if seconds is None else monotonic() + seconds
        with self._room:
            while True:
                self._refuse_if_over()
                held = len(self._items) + self._in_line
                if spec.overflow == "fail":
                    held += owner.mailbox.queue.items
                if held < spec.capacity:
                    break
                if spec.overflow == "fail" or not wait or not self._wait_for_room(until):
                    raise MailboxFull(owner.path, spec.capacity)
            self._add(item)

    def put_ask(self, envelope: FutureAsk) -> None:
        """Accept an ask. Never waits: its future does."""
        with self._room:
            self._refuse_if_over()
            self._add(envelope)

    def _add(self, item: Message | Told | FutureAsk) -> None:
        # Posted first: it raises when the loop has ended.
        if not self._scheduled:
            self.owner.kernel.loop.post(self._drain)
            self._scheduled = True
        self._items.append(item)

    def _wait_for_room(self, until: float) -> bool:
        """Wait for room or the end of the actor. Not on the simulated clock, which has no threads.

        There will be one of the two: an inbox with messages will be looked into, or waits for room.
        Returns False at once when the time is over.
        """
        left = until - monotonic()
        if left <= 0:
            return False
        self._blocked += 1
        try:
            self._room.wait(None if left == math.inf else left)
        finally:
            self._blocked -= 1
        return True  # there may be room also after the time

    def _refuse_if_over(self) -> None:
        if self.owner.mailbox.closed is not None:
            raise ActorDead(self.owner.path, self.owner.mailbox.closed)

    # -------------------------------------------------------------- in the loop

    def _drain(self) -> None:
        if not self._is_known:
            self._is_known = True
            on_end(self.owner, self, self._forget)
        with self._room:
            self._scheduled = False
            # Those that are here now: threads that add more must not hold up the loop.
            moved = len(self._items)
        for _ in range(moved):
            item = self._items[0]
            if isinstance(item, FutureAsk):
                item.begin()
            elif not self.owner.mailbox.put_or_line_up(WaitingInbox(item, self)):
                with self._room:  # it counts in one of the two
                    self._in_line += 1
                    self._items.popleft()
                continue
            self._items.popleft()
        with self._room:
            if self._blocked:
                self._room.notify_all()

    def leave_line(self) -> None:
        """A message of this has left the line of senders: there is room for another."""
        self._in_line -= 1
        # A thread that wakes for each single place would switch threads for each message.
        if self._in_line <= self.owner.mailbox.spec.capacity // 2:
            with self._room:
                if self._blocked:
                    self._room.notify_all()

    def end_unused(self, end: Callable[[], None]) -> bool:
        """See :func:`end_unused`."""
        with self._room:
            if self._items:
                return False
            end()
            return True

    def _forget(self, _: object) -> None:
        self.owner.kernel.inboxes.pop(self.owner, None)


def inbox_of(owner: Owner) -> Inbox:
    """The inbox of an actor, the same for all references, so that the order of a thread is kept."""
    inboxes = owner.kernel.inboxes
    with owner.kernel.inboxes_change:
        known = inboxes.get(owner)
        # Of a dead actor the table must not keep any.
        fresh = Inbox(owner) if known is None else known
        return fresh if owner.mailbox.closed is not None else inboxes.setdefault(owner, fresh)


def end_unused(owner: Owner, end: Callable[[], None]) -> bool:
    """Call ``end``, which closes the mailbox, unless messages of other threads are on their way.

    No thread adds one in between: it waits, and is refused then. Returns whether ``end`` ran.
    """
    with owner.kernel.inboxes_change:
        inbox: Inbox | None = owner.kernel.inboxes.get(owner)
        if inbox is not None:
            return inbox.end_unused(end)
        end()
        return True


class ThreadsafeRef(Generic[P_contra]):
    """A reference for other threads and loops; made by :meth:`ActorRef.threadsafe`.

    Tells and asks of one thread to one actor arrive in their order. After the end of the actor all
    raise :class:`ActorDead`, as every future that waits then does.
    """

    __slots__ = ("_inbox", "_owner")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._inbox = inbox_of(owner)

    @property
    def path(self) -> str:
        return self._owner.path

    def tell(self, message: P_contra, *, timeout: float | None = None) -> None:
        """Send without an answer; blocks the thread while too many of its kind wait.

        As many messages as the mailbox may hold can wait before a full one. MailboxFull: there was
        no room within ``timeout`` seconds, or in a loop, which is never blocked, or as declared. If
        the mailbox turns out to be full and declared to fail, the message becomes a dead letter.
        """
        if not self._tell_here(message):
            may_wait = loop_here() is None and get_ident() != self._owner.kernel.loop.thread
            self._inbox.put(message, timeout, wait=may_wait)

    def tell_nowait(self, message: P_contra) -> None:
        """As :meth:`tell`, but raises MailboxFull instead of blocking."""
        if not self._tell_here(message):
            self._inbox.put(message, None, wait=False)

    def _tell_here(self, message: Message) -> bool:
        """Send at once in a task of the system's loop."""
        owner = self._owner
        if not owner.kernel.loop.in_task():
            return False
        item = owner.envelope(message)
        if not owner.mailbox.put(item):
            owner.mailbox.put_or_overflow(item)
        return True

    def ask(self, request: Asked[P_contra, R], *, timeout: float | None = None) -> LoopFuture[R]:
        """Send a request and return the future of its answer. Never blocks.

        ``timeout`` in seconds is the ask's own, as of :meth:`ActorRef.ask`. asyncio awaits the
        future by ``asyncio.wrap_future``. Raises NotInProtocol and ActorDead.
        """
        message: Message = request  # type: ignore[assignment]  # nothing else is `Asked`
        owner, loop = self._owner, self._owner.kernel.loop
        checked = owner.checked(message)
        future: LoopFuture[R] = LoopFuture(loop, owner.path)
        target = owner.work_for(type(checked))
        envelope = FutureAsk(
            owner.mailbox, checked, target, loop.task, math.inf,
            owner=owner, future=future, seconds=timeout,
        )  # fmt: skip
        future.on_cancel(envelope.give_up)
        if loop.in_task():
            envelope.arm()
            envelope.begin()
            return future
        if timeout is not None:
            loop.post(envelope.arm)
        self._inbox.put_ask(envelope)
        return future

    def ask_sync(self, request: Asked[P_contra, R], *, timeout: float | None = None) -> R:
        """Send a request and block the thread until its answer; raises the handler's error.

        Raises WrongLoop at once in the system's own thread and in any loop. In a thread that a task
        of the system's loop has started by ``trio.to_thread.run_sync``, it is an ask of that task:
        cancelled with it, with its deadline, and refused in a cycle (G11). Interrupted, such as by
        Ctrl-C, it cancels the ask.
        """
        owner = self._owner
        owner.kernel.loop.refuse_to_block(owner.path)
        asking = partial(ask, owner, request, timeout)
        otherwise = partial(self.ask, request, timeout=timeout)
        return _in_parent_task(owner.kernel.loop, asking, otherwise)

    def __repr__(self) -> str:
        return f"<ThreadsafeRef {self._owner.path}>"


def _in_parent_task(
    loop: HomeLoop, fn: Callable[[], Awaitable[R]], otherwise: Callable[[], LoopFuture[R]]
) -> R:
    """The result of ``fn`` in the task of ``loop`` that this thread works for, or of a future."""
    is_there = False

    async def there() -> tuple[R] | None:
        nonlocal is_there
        is_there = True
        return (await fn(),) if get_ident() == loop.thread else None

    found: tuple[R] | None = None
    try:
        found = trio.from_thread.run(there)
    except RuntimeError:
        if is_there:
            raise  # it is an error of the work
        # No thread of Trio's: it has no task, and says so by this error.
    return otherwise().wait() if found is None else found[0]


class Portal:
    """Runs functions in the loop of a system, for other threads; made by :meth:`System.portal`.

    Its tasks end with the system: at the end of the block they are cancelled after the actors have
    stopped, and their futures get :class:`ActorDead`.
    """

    def __init__(self, kernel: Kernel, nursery: trio.Nursery) -> None:
        self._loop = kernel.loop
        self._nursery = nursery
        self._scopes: dict[trio.CancelScope, None] = {}
        self._closing = False

    def submit(self, fn: Callable[[*Ts], Awaitable[R]], *args: *Ts) -> LoopFuture[R]:
        """Run ``fn(*args)`` as a task in the loop, and return its future. Never blocks.

        The task has the context variables of the caller. Cancelling the future cancels it. Raises
        ActorDead after the system's end.
        """
        future: LoopFuture[R] = LoopFuture(self._loop, self._loop.path)
        context = copy_context()
        context.run(current_work.set, None)  # no handler waits for it
        scope = trio.CancelScope()
        future.on_cancel(scope.cancel)
        bound = partial(fn, *args)

        def begin() -> None:
            context.run(self._begin, bound, future, scope)

        if self._loop.in_task():
            begin()
        else:
            self._loop.post(begin)
        return future

    def call(self, fn: Callable[[*Ts], Awaitable[R]], *args: *Ts) -> R:
        """Run ``fn(*args)`` in the loop, and block the thread until its end.

        Raises its error, and WrongLoop at once in the system's own thread and in any loop. In a
        thread that a task of the loop has started it runs in that task, as of
        :meth:`ThreadsafeRef.ask_sync`.
        """
        self._loop.refuse_to_block(self._loop.path)
        bound = partial(fn, *args)
        return _in_parent_task(self._loop, bound, lambda: self.submit(bound))

    def close(self) -> None:
        """Cancel all tasks, and begin no more. For :func:`open_system`, which waits for them."""
        self._closing = True
        for scope in self._scopes:
            scope.cancel()

    def _begin(
        self, fn: Callable[[], Awaitable[R]], future: LoopFuture[R], scope: trio.CancelScope
    ) -> None:
        if self._closing:
            future.settle(Raised(self._ended()))
            return
        self._scopes[scope] = None
        self._nursery.start_soon(self._run, fn, future, scope, name=f"{self._loop.path} (portal)")

    async def _run(
        self, fn: Callable[[], Awaitable[R]], future: LoopFuture[R], scope: trio.CancelScope
    ) -> None:
        result: Result | None = Raised(self._ended())
        try:
            with scope, foreign_code:
                value = await fn()
                result = Answer(value)
            if scope.cancelled_caught and not self._closing:
                result = None
        except Exception as error:
            result = Raised(unwrapped(error))
        finally:
            # Also when the block of the system is cancelled: then this is its end.
            del self._scopes[scope]
            future.settle(result)

    def _ended(self) -> ActorDead:
        return ActorDead(self._loop.path, "the system has ended")
