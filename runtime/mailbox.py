"""The queue in front of an actor: bounded, counted, and never lost by a restart (G4, G13).

One thread and no await between a check and its act, so there are no locks, and accepting a message
and closing the mailbox exclude each other by construction. The invariants:

* ``len(queue)`` plus the stashed messages never exceed the capacity; a handler that stashes its
  message reserves the place before it ends;
* accepted = handled + withdrawn + dead-lettered + stashed + queued + running;
* a sender waits only while the mailbox is full, and senders are served in order.

Three places hold accepted messages: ``queue`` is for the turn, ``concurrent`` has a queue for each
message type with concurrent handlers, and ``stash`` has the messages that a handler stashed. The
last two count as stashed.

A ``trio.open_memory_channel`` will not do: it can neither withdraw an item nor drop its oldest,
and is slower than :meth:`Mailbox.put`. The queues and the senders are in ``queues.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Collection, Container, Sequence
from typing import Final

import trio
from trio.lowlevel import Abort, RaiseCancelT, wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime.envelope import WOKEN, Ask, Raised, Told, reschedule
from motet.runtime.errors import ActorDead, ActorPaused, AskCycle, MailboxFull, TellCycle, WaitCycle
from motet.runtime.feed import DeadLetter, DeadLetters
from motet.runtime.foreign import divided, shown
from motet.runtime.here import Places
from motet.runtime.loops import NO_THREAD, ThreadMark
from motet.runtime.order import DIRECT_UP_TO, MailboxSpec, Order
from motet.runtime.outside import is_cancelled
from motet.runtime.queues import NOBODY, NOTHING, Holder, Item, Queue, Senders, WaitingTell
from motet.runtime.waits import Groups, cycle_of

__all__ = ["Item", "Mailbox"]

_NONE: Final[dict[type, Queue]] = {}  # of actors without concurrent handlers


class Counters:
    """The counters of a mailbox over all incarnations (G4).

    A base class instead of an object of its own, since every tell counts three times.
    """

    __slots__ = (
        "accepted",
        "dead_lettered",
        "handled",
        "lost",
        "running_concurrently",
        "taken",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.accepted: int = 0
        self.taken: int = 0  # removed from a queue to be handled
        self.running_concurrently: int = 0  # of the running ones, those in concurrent handlers
        self.handled: int = 0
        self.lost: int = 0  # taken, but their handler did not finish
        self.withdrawn: int = 0
        self.dead_lettered: int = 0

    @property
    def running(self) -> int:
        """Items between the first and the last step of their handling, retries included."""
        return self.taken - self.handled - self.lost


class Mailbox(Counters):
    """The queue of one actor; see the module. Only the actor's tasks take, any task may put."""

    __slots__ = (
        "concurrent",
        "dead_letters",
        "direct",
        "direct_in",
        "failing",
        "holder",
        "limit",
        "order",
        "path",
        "places",
        "queue",
        "receiver",
        "refusing",
        "reserved",
        "retrying",
        "shut",
        "spec",
        "stash",
        "stashed",
        "waiting",
    )

    def __init__(
        self,
        path: str,
        spec: MailboxSpec,
        dead_letters: DeadLetters,
        concurrent: Collection[type] = (),
        order: Order | None = None,
        direct: Container[type] = (),
        direct_in: ThreadMark = NO_THREAD,
    ) -> None:
        super().__init__()
        self.path = path
        self.spec = spec
        self.dead_letters = dead_letters
        self.holder: Holder | None = None  # until it is closed, so that no reference cycle is left
        self.queue = NOTHING  # see `_first`
        self.waiting: Senders = NOBODY
        # One queue for each type with concurrent handlers, and the workers, while they may begin.
        self.concurrent = dict.fromkeys(concurrent, NOTHING) if concurrent else _NONE
        self.order = order
        # A tell may append these types itself, in one thread: unwrapped, in no queue of their own.
        one_queue = not self.concurrent and order is None
        self.direct = direct
        self.direct_in = direct_in if one_queue and spec.capacity <= DIRECT_UP_TO else NO_THREAD
        self.places: Places | None = None
        self.stash = NOTHING  # stashed by handlers of the turn, in order
        self.stashed = 0  # items in `stash` and in `concurrent`
        self.reserved = 0  # 1 while the turn's handler is about to stash its message
        self.retrying: Told | None = None  # is handled next; counts as running
        self.failing: tuple[Exception, Item] | None = None  # the first that failed, with its error
        self.refusing = False  # new asks, while the actor is suspended
        self.receiver: trio.lowlevel.Task | None = None  # the actor's, while it waits for mail
        self.shut: str | None = None  # why nothing new is accepted: it is closed, or is drained
        # Below this length, gaps included, the queue accepts at once. One comparison covers full,
        # closed, refusing, "senders wait already" and "no item has come yet", which keeps the path
        # of a tell short.
        self.limit = 0
        if self.concurrent:  # an ask here looks at it before anything is put
            self._first(None)

    @property
    def closed(self) -> str | None:
        """The reason, if it was closed: then it holds nothing, and nobody holds it."""
        return self.shut if self.holder is None else None

    # ------------------------------------------------------------------ sending

    @property
    def is_full(self) -> bool:
        """Whether it accepts nothing now; False for a closed one that never had an item."""
        return len(self.queue) >= self.limit and (self.queue is not NOTHING or self.refusing)

    def put(self, item: Item) -> bool:
        """Accept ``item`` if there is room now; False if not."""
        if len(self.queue) >= self.limit and not self._first(item):
            return False
        self.accepted += 1
        if self.concurrent or self.order is not None:
            self._enqueue(item)
            return True
        self.queue.append(item)
        # As `wake` does; a call would be a tenth of a tell.
        task, self.receiver = self.receiver, None
        if task is not None:
            reschedule(task, WOKEN)
        return True

    def put_or_overflow(self, message: Message | Told) -> None:
        """Accept a told message or apply the overflow policy; never waits.

        Raises ActorDead after closing, MailboxFull for the policies ``wait`` and ``fail``.
        """
        if self.put(message) or self._put_while_refusing(message):
            return
        self._refuse_if_closed()
        if self.spec.overflow in ("wait", "fail"):
            raise MailboxFull(self.path, self.spec.capacity)
        if self.spec.overflow == "drop_oldest" and self._drop_oldest():
            # There is a place now, and no sender waits under this policy.
            accepted = self.put(message) or self._put_while_refusing(message)
            assert accepted, f"{self.path} has dropped a message, and has no room"
            return
        self.accepted += 1
        self._drop(message, "dropped: the mailbox was full (drop_newest)")

    async def put_when_room(self, message: Message | Told) -> None:
        """As ``put_or_overflow``, but the policy ``wait`` waits. Cancelled: nothing was sent.

        Raises TellCycle if there would never be room (G11).
        """
        if self.spec.overflow != "wait" or self.shut is not None:
            # A mailbox that drops makes no sender wait: nothing else would let other tasks run.
            await trio.lowlevel.checkpoint()
            self.put_or_overflow(message)
            return
        if self._put_while_refusing(message):
            return
        waiting = WaitingTell(message, self.path, self.holder)
        work = waiting.work
        waiting.task.custom_sleep_data = waiting  # for dumps: Trio resets it at the wake-up
        waiting.refuse_endless()
        if work is not None:
            work.waits.append(waiting)
        self._add_waiting(waiting)

        def abort(_: RaiseCancelT) -> Abort:
            del self.waiting[waiting]
            self._set_limit()
            return Abort.SUCCEEDED

        try:
            await wait_task_rescheduled(abort)
        except RuntimeError:
            # See `Ask.drop`.
            if waiting in self.waiting:
                del self.waiting[waiting]
                self._set_limit()
            raise
        finally:
            if work is not None:
                work.waits.remove(waiting)

    def put_or_line_up(self, waiting: WaitingTell) -> bool:
        """As ``put_when_room`` for a sender that is no task: False if it waits in line now.

        Then ``admitted`` or ``refused`` of it is called. Nobody can catch an error: what the
        mailbox refuses becomes a dead letter.
        """
        message = waiting.message
        if self.spec.overflow != "wait" or self.shut is not None:
            try:
                self.put_or_overflow(message)
            except ActorDead as error:
                self.discard(message, error.reason)
            except MailboxFull:
                self.discard(message, "from another thread: the mailbox was full")
            return True
        if self.put(message) or self._put_while_refusing(message):
            return True
        self._add_waiting(waiting)
        return False

    def discard(self, message: Message | Told, reason: str) -> None:
        """Accept a message for which there is no place, as a dead letter."""
        self.accepted += 1
        self.bury(message, reason)

    def put_ask_or_overflow(self, ask: Ask) -> None:
        """Apply the overflow policy to an ask for which ``put`` found no room.

        Raises ActorDead, ActorPaused, or MailboxFull.
        """
        ask.queue = None
        self._refuse_if_closed()
        if self.refusing:
            raise ActorPaused(self.path)
        if self.spec.overflow == "wait":
            self._add_waiting(ask)
            ask.queue = self.waiting
        elif self.spec.overflow == "drop_oldest" and self._drop_oldest():
            ask.queue = self.queue
            accepted = self.put(ask)
            assert accepted, f"{self.path} has dropped a message, and has no room"
        else:
            raise MailboxFull(self.path, self.spec.capacity)

    def withdraw(self, ask: Ask) -> None:
        """Take back an ask whose handler has not begun; it never will."""
        queue = ask.queue
        assert isinstance(queue, Queue | OrderedDict)
        if not isinstance(queue, Queue):
            # It was never accepted, so no counter has it.
            ask.queue = None
            del queue[ask]
            self._set_limit()
            return
        queue.withdraw(ask)
        self.withdrawn += 1
        if queue is not self.queue:
            self.stashed -= 1
        self.admit()

    # ------------------------------------------------------------------ receiving

    def park(self, task: trio.lowlevel.Task) -> Awaitable[None]:
        """Wait until something is put or ``wake`` is called. ``task``: the actor's, and current."""
        self.receiver = task
        return wait_task_rescheduled(self.unpark)

    def unpark(self, _: RaiseCancelT) -> Abort:
        """The actor is cancelled while it waits for mail."""
        self.receiver = None
        return Abort.SUCCEEDED

    def wake(self) -> None:
        """Resume the actor, if it waits, to look at its mail and its orders."""
        task, self.receiver = self.receiver, None
        if task is not None:
            reschedule(task, WOKEN)

    def admit(self) -> None:
        """Let waiting senders in, as far as there is room; recompute the limit."""
        admitted: list[Ask] = []
        while self.waiting and len(self.queue) < self._room():
            sender, _ = self.waiting.popitem(last=False)
            self.accepted += 1
            if isinstance(sender, Ask):
                sender.queue = self.queue
                self._enqueue(sender)
                admitted.append(sender)
            else:
                self._enqueue(sender.message)
                sender.admitted()
        self._set_limit()
        # Each waits for its own handler only now, where any one of several might have made room.
        for ask in admitted:
            self._refuse_endless(ask)
        # And those that still wait may have lost one that would have: a handler whose messages have
        # all left the queue. As long as one of the others waits for nothing, they need no look.
        if self.waiting and self.concurrent and self.holder is not None:
            groups = self.holder.before_room()
            if any(all(work.waits for work in group) for group in groups):
                self._refuse_each([*self.waiting])

    def skip(self) -> None:
        """A gap was taken from the queue as if it were an item."""
        self.queue.gaps -= 1
        self.taken -= 1
        if self.limit:
            self.limit -= 1  # as the length of the queue did

    def take(self, kind: type) -> Item | None:
        """The next item for a concurrent handler of ``kind``, taken; None if there is none."""
        queue = self.concurrent[kind]
        item = queue.take() if queue.gaps else queue.popleft() if queue else None
        if item is None:
            return None
        self.stashed -= 1
        self.taken += 1
        if self.limit:
            self.limit += 1  # no sender waits, and there is one place more
        else:
            self.admit()
        return item

    def lose(self, item: Item, error: BaseException) -> None:
        """Make a dead letter of a taken, told message whose handler did not finish."""
        self.lost += 1
        reason = "its handler was cancelled when the actor ended"
        failure, _ = divided(error, cancelled=is_cancelled())
        if failure is not None:
            self.failing = self.failing or (failure, item)
            times = item.attempts if isinstance(item, Told) else 1
            reason = f"its handler failed{f' {times} times' if times > 1 else ''}: {shown(failure)}"
        self.bury(item, reason)

    def retry(self, item: Told) -> None:
        """Have the next incarnation handle this first. Until then it counts as running."""
        assert self.retrying is None, "only the turn retries, and it has one message at a time"
        self.retrying = item

    # ------------------------------------------------------------------ stashing

    def reserve_place(self, *, postponed: bool = False) -> None:
        """Reserve room to stash the message being handled in the turn.

        Not when the handler returns: the queue might be full, and the message has been handled.
        ``postponed``: nobody could catch an error; without room, it ends as ``put_aside`` says.
        """
        if self.reserved:
            return
        if not postponed and self._cannot_stash():
            raise MailboxFull(self.path, self.spec.capacity)
        self.reserved = 1
        self._set_limit()

    def _cannot_stash(self) -> bool:
        # The last place is left for the message that ends the waiting.
        return self.stash.items + 1 >= self.spec.capacity or len(self.queue) >= self._room()

    def cancel_reservation(self) -> None:
        """The handler did not return, so its message is not stashed after all."""
        if self.reserved:
            self.reserved = 0
            self.admit()

    def put_aside(self, item: Item) -> None:
        """Stash the message that a place was reserved for. An ask may be withdrawn again."""
        self.reserved = 0
        # A stop closed the mailbox while the handler ran, when it was in no queue to be settled.
        if self.closed is not None:
            self.lost += 1
            self._refuse(item, ActorDead(self.path, self.closed))
            self.bury(item, self.closed)
            return
        if self._cannot_stash():  # it was postponed
            oldest = self.stash.take() if self.spec.overflow == "drop_oldest" else None
            self._drop(item if oldest is None else oldest, "no place was left to postpone it")
            if oldest is None:
                self.lost += 1
                self.admit()
                return
            self.stashed -= 1
        self.taken -= 1
        self.stashed += 1
        if self.stash is NOTHING:
            self.stash = Queue()
        self.stash.append(item)
        if isinstance(item, Ask):
            item.queue, item.scope = self.stash, None
        self._set_limit()

    def unstash(self, count: int | None = None) -> None:
        """Move the first stashed messages, or all, before the queued ones, in their order."""
        self._first(None)  # a control message may be stashed before any mail comes
        items: list[Item] = []
        while len(items) != count and (item := self.stash.take()) is not None:
            items.append(item)
            if isinstance(item, Ask):
                item.queue = self.queue
        self.stashed -= len(items)
        self.queue.extendleft(reversed(items))
        if self.order is not None:
            self.order.unstashed(self.queue, items)
        self._set_limit()
        self.wake()

    # ------------------------------------------------------------------ closing

    def accept_no_more(self, reason: str) -> None:
        """Refuse what is sent from now on, and the senders that wait; keep what was accepted."""
        self.shut = reason
        waiting, self.waiting = self.waiting, NOBODY
        self.limit = 0
        for sender in waiting:
            error = ActorDead(self.path, reason)
            if isinstance(sender, Ask):
                sender.queue = None
                sender.settle(Raised(error))
            else:
                sender.refused(error)

    def close(self, reason: str) -> None:
        """Accept nothing more, and settle all that waits in the same synchronous step (G3)."""
        if self.holder is None:
            return
        # Closed first: an outcome may have effects in this step, which find a closed mailbox.
        self.holder = None
        self.accept_no_more(reason)
        items: list[Item] = []
        for queue in (self.stash, self.queue, *self.concurrent.values()):
            if queue:
                items += queue.present()
                queue.clear()
        for item in items:
            self._refuse(item, ActorDead(self.path, reason))
            self.bury(item, reason)
        self.stashed = 0
        if self.retrying is not None:
            self.lost += 1
            self.bury(self.retrying, f"it was to be handled again, but {reason}")
            self.retrying = None

    # ------------------------------------------------------------------ the wait-for graph

    def groups_of(self, ask: Ask) -> Groups:
        """What has to end before an ask in one of the queues is handled."""
        if self.holder is None:
            return ()
        groups = self.holder.before_begin(type(ask.message))
        return [*groups, *self.holder.before_room()] if ask.queue is self.waiting else groups

    def refuse_all_endless(self) -> None:
        """Refuse the senders and askers that wait for themselves, since less can end now (G11)."""
        senders = [*self.waiting]
        for queue in (self.queue, self.stash, *self.concurrent.values()):
            senders += [item for item in queue.present() if isinstance(item, Ask)]
        self._refuse_each(senders)

    def _refuse_each(self, senders: Sequence[WaitingTell | Ask]) -> None:
        for sender in senders:
            if isinstance(sender, Ask):
                self._refuse_endless(sender)
            elif sender.work is not None and sender in self.waiting:
                chain = cycle_of(sender.work)
                if chain is not None:
                    del self.waiting[sender]
                    self._set_limit()
                    sender.refused(self._refusal(TellCycle(chain)))

    def _refuse_endless(self, ask: Ask) -> None:
        work = ask.asked_from
        if work is None or ask.queue is None:  # it was settled by the refusal of another
            return
        chain = cycle_of(work)
        if chain is not None:
            self.withdraw(ask)
            ask.settle(Raised(self._refusal(AskCycle(chain))))

    def _refusal(self, cycle: WaitCycle) -> Exception:
        return cycle if self.holder is None else self.holder.refusal(cycle)

    # ------------------------------------------------------------------ within

    def _first(self, item: Item | None) -> bool:
        """Make the queue, for the first item of all; whether there is room for ``item`` now."""
        if self.queue is not NOTHING or self.shut is not None:
            return False
        self.queue = Queue()
        self._set_limit()
        if isinstance(item, Ask):
            item.queue = self.queue
        return self.limit > 0

    def _enqueue(self, item: Item) -> None:
        """Put an accepted item where its handler looks for it."""
        kind = type(item) if isinstance(item, Message) else type(item.message)
        queue = self.concurrent.get(kind)
        if queue is None:
            if self.queue is NOTHING:
                self._first(item)
            queue = self.queue
        elif queue is NOTHING:
            queue = self.concurrent[kind] = Queue()
        if isinstance(item, Ask):
            item.queue = queue
        if self.order is None:
            queue.append(item)
        else:
            self.order.put(queue, kind, item)
        if queue is self.queue:
            self.wake()
            return
        self.stashed += 1
        if self.limit:
            self.limit -= 1  # one place fewer; at 0 no sender is admitted anyway
        if self.places is not None:
            self.places.notify(kind)

    def _put_while_refusing(self, message: Message | Told) -> bool:
        """Accept a told message while asks are refused: then `limit` is 0, though there is room."""
        if not self.refusing or self.shut or self.waiting or len(self.queue) >= self._room():
            return False
        self.accepted += 1
        self._enqueue(message)
        return True

    def refuse_requests(self, refusing: bool) -> None:
        """While ``refusing``, an ask raises ActorPaused."""
        self.refusing = refusing
        self._set_limit()

    def _refuse_if_closed(self) -> None:
        if self.shut is not None:
            raise ActorDead(self.path, self.shut)

    def _add_waiting(self, sender: WaitingTell | Ask) -> None:
        if self.waiting is NOBODY:
            self.waiting = Senders()
        self.waiting[sender] = None
        self.limit = 0

    def _set_limit(self) -> None:
        special = self.shut is not None or self.waiting or self.refusing or self.queue is NOTHING
        self.limit = 0 if special else self._room()

    def _room(self) -> int:
        """How long the queue may be, gaps included."""
        return self.spec.capacity + self.queue.gaps - self.stashed - self.reserved

    def _drop_oldest(self) -> bool:
        """Make room; False if all that is accepted is stashed."""
        own = self.queue
        queue, item = (own, own.take()) if self.order is None else self.order.take_oldest(own)
        if queue is not own:
            self.stashed -= 1
        self._set_limit()  # also if there were only gaps, which are closed now
        if item is None:
            return False
        self._drop(item, "dropped: the mailbox was full (drop_oldest)")
        return True

    def _drop(self, item: Item, reason: str) -> None:
        self._refuse(item, MailboxFull(self.path, self.spec.capacity))
        self.bury(item, reason)
        if isinstance(item, Told):
            item.ended()  # a timer goes on

    def _refuse(self, item: Item, error: Exception) -> None:
        if isinstance(item, Ask):
            item.queue = None
            item.settle(Raised(error))

    def bury(self, item: Item, reason: str) -> None:
        """Make a dead letter of an accepted item that is in no queue and not running."""
        message = item if isinstance(item, Message) else item.message
        self.dead_lettered += 1
        self.dead_letters.add(DeadLetter(self.path, message, reason))
