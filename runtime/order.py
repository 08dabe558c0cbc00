"""The declaration of a mailbox, and the order of mail beyond first in, first out.

A message type may have a priority, and an age after which nobody needs it (``handles``); a mailbox
may drop its oldest message to take a new one. Most actors have none of it: then their mailbox has
no :class:`Order`, and pays nothing. The invariants:

* a message goes before the first queued one of a lower priority, so that those of one priority keep
  their order, and it takes a place like any other;
* a message that is too old when its turn comes is a dead letter, and its handler does not begin;
* the message that is dropped is the one that was accepted first of those that wait in any queue,
  unless a lower priority is there; stashed ones are not dropped.

A heap would pay for each message what a search from the front pays for the urgent ones only, which
are few. A number of arrival in each item would need an envelope for each bare message.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
import trio

from motet.protocols.messages import Message
from motet.runtime.envelope import Ask, Told
from motet.runtime.handlers import Handler
from motet.runtime.queues import Item, Queue

__all__ = ["DIRECT_UP_TO", "AgedMessage", "MailboxSpec", "Order", "Overflow", "order_of"]

Overflow = Literal["wait", "fail", "drop_oldest", "drop_newest"]
DIRECT_UP_TO: Final = 1024  # the largest capacity by which a full mailbox alone paces its senders


class MailboxSpec(msgspec.Struct, frozen=True):
    """The capacity of a mailbox, and the overflow policy for a full one.

    ``wait``: the sender waits (``tell_nowait`` raises). ``fail``: :class:`MailboxFull`.
    ``drop_oldest``: the oldest queued message becomes a dead letter. ``drop_newest``: the new one
    does. The asker of a dropped request gets :class:`MailboxFull`.
    """

    capacity: int = 1024
    overflow: Overflow = "wait"

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"a mailbox needs a capacity of at least 1, not {self.capacity}")


class AgedMessage(Told, eq=False, kw_only=True):
    """A told message with the time after which nobody needs it."""

    until: float
    max_age: float

    @property
    def is_cancelled(self) -> bool:
        return trio.current_time() > self.until

    @property
    def lost_by(self) -> str | None:
        return f"it was older than {self.max_age:g} s when its turn came"


def order_of(spec: MailboxSpec, handlers: Mapping[type[Message], Handler]) -> Order | None:
    """The order that these declarations need; None: first in, first out."""
    priorities = {kind: h.priority for kind, h in handlers.items() if h.priority}
    ages = {kind: h.max_age for kind, h in handlers.items() if h.max_age < math.inf}
    several = any(not handler.in_turn for handler in handlers.values())
    drops = spec.overflow == "drop_oldest" and (several or bool(priorities))
    if not (priorities or ages or drops):
        return None
    return Order(priorities, ages, spec.capacity if drops else None)


class Order:
    """The order of one mailbox. ``arrivals``: the items that were accepted, oldest first, and some
    that wait no more; None unless the mailbox drops its oldest.
    """

    __slots__ = ("_ages", "_arrivals", "_bound", "_clock", "_priorities")

    def __init__(
        self, priorities: dict[type, int], ages: dict[type, float], capacity: int | None
    ) -> None:
        self._priorities = priorities
        self._ages = ages
        # Not trio.current_time(), which needs a task: a guest's asyncio may tell, too.
        self._clock = trio.lowlevel.current_clock() if ages else None
        self._arrivals: deque[tuple[Queue, Item]] | None = None if capacity is None else deque()
        self._bound = 2 * (capacity or 0) + 64  # of the arrivals, so that those gone do not add up

    def put(self, queue: Queue, kind: type, item: Item) -> None:
        """Put an accepted item into its queue, where its priority wants it."""
        age = self._ages.get(kind)
        if age is not None and self._clock is not None and not isinstance(item, Ask):
            item = self._aged(item, age, self._clock.current_time())
        priority = self._priorities.get(kind, 0)
        if priority:
            queue.insert(self._place(queue, priority), item)
        else:
            queue.append(item)
        if self._arrivals is not None:
            self._arrivals.append((queue, item))
            if len(self._arrivals) > self._bound:
                self._forget_those_gone()

    def unstashed(self, queue: Queue, items: Iterable[Item]) -> None:
        """Items are at the front of the queue again, in this order."""
        if self._arrivals is not None:
            self._arrivals.extendleft((queue, item) for item in reversed([*items]))

    def take_oldest(self, own: Queue) -> tuple[Queue, Item | None]:
        """Remove and return the item to drop, with its queue; ``own`` is the queue of the turn.

        None: there is none.
        """
        urgent: list[tuple[Queue, Item]] = []
        arrivals = self._arrivals or deque()
        while arrivals:
            queue, item = arrivals.popleft()
            index = self._index(queue, item)
            if index is None:
                continue
            if not self._priority(item):
                del queue[index]
                arrivals.extendleft(reversed(urgent))
                return queue, item
            urgent.append((queue, item))
        arrivals.extend(urgent[1:])
        if not urgent:
            return own, own.take()
        queue, item = urgent[0]
        index = self._index(queue, item)
        assert index is not None, "it was there, and nothing has run since"
        del queue[index]
        return queue, item

    # ------------------------------------------------------------------ within

    def _priority(self, item: Item) -> int:
        kind = type(item) if isinstance(item, Message) else type(item.message)
        return self._priorities.get(kind, 0)

    def _place(self, queue: Queue, priority: int) -> int:
        """The index of the first item with a lower priority."""
        for index, item in enumerate(queue):
            if self._priority(item) < priority:
                return index
        return len(queue)

    def _index(self, queue: Queue, item: Item) -> int | None:
        """The place of an item in its queue; None if it waits no more."""
        priority = self._priority(item)
        for index, waiting in enumerate(queue):
            if queue.is_gap(waiting):
                continue
            if waiting is item:
                return index
            # Among those without a priority the oldest comes first: behind another one is none. The
            # urgent ones before it are passed over, as they are looked up and stay.
            if self._priority(waiting) < max(priority, 1):
                return None
        return None

    def _forget_those_gone(self) -> None:
        assert self._arrivals is not None
        queues = {id(queue): queue for queue, _ in self._arrivals}
        present = {id(item) for queue in queues.values() for item in queue.present()}
        self._arrivals = deque(entry for entry in self._arrivals if id(entry[1]) in present)

    @staticmethod
    def _aged(item: Message | Told, age: float, now: float) -> Any:
        if isinstance(item, Told) and type(item) is not Told:
            return item  # of a timer, which knows itself when it is too late
        message, context = (
            (item, None) if isinstance(item, Message) else (item.message, item.context)
        )
        return AgedMessage(message, context, until=now + age, max_age=age)
