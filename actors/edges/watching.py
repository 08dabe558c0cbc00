"""The events of one run, for one client that is told of them as they come.

Invariants: at most :data:`MOST` events are kept for a client that is slow, and text that is still
being made is left out first, since the whole message follows; a run never waits for a client.
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


class FellBehind(Exception):
    """The client took so little that events of its run were lost to it."""


@attrs.define(eq=False)
class Watch:
    """Begun before its input is submitted, so that it misses nothing. To be closed.

    ``wake`` makes :meth:`next` return None: there is something else to be done.
    """

    _journal: Journal
    _stream: str
    run_id: str
    _events: deque[EventRecord] = attrs.field(init=False, factory=deque[EventRecord])
    _woken: bool = attrs.field(init=False, default=False)
    _lost: bool = attrs.field(init=False, default=False)
    _news: trio.Event = attrs.field(init=False, factory=trio.Event)
    _leave: Callable[[], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._leave = self._journal.attach(self._stream, self._arrived)

    def close(self) -> None:
        self._leave()

    def wake(self) -> None:
        self._woken = True
        self._news.set()

    async def next(self, timeout: float = float("inf")) -> AnyEvent | None:
        """The next event; None after ``timeout`` seconds, or when woken.

        Raises :class:`FellBehind`.
        """
        if not self._events and not self._lost and not self._woken:
            self._news = trio.Event()
            with trio.move_on_after(timeout):
                await self._news.wait()
        self._woken = False
        if self._events:
            return self._events.popleft().event
        if self._lost:
            raise FellBehind
        return None

    async def from_its_beginning(self, run_id: str) -> None:
        """Watch another run, which began before this; nothing may have been taken yet."""
        self.run_id = run_id
        self._events.clear()
        newest = before = (await self._journal.head(self._stream)).head
        past: deque[EventRecord] = deque()
        begun = False
        while before > 0 and not begun:
            after = max(0, before - _PAGE)
            page = await self._journal.read(self._stream, after, before - after)
            own = [record for record in page if record.run_id == run_id]
            past.extendleft(reversed(own))
            begun = not page or any(isinstance(one.event, InputAccepted) for one in own)
            before = after
        past.extend(one for one in self._events if one.seq is None or one.seq > newest)
        self._events = past

    def skip_through(self, is_last: Callable[[AnyEvent], bool]) -> None:
        """Leave out what a client was told of already: up to the last event that is such a one."""
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
        self._news.set()


def watch(journal: Journal, session: str, run_id: str) -> Watch:
    return Watch(journal, SESSION_STREAM + session, run_id)
