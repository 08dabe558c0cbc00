"""The client's side of ``motet.v1``, without I/O: frames to send, given frames that came.

It outlives connections: :meth:`Machine.opened`, :meth:`~Machine.received` and :meth:`~Machine.lost`
report each of them, and :attr:`Machine.outgoing` has the frames for the present one. Its states are
in :mod:`.states`. Invariants: nothing but ``connect`` is sent before the host has answered it; a
stream continues after its last event (:class:`Following`); an unanswered request is sent again
exactly if that is harmless.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import attrs
import msgspec
from msgspec import UNSET

from motet.client.requests import ClientError, Pending, RequestFailed, Requests
from motet.client.states import (
    CONNECTION,
    STREAM,
    ConnectionEvent,
    ConnectionState,
    StreamEvent,
    StreamState,
    next_state,
)
from motet.protocols import gateway as wire
from motet.protocols.chat import JsonObject
from motet.protocols.events import (
    AnyEvent,
    EventRecord,
    Gap,
    StorageChanged,
    StreamEnd,
    StreamEnded,
    Tick,
)
from motet.protocols.gateway import ErrorBody

CAPACITY: Final = 1_024
R = TypeVar("R")
_Told: TypeAlias = tuple[str | None, AnyEvent]
_RESUMED: Final = 32  # streams that a connect may name; others are subscribed to after it
_UNKNOWN: Final = wire.ErrorBody("internal", "the host said that it failed, and not why")


@attrs.define(eq=False)
class Following:
    """One stream that is read. ``changed`` is called when there is an event or an error. Pure.

    Invariant: the numbered events that :meth:`take` gives are ``after + 1, after + 2, ...``, each
    once and in order, except where a ``Gap`` stands for events that the host no longer has, and for
    an event that came before without a number, since the host could not store it then.

    Attributes:
        last: number of the last event that was kept; None: the stream's head when it is asked for.
        request: id of the request that asks for the events after ``last``.
        begun: the host has answered once.
        error: why no event follows the kept ones.
    """

    stream: str
    last: int | None
    changed: Callable[[], None]
    capacity: int = CAPACITY
    state: StreamState = attrs.field(init=False, default="idle")
    request: str | None = attrs.field(init=False, default=None)
    begun: bool = attrs.field(init=False, default=False)
    error: ClientError | None = attrs.field(init=False, default=None)
    _kept: deque[EventRecord] = attrs.field(init=False, factory=deque[EventRecord])
    _early: deque[_Told] = attrs.field(init=False, factory=lambda: deque[_Told](maxlen=CAPACITY))
    """Durable events that were kept without a number, and come again with one."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def may_ask(self) -> bool:
        return "ask" in STREAM[self.state]

    def ask(self, request_id: str) -> None:
        """A request for the events after ``last`` is sent."""
        self._become("ask")
        self.request = request_id

    def answered(self, state: wire.StreamState, now: float) -> None:
        """The host has reported the stream's state; ``now``: Unix seconds."""
        self.begun = True
        reason = "" if state.reason is UNSET else state.reason
        if self.last is not None and not state.resumed:
            if reason in ("not_found", "limit_reached"):
                message = f"{self.stream} cannot be read: {reason}"
                self.fail(RequestFailed(ErrorBody(reason, message)))
                return
            start = min(self.last, state.head) + 1
            self._kept.append(EventRecord(self.stream, Gap(start, state.head), now))
            self.last = state.head
        elif self.last is None:
            self.last = state.head
        self._become("answer")
        self.changed()

    def refused(self, error: RequestFailed) -> None:
        """The host has not reported the stream's state."""
        if self.begun and error.retryable:
            self._become("retry")
        else:
            self.fail(error)

    def arrived(self, seq: int | None, record: EventRecord | None) -> bool:
        """An event came, None if it is of a later version. True: events before it are missing."""
        if self.last is None or self.state in ("held", "failed"):
            return False
        if seq is None:
            self._keep_ephemeral(record)
            return False
        if seq > self.last + 1:
            return self.state != "asking"
        if seq == self.last + 1:
            self._keep(seq, record)
        return False

    def take(self) -> EventRecord | None:
        """The next event that is kept. A held stream may be asked for when it is half empty."""
        if not self._kept:
            return None
        record = self._kept.popleft()
        if self.state == "held" and len(self._kept) <= self.capacity // 2:
            self._become("drain")
        return record

    def fail(self, error: ClientError) -> None:
        """No event follows the kept ones."""
        self._become("fail")
        self.error = self.error or error
        self.changed()

    def ended(self, reason: StreamEnd) -> None:
        """The host has ended the subscription. While it is asked anew, its answer counts."""
        if self.state != "asking":
            what = "was deleted" if reason == "deleted" else "is not open to you any more"
            self.fail(RequestFailed(ErrorBody("not_found", f"{self.stream} {what}")))

    def disconnected(self) -> None:
        self._become("disconnect")

    def restarted(self) -> None:
        """The host has restarted: parts of unfinished messages mean nothing any more."""
        self._forget_ephemerals()
        self._early.clear()

    def _forget_ephemerals(self) -> None:
        """What has no number goes; a durable event is taken when it comes with its number."""
        kept = deque[EventRecord]()
        for record in self._kept:
            if record.seq is not None or _is_gap(record):
                kept.append(record)
            else:
                self._is_told(record)
        self._kept = kept

    def _keep(self, seq: int, record: EventRecord | None) -> None:
        if record is not None and self._early and self._is_told(record):
            self.last = seq
            return
        if len(self._kept) >= self.capacity:
            self._forget_ephemerals()
        if len(self._kept) >= self.capacity:
            self._become("fill")
            return
        self.last = seq
        if record is not None:
            self._kept.append(record)
            self.changed()

    def _keep_ephemeral(self, record: EventRecord | None) -> None:
        # While it is asked for, events before this one may be missing.
        if record is None or self.state == "asking" or len(self._kept) >= self.capacity // 2:
            return
        if record.event.durable:
            self._early.append((record.run_id, record.event))
        self._kept.append(record)
        self.changed()

    def _is_told(self, record: EventRecord) -> bool:
        """Whether it was kept without a number; asked once."""
        try:
            self._early.remove((record.run_id, record.event))
        except ValueError:
            return False
        return True

    def _become(self, event: StreamEvent) -> None:
        self.state = next_state(STREAM, self.state, event, self.stream)
        if self.state != "asking":
            self.request = None


def _is_gap(record: EventRecord) -> bool:
    return isinstance(record.event, Gap)


@attrs.define(eq=False)
class Machine:
    """One client. ``on_outgoing`` is called when there is a frame in ``outgoing``.

    Attributes:
        server: the host, while the client is online.
        restarts: how often a new connection was to a host that had restarted.
        unreadable: events that only another version understands.
        error: why the client is closed.
    """

    client: wire.ClientInfo
    token: str | None = attrs.field(default=None, repr=False)
    on_outgoing: Callable[[], None] = attrs.field(default=lambda: None)
    as_user: str | None = None
    state: ConnectionState = attrs.field(init=False, default="offline")
    server: wire.Connected | None = attrs.field(init=False, default=None)
    restarts: int = attrs.field(init=False, default=0)
    unreadable: int = attrs.field(init=False, default=0)
    error: ClientError | None = attrs.field(init=False, default=None)
    outgoing: deque[str] = attrs.field(init=False, factory=deque[str])
    _instance: str | None = attrs.field(init=False, default=None)
    _connect: str | None = attrs.field(init=False, default=None)
    _requests: Requests = attrs.field(init=False, factory=Requests)
    _streams: dict[str, Following] = attrs.field(init=False, factory=dict[str, Following])
    _ids: itertools.count[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    # -- the connection --------------------------------------------------------------------------

    def opened(self) -> None:
        """There is a connection: send the ``connect``, with the last event of each stream."""
        self._become("open")
        self._connect = self._id()
        resume: dict[str, int] = {}
        for stream, following in self._streams.items():
            if following.last is not None and following.may_ask and len(resume) < _RESUMED:
                resume[stream] = following.last
                following.ask(self._connect)
        auth = wire.Auth(self.token, self.as_user)
        params = wire.ConnectParams(client=self.client, auth=auth, resume=resume)
        self._send(self._connect, "connect", _fields(params))

    def received(self, text: str) -> None:
        """A frame came. Raises :class:`RequestFailed` when the host refuses the connect.

        Raises :class:`~motet.protocols.gateway.FrameError` for text that is no frame.
        """
        frame = wire.decode_frame(text)
        if isinstance(frame, wire.EventFrame):
            self._event(frame)
        elif isinstance(frame, wire.ResponseFrame):
            self._response(frame)

    def lost(self) -> None:
        """The connection has ended; there is another one when :meth:`opened` is called."""
        self._become("lose")
        self.server = self._connect = None
        self.outgoing.clear()
        self._requests.disconnected()
        for following in self._streams.values():
            following.disconnected()

    def fail(self, error: ClientError) -> None:
        """There will be no other connection: fail all requests and streams, also later ones."""
        self._become("close")
        self.error = error
        self._requests.fail(error)
        for following in self._streams.values():
            following.fail(error)

    # -- the caller ------------------------------------------------------------------------------

    def request(self, method: str, params: JsonObject, settled: Callable[[], None]) -> Pending:
        """Have a request sent as soon as possible."""
        pending = Pending(self._id(), method, params, settled)
        if self.error is not None:
            pending.settle(None, self.error)
        else:
            self._requests.add(pending)
            self._send_due()
        return pending

    def forget(self, pending: Pending) -> None:
        """The caller waits no longer; a request that was not sent never is."""
        self._requests.pop(pending.id)

    def follow(
        self, stream: str, after: int | None, changed: Callable[[], None], capacity: int = CAPACITY
    ) -> Following:
        """Read a stream after number ``after``; None: after its head when it is asked for."""
        if stream in self._streams:
            raise ClientError(f"{stream} is read by this client already; one reader is enough")
        following = Following(stream, after, changed, capacity)
        self._streams[stream] = following
        if self.error is not None:
            following.fail(self.error)
        self._ask(following)
        return following

    def unfollow(self, following: Following) -> None:
        """Stop reading a stream."""
        if self._streams.get(following.stream) is following:
            del self._streams[following.stream]
            self._unsubscribe(following)

    def take(self, following: Following) -> EventRecord | None:
        """The next event of a stream; a held stream continues when it is read."""
        was_held = following.state == "held"
        record = following.take()
        if was_held and following.state != "held":
            # Not before it is half empty: a slow reader would subscribe again for each event.
            self._ask(following)
        return record

    # -- answers ---------------------------------------------------------------------------------

    def _response(self, frame: wire.ResponseFrame) -> None:
        error = None if frame.ok else _failure(frame)
        if frame.id == self._connect:
            if error is not None:
                raise error
            self._accepted(_converted(frame.result, wire.Connected))
        elif (pending := self._requests.pop(frame.id)) is not None:
            pending.settle(frame.result, error)
            self._send_due()
        elif (following := self._asked_by(frame.id)) is not None:
            if error is not None:
                following.refused(error)
            else:
                state = _converted(frame.result, wire.StreamState)
                following.answered(state, self._now())

    def _asked_by(self, request_id: str) -> Following | None:
        return next((one for one in self._streams.values() if one.request == request_id), None)

    def _accepted(self, connected: wire.Connected) -> None:
        self._become("accept")
        self.server = connected
        instance = connected.server.instance
        if self._instance not in (None, instance):
            self.restarts += 1
            for following in self._streams.values():
                following.restarted()
        self._instance = instance
        for stream, following in self._streams.items():
            if following.request == self._connect and stream in connected.streams:
                following.answered(connected.streams[stream], connected.server.time)
            else:
                self._ask(following)
        self._connect = None
        self._send_due()

    # -- events ----------------------------------------------------------------------------------

    def _event(self, frame: wire.EventFrame) -> None:
        record = self._record(frame)
        if record is not None and isinstance(record.event, Tick):
            self._ticked(record.event)
            return
        if record is not None and isinstance(record.event, StorageChanged):
            for stream in self._streams.values():
                stream.arrived(None, record)
            return
        following = self._streams.get(frame.stream)
        if following is None:
            return
        if record is not None and isinstance(record.event, StreamEnded):
            following.ended(record.event.reason)
            return
        was_held = following.state == "held"
        seq = None if frame.seq is UNSET else frame.seq
        if (record is not None and isinstance(record.event, Gap)) or following.arrived(seq, record):
            self._ask(following)
        if following.state == "held" and not was_held:
            self._unsubscribe(following)

    def _record(self, frame: wire.EventFrame) -> EventRecord | None:
        """None for an event that only a later version knows, or means in another way."""
        try:
            return wire.event_record(frame)
        except wire.FrameError:
            self.unreadable += 1
            return None

    def _ticked(self, tick: Tick) -> None:
        for stream, following in self._streams.items():
            last = following.last
            behind = last is not None and tick.heads.get(stream, 0) > last
            if behind or following.state == "retrying":
                self._ask(following)

    # -- sending ---------------------------------------------------------------------------------

    def _ask(self, following: Following) -> None:
        """Ask for the events after the last one, unless that is under way or impossible."""
        if self.server is None or not following.may_ask:
            return
        request_id = self._id()
        following.ask(request_id)
        params: JsonObject = {"stream": following.stream}
        if following.last is not None:
            params["after"] = following.last
        self._send(request_id, "subscribe", params)

    def _unsubscribe(self, following: Following) -> None:
        if self.server is not None:
            self._send(self._id(), "unsubscribe", {"stream": following.stream})

    def _send_due(self) -> None:
        if self.server is None:
            return
        limits = self.server.limits
        for pending in self._requests.due(limits.in_flight + limits.waiting // 2):
            size = len(pending.text.encode())
            if size > limits.frame:
                self._requests.pop(pending.id)
                why = f"{pending.method} takes {size} bytes, the host reads {limits.frame}"
                pending.settle(None, RequestFailed(wire.ErrorBody("invalid_params", why)))
            else:
                pending.send()
                self._put(pending.text)

    def _send(self, request_id: str, method: str, params: JsonObject) -> None:
        self._put(wire.encode(wire.RequestFrame(request_id, method, params)))

    def _put(self, text: str) -> None:
        self.outgoing.append(text)
        self.on_outgoing()

    def _become(self, event: ConnectionEvent) -> None:
        self.state = next_state(CONNECTION, self.state, event, "the client")

    def _id(self) -> str:
        return str(next(self._ids))

    def _now(self) -> float:
        return self.server.server.time if self.server is not None else 0.0


def _fields(params: wire.ConnectParams) -> JsonObject:
    return msgspec.convert(msgspec.to_builtins(params), JsonObject)


def _failure(frame: wire.ResponseFrame) -> RequestFailed:
    return RequestFailed(_UNKNOWN if frame.error is UNSET else frame.error)


def _converted(result: object, kind: type[R]) -> R:
    try:
        return msgspec.convert(result, kind)
    except msgspec.ValidationError as error:
        raise wire.FrameError(f"an answer that is not of {wire.SUBPROTOCOL}: {error}") from None
