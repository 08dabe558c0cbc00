"""The events of one run for one client of an edge.

Invariants: at most :data:`MOST` events are kept for a slow client, and text deltas are dropped
first, since the whole message follows; a run never waits for a client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

from motet.protocols.events import AnyEvent, EventRecord, InputAccepted, is_durable
from motet.protocols.gateway import SESSION_STREAM
from motet.protocols.host import Journal

MOST: Final = 1_024
_PAGE: Final = 200


class EventsLost(Exception):
    """The client was so slow that durable events of its run were dropped."""


@attrs.define(eq=False)
class RunEvents:
    """Subscribed before the input is submitted, so that it misses nothing. To be closed."""

    _journal: Journal
    session: str
    run_id: str
    _events: deque[EventRecord] = attrs.field(init=False, factory=deque[EventRecord])
    _woken: bool = attrs.field(init=False, default=False)
    _lost: bool = attrs.field(init=False, default=False)
    _changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    _detach: Callable[[], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._detach = self._journal.attach(SESSION_STREAM + self.session, self._arrived)

    def close(self) -> None:
        self._detach()

    def wake(self) -> None:
        """Make :meth:`next` return None, so that its caller can do something else."""
        self._woken = True
        self._changed.set()

    async def next(self, timeout: float = float("inf")) -> AnyEvent | None:
        """The next event; None after ``timeout`` seconds, or when woken.

        Raises :class:`EventsLost`.
        """
        if not self._events and not self._lost and not self._woken:
            self._changed = trio.Event()
            with trio.move_on_after(timeout):
                await self._changed.wait()
        self._woken = False
        if self._events:
            return self._events.popleft().event
        if self._lost:
            raise EventsLost
        return None

    async def replay(self, run_id: str) -> None:
        """Follow another run, from its beginning in the past. No event may have been taken yet."""
        self.run_id = run_id
        self._events.clear()
        stream = SESSION_STREAM + self.session
        newest = before = (await self._journal.head(stream)).head
        past: deque[EventRecord] = deque()
        begun = False
        while before > 0 and not begun:
            after = max(0, before - _PAGE)
            page = await self._journal.read(stream, after, before - after)
            own = [record for record in page if record.run_id == run_id]
            past.extendleft(reversed(own))
            begun = not page or any(isinstance(one.event, InputAccepted) for one in own)
            before = after
        past.extend(one for one in self._events if one.seq is None or one.seq > newest)
        self._events = past

    def skip_through(self, is_last: Callable[[AnyEvent], bool]) -> None:
        """Drop the events up to the last one for which ``is_last`` is true."""
        places = [place for place, one in enumerate(self._events) if is_last(one.event)]
        for _ in range(max(places, default=-1) + 1):
            self._events.popleft()

    def _arrived(self, record: EventRecord) -> None:
        if record.run_id != self.run_id:
            return
        durable = is_durable(record.event)
        if len(self._events) >= (MOST if durable else MOST // 2):
            self._lost = self._lost or durable
            return
        self._events.append(record)
        self._changed.set()
