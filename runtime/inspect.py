"""What can be seen of a living system: plain records, taken in one synchronous step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager

import msgspec

from motet.runtime.feed import FEED_BUFFER, Feed, joined
from motet.runtime.lifecycle import LifeState
from motet.runtime.telemetry import DEAD_LETTERS, Meter

__all__ = ["ActorInfo", "DeadLetter", "DeadLetters", "Leftover", "Statistics", "StopReport"]


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one actor over all its incarnations.

    At every checkpoint (G4) accepted = handled + withdrawn + dead_lettered + stashed + queued +
    running. ``waiting`` senders are parked before the mailbox; their messages are not accepted yet.
    ``running`` includes a message that waits for its retry, ``in_turn`` does not: it is the number
    of handlers in the turn now, 0 or 1 (G5). ``capacity`` and ``concurrency``, the number of
    handlers that may run at once, are as declared (G13, G5).
    """

    state: LifeState
    accepted: int
    handled: int
    withdrawn: int
    dead_lettered: int
    stashed: int
    queued: int
    running: int
    waiting: int
    restarts: int
    in_turn: int = 0
    capacity: int = 0
    concurrency: int = 0


class ActorInfo(msgspec.Struct, frozen=True):
    """One line of a dump: ``age_s`` in seconds since the incarnation began, 0 if there is none.

    ``paused``: suspended by :meth:`ActorRef.suspend`, which the state does not tell.
    """

    path: str
    state: LifeState
    queued: int
    age_s: float
    waiting_on: str | None
    paused: bool = False


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that no handler has finished, and why."""

    path: str
    message: object
    reason: str


class DeadLetters:
    """All dead letters counted, the last hundred kept; to be read, or followed as a stream."""

    KEPT = 100

    def __init__(self, meter: Meter | None = None) -> None:
        self.count = 0
        self._meter = meter
        self._feeds: list[Feed[DeadLetter]] = []
        self._last: deque[DeadLetter] = deque(maxlen=self.KEPT)

    @property
    def last(self) -> tuple[DeadLetter, ...]:
        """The most recent dead letters, oldest first."""
        return tuple(self._last)

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self._last.append(letter)
        for feed in self._feeds:
            feed.publish(letter)
        if self._meter is not None:
            self._meter.count(DEAD_LETTERS, letter.path)

    def follow(self, buffer: int = FEED_BUFFER) -> AbstractContextManager[Feed[DeadLetter]]:
        """Those to come: ``with system.dead_letters.follow() as letters: async for letter in …``.

        Nobody waits for the reader; ``letters.missed`` counts what found ``buffer`` full.
        """
        return joined(self._feeds, buffer)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self.last)

    def __repr__(self) -> str:
        return f"<DeadLetters: {self.count}>"


class Leftover(msgspec.Struct, frozen=True):
    """Something a stop could not end in good order: whose it is, what, and where it stands."""

    path: str
    what: str
    stack: str = ""


class StopReport(msgspec.Struct, frozen=True):
    """What a stop did (G2).

    ``ended`` paths in the order they ended; ``abandoned`` clean-ups that failed or overran their
    budget and were cut; ``still_running`` tasks that ignore cancellation, with their stacks.
    """

    ended: tuple[str, ...] = ()
    abandoned: tuple[Leftover, ...] = ()
    still_running: tuple[Leftover, ...] = ()

    @property
    def complete(self) -> bool:
        """Nothing was cut and nothing is left."""
        return not self.abandoned and not self.still_running
