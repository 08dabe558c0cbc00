"""The subscriptions of one connection, and the one task that fetches past events for them.

Invariants: past events are fetched a page at a time for the whole connection, the next page
after the one before was written, so that replay cannot fill the outbox; nothing of a session is
handed on before the host said that it is the principal's (G16), also when the session came into
being after the subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

import attrs
import trio

from motet.actors.gateway.method import Refusal
from motet.actors.gateway.outbox import Batch, Hub, Outbox, Published
from motet.protocols.errors import NotFound
from motet.protocols.events import HOST_STREAM, EventRecord
from motet.protocols.gateway import SESSION_STREAM, Limits, StreamState
from motet.protocols.gateway_rooms import ROOM_STREAM
from motet.protocols.host import HostApi, StreamHead
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.outside import wall_time

# Where one client stands in one stream. Pure.
#
# A subscription is *held* while past events are fetched or its owner is checked: live events are
# then kept aside, at most 64. It is *live* when every event up to now was handed on, *lost* when
# the client was too slow and must ask again, and *closed* when it ended.
#
# Invariants: what :meth:`Subscription.take`, :meth:`replayed` and :meth:`splice` let through has,
# taken together, the numbers ``after + 1, after + 2, ...``, without gap or duplicate; nothing
# passes before ``verified`` is set (G16).


Phase: TypeAlias = Literal["held", "live", "lost", "closed"]
KEPT_ASIDE: Final = 64


@attrs.define(eq=False)
class Subscription:
    """``last`` was handed on last; ``head`` is the highest number known to exist.

    ``principal``: whose it has to be.
    ``begun``: the answer to the subscribe request is queued, so that events may follow.
    ``verified``: the host said that the stream is the principal's.
    """

    stream: str
    principal: Principal = LOCAL
    last: int = 0
    head: int = 0
    phase: Phase = "held"
    begun: bool = False
    verified: bool = False
    _aside: deque[Published] = attrs.field(
        init=False, factory=lambda: deque[Published](maxlen=KEPT_ASIDE)
    )

    def take(self, event: Published) -> bool:
        """An event came in; true: hand it on now."""
        seq = event.record.seq
        if seq is not None:
            self.head = max(self.head, seq)
        if self.phase == "held":
            self._aside.append(event)
        if self.phase != "live":
            return False
        if seq is None:
            return True
        if seq > self.last + 1:
            self.phase = "held"
            self._aside.append(event)
            return False
        if seq <= self.last:
            return False
        self.last = seq
        return True

    def take_all(self, start: int | None, end: int | None) -> bool:
        """Events came in whose numbers are ``start`` to ``end``, None: without any.

        True: hand all of them on now; false: ask :meth:`take` of each.
        """
        if self.phase != "live" or (start is not None and start != self.last + 1):
            return False
        if end is not None:
            self.last = end
            if end > self.head:
                self.head = end
        return True

    def begin(self, after: int, head: int) -> None:
        """Go on after number ``after`` of a stream whose highest is ``head``."""
        self.last = after
        self.head = max(self.head, head)

    def replayed(self, seq: int) -> bool:
        """A past event is to be handed on; false: numbers are missing, the journal lost them."""
        if seq != self.last + 1:
            return False
        self.last = seq
        self.head = max(self.head, seq)
        return True

    def splice(self) -> list[Published]:
        """Hand on what was kept aside; the phase is ``live`` after it unless numbers miss."""
        ready: list[Published] = []
        while self._aside:
            event = self._aside[0]
            seq = event.record.seq
            if seq is not None and seq > self.last + 1:
                return ready
            self._aside.popleft()
            if seq is None:
                ready.append(event)
            elif seq == self.last + 1:
                self.last = seq
                ready.append(event)
            else:
                # Ephemerals before an event that was replayed tell what it has told.
                ready.clear()
        if self.head <= self.last:
            self.phase = "live"
        return ready

    def lose(self) -> None:
        """The client is too slow: nothing more until it subscribes again."""
        self._end("lost")

    def close(self) -> None:
        self._end("closed")

    def _end(self, phase: Phase) -> None:
        self.phase = phase
        self._aside.clear()


_JOURNAL_LAG: Final = 0.1  # seconds until an event that was announced is looked for again


@attrs.define(eq=False)
class Streams:
    """``wake`` is called whenever the outbox got something.

    ``straight`` sends frames past the empty outbox; false: it could not.
    """

    _api: HostApi
    _hub: Hub
    _outbox: Outbox
    _wake: Callable[[], None]
    _limits: Limits
    _principal: Principal
    _straight: Callable[[bytes], bool] = lambda _frames: False
    _subscriptions: dict[str, Subscription] = attrs.field(
        init=False, factory=dict[str, Subscription]
    )
    _leave: dict[Subscription, Callable[[], None]] = attrs.field(
        init=False, factory=dict[Subscription, "Callable[[], None]"]
    )
    _todo: deque[Subscription] = attrs.field(init=False, factory=deque[Subscription])
    _work: trio.Event = attrs.field(init=False, factory=trio.Event)

    def __len__(self) -> int:
        return len(self._subscriptions)

    async def subscribe(
        self, stream: str, after: int | None, principal: Principal | None = None
    ) -> tuple[StreamState, Callable[[], None]]:
        """Where the stream stands, and what starts the flow once that answer is queued.

        ``principal``: for whom, if it is not the one of the connection.
        Raises :class:`NotFound` for what is not the principal's, :class:`Refusal` above the
        limit. Cancelled or failed, it leaves no subscription behind.
        """
        subscription = self._open(stream, principal or self._principal)
        try:
            subscription.verified = await self._is_ours(subscription)
            head = await self._api.events.head(stream)
            if not subscription.verified and (head.head > 0 or stream.startswith(ROOM_STREAM)):
                # It may have come into being between the two answers.
                subscription.verified = await self._is_ours(subscription)
                if not subscription.verified:
                    raise NotFound(f"no stream {stream!r}")
        except BaseException:
            self._close(subscription)
            raise
        state = _state(head, after)
        subscription.begin(after if state.resumed and after is not None else head.head, head.head)
        return state, lambda: self._start(subscription)

    def unsubscribe(self, stream: str) -> bool:
        """End a subscription; what was queued of it is not sent. False: there was none."""
        subscription = self._subscriptions.get(stream)
        if subscription is None:
            return False
        self._close(subscription)
        return True

    def heads(self) -> dict[str, int]:
        """The highest number of each stream that is certainly the principal's."""
        return {
            name: subscription.head
            for name, subscription in self._subscriptions.items()
            if subscription.verified
        }

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in tuple(self._subscriptions.values()):
            self._close(subscription)

    async def run(self) -> None:
        """Replay what waits for it, a page for each stream in turn, until cancelled."""
        while True:
            while not self._todo:
                self._work = trio.Event()
                await self._work.wait()
            subscription = self._todo[0]
            again = await self._advance(subscription)
            self._todo.popleft()
            if again and subscription.phase == "held":
                self._todo.append(subscription)

    # -- the parts ------------------------------------------------------------------------------

    def _open(self, stream: str, principal: Principal) -> Subscription:
        prefixes = (SESSION_STREAM, ROOM_STREAM)
        known = stream.startswith(prefixes) and stream not in prefixes
        if not known and not _is_hosts(stream, principal):
            raise NotFound(
                f"no stream {stream!r}; streams are named session:<session key> or room:<room>"
            )
        if stream in self._subscriptions:
            self._close(self._subscriptions[stream])
        elif len(self._subscriptions) >= self._limits.subscriptions:
            raise Refusal(
                "limit_reached",
                f"{len(self._subscriptions)} subscriptions are the limit: unsubscribe from one",
            )
        subscription = Subscription(stream, principal)
        self._subscriptions[stream] = subscription
        arrived = self._arrived_in_room if stream.startswith(ROOM_STREAM) else self._arrived
        self._leave[subscription] = self._hub.watch(stream, partial(arrived, subscription))
        return subscription

    def _close(self, subscription: Subscription) -> None:
        subscription.close()
        leave = self._leave.pop(subscription, None)
        if leave is not None:
            leave()
        if self._subscriptions.get(subscription.stream) is subscription:
            del self._subscriptions[subscription.stream]
            self._outbox.withdraw(subscription.stream)

    async def _is_ours(self, subscription: Subscription) -> bool:
        if _is_hosts(subscription.stream, subscription.principal):
            return True
        kind, _, name = subscription.stream.partition(":")
        find = self._api.rooms.get if f"{kind}:" == ROOM_STREAM else self._api.session
        try:
            await find(name, principal=subscription.principal)
        except NotFound:
            return False
        return True

    def _start(self, subscription: Subscription) -> None:
        subscription.begun = True
        if subscription.phase != "held":
            return
        if not subscription.verified:
            if subscription.head > 0:
                self._schedule(subscription)
            return
        self._splice(subscription)
        if subscription.phase == "held":
            self._schedule(subscription)

    def _arrived_in_room(self, subscription: Subscription, batch: Batch) -> None:
        name = subscription.stream.removeprefix(ROOM_STREAM)
        if self._api.rooms.open_to(name, subscription.principal):
            self._arrived(subscription, batch)
        else:
            self._close(subscription)  # its owner has sent them away

    def _arrived(self, subscription: Subscription, batch: Batch) -> None:
        if subscription.take_all(batch.start, batch.end):
            if not self._straight(batch.bytes()):
                self._queue(subscription, batch.events)
            return
        for event in batch.events:
            self._came(subscription, event)

    def _came(self, subscription: Subscription, event: Published) -> None:
        if subscription.take(event):
            self._offer(subscription, event)
        elif subscription.phase == "held" and subscription.begun:
            self._schedule(subscription)
        elif subscription.phase == "lost":
            self._outbox.extend_gap(subscription.stream, subscription.head)

    def _offer(self, subscription: Subscription, event: Published) -> None:
        if not self._straight(event.bytes()):
            self._queue(subscription, [event])

    def _queue(self, subscription: Subscription, events: Sequence[Published]) -> None:
        """Put into the outbox what the subscription has taken, as far as there is room."""
        for event in events:
            if not self._outbox.offer(event):
                seq = event.record.seq
                assert seq is not None, "only durable events are refused"
                self._lose(subscription, seq)
                break
        self._wake()

    def _lose(self, subscription: Subscription, start: int) -> None:
        subscription.lose()
        self._hub.gaps += 1
        self._outbox.gap(subscription.stream, start, max(start, subscription.head), wall_time())
        self._wake()

    def _splice(self, subscription: Subscription) -> None:
        for event in subscription.splice():
            if subscription.phase == "lost":
                return
            self._offer(subscription, event)

    def _schedule(self, subscription: Subscription) -> None:
        if subscription not in self._todo:
            self._todo.append(subscription)
            self._work.set()

    async def _advance(self, subscription: Subscription) -> bool:
        """Fetch and write one page; false when the stream is live or gone."""
        if not subscription.verified:
            subscription.verified = await self._is_ours(subscription)
            if not subscription.verified:
                self._close(subscription)
                return False
        # What was kept aside may be all there is: then no delta of it is lost.
        self._splice(subscription)
        if subscription.phase != "held":
            return False
        limit = self._limits.page_events
        page = await self._api.events.read(subscription.stream, subscription.last, limit)
        if subscription.phase != "held":
            return False
        if page:
            await self._write_page(subscription, page)
        if subscription.phase != "held":
            return False
        self._splice(subscription)
        if subscription.phase == "held" and not page:
            await trio.sleep(_JOURNAL_LAG)
        return True

    async def _write_page(self, subscription: Subscription, records: Sequence[EventRecord]) -> None:
        events: list[Published] = []
        size = 0
        for record in records:
            event = Published(record)
            size += event.size
            if events and size > self._limits.page_bytes:
                break
            if record.seq is None or not subscription.replayed(record.seq):
                break
            events.append(event)
        if not events:
            self._lose(subscription, subscription.last + 1)
            return
        done = trio.Event()
        self._outbox.page(subscription.stream, events, done.set)
        self._wake()
        await done.wait()


def _state(head: StreamHead, after: int | None) -> StreamState:
    if after is None:
        return StreamState(head.head, head.oldest, resumed=True)
    if after > head.head:
        return StreamState(head.head, head.oldest, resumed=False, reason="ahead")
    if after < head.head and after + 1 < head.oldest:
        return StreamState(head.head, head.oldest, resumed=False, reason="too_old")
    return StreamState(head.head, head.oldest, resumed=True)


def _is_hosts(stream: str, principal: Principal) -> bool:
    """Whether it is the stream of the host itself, and the principal may have it."""
    return stream == HOST_STREAM and principal.role == "admin"
