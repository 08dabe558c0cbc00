"""One life of an actor: start, turns, clean-up. A restart makes a new one; the mailbox stays.

Invariants: the nursery is open from before ``on_start`` until after the last handler, so nothing
of the actor runs outside it; at most one handler is in the turn (G5); the children have ended
before ``on_stop`` begins.

All turns share one cancel scope, ``_drain``'s. An asker that is cancelled cancels it; the handler
ends, the scope is left, and the next message gets a new one. So an ask costs no scope of its own,
and a tell never did. It cannot hit the wrong handler: only the ask that runs may cancel it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVarTuple

import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, reschedule, wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime.ask import Ask, Result
from motet.runtime.errors import MotetRuntimeError, unwrapped
from motet.runtime.handlers import Handler
from motet.runtime.mailbox import Item
from motet.runtime.stream import Replies, StreamAsk
from motet.runtime.told import Told
from motet.runtime.waits import Work, current_work

if TYPE_CHECKING:
    from motet.runtime.actor import Actor
    from motet.runtime.cell import Cell
    from motet.runtime.schedule import ActorTimers

__all__ = ["Incarnation"]

Ts = TypeVarTuple("Ts")

BATCH = 64  # messages between two checkpoints, so that a full mailbox cannot starve other tasks

RESTING = 4  # workers of one message type that are kept for the next message

_DISCARD = Replies[object](None)


class Incarnation:
    """See the module. ``cell`` is what stays, ``actor`` what the user wrote."""

    __slots__ = (
        "_concurrent",
        "_context",
        "_handlers",
        "_resting",
        "_turn_handlers",
        "actor",
        "began",
        "cell",
        "failure",
        "finishing",
        "halted",
        "nursery",
        "ready",
        "timers",
    )

    def __init__(self, cell: Cell, actor: Actor[Any]) -> None:
        self.cell = cell
        self.actor = actor
        self.began = trio.current_time()
        self.nursery: trio.Nursery | None = None
        self.ready = False  # on_start has returned
        self.finishing = False  # no further message is to be handled
        self.halted = False  # the turn is to look at its orders before the next message
        self.failure: Exception | None = None
        self.timers: ActorTimers[Any] | None = None
        self._concurrent: dict[type[Message], int] = {}  # busy workers, by message type
        self._resting: dict[type[Message], list[trio.lowlevel.Task]] = {}
        self._context: Context | None = None  # that of these tasks
        # Looked up by the type of whatever comes out of the queue; an envelope's is no key.
        self._handlers: dict[type, _Call] = {k: _bound(actor, h) for k, h in cell.handlers.items()}
        # Those that want nothing but the message. Whatever is not here takes the longer way.
        self._turn_handlers: dict[type, _Call] = {}
        self.choose_ways()

    # ------------------------------------------------------------------ orders

    def finish(self) -> None:
        """Handle no further message; the running handlers may end."""
        self.finishing = True
        self.cell.mailbox.attend = None
        if self.timers is not None:
            self.timers.close()
        self.interrupt()

    def interrupt(self) -> None:
        """Look at the orders before the next message (G6)."""
        self.halted = True
        self.cell.mailbox.wake()

    def choose_ways(self) -> None:
        """Which messages need more than a bare call may have changed."""
        self._turn_handlers.clear()
        if self.cell.observer is None:
            for kind, handler in self.cell.handlers.items():
                if handler.in_turn and not handler.retries:
                    self._turn_handlers[kind] = self._handlers[kind]

    def pause(self) -> None:
        """Begin no handler until :meth:`resume`; the running ones go on."""
        self.cell.mailbox.attend = None
        self.interrupt()

    def resume(self) -> None:
        """Handle mail again."""
        self._attend_to_stashes()
        self.cell.mailbox.wake()

    def cancel_at(self, when: float) -> None:
        """Cancel every task of the actor at ``when``, or earlier if that was said before."""
        if self.nursery is None or self._is_idle():
            return  # an idle one ends by itself, as soon as it is told to finish
        scope = self.nursery.cancel_scope
        if when <= trio.current_time():
            scope.cancel()
        elif when < scope.deadline:
            scope.deadline = when

    def _is_idle(self) -> bool:
        """It waits for mail, and has nothing else to wait for at its end."""
        return self.cell.mailbox.receiver is not None and not self._concurrent

    def crash(self, error: Exception) -> None:
        """End at once; the first error counts."""
        if self.failure is None:
            self.failure = error
        self.finish()
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel()

    def start_soon(
        self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None
    ) -> None:
        """Run a background task of the actor; its crash is the actor's."""
        if self.nursery is None:
            raise MotetRuntimeError(f"{self.cell.path} is ending, so it starts no tasks")
        label = name or getattr(fn, "__qualname__", repr(fn))
        self.nursery.start_soon(
            self._run_background, partial(fn, *args), name=f"{self.cell.path} {label}"
        )

    async def _run_background(self, fn: Callable[[], Awaitable[object]]) -> None:
        current_work.set(None)  # what it waits for, the turn does not
        try:
            await fn()
        except Exception as error:
            self.crash(unwrapped(error))

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """From ``on_start`` to the end of the last task. Raises only what is not an Exception."""
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                self.cancel_at(self.cell.cancel_at)
                await self._live()
                if nursery.child_tasks:
                    nursery.cancel_scope.cancel()
        except Exception as error:
            self.crash(unwrapped(error))
        finally:
            self.nursery = None
            self.finish()

    async def _live(self) -> None:
        if self.finishing:
            return
        try:
            await self.actor.on_start()
            self.ready = True
            self.cell.became_ready()
            self._attend_to_stashes()
            while not self.finishing:
                self.halted = False
                if self.cell.paused:
                    await self.cell.mailbox.park()
                elif self.cell.mailbox.again is not None or self.cell.control:
                    await self._handle(self._take_first())
                else:
                    with trio.CancelScope() as turn:
                        await self._drain(turn)
            while self._concurrent:
                await self.cell.mailbox.park()
        except Exception as error:
            self.crash(unwrapped(error))

    async def _drain(self, turn: trio.CancelScope) -> None:
        mailbox = self.cell.mailbox
        queue = mailbox.queue
        handlers = self._turn_handlers
        left = BATCH
        while not self.halted:
            if not queue:
                await mailbox.park()
                left = BATCH
                continue
            item = queue.popleft()
            mailbox.taken += 1
            if mailbox.waiting:
                mailbox.admit()
            handler = handlers.get(type(item))
            if handler is not None:
                try:
                    await handler(item)
                except BaseException as error:
                    mailbox.release()
                    mailbox.lose(item, error)
                    raise
                if mailbox.reserved:
                    mailbox.keep(item)
                else:
                    mailbox.handled += 1
            elif isinstance(item, Ask):
                await self._answer(item, turn)
                if item.cancelled_at is not None:
                    return  # this scope is used up
            else:
                await self._handle(item)
            left -= 1
            if not left:
                await trio.lowlevel.checkpoint()
                left = BATCH

    def _take_first(self) -> Message | Told:
        """What is handled before all mail: the message to be tried again, then control (G6)."""
        mailbox = self.cell.mailbox
        if mailbox.again is not None:
            item, mailbox.again = mailbox.again, None
            return item
        # Control messages are in the ledger from here on: they fill no mailbox.
        mailbox.accepted += 1
        mailbox.taken += 1
        return self.cell.control.pop(0)

    async def _handle(self, item: Message | Told) -> None:
        """The longer way of a told message: observed, or tried again after a crash."""
        mailbox = self.cell.mailbox
        told = item if isinstance(item, Told) else Told(item)
        try:
            await self._observed(told.message, told.context, self._bare(told.message))
        except BaseException as error:
            mailbox.release()
            told.attempts += 1
            handler = self.cell.handlers[type(told.message)]
            if told.attempts <= handler.retries and mailbox.closed is None:
                mailbox.retry(told)
            else:
                mailbox.lose(told, error)
            raise
        if mailbox.reserved:
            mailbox.keep(told)
        else:
            mailbox.handled += 1

    async def _answer(self, ask: Ask, scope: trio.CancelScope) -> None:
        """Run the handler of ``ask`` in ``scope``: the one place where an ask is settled by it."""
        mailbox = self.cell.mailbox
        ask.home = None  # from here on it can't be withdrawn
        if ask.until < math.inf and ask.expired():
            mailbox.taken -= 1
            mailbox.withdrawn += 1
            return
        ask.scope = scope
        result: Result | None = None
        try:
            if isinstance(ask, StreamAsk):
                call = self._stream(ask)
            else:
                call = self._handlers[type(ask.message)](ask.message)
            if self.cell.observer is not None:
                call = self._observed(ask.message, ask.context, call)
            result = outcome.Value(await call)
        except Exception as error:
            result = outcome.Error(unwrapped(error))
        except BaseExceptionGroup as group:
            cancelled, rest = group.split(trio.Cancelled)
            if isinstance(rest, Exception):
                result = outcome.Error(unwrapped(rest))
                # It was no Exception, so something in it was Cancelled, and that must go on.
                raise (cancelled or group) from None
            raise
        finally:
            if mailbox.reserved and self._is_put_aside(ask, result):
                mailbox.keep(ask)
            else:
                ask.settle(result)
                mailbox.handled += 1

    def _is_put_aside(self, ask: Ask, result: Result | None) -> bool:
        """Whether the handler of ``ask`` is the one that has reserved, and ended in order."""
        if ask.target is not self.cell.turn:
            return False
        if isinstance(result, outcome.Value) and ask.cancelled_at is None:
            return True
        self.cell.mailbox.release()
        return False

    async def _observed(
        self, message: Message, context: str | None, call: Awaitable[object]
    ) -> object:
        observer = self.cell.observer
        if observer is None:
            return await call
        with observer.handling(message, context):
            return await call

    def _bare(self, message: Message) -> Awaitable[object]:
        return self._handlers[type(message)](message)

    def _stream(self, ask: StreamAsk) -> Awaitable[object]:
        method: _StreamCall = getattr(self.actor, self.cell.handlers[type(ask.message)].method)
        return method(ask.message, ask.replies)

    # ------------------------------------------------------------------ concurrent handlers

    def _attend_to_stashes(self) -> None:
        stashes = self.cell.mailbox.stashes
        if not stashes:
            return
        if self._context is None:
            self._context = copy_context()
        if self.finishing or self.cell.paused:
            return
        self.cell.mailbox.attend = self._attend
        for kind, stash in stashes.items():
            for _ in stash.copy():
                self._attend(kind)

    def _attend(self, kind: type[Message]) -> None:
        """Something was put aside for ``kind``: let a worker take it, if the limit allows."""
        handler = self.cell.handlers[kind]
        busy = self._concurrent.get(kind, 0)
        if busy >= handler.concurrent or self.nursery is None or self._context is None:
            return
        self._concurrent[kind] = busy + 1
        resting = self._resting.get(kind)
        if resting:
            reschedule(resting.pop())
            return
        nursery, name = self.nursery, f"{self.cell.path} {handler.method}"
        # This runs in the sender's task: without a context of its own, the handler would see the
        # sender's context variables.
        self._context.run(lambda: nursery.start_soon(self._run_concurrent, kind, name=name))

    async def _run_concurrent(self, kind: type[Message]) -> None:
        """A worker: a task that handles one message of ``kind`` after the other, and rests."""
        try:
            needed = True
            while needed:
                # As the turn's: one scope for all messages, until one of them is cancelled in it.
                with trio.CancelScope() as scope:
                    needed = await self._work(kind, scope)
        except Exception as error:
            self.crash(unwrapped(error))
        finally:
            self._is_free(kind)

    async def _work(self, kind: type[Message], scope: trio.CancelScope) -> bool:
        """Handle messages until ``scope`` is used up, or the worker is not needed: False."""
        mailbox = self.cell.mailbox
        while not (self.finishing or self.cell.paused):
            # An ask stays in the stash, and can be withdrawn, until this very step.
            item = mailbox.unstash(kind)
            if item is None:
                if len(self._resting.setdefault(kind, [])) == RESTING:
                    return False
                await self._rest(kind)
                continue
            mailbox.running_aside += 1
            try:
                await self._handle_concurrent(item, scope)
            finally:
                mailbox.running_aside -= 1
            if isinstance(item, Ask) and item.cancelled_at is not None:
                return True
        return False

    async def _rest(self, kind: type[Message]) -> None:
        """Wait for ``_attend``: waking a task is much cheaper than to start and end one."""
        task = trio.lowlevel.current_task()
        resting = self._resting[kind]

        def abort(_: RaiseCancelT) -> Abort:
            resting.remove(task)
            self._concurrent[kind] = self._concurrent.get(kind, 0) + 1  # until it has ended
            return Abort.SUCCEEDED

        resting.append(task)
        self._is_free(kind)
        await wait_task_rescheduled(abort)

    def _is_free(self, kind: type[Message]) -> None:
        """A worker has nothing to do any more."""
        self._concurrent[kind] -= 1
        if not self._concurrent[kind]:
            del self._concurrent[kind]
        if self.finishing:
            self.cell.mailbox.wake()

    async def _handle_concurrent(self, item: Item, scope: trio.CancelScope) -> None:
        if isinstance(item, Ask):
            current_work.set(item.target)
            await self._answer(item, scope)
            return
        current_work.set(Work(self.cell.path))
        told = item if isinstance(item, Told) else Told(item)
        try:
            await self._observed(told.message, told.context, self._bare(told.message))
        except BaseException as error:
            self.cell.mailbox.lose(told, error)
            raise
        self.cell.mailbox.handled += 1


_Call = Callable[[Any], Awaitable[object]]
_StreamCall = Callable[[Any, Replies[object]], Awaitable[object]]


def _bound(actor: Actor[Any], handler: Handler) -> _Call:
    if not handler.streams:
        call: _Call = getattr(actor, handler.method)
        return call
    stream_call: _StreamCall = getattr(actor, handler.method)
    return lambda message: stream_call(message, _DISCARD)
