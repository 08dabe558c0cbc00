"""Schedules: messages that an actor sends to itself later, once or periodically.

Each is an entry in the system's one heap (``timers.py``); none has a task. Invariant: a schedule
belongs to one incarnation, and does not fire once that handles no further message.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import trio

from motet.protocols.messages import Message
from motet.runtime.errors import MailboxFull
from motet.runtime.kernel import Owner
from motet.runtime.timers import Timer

__all__ = ["ActorTimers", "ScheduledMessage"]

P_contra = TypeVar("P_contra", bound=Message, contravariant=True)


class ActorTimers(Generic[P_contra]):
    """The timers of one incarnation: ``self.timers``.

    Their messages are ordinary mail and wait behind the queued messages. One that finds the mailbox
    full becomes a dead letter, unless the mailbox drops an older one for it.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._live: set[ScheduledMessage] = set()

    def once(self, delay: float, message: P_contra) -> ScheduledMessage:
        """Send ``message`` to the actor itself after ``delay`` seconds."""
        if not 0 <= delay < math.inf:
            raise ValueError(f"a delay is a number of seconds, so >= 0, not {delay}")
        return self._schedule(delay, None, message)

    def every(self, period: float, message: P_contra) -> ScheduledMessage:
        """Send ``message`` every ``period`` seconds, for the first time after one.

        The times do not drift. A period that passes while the program is busy is left out.
        """
        if not 0 < period < math.inf:
            raise ValueError(f"a period is a number of seconds, so > 0, not {period}")
        return self._schedule(period, period, message)

    def close(self) -> None:
        """Cancel all timers: the incarnation handles no further message."""
        for scheduled in self._live.copy():
            scheduled.cancel()

    def __len__(self) -> int:
        """The number of timers still to fire."""
        return len(self._live)

    def _schedule(self, delay: float, period: float | None, message: P_contra) -> ScheduledMessage:
        checked = self._owner.admit(message)
        return ScheduledMessage(self._owner, self._live, delay, period, checked)


class ScheduledMessage:
    """One timer of an actor."""

    __slots__ = ("_live", "_message", "_owner", "_period", "_timer", "_when")

    def __init__(
        self,
        owner: Owner,
        live: set[ScheduledMessage],
        delay: float,
        period: float | None,
        message: Message,
    ) -> None:
        self._owner = owner
        self._live = live
        self._period = period
        self._message = message
        self._when = trio.current_time() + delay
        self._timer: Timer | None = None
        self._start()

    def cancel(self) -> None:
        """Send no further message. One in the mailbox stays there. Does nothing if it is over."""
        self._live.discard(self)
        if self._timer is not None:
            self._owner.kernel.timers.stop(self._timer)
            self._timer = None

    @property
    def is_active(self) -> bool:
        """Whether it will send a message."""
        return self._timer is not None

    def _start(self) -> None:
        self._live.add(self)
        self._timer = self._owner.kernel.timers.start(self._when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._live.discard(self)
        if self._period is not None:
            now = trio.current_time()
            # From the last planned time and not from now, which may be late: so it cannot drift.
            self._when += self._period
            if self._when <= now:
                self._when += math.ceil((now - self._when) / self._period) * self._period
            self._start()
        mailbox = self._owner.mailbox
        try:
            mailbox.put_or_overflow(self._owner.envelope(self._message))
        except MailboxFull:
            # There is no sender that could wait for room or catch an error.
            mailbox.discard(self._message, "of a timer: the mailbox was full")

    def __repr__(self) -> str:
        kind = type(self._message).__name__
        when = f"at {self._when:g}" if self.is_active else "over"
        return f"<ScheduledMessage {kind} to {self._owner.path}, {when}>"
