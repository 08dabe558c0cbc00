"""The tasks of an actor beside its turn: concurrent handlers, and tasks of ``start_soon``.

Most actors never have one. The invariants:

* the actor ends only after all of these tasks have ended, and the handlers that run in the tasks of
  their askers (``here.py``);
* when the turn is over, the concurrent handlers may finish; then the other tasks are cancelled,
  and so is any task that begins later.

They are siblings of the actor's own task, in its supervisor's nursery, and each has a scope that
is kept here. A nursery of their own inside of the actor's task would be simpler, but each actor
would pay for it, also the many that have no such task.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVarTuple

import trio
from trio.lowlevel import Abort, RaiseCancelT, current_task, wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime import here
from motet.runtime.envelope import WOKEN, Answer, Ask, Told, reschedule
from motet.runtime.errors import unwrapped
from motet.runtime.handlers import Handler
from motet.runtime.here import IN_A_ROW, HereAsk, is_only_cancelled, nobody
from motet.runtime.kernel import Owner
from motet.runtime.mailbox import Mailbox
from motet.runtime.outside import foreign_code
from motet.runtime.scopes import cancel_at
from motet.runtime.waits import Work, current_work

__all__ = ["Workers", "skip"]

Ts = TypeVarTuple("Ts")

MOST_IDLE = 4  # idle workers of one message type that are kept for the next message


class IncarnationApi(Protocol):
    """The incarnation that the workers belong to, as far as they need it."""

    @property
    def owner(self) -> Owner: ...
    @property
    def finishing(self) -> bool: ...
    @property
    def observed(self) -> bool: ...
    def crash(self, error: Exception) -> None: ...
    def fail(self, error: Exception) -> None: ...
    async def answer(self, ask: Ask, scope: trio.CancelScope) -> None: ...
    def call_of(self, ask: Ask) -> Awaitable[object]: ...
    def call(self, told: Told) -> Awaitable[object]: ...


class Workers:
    """The tasks of one incarnation beside its turn; see the module."""

    __slots__ = (
        "_asker",
        "_background",
        "_begun",
        "_closing",
        "_context",
        "_here",
        "_idle",
        "_in_a_row",
        "_incarnation",
        "_none_left",
        "_scopes",
        "_serving",
        "_until",
        "busy",
    )

    def __init__(self, incarnation: IncarnationApi) -> None:
        self._incarnation = incarnation
        self._until = incarnation.owner.cancel_at
        self._begun = 0  # tasks that have not ended
        self._scopes: dict[trio.lowlevel.Task, trio.CancelScope] = {}  # from a task's first step on
        self._none_left: trio.Event | None = None  # while `end` waits
        self._closing = False
        self._background = 0  # tasks of `start_soon`
        self.busy: dict[type[Message], int] = {}  # workers that are not idle, by message type
        self._idle: dict[type[Message], list[trio.lowlevel.Task]] = {}
        self._context: Context | None = None  # the context variables of concurrent handlers
        # The handlers that run in the tasks of their askers; None for one without a scope.
        self._here: dict[HereAsk, trio.CancelScope | None] = {}
        self._in_a_row = 0  # of one task, since the last that took the mailbox
        self._asker = 0  # its identity, so that it is not kept alive
        self._serving: dict[trio.lowlevel.Task, type[Message]] = {}  # the tasks of workers

    @property
    def at_work(self) -> bool:
        """Whether there is any task that is not an idle worker."""
        return bool(self._background or self.busy)

    def holding(self, kind: type[Message]) -> Sequence[Work] | None:
        """The handlers that have all places of ``kind``; None: a place is free, or is taken by one
        that has not begun.
        """
        places = self._incarnation.owner.handlers[kind].concurrent
        if self.busy.get(kind, 0) < places:
            return None
        works = self._at_work(kind)
        return works if len(works) >= places else None

    def handlers_at_work(self) -> Sequence[Work]:
        """All concurrent handlers that have begun and not ended."""
        return [work for kind in self.busy for work in self._at_work(kind)]

    def _at_work(self, kind: type[Message]) -> list[Work]:
        # From the tasks, and not from a list of its own: to keep that up would cost every message,
        # and this is read only where a wait may close a cycle. A worker that is about to take a
        # message still has the work of its last one, which waits for nothing, or none.
        idle = self._idle.get(kind, ())
        found = [ask.target for ask in self._here if type(ask.message) is kind]
        for task, own in self._serving.items():
            work = task.context.get(current_work)
            if own is kind and work is not None and task not in idle:
                found.append(work)
        return found

    def named_work(self) -> list[tuple[str, Work]]:
        """The concurrent handlers at work: the method's name, and the work."""
        handlers = self._incarnation.owner.handlers
        return [(handlers[kind].method, work) for kind in self.busy for work in self._at_work(kind)]

    @property
    def background(self) -> list[trio.lowlevel.Task]:
        """The tasks of ``start_soon`` that have taken a step and have not ended."""
        return [task for task in self._scopes if task not in self._serving]

    @property
    def tasks(self) -> Collection[trio.lowlevel.Task]:
        """The tasks that have taken a step and have not ended."""
        return self._scopes.keys()

    @property
    def askers(self) -> list[tuple[str, trio.lowlevel.Task]]:
        """The handlers that run in the tasks of their askers: the method's name, and the task."""
        handlers = self._incarnation.owner.handlers
        return [(handlers[type(ask.message)].method, ask.task) for ask in self._here]

    # ------------------------------------------------------------------ all tasks

    def _scope(self, task: trio.lowlevel.Task) -> trio.CancelScope:
        """A new scope for ``task``, in place of the one it had before."""
        scope = self._scopes[task] = trio.CancelScope(deadline=self._until)
        return scope

    def _leave(self, task: trio.lowlevel.Task) -> None:
        """This is the last step of ``task``."""
        self._scopes.pop(task, None)
        self._end_one()

    def _end_one(self) -> None:
        self._begun -= 1
        self._note_end()

    def _note_end(self) -> None:
        """A task has ended, or a handler in the task of its asker."""
        if self._none_left is not None and not (self._begun or self._here):
            self._none_left.set()

    def cancel_at(self, when: float) -> None:
        """Cancel all tasks at ``when``, or earlier if that was ordered before."""
        # Kept for tasks whose first step is still to come: they have no scope yet.
        self._until = min(self._until, when)
        for scope in (*self._scopes.values(), *self._here.values()):
            if scope is not None:
                cancel_at(scope, when)

    async def end(self) -> None:
        """Let the concurrent handlers finish, cancel the other tasks, and wait for all."""
        self._closing = True
        if not self.busy:
            self.cancel_at(-math.inf)
        # A loop: a task that ends may have started another one.
        while self._begun or self._here:
            self._none_left = trio.Event()
            # Shielded without a limit, as the end of any nursery: the tasks it waits for are
            # cancelled at the time that was ordered.
            with trio.CancelScope(shield=True):
                await self._none_left.wait()

    # ------------------------------------------------------------------ background tasks

    def start_soon(
        self, fn: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts], name: str
    ) -> None:
        """Run a background task of the actor; its crash is the actor's."""
        _nursery_of(self._incarnation.owner).start_soon(self._in_background, fn, args, name=name)
        self._begun += 1
        self._background += 1

    async def _in_background(
        self, fn: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts]
    ) -> None:
        task = current_task()
        try:
            # The turn does not wait for this task, so its asks are no edges of the turn (G11).
            current_work.set(None)
            with self._scope(task), foreign_code:
                await fn(*args)
        except Exception as error:
            self._incarnation.crash(unwrapped(error))
        finally:
            self._background -= 1
            self._leave(task)

    # ------------------------------------------------------------------ concurrent handlers

    def begin_concurrent(self) -> None:
        """Handle the messages for concurrent handlers, those that wait and those to come.

        First called in the actor's own task, whose context variables the handlers get.
        """
        if self._context is None:
            self._context = copy_context()
            self._context.run(current_work.set, None)  # until a worker has its first message
        mailbox = self._incarnation.owner.mailbox
        if self._incarnation.finishing or self._incarnation.owner.paused:
            return
        mailbox.places = self
        for kind, queue in mailbox.concurrent.items():
            for _ in range(len(queue) - queue.gaps):  # no worker takes its first step before
                self.notify(kind)

    def notify(self, kind: type[Message]) -> None:
        """A message of ``kind`` waits: let a worker take it, if the limit allows."""
        handler = self._incarnation.owner.handlers[kind]
        busy = self.busy.get(kind, 0)
        if busy >= handler.concurrent or self._context is None:
            return
        # Counted now and not in the worker's first step: until then other messages may come.
        self.busy[kind] = busy + 1
        idle = self._idle.get(kind)
        if idle:
            reschedule(idle.pop(), WOKEN)
            return
        # This runs in the sender's task: without a context of its own, the handler would see the
        # sender's context variables.
        self._context.run(self._begin, kind, handler.method)

    def dismiss_idle(self) -> None:
        """Let the idle workers end: there will be no message for them."""
        for kind, idle in self._idle.items():
            if idle:
                self.busy[kind] = self.busy.get(kind, 0) + len(idle)  # until they have ended
            for task in idle:
                reschedule(task, WOKEN)
            idle.clear()

    def _begin(self, kind: type[Message], method: str) -> None:
        owner = self._incarnation.owner
        _nursery_of(owner).start_soon(self._serve, kind, name=f"{owner.path} {method}")
        self._begun += 1

    async def _serve(self, kind: type[Message]) -> None:
        """A worker: a task that handles messages of ``kind`` one by one, and idles in between."""
        task = current_task()
        self._serving[task] = kind
        try:
            needed = True
            while needed:
                # As in the turn: one scope for all messages, until one is cancelled in it.
                with self._scope(task) as scope:
                    needed = await self._work(kind, task, scope)
                # After a cancellation, which keeps it True. Without this look, each of many workers
                # that are cancelled together would open a scope only to find no work.
                needed = needed and self._is_needed(kind)
        except Exception as error:
            self._incarnation.fail(unwrapped(error))
        finally:
            del self._serving[task]
            self._count_down(kind)
            self._leave(task)

    def _is_needed(self, kind: type[Message]) -> bool:
        """Whether a worker for ``kind`` finds work, or may wait for it."""
        queue = self._incarnation.owner.mailbox.concurrent[kind]
        return bool(queue and queue.items) or len(self._idle.get(kind, ())) < MOST_IDLE

    async def _work(
        self, kind: type[Message], task: trio.lowlevel.Task, scope: trio.CancelScope
    ) -> bool:
        """Handle messages until ``scope`` is used up, or the worker is not needed: False."""
        incarnation = self._incarnation
        mailbox = incarnation.owner.mailbox
        while not (incarnation.finishing or incarnation.owner.paused):
            # An ask stays in its queue, and can be withdrawn, until this very step.
            item = mailbox.take(kind)
            if item is None:
                if len(self._idle.setdefault(kind, [])) == MOST_IDLE:
                    return False
                await self._wait_for_mail(kind, task)
                continue
            mailbox.running_concurrently += 1
            try:
                if isinstance(item, Ask):
                    current_work.set(item.target)
                    await incarnation.answer(item, scope)
                else:
                    await self._handle(item)
            finally:
                mailbox.running_concurrently -= 1
            if isinstance(item, Ask) and item.cancelled_at is not None:
                return True
        return False

    async def _handle(self, item: Message | Told) -> None:
        owner = self._incarnation.owner
        current_work.set(Work(owner.path))
        told = item if isinstance(item, Told) else Told(item)
        if told.is_cancelled:
            skip(owner.mailbox, told)
            return
        try:
            await self._incarnation.call(told)
        except BaseException as error:
            owner.mailbox.lose(told, error)
            with foreign_code:  # entered only for an error; a request has its own edge
                raise
        owner.mailbox.handled += 1
        told.ended()

    # ------------------------------------------------------------------ in the asker's task

    def take_place(self, handler: Handler, task: trio.lowlevel.Task) -> bool:
        """Whether ``task`` may handle its request itself, now. Then a place is its own."""
        owner, kind = self._incarnation.owner, handler.message_type
        queue, busy = owner.mailbox.concurrent[kind], self.busy.get(kind, 0)
        if busy >= handler.concurrent or (queue and queue.items):
            return False
        if owner.kernel.observing and self._incarnation.observed:
            return False
        if here.allowed is not None and not here.allowed():
            return False
        asker = id(task)
        if asker != self._asker:  # the one before has let others run
            self._asker, self._in_a_row = asker, 0
        self._in_a_row += 1
        if self._in_a_row > IN_A_ROW:
            self._in_a_row = 0
            return False
        self.busy[kind] = busy + 1
        return True

    async def answer_here(self, ask: HereAsk, handler: Handler) -> Any:
        """Run the handler of ``ask`` in the current task, in the place that was taken for it.

        Returns or raises its outcome. Cancelled with the asker, as any code of that task.
        """
        incarnation, mailbox = self._incarnation, self._incarnation.owner.mailbox
        mailbox.accepted += 1
        mailbox.taken += 1
        mailbox.running_concurrently += 1
        # Without a scope nothing could end it for a time limit or for items that nobody takes.
        bare = handler.brief and ask.limit == math.inf and ask.take is nobody
        scope = None if bare else trio.CancelScope(deadline=self._until)
        self._here[ask] = ask.scope = scope
        before = current_work.set(ask.target)
        ask.target.serves = ask
        value: object = None
        ended = False
        try:
            if scope is None:
                try:
                    value = await incarnation.call_of(ask)
                    ended = True
                except BaseException as error:
                    if ask.fail_with(error):
                        raise
            else:
                with scope:
                    try:
                        value = await incarnation.call_of(ask)
                        ended = True
                    except BaseException as error:
                        if ask.fail_with(error):
                            raise
        # The asker's own cancellation. But an outcome of the handler's own comes first, as it does
        # from another task: the asker's next checkpoint raises Cancelled again.
        except trio.Cancelled:
            if not ask.has_outcome:
                raise
        except BaseExceptionGroup as group:
            if not is_only_cancelled(group):
                raise
            ask.left = not ask.has_outcome  # and it gets one Cancelled, not the handler's group
        finally:
            # In a `finally`, so that no way out of a handler keeps its place or its count (G4).
            ask.target.serves = None
            current_work.reset(before)
            mailbox.running_concurrently -= 1
            mailbox.handled += 1
            self._leave_here(ask, handler.message_type)
            if ask.cancelled_at is None and ended:
                ask.settled = True  # the usual case, without the calls of `settle`
            else:
                ask.settle(Answer(value) if ended else ask.result)
        if ask.left:
            await trio.lowlevel.checkpoint()  # raises the asker's Cancelled
        return value if ask.result is None else ask.take_result()

    def _leave_here(self, ask: HereAsk, kind: type[Message]) -> None:
        """The handler of ``ask`` has ended, and its place is free."""
        del self._here[ask]
        self._count_down(kind)
        if self._none_left is not None:
            self._note_end()
        # Those that came meanwhile found the place taken.
        mailbox = self._incarnation.owner.mailbox
        queue = mailbox.concurrent[kind]
        if queue and queue.items and mailbox.places is not None:
            mailbox.places.notify(kind)

    def _wait_for_mail(self, kind: type[Message], task: trio.lowlevel.Task) -> Awaitable[None]:
        """Idle until ``notify``: waking a task is much cheaper than starting another."""
        idle = self._idle[kind]

        def abort(_: RaiseCancelT) -> Abort:
            idle.remove(task)
            self.busy[kind] = self.busy.get(kind, 0) + 1  # until it has ended
            return Abort.SUCCEEDED

        idle.append(task)
        self._count_down(kind)
        return wait_task_rescheduled(abort)

    def _count_down(self, kind: type[Message]) -> None:
        """One worker less is busy."""
        self.busy[kind] -= 1
        if not self.busy[kind]:
            del self.busy[kind]
            # The last concurrent handler has finished: now the rest may be cancelled.
            if self._closing and not self.busy:
                self.cancel_at(-math.inf)
            if self._incarnation.owner.rested is not None:
                self._incarnation.owner.rest()


def skip(mailbox: Mailbox, told: Told) -> None:
    """Count a taken message that is not to be handled as withdrawn, or make it a dead letter."""
    mailbox.taken -= 1
    if told.lost_by is None:
        mailbox.withdrawn += 1
    else:
        mailbox.bury(told, told.lost_by)
    told.ended()


def _nursery_of(owner: Owner) -> trio.Nursery:
    assert owner.nursery is not None, "an incarnation lives in its supervisor's nursery"
    return owner.nursery
