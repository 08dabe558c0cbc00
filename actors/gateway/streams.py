"""The subscriptions of one connection, and the one task that fetches past events for them.

Invariants: past events are fetched a page at a time for the whole connection, the next page
after the one before was written, so that replay cannot fill the outbox; each event that is passed
on is the principal's own (G16): events of sessions say whose they are, and a subscription ends in
the step in which its session is deleted, or its room closed to the principal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from motet.actors.gateway.hub import Batch, Hub, Published
from motet.actors.gateway.method import Refusal
from motet.actors.gateway.outbox import Outbox
from motet.protocols.errors import NotFound
from motet.protocols.events import HOST_STREAM, EventRecord, StreamEnd, StreamEnded
from motet.protocols.gateway import SESSION_STREAM, Limits, StreamState, encode, event_frame
from motet.protocols.gateway_rooms import ROOM_STREAM
from motet.protocols.host import HostApi, StreamHead
from motet.protocols.room_newcomers import without_hidden
from motet.protocols.room_people import without_details
from motet.protocols.sessions import LOCAL, Principal
from motet.runtime.outside import wall_time

# held     past events are fetched, or the owner is looked up; live events are buffered, at most 64
# live     every event up to now was passed on
# lost     the client was too slow: it gets a gap, and has to subscribe again
# closed   it was ended
#
#          splice   missing number, doubt   lose    close
# held     live     -                       lost    closed
# live     -        held                    lost    closed
# lost     -        -                       -       closed
Phase: TypeAlias = Literal["held", "live", "lost", "closed"]
BUFFERED: Final = 64


@attrs.define(eq=False)
class Subscription:
    """The position of a client in one stream. Pure.

    Invariants: the numbered events that :meth:`take`, :meth:`replayed` and :meth:`splice` let
    through are, taken together, ``after + 1, after + 2, ...``, without gap or duplicate; nothing
    passes before ``verified`` is set, or while it is in doubt (G16).

    Attributes:
        principal: the user who has to own the stream.
        last: number of the last event that was passed on.
        head: the highest number that is known to exist.
        begun: :meth:`answered` was called, so that events may follow.
        verified: :meth:`verify` was called.
        doubted: whether the stream is still the principal's has to be looked up.
        generation: of the session that was verified.
        plain: the principal is not shown the arguments and results of tools, in a room.
        hidden: nor the words of messages up to this number.
        ended: why it has ended, if that was before it had begun.
        leave: called at the end of one to a room, which its user has open meanwhile.
    """

    stream: str
    principal: Principal = LOCAL
    last: int = 0
    head: int = 0
    phase: Phase = "held"
    begun: bool = False
    verified: bool = False
    doubted: bool = False
    generation: str = ""
    plain: bool = False
    hidden: int = 0
    ended: StreamEnd | None = None
    leave: Callable[[], None] = lambda: None
    _buffer: deque[Published] = attrs.field(
        init=False, factory=lambda: deque[Published](maxlen=BUFFERED)
    )

    def take(self, event: Published) -> bool:
        """An event came in; true: pass it on now."""
        seq = event.record.seq
        if seq is not None:
            self.head = max(self.head, seq)
        if self.phase == "held":
            self._buffer.append(event)
        if self.phase != "live":
            return False
        if seq is None:
            return True
        if seq > self.last + 1:
            self.phase = "held"
            self._buffer.append(event)
            return False
        if seq <= self.last:
            return False
        self.last = seq
        return True

    def take_all(self, start: int | None, end: int | None) -> bool:
        """Events with the numbers ``start`` to ``end`` came in, None: without numbers.

        True: pass all of them on now; false: ask :meth:`take` for each.
        """
        if self.phase != "live" or (start is not None and start != self.last + 1):
            return False
        if end is not None:
            self.last = end
            if end > self.head:
                self.head = end
        return True

    def sees(self, owner: str | None) -> bool:
        """Whether an event of this owner is for the principal."""
        who = self.principal
        return who.role == "admin" or who.user == owner

    def verify(self, generation: str = "") -> None:
        """The host has said that the stream is the principal's."""
        self.verified, self.doubted, self.generation = True, False, generation

    def doubt(self) -> None:
        """Whether the stream is still the principal's is not known: pass nothing on."""
        if self.phase in ("held", "live"):
            self.phase, self.doubted = "held", True

    def answered(self) -> None:
        """The answer to the subscribe request is queued."""
        self.begun = True

    def begin(self, after: int, head: int) -> None:
        """Go on after number ``after`` of a stream whose highest is ``head``."""
        self.last = after
        self.head = max(self.head, head)

    def replayed(self, seq: int) -> bool:
        """A past event is to be passed on; false: numbers before it are missing in the journal."""
        if seq != self.last + 1:
            return False
        self.last = seq
        self.head = max(self.head, seq)
        return True

    def splice(self) -> list[Published]:
        """The buffered events to pass on; the phase is ``live`` then unless numbers are missing."""
        ready: list[Published] = []
        while self._buffer:
            event = self._buffer[0]
            seq = event.record.seq
            if seq is not None and seq > self.last + 1:
                return ready
            self._buffer.popleft()
            if seq is None:
                ready.append(event)
            elif seq == self.last + 1:
                self.last = seq
                ready.append(event)
            else:
                # This event was replayed already, so the ephemeral ones before it are outdated.
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
        self._buffer.clear()


_JOURNAL_LAG: Final = 0.1  # seconds until an event that was announced is looked for again


@attrs.define(eq=False)
class Streams:
    """``wake`` is called when the outbox got something.

    ``send_now`` sends frames past the empty outbox; false: it could not.
    """

    _api: HostApi
    _hub: Hub
    _outbox: Outbox
    _wake: Callable[[], None]
    _limits: Limits
    _principal: Principal
    _send_now: Callable[[bytes], bool] = lambda _frames: False
    _subscriptions: dict[str, Subscription] = attrs.field(
        init=False, factory=dict[str, Subscription]
    )
    _unwatch: dict[Subscription, Callable[[], None]] = attrs.field(
        init=False, factory=dict[Subscription, "Callable[[], None]"]
    )
    _replays: deque[Subscription] = attrs.field(init=False, factory=deque[Subscription])
    _work: trio.Event = attrs.field(init=False, factory=trio.Event)

    def __len__(self) -> int:
        return len(self._subscriptions)

    async def subscribe(
        self, stream: str, after: int | None, principal: Principal | None = None
    ) -> tuple[StreamState, Callable[[], None]]:
        """The stream's state, and a function that starts the flow once that answer is queued.

        ``principal``: the user, if it is not the connection's. Raises :class:`NotFound` for a
        stream that is not the principal's, :class:`Refusal` above the limit. Cancelled or failed,
        it leaves no subscription behind.
        """
        subscription = self._open(stream, principal or self._principal)
        try:
            head = await self._verify(subscription)
            if head is None:
                raise NotFound(f"no stream {stream!r}")
        except BaseException:
            self._close(subscription)
            raise
        if stream.startswith(ROOM_STREAM):
            who = subscription.principal
            subscription.leave = self._api.rooms.enter(_room(stream), who)
        state = _state(head, after)
        subscription.begin(after if state.resumed and after is not None else head.head, head.head)
        return state, lambda: self._start(subscription)

    def unsubscribe(self, stream: str) -> bool:
        """End a subscription; its queued events are not sent. False: there was none."""
        subscription = self._subscriptions.get(stream)
        if subscription is None:
            return False
        self._close(subscription)
        return True

    def heads(self) -> dict[str, int]:
        """The highest number of each stream that is known to be the principal's."""
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
        """Replay past events, a page for each stream in turn, until cancelled."""
        while True:
            while not self._replays:
                self._work = trio.Event()
                await self._work.wait()
            subscription = self._replays[0]
            again = await self._advance(subscription)
            self._replays.popleft()
            if again and subscription.phase == "held":
                self._replays.append(subscription)

    # -- opening and closing --------------------------------------------------------------------

    def _open(self, stream: str, principal: Principal) -> Subscription:
        prefixes = (SESSION_STREAM, ROOM_STREAM)
        known = stream.startswith(prefixes) and stream not in prefixes
        if not known and not (stream == HOST_STREAM and principal.role == "admin"):
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
        self._unwatch[subscription] = self._hub.watch(
            stream,
            partial(self._arrived, subscription),
            partial(self._access_changed, subscription),
        )
        return subscription

    def _close(self, subscription: Subscription) -> None:
        subscription.close()
        subscription.leave()
        unwatch = self._unwatch.pop(subscription, None)
        if unwatch is not None:
            unwatch()
        if self._subscriptions.get(subscription.stream) is subscription:
            del self._subscriptions[subscription.stream]
            self._outbox.withdraw(subscription.stream)

    async def _verify(self, subscription: Subscription) -> StreamHead | None:
        """Look up whose the stream is; None: another's. A session without an owner may come."""
        stream = subscription.stream
        if stream.startswith(ROOM_STREAM):
            head = await self._api.events.head(stream)
            try:  # Afterwards: a member who is removed meanwhile is not told of later events.
                info = await self._api.rooms.get(_room(stream), principal=subscription.principal)
            except NotFound:
                return None
            subscription.plain, subscription.hidden = not info.details, info.hidden
            subscription.verify()
            return replace(head, oldest=max(head.oldest, info.hidden_events + 1))
        head = await self._api.events.head(stream)
        if stream == HOST_STREAM:
            subscription.verify()
        elif head.owner is not None:
            if not subscription.sees(head.owner):
                return None
            if subscription.verified and subscription.generation != head.generation:
                return None  # the session that it was for is gone
            subscription.verify(head.generation)
        elif subscription.verified:
            return None
        else:
            subscription.doubted = False
        return head

    def _access_changed(self, subscription: Subscription, generation: str) -> None:
        """The session was deleted, or the audience of the room has changed."""
        if subscription.stream.startswith(ROOM_STREAM):
            name = _room(subscription.stream)
            if generation == "deleted":
                self._end(subscription, "deleted")
            elif not self._api.rooms.open_to(name, subscription.principal):
                self._end(subscription, "removed")
            elif subscription.phase in ("held", "live"):
                # A room that is not at work has its audience on disk only.
                subscription.doubt()
                if subscription.begun:
                    self._schedule(subscription)
        elif subscription.verified and subscription.generation == generation:
            self._end(subscription, "deleted")

    def _end(self, subscription: Subscription, reason: StreamEnd) -> None:
        """End a subscription that the client believes to have, and say so."""
        self._close(subscription)
        if subscription.begun:
            self._tell_end(subscription, reason)
        else:
            subscription.ended = reason  # it is told after the answer that it has begun

    def _tell_end(self, subscription: Subscription, reason: StreamEnd) -> None:
        record = EventRecord(subscription.stream, StreamEnded(reason), wall_time())
        self._outbox.answer(encode(event_frame(record)))
        self._wake()

    def _start(self, subscription: Subscription) -> None:
        subscription.answered()
        if subscription.ended is not None:
            self._tell_end(subscription, subscription.ended)
        if subscription.phase != "held":
            return
        if not subscription.verified or subscription.doubted:
            # A session that does not exist yet has no owner: its first event has it looked up.
            if subscription.head > 0 or subscription.doubted:
                self._schedule(subscription)
            return
        self._splice(subscription)
        if subscription.phase == "held":
            self._schedule(subscription)

    # -- live events ----------------------------------------------------------------------------

    def _arrived(self, subscription: Subscription, batch: Batch) -> None:
        if not self._is_open(subscription, batch.owner):
            # The session is another's now, or this is left of an earlier one of its name.
            subscription.doubt()
            if subscription.begun:
                self._schedule(subscription)
            return
        # The usual case: a client that keeps up gets the whole batch in one write, and all clients
        # of the stream the same bytes.
        if subscription.take_all(batch.start, batch.end):
            batch = batch.plain if subscription.plain else batch
            if batch.hides(subscription.hidden):
                for event in batch.events:
                    self._offer(subscription, event)
            elif not self._send_now(batch.bytes()):
                self._queue(subscription, batch.events)
            return
        for event in batch.events:
            if subscription.take(event):
                self._offer(subscription, event)
            elif subscription.phase == "held" and subscription.begun:
                # Events before it are missing, or the owner of a new session is to be looked up.
                self._schedule(subscription)
            elif subscription.phase == "lost":
                self._outbox.extend_gap(subscription.stream, subscription.head)

    def _is_open(self, subscription: Subscription, owner: str | None) -> bool:
        """Whether an event of the stream, and of this owner, is for the principal."""
        stream = subscription.stream
        if stream.startswith(ROOM_STREAM):
            return self._api.rooms.open_to(_room(stream), subscription.principal)
        return subscription.sees(owner)

    def _offer(self, subscription: Subscription, event: Published) -> None:
        event = event.shown(plain=subscription.plain, hidden=subscription.hidden)
        if not self._send_now(event.bytes()):
            self._queue(subscription, [event])

    def _queue(self, subscription: Subscription, events: Sequence[Published]) -> None:
        """Put events that the subscription has taken into the outbox, as far as there is room."""
        for event in events:
            if not self._outbox.offer(event):
                seq = event.record.seq
                assert seq is not None, "only durable events are refused"
                self._lose(subscription, seq)
                break
        self._wake()

    def _lose(self, subscription: Subscription, start: int) -> None:
        subscription.lose()
        self._hub.count_gap()
        self._outbox.gap(subscription.stream, start, max(start, subscription.head), wall_time())
        self._wake()

    # -- past events ----------------------------------------------------------------------------

    def _splice(self, subscription: Subscription) -> None:
        for event in subscription.splice():
            if subscription.phase == "lost":
                return
            self._offer(subscription, event)

    def _schedule(self, subscription: Subscription) -> None:
        if subscription not in self._replays:
            self._replays.append(subscription)
            self._work.set()

    async def _advance(self, subscription: Subscription) -> bool:
        """Fetch and write one page; false: the subscription is live or has ended."""
        if subscription.doubted or not subscription.verified:
            known = subscription.verified
            head = await self._verify(subscription)
            if subscription.phase != "held":
                return False
            if head is None:
                # A client that has waited for a session of its own is not told of another's.
                if known:
                    self._end(subscription, _reason(subscription.stream))
                else:
                    self._close(subscription)
                return False
            if not subscription.verified:
                return False  # there is no such session yet
            if subscription.last + 1 < head.oldest:  # it is a newcomer's by now, or lost its start
                self._lose(subscription, subscription.last + 1)
                return False
        # The buffer may hold all missing events: then none of their deltas is lost.
        self._splice(subscription)
        if subscription.phase != "held":
            return False
        limit = self._limits.page_events
        page = await self._api.events.read(subscription.stream, subscription.last, limit)
        if subscription.phase != "held":
            return False
        if page and not self._is_open(subscription, page[0].owner):
            subscription.doubt()
            return True
        if page:
            await self._write_page(subscription, page)
        if subscription.phase != "held":
            return False
        self._splice(subscription)
        if subscription.phase == "held" and not page:
            # The event was announced and is not in the journal yet: its commit is under way.
            await trio.sleep(_JOURNAL_LAG)
        return True

    async def _write_page(self, subscription: Subscription, records: Sequence[EventRecord]) -> None:
        events: list[Published] = []
        size = 0
        for record in records:
            record = without_details(record) if subscription.plain else record
            event = Published(without_hidden(record, subscription.hidden))
            size += event.size
            if events and size > self._limits.page_bytes:
                break
            if record.seq is None or not subscription.replayed(record.seq):
                break
            events.append(event)
        if not events:
            # The journal does not have the next number any more: the client has to start anew.
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


def _room(stream: str) -> str:
    return stream.removeprefix(ROOM_STREAM)


def _reason(stream: str) -> StreamEnd:
    return "removed" if stream.startswith(ROOM_STREAM) else "deleted"
