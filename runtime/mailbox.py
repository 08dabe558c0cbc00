"""The queue in front of an actor: bounded, counted, and never lost by a restart (G4, G13).

One thread and no await between a check and its act, so there are no locks, and accepting a message
and closing the mailbox exclude each other by construction. The invariants:

* ``len(queue)`` plus the stashed messages never exceed the capacity; a handler that puts its
  message aside reserves the place before it ends;
* accepted = handled + withdrawn + dead-lettered + stashed + queued + running;
* a sender waits only while the mailbox is full, and senders are served in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

import msgspec
import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, current_task, reschedule, wait_task_rescheduled

from motet.protocols.messages import Message
from motet.runtime.envelope import WOKEN, Ask, Told
from motet.runtime.errors import ActorDead, ActorPaused, MailboxFull
from motet.runtime.feed import DeadLetter, DeadLetters

__all__ = ["Item", "Mailbox", "MailboxSpec", "Overflow"]

Overflow = Literal["wait", "fail", "drop_oldest", "drop_newest"]

# A told message travels bare, unless something is to be known of it; an ask in its envelope.
Item = Message | Told | Ask


class MailboxSpec(msgspec.Struct, frozen=True):
    """How many messages may wait for an actor, and what a sender meets when it is full.

    ``wait``: the sender waits (``tell_nowait`` raises). ``fail``: :class:`MailboxFull`.
    ``drop_oldest``: the oldest queued message becomes a dead letter. ``drop_newest``: the new one
    does. The asker of a dropped request gets :class:`MailboxFull`.
    """

    capacity: int = 1024
    overflow: Overflow = "wait"

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"a mailbox needs a capacity of at least 1, not {self.capacity}")


class _WaitingTell:
    """A sender that waits for room, and what it wants to send."""

    __slots__ = ("message", "task")

    def __init__(self, message: Message | Told, task: trio.lowlevel.Task) -> None:
        self.message = message
        self.task = task


# An empty deque takes 760 bytes: mailboxes that no sender waits for share one.
_NOBODY: Final = deque[_WaitingTell | Ask](maxlen=0)


class Mailbox:
    """See the module. Only the actor's own task receives; anyone may put."""

    __slots__ = (
        "accepted",
        "again",
        "attend",
        "closed",
        "dead_lettered",
        "handled",
        "kept",
        "letters",
        "limit",
        "lost",
        "path",
        "queue",
        "receiver",
        "refusing",
        "reserved",
        "running_aside",
        "spec",
        "stashed",
        "stashes",
        "taken",
        "waiting",
        "withdrawn",
    )

    def __init__(
        self, path: str, spec: MailboxSpec, letters: DeadLetters, concurrent: Iterable[type] = ()
    ) -> None:
        self.path = path
        self.spec = spec
        self.letters = letters
        self.queue: deque[Item] = deque()
        self.waiting: deque[_WaitingTell | Ask] = _NOBODY
        # What concurrent handlers take, by message type; `attend` says that there is something.
        self.stashes: dict[type, deque[Item]] = {kind: deque() for kind in concurrent}
        self.attend: Callable[[type], None] | None = None
        self.kept: list[Item] = []  # put aside by handlers of the turn, in order
        self.reserved = 0  # 1 while the turn's handler is about to put its message aside
        self.again: Told | None = None  # to be handled again by the next incarnation; running
        self.refusing = False  # asks, while the actor is suspended
        self.receiver: trio.lowlevel.Task | None = None
        self.closed: str | None = None
        # Below this length the queue accepts at once. One comparison covers full, closed and
        # "others wait already", which keeps the sender's hot path short.
        self.limit = spec.capacity
        self.stashed = 0
        self.accepted = 0
        self.taken = 0  # removed from the queue to be handled
        self.running_aside = 0  # of those that are running, in concurrent handlers
        self.handled = 0
        self.lost = 0  # taken, but their handler did not finish
        self.withdrawn = 0
        self.dead_lettered = 0

    # ------------------------------------------------------------------ sending

    def put(self, item: Item) -> bool:
        """Accept ``item`` if there is room now; False if not."""
        if len(self.queue) >= self.limit:
            return False
        self.accepted += 1
        if self.stashes:
            self._enqueue(item)
            return True
        self.queue.append(item)
        # As `wake` does; a call would be a tenth of a tell.
        task = self.receiver
        if task is not None:
            self.receiver = None
            reschedule(task, WOKEN)
        return True

    def put_or_overflow(self, message: Message | Told) -> None:
        """Accept a told message or apply the overflow policy; never waits.

        Raises ActorDead after closing, MailboxFull for the policies ``wait`` and ``fail``.
        """
        if self.put(message) or self._put_in_suspension(message):
            return
        self._refuse_if_closed()
        if self.spec.overflow in ("wait", "fail"):
            raise MailboxFull(self.path, self.spec.capacity)
        if self.spec.overflow == "drop_oldest" and self.queue:
            self._drop(self.queue.popleft(), "dropped: the mailbox was full (drop_oldest)")
            # True now: there is a place, and nobody waits under this policy.
            _ = self.put(message) or self._put_in_suspension(message)
            return
        self.accepted += 1
        self._drop(message, "dropped: the mailbox was full (drop_newest)")

    async def put_when_room(self, message: Message | Told) -> None:
        """As ``put_or_overflow``, but the policy ``wait`` waits. Cancelled: nothing was sent."""
        if self.spec.overflow != "wait" or self.closed is not None:
            # A mailbox that drops makes no sender wait: nothing else would let other tasks run.
            await trio.lowlevel.checkpoint()
            self.put_or_overflow(message)
            return
        if self._put_in_suspension(message):
            return
        waiting = _WaitingTell(message, current_task())
        self._add_waiting(waiting)

        def abort(_: RaiseCancelT) -> Abort:
            self.waiting.remove(waiting)
            self._set_limit()
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    def discard(self, message: Message, reason: str) -> None:
        """Accept a message for which there is no place, as a dead letter."""
        self.accepted += 1
        self._dead(message, reason)

    def offer(self, ask: Ask) -> None:
        """Let an ask wait for which ``put`` found no room.

        Or raise ActorDead, ActorPaused, or MailboxFull.
        """
        self._refuse_if_closed()
        if self.refusing:
            raise ActorPaused(self.path)
        if self.spec.overflow == "wait":
            self._add_waiting(ask)
            ask.home = self.waiting
        elif self.spec.overflow == "drop_oldest" and self.queue:
            self._drop(self.queue.popleft(), "dropped: the mailbox was full (drop_oldest)")
            self.put(ask)
        else:
            raise MailboxFull(self.path, self.spec.capacity)

    def withdraw(self, ask: Ask) -> None:
        """Take back an ask whose handler has not begun; it never will."""
        home = ask.home
        assert home is not None
        # By identity: a message's own __eq__ must not decide which envelope goes.
        index = next(i for i, item in enumerate(home) if item is ask)
        del home[index]
        ask.home = None
        if home is self.waiting:
            self._set_limit()
            return
        self.withdrawn += 1
        if home is not self.queue:
            self.stashed -= 1
        self.admit()

    # ------------------------------------------------------------------ receiving

    def park(self, task: trio.lowlevel.Task) -> Awaitable[None]:
        """Wait until something is put or ``wake`` is called. ``task``: the actor's, and current."""
        self.receiver = task
        return wait_task_rescheduled(self._unpark)

    def _unpark(self, _: RaiseCancelT) -> Abort:
        self.receiver = None
        return Abort.SUCCEEDED

    def wake(self) -> None:
        """Let the actor look at its mail and its orders."""
        task = self.receiver
        if task is not None:
            self.receiver = None
            reschedule(task, WOKEN)

    def admit(self) -> None:
        """Let waiting senders in, as far as there is room; recompute the limit."""
        while self.waiting and len(self.queue) < self._room():
            sender = self.waiting.popleft()
            self.accepted += 1
            if isinstance(sender, Ask):
                sender.home = self.queue
                self._enqueue(sender)
            else:
                self._enqueue(sender.message)
                reschedule(sender.task, WOKEN)
        self._set_limit()

    def unstash(self, kind: type) -> Item | None:
        """The next item for a concurrent handler of ``kind``, taken; None if there is none."""
        stash = self.stashes[kind]
        if not stash:
            return None
        self.stashed -= 1
        self.taken += 1
        item = stash.popleft()
        if self.limit:
            self.limit += 1  # nobody waits, and there is one place more
        else:
            self.admit()
        return item

    def lose(self, item: Item, error: BaseException) -> None:
        """A taken, told message whose handler did not finish becomes a dead letter."""
        self.lost += 1
        reason = "its handler was cancelled when the actor ended"
        if isinstance(error, Exception):
            times = item.attempts if isinstance(item, Told) else 1
            reason = f"its handler failed{f' {times} times' if times > 1 else ''}: {error!r}"
        self._dead(item, reason)

    def retry(self, item: Told) -> None:
        """The next incarnation handles this first. It stays between its first and last step."""
        assert self.again is None, "only the turn retries, and it has one message at a time"
        self.again = item

    # ------------------------------------------------------------------ putting aside

    def reserve(self) -> None:
        """The message being handled in the turn is to be put aside when its handler returns."""
        if self.reserved:
            return
        # The last place is left to the message that ends the waiting: it has to come in.
        if len(self.kept) + 1 >= self.spec.capacity or len(self.queue) >= self._room():
            raise MailboxFull(self.path, self.spec.capacity)
        self.reserved = 1
        self._set_limit()

    def release(self) -> None:
        """Its handler did not return, so the message is not put aside after all."""
        if self.reserved:
            self.reserved = 0
            self.admit()

    def keep(self, item: Item) -> None:
        """Put aside what was reserved for; it may be withdrawn again."""
        self.reserved = 0
        if self.closed is not None:
            self.lost += 1
            self._refuse(item, ActorDead(self.path, self.closed))
            self._dead(item, self.closed)
            return
        self.taken -= 1
        self.stashed += 1
        self.kept.append(item)
        if isinstance(item, Ask):
            item.home, item.scope = self.kept, None
        self._set_limit()

    def unkeep_all(self) -> None:
        """What was put aside goes before all that is queued, in the order it came."""
        for item in self.kept:
            if isinstance(item, Ask):
                item.home = self.queue
        self.stashed -= len(self.kept)
        self.queue.extendleft(reversed(self.kept))
        self.kept.clear()
        self._set_limit()
        self.wake()

    # ------------------------------------------------------------------ closing

    def close(self, reason: str) -> None:
        """Accept nothing any more and settle all that waits, in the same synchronous step (G3)."""
        if self.closed is not None:
            return
        self.closed = reason
        waiting, self.waiting = self.waiting, _NOBODY
        self.limit = 0
        for sender in waiting:
            error = ActorDead(self.path, reason)
            if isinstance(sender, Ask):
                sender.home = None
                sender.settle(outcome.Error(error))
            else:
                reschedule(sender.task, outcome.Error(error))
        homes = (self.kept, self.queue, *self.stashes.values())
        items = [item for home in homes for item in home]
        for home in homes:
            home.clear()
        for item in items:
            self._refuse(item, ActorDead(self.path, reason))
            self._dead(item, reason)
        self.stashed = 0
        if self.again is not None:
            self.lost += 1
            self._dead(self.again, f"to be handled again, but {reason}")
            self.again = None

    # ------------------------------------------------------------------ within

    @property
    def running(self) -> int:
        """Items between the first and the last step of their handling, retries included."""
        return self.taken - self.handled - self.lost

    def _enqueue(self, item: Item) -> None:
        """Put an accepted item where its handler looks for it."""
        kind = type(item) if isinstance(item, Message) else type(item.message)
        stash = self.stashes.get(kind)
        if stash is None:
            self.queue.append(item)
            self.wake()
            return
        if isinstance(item, Ask):
            item.home = stash
        stash.append(item)
        self.stashed += 1
        if self.limit:
            self.limit -= 1  # a place fewer; at 0 nobody is let in anyway
        if self.attend is not None:
            self.attend(kind)

    def _put_in_suspension(self, message: Message | Told) -> bool:
        """A mailbox that refuses requests accepts other messages as ever, by a longer way."""
        if not self.refusing or self.waiting or len(self.queue) >= self._room():
            return False
        self.accepted += 1
        self._enqueue(message)
        return True

    def refuse_requests(self, refusing: bool) -> None:
        """While ``refusing``, ``offer`` raises ActorPaused."""
        self.refusing = refusing
        self._set_limit()

    def _refuse_if_closed(self) -> None:
        if self.closed is not None:
            raise ActorDead(self.path, self.closed)

    def _add_waiting(self, sender: _WaitingTell | Ask) -> None:
        if self.waiting is _NOBODY:
            self.waiting = deque[_WaitingTell | Ask]()
        self.waiting.append(sender)
        self.limit = 0

    def _set_limit(self) -> None:
        special = self.closed is not None or self.waiting or self.refusing
        self.limit = 0 if special else self._room()

    def _room(self) -> int:
        """How long the queue may be."""
        return self.spec.capacity - self.stashed - self.reserved

    def _drop(self, item: Item, reason: str) -> None:
        self._refuse(item, MailboxFull(self.path, self.spec.capacity))
        self._dead(item, reason)

    def _refuse(self, item: Item, error: Exception) -> None:
        if isinstance(item, Ask):
            item.home = None
            item.settle(outcome.Error(error))

    def _dead(self, item: Item, reason: str) -> None:
        message = item if isinstance(item, Message) else item.message
        self.dead_lettered += 1
        self.letters.add(DeadLetter(self.path, message, reason))
