"""Schedules: messages that an actor sends later, once or again and again, to itself or to another.

Each is an entry in the system's one heap (``timers.py``); none has a task. The invariants:

* a schedule belongs to one incarnation, and does not fire once that handles no further message;
* a cancel is final: a message that is in the actor's mailbox already is not handled any more. So is
  the replacement of a key, and for timers with a key the end of the incarnation;
* with ``fixed_delay`` at most one message of a schedule is in the mailbox.

A message of a timer travels in a :class:`TimerMessage`, which knows its timer when its turn comes.
To take it out of the queue instead would cost a search for each cancel, and a number that the
handler compares (as OTP's programs do) is forgotten.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import trio

from motet.protocols.messages import Message
from motet.runtime.envelope import Told
from motet.runtime.errors import ActorDead, MailboxFull
from motet.runtime.kernel import Owner
from motet.runtime.timers import Timer

__all__ = ["ActorTimers", "ScheduledMessage"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)

_IDLE_LOOKS = 4  # in an idle time, so that it is at most a quarter longer


class ActorTimers(Generic[P_contra]):
    """The timers of one incarnation: ``self.timers``.

    Their messages are ordinary mail and wait behind the queued messages. One that finds the mailbox
    full becomes a dead letter, unless the mailbox drops an older one for it.

    A timer with a ``key`` takes the place of the one that had it, which is cancelled.
    """

    def __init__(self, owner: Owner, parent: ActorTimers[Any] | None = None) -> None:
        self._owner = owner
        self._parent = parent  # that ends this one too
        self._live: dict[ScheduledMessage, None] = {}  # to fire, or in the mailbox; in their order
        self._keys: dict[str, ScheduledMessage] = {}

    def once(self, delay: float, message: P_contra, *, key: str | None = None) -> ScheduledMessage:
        """Send ``message`` to the actor itself after ``delay`` seconds."""
        return self._schedule(_checked(delay), message, key)

    def every(
        self, period: float, message: P_contra, *, key: str | None = None, fixed_delay: bool = False
    ) -> ScheduledMessage:
        """Send ``message`` every ``period`` seconds, for the first time after one.

        The times do not drift. A period that passes while the program is busy is left out. A
        handler that takes longer than the period gets more and more of them into its mailbox; with
        ``fixed_delay`` the next is sent ``period`` seconds after one has been handled.
        """
        if not 0 < period < math.inf:
            raise ValueError(f"a period is a number of seconds, so > 0, not {period}")
        if fixed_delay and self._owner.mailbox.spec.overflow == "drop_oldest":
            raise ValueError("a mailbox that drops its oldest message may drop the only one of it")
        return self._schedule(period, message, key, period=period, fixed_delay=fixed_delay)

    def idle(
        self, seconds: float, message: P_contra, *, key: str | None = None
    ) -> ScheduledMessage:
        """Send ``message`` when no mail has come for ``seconds``, or up to a quarter later.

        Once in each pause: again when other mail has come and another pause begins.
        """
        if not 0 < seconds < math.inf:
            raise ValueError(f"an idle time is a number of seconds, so > 0, not {seconds}")
        return self._schedule(seconds / _IDLE_LOOKS, message, key, idle=seconds)

    def tell_after(
        self, target: Owner, delay: float, message: Message, *, key: str | None = None
    ) -> ScheduledMessage:
        """Tell another actor; for :meth:`Actor.send_after`."""
        return self._schedule(_checked(delay), message, key, target=target)

    def cancel(self, key: str) -> bool:
        """Cancel the timer with this key; False if there is none."""
        scheduled = self._keys.get(key)
        if scheduled is None or scheduled.is_over:
            return False
        scheduled.cancel()
        return True

    def remaining(self, key: str) -> float | None:
        """Seconds until the timer with this key sends its message; None if it will not."""
        scheduled = self._keys.get(key)
        return None if scheduled is None else scheduled.remaining

    def scope(self) -> ActorTimers[P_contra]:
        """Timers that :meth:`cancel_all` ends together; all of them end with these."""
        return ActorTimers(self._owner, self)

    def cancel_all(self) -> None:
        """Cancel all timers, finally."""
        for scheduled in [*self._live]:
            scheduled.cancel()

    def close(self) -> None:
        """The incarnation handles no further message.

        Messages in the mailbox stay there for the next (G4), except those of timers with a key or
        of a state: that incarnation sets its own.
        """
        for scheduled in [*self._live]:
            if scheduled.is_own:
                scheduled.cancel()
            else:
                scheduled.stop()

    def __len__(self) -> int:
        """The number of timers still to fire."""
        return sum(1 for scheduled in self._live if scheduled.is_active)

    # ------------------------------------------------------------------ for the kernel

    @property
    def is_scope(self) -> bool:
        return self._parent is not None

    def added(self, scheduled: ScheduledMessage) -> None:
        self._live[scheduled] = None
        if self._parent is not None:
            self._parent.added(scheduled)

    def removed(self, scheduled: ScheduledMessage) -> None:
        self._live.pop(scheduled, None)
        if scheduled.key is not None and self._keys.get(scheduled.key) is scheduled:
            del self._keys[scheduled.key]
        if self._parent is not None:
            self._parent.removed(scheduled)

    def _schedule(
        self,
        delay: float,
        message: Message,
        key: str | None,
        *,
        period: float | None = None,
        fixed_delay: bool = False,
        idle: float | None = None,
        target: Owner | None = None,
    ) -> ScheduledMessage:
        checked = (self._owner if target is None else target).admit(message)
        if key is not None:
            self.cancel(key)
        scheduled = ScheduledMessage(self._owner, self, checked, key, target)
        scheduled.begin(delay, period, fixed_delay=fixed_delay, idle=idle)
        if key is not None:
            self._keys[key] = scheduled
        return scheduled


class ScheduledMessage:
    """One timer of an actor."""

    __slots__ = (
        "_accepted",
        "_fixed_delay",
        "_idle",
        "_message",
        "_owner",
        "_period",
        "_queued",
        "_since",
        "_target",
        "_timer",
        "_timers",
        "_when",
        "cancelled",
        "key",
    )

    def __init__(
        self,
        owner: Owner,
        timers: ActorTimers[Any],
        message: Message,
        key: str | None,
        target: Owner | None,
    ) -> None:
        self._owner = owner
        self._timers = timers
        self._message = message
        self._target = target  # None: the actor itself
        self._period: float | None = None
        self._fixed_delay = False
        self._idle: float | None = None
        self._accepted: int = 0  # messages of the actor at the last look, for an idle time
        self._since = 0.0  # when the pause began; inf: it has been told
        self._queued = 0  # messages of it in the mailbox
        self._when = 0.0
        self._timer: Timer | None = None
        self.key = key
        self.cancelled = False

    def begin(
        self, delay: float, period: float | None, *, fixed_delay: bool, idle: float | None
    ) -> None:
        """Start the timer; for :class:`ActorTimers`."""
        self._period, self._fixed_delay, self._idle = period, fixed_delay, idle
        self._since = trio.current_time()
        self._accepted = self._owner.mailbox.accepted
        self._start(self._since + delay)

    def cancel(self) -> None:
        """Send no further message, and handle none that is in the mailbox. Idempotent."""
        self.cancelled = True
        self.stop()

    def stop(self) -> None:
        """Send no further message; for :class:`ActorTimers`."""
        if self._timer is not None:
            self._owner.kernel.timers.stop(self._timer)
            self._timer = None
        self._period = self._idle = None
        self._timers.removed(self)

    @property
    def is_own(self) -> bool:
        """Whether it means something to the incarnation, or the state, that has set it, only."""
        return self.key is not None or self._timers.is_scope

    @property
    def is_active(self) -> bool:
        """Whether it will send a message."""
        return self._timer is not None or (self._fixed_delay and self._period is not None)

    @property
    def is_over(self) -> bool:
        """Whether it will send no message, and none of it waits in the mailbox."""
        return not self.is_active and (self.cancelled or not self._queued)

    @property
    def remaining(self) -> float | None:
        """Seconds until it sends its next message; None if there is none, or nobody knows."""
        if self._timer is None or self._idle is not None:
            return None
        return max(0.0, self._when - trio.current_time())

    # ------------------------------------------------------------------ within

    def _start(self, when: float) -> None:
        self._when = when
        self._timers.added(self)
        self._timer = self._owner.kernel.timers.start(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = trio.current_time()
        if self._idle is not None:
            self._look(now, self._idle)
            return
        if self._period is not None and not self._fixed_delay:
            # From the last planned time and not from now, which may be late: so it cannot drift.
            when = self._when + self._period
            if when <= now:
                when += math.ceil((now - when) / self._period) * self._period
            self._start(when)
        self._send()

    def _look(self, now: float, idle: float) -> None:
        """Whether the actor has been idle for long enough."""
        box = self._owner.mailbox
        self._start(now + idle / _IDLE_LOOKS)
        if box.accepted != self._accepted:
            self._accepted, self._since = box.accepted, now
        elif box.running or box.queue or box.stashed:
            self._since = now if self._since < math.inf else self._since
        elif now - self._since >= idle:
            self._since = math.inf
            self._send()
            self._accepted = box.accepted  # its own message ends no pause

    def _send(self) -> None:
        target = self._target or self._owner
        mailbox = target.mailbox
        item = target.with_context(self._message)
        if self._target is None:
            context = item.context if isinstance(item, Told) else None
            item = TimerMessage(self._message, context, timer=self)
            self._queued += 1
        try:
            if not mailbox.put(item):
                mailbox.put_or_overflow(item)
        except (MailboxFull, ActorDead) as error:
            # There is no sender that could wait for room or catch an error.
            full = isinstance(error, MailboxFull)
            why = "the mailbox was full" if full else "its actor has ended"
            mailbox.discard(item, f"of a timer: {why}")
            if isinstance(item, TimerMessage):
                item.ended()
        if self.is_over:
            self._timers.removed(self)

    def handled(self) -> None:
        """A message of it was handled, or will not be."""
        self._queued -= 1
        if self._fixed_delay and self._period is not None:
            self._start(trio.current_time() + self._period)
        elif self.is_over:
            self._timers.removed(self)

    def __repr__(self) -> str:
        kind = type(self._message).__name__
        when = f"at {self._when:g}" if self.is_active else "over"
        return f"<ScheduledMessage {kind} to {(self._target or self._owner).path}, {when}>"


class TimerMessage(Told, eq=False, kw_only=True):
    """A message of a timer in the mailbox of its actor."""

    timer: ScheduledMessage

    @property
    def is_cancelled(self) -> bool:
        return self.timer.cancelled

    def ended(self) -> None:
        self.timer.handled()


def _checked(delay: float) -> float:
    if not 0 <= delay < math.inf:
        raise ValueError(f"a delay is a number of seconds, so >= 0, not {delay}")
    return delay
