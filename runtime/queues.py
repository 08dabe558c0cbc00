"""The two lines in front of an actor: the accepted items, and the senders that wait for room.

Either may be left from any place in constant time, as ten thousand asks do at once when a nursery
of askers is cancelled. Invariants: the order of those that stay does not change; a :class:`Queue`
is at most twice as long as the number of its items, and a few more.

Choices not taken. An ``OrderedDict`` would do for both, but takes three times as long for a tell,
and equal messages would be one key. Removing from the middle of a ``deque`` searches it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from trio.lowlevel import current_task

from motet.protocols.messages import Message
from motet.runtime.envelope import WOKEN, Ask, Raised, Told, reschedule
from motet.runtime.errors import TellCycle, WaitCycle
from motet.runtime.waits import Groups, current_work, refuse_cycle

__all__ = ["NOBODY", "NOTHING", "Holder", "Item", "Queue", "Senders", "WaitingTell"]

# Most told messages travel bare; see `envelope.py`.
Item = Message | Told | Ask

_GAPS = 32  # gaps that are not worth closing


class Queue(deque[Item]):
    """Items in order. A withdrawn ask leaves a gap: itself, which is skipped when its turn comes.

    An ask is in a queue while ``ask.queue`` is that queue, so it needs no mark. ``len`` and truth
    include the gaps; :attr:`items` does not.
    """

    __slots__ = ("gaps",)

    def __init__(self) -> None:
        super().__init__()
        self.gaps = 0

    @property
    def items(self) -> int:
        """The number of items."""
        return len(self) - self.gaps

    def withdraw(self, ask: Ask) -> None:
        """Take out an ask that is in this queue. Most gaps are closed in bulk."""
        ask.queue = None
        self.gaps += 1
        if self.gaps > _GAPS and self.gaps > len(self) // 2:
            left = [*self.present()]
            self.clear()
            self.extend(left)

    def present(self) -> Iterator[Item]:
        """The items in order."""
        return (item for item in self if not self.is_gap(item)) if self.gaps else iter(self)

    def is_gap(self, item: Item) -> bool:
        """Whether an item of this queue was withdrawn."""
        return isinstance(item, Ask) and item.queue is not self

    def take(self) -> Item | None:
        """Remove and return the first item; None if there is none."""
        while self:
            item = self.popleft()
            if not isinstance(item, Ask) or item.queue is self:  # is_gap, without a call
                return item
            self.gaps -= 1
        return None

    def clear(self) -> None:
        """Remove all items and gaps."""
        super().clear()
        self.gaps = 0


class _Nothing(Queue):
    """The queue of every mailbox before its first item; stays empty."""

    __slots__ = ()

    def append(self, item: Item, /) -> None:
        raise AssertionError(f"{item!r} was put into the queue that all mailboxes share")

    def extendleft(self, items: Iterable[Item], /) -> None:
        for item in items:
            self.append(item)

    def withdraw(self, ask: Ask) -> None:
        raise AssertionError(f"{ask!r} is not in the queue that all mailboxes share")


NOTHING: Final[Queue] = _Nothing()
"""Shared by all mailboxes that have not had an item yet, since an empty deque takes 0.7 KB."""


class Holder(Protocol):
    """The actor of a mailbox, as far as those who wait for it need it (G11)."""

    def before_begin(self, kind: type[Message], /) -> Groups:
        """What has to end before a queued message of ``kind`` is handled."""
        ...

    def before_room(self) -> Groups:
        """What has to end before there is room."""
        ...

    def refusal(self, cycle: WaitCycle, /) -> Exception:
        """The error for a wait for this actor that would never end."""
        ...


class WaitingTell:
    """A sender that waits for room, and its message. An edge of the wait-for graph."""

    __slots__ = ("holder", "message", "path", "task", "work")

    def __init__(self, message: Message | Told, path: str, holder: Holder | None) -> None:
        self.message = message
        self.path = path
        self.holder = holder
        self.task = current_task()
        self.work = current_work.get()

    def groups(self) -> Groups:
        return () if self.holder is None else self.holder.before_room()

    def refuse_endless(self) -> None:
        """Raise TellCycle, or what its actor says, if it would wait for room for ever (G11)."""
        if self.work is None or self.holder is None:
            return
        try:
            refuse_cycle(self.work, self.groups(), TellCycle)
        except WaitCycle as cycle:
            raise self.holder.refusal(cycle) from None

    def admitted(self) -> None:
        """The message is in the mailbox. The sender has not taken a step since."""
        self.holder = None
        reschedule(self.task, WOKEN)

    def refused(self, error: Exception) -> None:
        """The message was not accepted."""
        reschedule(self.task, Raised(error))

    def describe(self, now: float) -> str:  # noqa: ARG002 (the protocol's signature)
        return f"room in {self.path}"


Senders = OrderedDict[WaitingTell | Ask, None]

NOBODY: Final = Senders()
"""Shared by all mailboxes that no sender waits for."""
