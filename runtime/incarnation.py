"""One incarnation of an actor: start, turns, end. A restart makes a new one; the mailbox stays.

Invariants: ``on_start`` and all turns after it are in one scope, which is replaced only after it
was used; at most one handler is in the turn (G5); the tasks beside the turn (``workers.py``) have
ended when :meth:`Incarnation.run` returns.

An asker that is cancelled cancels the scope; the handler ends, the scope is left, and the next
message gets a new one. So an ask costs no scope of its own, and neither does a tell. It cannot hit
the wrong handler: only the ask whose handler runs may cancel the scope. A stop or a crash cancels
the same scope, and then no further message is handled.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVarTuple

import trio
from trio.lowlevel import wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime.behaviour import Behaviour
from motet.runtime.envelope import Answer, Ask, Deferred, ItemsAsk, Result, Told
from motet.runtime.errors import MotetRuntimeError, StartTimeout, unwrapped
from motet.runtime.handlers import Call
from motet.runtime.kernel import Owner
from motet.runtime.links import break_links
from motet.runtime.observe import Observer
from motet.runtime.outside import foreign_code
from motet.runtime.reply import DEFERRED, ReplyTo
from motet.runtime.schedule import ActorTimers
from motet.runtime.scopes import cancel_at
from motet.runtime.stopping import DEFAULT_GRACE
from motet.runtime.workers import Workers, skip

__all__ = ["Incarnation"]

Ts = TypeVarTuple("Ts")

BATCH = 64  # messages between two checkpoints, so that a full mailbox cannot starve other tasks


class Incarnation:
    """One life of an actor. ``owner`` survives it; ``actor`` is the user's object."""

    __slots__ = (
        "_bare",
        "_calls",
        "_observer",
        "actor",
        "began",
        "failure",
        "finishing",
        "is_over",
        "owner",
        "ready",
        "scope",
        "timers",
        "workers",
    )

    def __init__(self, owner: Owner, actor: Behaviour[Any], observer: Observer | None) -> None:
        self.owner = owner
        self.actor = actor
        self.began = trio.current_time()
        self.ready = False  # on_start has returned
        self.finishing = False  # no further message is to be handled
        self.is_over = False  # all its tasks have ended
        self.failure: Exception | None = None
        self.scope: trio.CancelScope | None = None  # of on_start and the turns; None after them
        self.workers: Workers | None = None  # made for the first task beside the turn
        self.timers: ActorTimers[Any] | None = None
        self._calls = actor.__motet_calls__
        self._bare: Mapping[type, Call] = {}  # the handlers that `_drain` may call directly
        owner.halted = True
        owner.ending = False
        self.observe_with(observer)

    # ------------------------------------------------------------------ orders

    def finish(self) -> None:
        """Handle no further message; the running handlers may end."""
        self.finishing = self.owner.ending = True
        self.owner.mailbox.places = None
        if self.timers is not None:
            self.timers.close()
        if self.workers is not None:
            self.workers.dismiss_idle()
        self.owner.interrupt()
        mailbox, queue = self.owner.mailbox, self.owner.mailbox.queue
        if len(queue) > queue.gaps or mailbox.stashed or mailbox.waiting:
            mailbox.refuse_all_endless()  # nothing of it is handled before all handlers have ended

    @property
    def observed(self) -> bool:
        """Whether handlers are measured or traced."""
        return self._observer is not None

    def observe_with(self, observer: Observer | None) -> None:
        """Use ``observer`` from the next message on; None: the actor is not observed."""
        self._observer = observer
        bare = self._calls.bare
        self._bare = bare if observer is None else observer.bare_calls(bare)

    def pause(self) -> None:
        """Begin no handler until :meth:`resume`; the running ones go on."""
        self.owner.mailbox.places = None
        self.owner.interrupt()

    def resume(self) -> None:
        """Handle mail again."""
        if self.workers is not None:
            self.workers.begin_concurrent()
        self.owner.mailbox.wake()

    def cancel_at(self, when: float) -> None:
        """Cancel every task of the actor at ``when``, or earlier if that was ordered before."""
        if self.workers is not None:
            self.workers.cancel_at(when)
        # A turn that waits for mail is not cancelled: it ends by itself when `finish` wakes it,
        # and no Cancelled is raised and caught for it. Most actors are idle when they are stopped.
        if self.scope is not None and self.owner.mailbox.receiver is None:
            cancel_at(self.scope, when)

    def crash(self, error: Exception) -> None:
        """End at once; the first error counts."""
        self._failed(error)
        self._end_at_once()

    def fail(self, error: Exception) -> None:
        """A handler has failed: end when those beside it have, or after the grace of a stop.

        Their messages are not to blame, and begun work is neither undone nor begun again (G4).
        """
        self._failed(error)
        grace = self.actor.stop_grace
        until = trio.current_time() + (DEFAULT_GRACE if grace is None else grace)
        self.owner.cancel_at = min(self.owner.cancel_at, until)
        self.cancel_at(self.owner.cancel_at)
        self.finish()

    def _failed(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            if self.owner.links is not None:
                break_links(self.owner, error)

    def child_ended(self, name: str, error: Exception | None) -> None:
        """Tell the actor. A failure of its ``on_child_end`` is its own crash, not the child's."""
        if self.finishing:
            return
        try:
            with foreign_code:
                self.actor.on_child_end(name, error)
        except Exception as failure:
            self.crash(unwrapped(failure))

    def _end_at_once(self) -> None:
        # In this order: `finish` wakes a turn that waits for mail, which would then look busy.
        self.cancel_at(-math.inf)
        self.finish()

    def start_soon(
        self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None
    ) -> None:
        """Run a background task of the actor; its crash is the actor's."""
        self.owner.kernel.loop.check(self.owner.path)
        if self.is_over:
            raise MotetRuntimeError(f"{self.owner.path} is ending, so it starts no tasks")
        label = name or getattr(fn, "__qualname__", None) or repr(fn)
        self._with_workers().start_soon(fn, args, f"{self.owner.path} {label}")

    def _with_workers(self) -> Workers:
        if self.workers is None:
            self.workers = self.owner.beside = Workers(self)
        return self.workers

    # ------------------------------------------------------------------ the actor's task

    async def run(self) -> None:
        """From ``on_start`` to the end of the last task.

        Raises nothing but what is nobody's failure; see ``foreign.py``.
        """
        try:
            # Each round is the life of one scope. An ask that is cancelled uses it up: `_drain`
            # returns, or raises the Cancelled that this scope caused and catches. Then the next
            # round has a new one.
            while not self.finishing:
                with trio.CancelScope(deadline=self.owner.cancel_at) as self.scope, foreign_code:
                    if not self.ready:
                        await self._start()
                    await self._drain(self.scope)
        except Exception as error:
            end = self.fail if self.ready else self.crash
            end(unwrapped(error))
        except BaseException:
            self._end_at_once()
            raise
        finally:
            self.scope = None
            # The order of a stop has done it, unless its last handler has begun more.
            beside = self.workers is not None or self.timers is not None
            if beside or not (self.finishing and self.owner.is_final):
                self.finish()
            if self.workers is not None:
                await self.workers.end()
                # They refer to this object: without this, each end would leave a reference cycle
                # to the garbage collector.
                self.workers = self.owner.beside = None
            self.is_over = True

    async def _start(self) -> None:
        seconds = self.actor.start_timeout
        if seconds == math.inf:
            await self.actor.on_start()
        else:
            with trio.move_on_after(seconds) as limit:
                await self.actor.on_start()
            if limit.cancelled_caught:
                raise StartTimeout(self.owner.path, seconds)
        self.ready = True
        self.owner.became_ready()
        if self.owner.mailbox.concurrent:
            self._with_workers().begin_concurrent()

    async def _drain(self, turn: trio.CancelScope) -> None:
        """Handle mail until the end, or until ``turn`` is used up."""
        owner = self.owner
        mailbox = owner.mailbox
        queue = mailbox.queue
        actor = self.actor
        task = trio.lowlevel.current_task()
        unpark = mailbox.unpark
        kernel = owner.kernel
        left = BATCH
        while True:
            # One flag for all orders, since it is read for each message.
            if owner.halted:
                if self.finishing:
                    return
                owner.halted = await self._obey()
                queue = mailbox.queue
                continue
            if not queue:
                if mailbox.waiting:  # for the place of one that was not postponed after all
                    mailbox.admit()
                    queue = mailbox.queue
                    if queue:
                        continue
                if owner.rested is not None:
                    owner.rest()
                # As `park` does; a call is a fiftieth of the way from a tell to its handler.
                mailbox.receiver = task
                kernel.woken = 0
                await wait_task_rescheduled(unpark)
                queue = mailbox.queue  # made by the first item
                left = BATCH
                continue
            item = queue.popleft()
            mailbox.taken += 1
            if mailbox.waiting and not queue.is_gap(item) and not self._keeps_place(item):
                mailbox.admit()
            # Most messages are told, bare and not observed: then there is one look into a table and
            # one call between the queue and the handler.
            call = self._bare.get(type(item))
            if call is not None:
                try:
                    await call(actor, item)
                except BaseException as error:
                    mailbox.cancel_reservation()
                    mailbox.lose(item, error)
                    raise
                if mailbox.reserved:
                    mailbox.put_aside(item)
                else:
                    mailbox.handled += 1
            elif isinstance(item, Ask):
                if item.queue is None:
                    mailbox.skip()
                    continue
                await self.answer(item, turn)
                if item.cancelled_at is not None:
                    return
            else:
                await self._handle(item)
            left -= 1
            if not left:
                await trio.lowlevel.checkpoint()
                left = BATCH

    def _keeps_place(self, item: Message | Told | Ask) -> bool:
        """Whether a taken item will be postponed: a waiting sender must not get its place."""
        postpones = self.actor.__motet_postpones__
        kind = type(item) if isinstance(item, Message) else type(item.message)
        return kind in postpones

    async def _obey(self) -> bool:
        """Obey one order that goes before all mail; False if there is none (G6)."""
        mailbox = self.owner.mailbox
        if self.owner.paused:
            await mailbox.park(trio.lowlevel.current_task())
            return True
        if mailbox.retrying is None and not self.owner.control:
            return False
        await self._handle(self._take_first())
        return True

    def _take_first(self) -> Message | Told:
        """The message to retry, or else the oldest control message."""
        mailbox = self.owner.mailbox
        if mailbox.retrying is not None:
            item, mailbox.retrying = mailbox.retrying, None
            return item
        # A control message is counted only from here on, since it takes no room in a mailbox.
        mailbox.accepted += 1
        mailbox.taken += 1
        assert self.owner.control, "there is one, or a message to retry"
        return self.owner.control.pop(0)

    async def _handle(self, item: Message | Told) -> None:
        """The longer way of a told message: observed, traced, with retries, or control."""
        mailbox = self.owner.mailbox
        told = item if isinstance(item, Told) else Told(item)
        if told.is_cancelled:
            skip(mailbox, told)
            return
        try:
            await self.call(told)
        except BaseException as error:
            mailbox.cancel_reservation()
            told.attempts += 1
            handler = self.owner.handlers[type(told.message)]
            if told.attempts <= handler.retries and mailbox.closed is None:
                mailbox.retry(told)
            else:
                mailbox.lose(told, error)
            raise
        if mailbox.reserved:
            mailbox.put_aside(told)
        else:
            mailbox.handled += 1
            told.ended()

    # ------------------------------------------------------------------ handlers

    async def answer(self, ask: Ask, scope: trio.CancelScope) -> None:
        """Run the handler of ``ask`` in ``scope``, and settle the ask by its end.

        In the turn or in a worker. Raises nothing but what is nobody's failure; see ``foreign.py``.
        """
        mailbox = self.owner.mailbox
        ask.queue = None  # from here on it can't be withdrawn
        if ask.until < math.inf and ask.expired():
            mailbox.taken -= 1
            mailbox.withdrawn += 1
            return
        ask.scope = scope
        ask.target.serves = ask
        result: Result | None = None
        try:
            message = ask.message
            if type(ask) is Ask:  # as `call_of` does: a call is a hundredth of an ask
                call = self._calls.all[type(message)](self.actor, message)
            else:
                call = self.call_of(ask)
            if self._observer is not None:
                call = self._observed(message, ask.context, call)
            value = await call
            result = Answer(value)
            if type(value) is ReplyTo:  # the handler has ended, and the ask stays open
                result = self._defer(ask, value)  # pyright: ignore[reportUnknownArgumentType]
        except BaseException as error:
            if ask.fail_with(error):
                raise
        finally:
            # In a `finally`, so that no way out of a handler leaves the asker waiting (G3).
            ask.target.serves = None
            if result is None:
                result, ask.result = ask.result, None
            if mailbox.reserved and self._is_put_aside(ask, result):
                mailbox.put_aside(ask)
            else:
                if result is not DEFERRED:
                    ask.settle(result)
                mailbox.handled += 1

    def _defer(self, ask: Ask, token: ReplyTo[Any]) -> Result | None:
        owner = self.owner
        if owner.deferred is None:
            owner.deferred = Deferred(owner.rest)
        return token.returned(ask, owner.deferred)

    def call_of(self, ask: Ask) -> Awaitable[object]:
        """Call the handler of a request."""
        message = ask.message
        kind = type(message)
        if kind in self._calls.streams and isinstance(ask, ItemsAsk):
            return self._calls.streams[kind](self.actor, message, ask.replies)
        return self._calls.all[kind](self.actor, message)

    def _is_put_aside(self, ask: Ask, result: Result | None) -> bool:
        """Whether the handler of ``ask`` has stashed it: reserved a place, and returned."""
        # A concurrent handler that ends while the turn's has reserved is not the one that reserved.
        if ask.target is not self.owner.turn:
            return False
        if isinstance(result, Answer) and ask.cancelled_at is None:
            return True
        self.owner.mailbox.cancel_reservation()
        return False

    def call(self, told: Told) -> Awaitable[object]:
        """Call the handler of a told message, observed if the actor is."""
        call = self._calls.all[type(told.message)](self.actor, told.message)
        if self._observer is None:
            return call
        return self._observed(told.message, told.context, call)

    async def _observed(
        self, message: Message, context: str | None, call: Awaitable[object]
    ) -> object:
        observer = self._observer
        if observer is None:
            return await call
        with observer.handling(message, context):
            return await call
